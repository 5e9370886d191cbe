package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/test/support/deployment"
)

// The permissions of a shard suffice: for its Lease, and to remove the sharder's labels; with one
// view of all shards, also for that.
func TestRing(t *testing.T) {
	for name, view := range map[string]bool{"alone": false, "with one view": true} {
		t.Run(name, func(t *testing.T) { testRing(t, view) })
	}
}

func testRing(t *testing.T, view bool) {
	t.Helper()
	g := NewWithT(t)
	cp := start(t)
	manifests, err := render(t, "-f", "testdata/ring.values.yaml", "--set", fmt.Sprint("stateAPI.enabled=", view))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.KubectlInput(t.Context(), manifests, "apply", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.KubectlInput(t.Context(), `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": {"name": "apps.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
		"names": {"plural": "apps", "singular": "app", "kind": "App", "listKind": "AppList"},
		"versions": [{"name": "v1", "served": true, "storage": true,
		"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}`,
		"create", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=60s", "crd/apps.example.com")
	g.Expect(err).NotTo(HaveOccurred())
	shard, err := os.Hostname() // which is the name of the Pod in a cluster
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.KubectlInput(t.Context(), `{"apiVersion": "example.com/v1", "kind": "App",
		"metadata": {"name": "blue", "namespace": "team-blue",
		"labels": {"shard.alpha.sharding.timebertt.dev/apps": "`+shard+`"}},
		"spec": {"serviceAccount": {"name": "blue"}}}`, "create", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	objects, err := deployment.Decode(manifests)
	g.Expect(err).NotTo(HaveOccurred())
	m, err := deployment.Start(t.Context(), cp, objects, deployment.Options{Program: program(t), Dir: t.TempDir()})
	g.Expect(err).NotTo(HaveOccurred())
	defer func() {
		m.Stop()
		if t.Failed() {
			t.Log(m.Log())
		}
	}()
	g.Eventually(m.Log).WithTimeout(patience).Should(ContainSubstring(`"msg":"Connected"`))
	g.Expect(cp.Kubectl(t.Context(), "get", "lease", "latchkey", "-n", namespace, "-o",
		"jsonpath={.spec.holderIdentity}")).To(Equal("shards of ring apps"), "no leader can take it")
	if view {
		g.Eventually(func() (string, error) {
			return cp.Kubectl(t.Context(), "get", "endpointslice", "latchkey-state-leader", "-n", namespace, "-o",
				"jsonpath={.endpoints[0].addresses[0]}")
		}).WithTimeout(patience).Should(Equal("192.0.2.1"), "this replica serves the view")
	}
	_, err = cp.Kubectl(t.Context(), "label", "apps.example.com", "blue", "-n", "team-blue",
		"drain.alpha.sharding.timebertt.dev/apps=true")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() (string, error) {
		return cp.Kubectl(t.Context(), "get", "apps.example.com", "blue", "-n", "team-blue", "-o",
			"jsonpath={.metadata.labels}")
	}).WithTimeout(patience).Should(BeEmpty(), "it has given the object up")
	m.Stop()
	g.Expect(cp.Kubectl(t.Context(), "get", "lease", shard, "-n", namespace, "-o",
		"jsonpath={.spec.holderIdentity}")).To(BeEmpty(), "it has released its Lease")
	if view { // no permission lacks, and TestInstall shows for buckets that each is used
		g.Expect(deployment.CheckPermissions(cp.AuditLog(), objects)).NotTo(MatchError(ContainSubstring("denied: ")))
		return
	}
	// No permission lacks, and each is used. Extensions may be in any namespace.
	g.Expect(deployment.CheckPermissions(cp.AuditLog(), objects)).To(MatchError("permissions of " + m.User +
		":\nused in single namespaces only: ClusterRole/latchkey rule 0: patch apps.example.com"))
}

// A release whose replicas share the extensions gets one view of all by an upgrade, and loses it by
// a rollback. The chart has the Secret of the authority without data: what the replicas write into
// it is kept by further upgrades. A Secret that another program keeps replaces it.
func TestUpgradeToOneView(t *testing.T) {
	g := NewWithT(t)
	binary := program(t)
	cp := start(t)
	run := func(args ...string) string {
		out, err := helm(t.Context(), cp.Kubeconfig(), append(args, "--namespace", namespace)...)
		g.Expect(err).NotTo(HaveOccurred())
		return out
	}
	upgrade := func(args ...string) {
		run(append([]string{"upgrade", "latchkey", chart, "-f", "testdata/view.values.yaml"}, args...)...)
	}
	connect := func() {
		objects, err := deployment.Decode(run("get", "manifest", "latchkey"))
		g.Expect(err).NotTo(HaveOccurred())
		options := deployment.Options{Program: binary, Dir: t.TempDir()}
		g.Expect(deployment.Exercise(t.Context(), cp, objects, options, patience)).To(Succeed())
	}
	secret := func(name string) (data map[string]string, err error) {
		out, err := cp.Kubectl(t.Context(), "get", "secret", name, "-n", namespace, "-o", "jsonpath={.data}")
		if err != nil || out == "" {
			return nil, err
		}
		return data, json.Unmarshal([]byte(out), &data)
	}

	run("install", "latchkey", chartBefore(t), "-f", "testdata/view.values.yaml", "--set", "stateAPI.enabled=false")
	g.Expect(deployment.CreateExtensions(t.Context(), cp)).To(Succeed())
	connect()

	upgrade()
	g.Expect(secret("latchkey-state-authority")).To(BeEmpty(), "the chart makes no key")
	connect()
	authority, err := secret("latchkey-state-authority")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(authority).To(And(HaveKey("tls.crt"), HaveKey("tls.key")))
	upgrade("--set", "log.level=debug,podLabels.a=b")
	g.Expect(secret("latchkey-state-authority")).To(Equal(authority), "an upgrade keeps it")

	content, err := json.Marshal(map[string]any{
		"apiVersion": "v1",
		"kind":       "Secret",
		"metadata":   map[string]any{"name": "fleet-ca", "namespace": namespace},
		"type":       "kubernetes.io/tls",
		"data":       authority,
	})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cp.KubectlInput(t.Context(), string(content), "create", "-f", "-")
	g.Expect(err).NotTo(HaveOccurred())
	upgrade("--set", "stateAPI.authority.existingSecret=fleet-ca")
	_, err = secret("latchkey-state-authority")
	g.Expect(err).To(MatchError(ContainSubstring("NotFound")), "the release has none of its own")
	connect()
	g.Expect(secret("fleet-ca")).To(Equal(authority), "it is another program's")

	run("rollback", "latchkey", "1")
	_, err = cp.Kubectl(t.Context(), "get", "apiservice", "v1alpha1.state.latchkey.dev")
	g.Expect(err).To(MatchError(ContainSubstring("NotFound")))
	connect()
	run("uninstall", "latchkey")
	g.Expect(secret("fleet-ca")).To(Equal(authority), "an uninstall leaves what is not its own")
}
