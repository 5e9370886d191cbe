package stateapi

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

func manifest(name, spec string) string {
	return `{"apiVersion":"rooms.example.com/v1alpha1","kind":"Reservation","metadata":{"name":"` + name +
		`","namespace":"rooms"},"spec":` + spec + `}`
}

// kubectl's ways to write, on a store of somebody else's.
func TestWrite(t *testing.T) {
	g := NewWithT(t)
	serve(t)
	// kubectl validates by itself until it knows that the server does.
	eventually(t, func() string { return tryKubectl(t, "get", "--raw", "/openapi/v3") }).
		Should(ContainSubstring("apis/rooms.example.com/v1alpha1"))
	spec := func(name string) string {
		return kubectl(t, "get", "rsv", name, "-n", "rooms", "-o", "jsonpath={.spec}")
	}
	kubectlWith(t, manifest("created", `{"room":"red"}`), "create", "-f", "-")
	g.Expect(spec("created")).To(MatchJSON(`{"room":"red"}`))
	g.Expect(kubectl(t, "get", "rsv", "created", "-n", "rooms", "-o", "jsonpath={.metadata.uid}")).NotTo(BeEmpty())
	_, err := cp.KubectlInput(t.Context(), manifest("created", `{"room":"red"}`), "create", "-f", "-")
	g.Expect(err).To(MatchError(ContainSubstring("AlreadyExists")))
	_, err = cp.KubectlInput(t.Context(), manifest("Bad_Name", `{"room":"red"}`), "create", "-f", "-")
	g.Expect(err).To(MatchError(ContainSubstring("metadata.name: Invalid value")))
	_, err = cp.KubectlInput(t.Context(), manifest("typo", `{"room":"red","seat":2}`), "create", "-f", "-")
	g.Expect(err).To(MatchError(ContainSubstring(`unknown field "spec.seat"`)))
	_, err = cp.KubectlInput(t.Context(), manifest("roomless", `{"room":""}`), "create", "-f", "-")
	g.Expect(err).To(MatchError(ContainSubstring("spec.room is empty")), "an error of the store")

	kubectlWith(t, manifest("applied", `{"room":"red","seats":2}`), "apply", "-f", "-")
	kubectlWith(t, manifest("applied", `{"room":"blue"}`), "apply", "-f", "-")
	g.Expect(spec("applied")).To(MatchJSON(`{"room":"blue"}`), "what is no longer applied is gone")

	ssa := func(manager, spec string) (string, error) {
		return cp.KubectlInput(t.Context(), manifest("served", spec), "apply", "--server-side", "--field-manager="+manager,
			"-f", "-")
	}
	_, err = ssa("ann", `{"room":"red","guests":["ann"]}`)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = ssa("bob", `{"room":"red","guests":["bob"]}`)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(spec("served")).To(MatchJSON(`{"room":"red","guests":["ann","bob"]}`), "a set has several owners")
	_, err = ssa("bob", `{"room":"blue"}`)
	g.Expect(err).To(MatchError(ContainSubstring("conflict with \"ann\"")))

	kubectl(t, "patch", "rsv", "served", "-n", "rooms", "--type=merge", "-p", `{"spec":{"seats":7}}`)
	kubectl(t, "patch", "rsv", "served", "-n", "rooms", "--type=json", "-p",
		`[{"op":"replace","path":"/spec/room","value":"green"}]`)
	g.Expect(spec("served")).To(MatchJSON(`{"room":"green","guests":["ann","bob"],"seats":7}`))
	kubectl(t, "label", "rsv", "served", "-n", "rooms", "floor=1")

	for _, dryRun := range [][]string{{"create", "-f", "-"}, {"apply", "--server-side", "-f", "-"}} {
		kubectlWith(t, manifest("dry", `{"room":"red"}`), append(dryRun, "--dry-run=server")...)
	}
	kubectl(t, "delete", "rsv", "served", "-n", "rooms", "--dry-run=server")
	kubectl(t, "patch", "rsv", "served", "-n", "rooms", "--type=merge", "-p", `{"spec":{"seats":8}}`, "--dry-run=server")
	g.Expect(strings.Fields(kubectl(t, "get", "rsv", "-n", "rooms", "-o", "jsonpath={.items[*].metadata.name}"))).
		To(Equal([]string{"applied", "created", "served"}))
	g.Expect(spec("served")).To(ContainSubstring(`"seats":7`))
	kubectl(t, "delete", "rsv", "served", "-n", "rooms")
	kubectl(t, "delete", "rsv", "--all", "-n", "rooms")
	g.Expect(kubectl(t, "get", "rsv", "-n", "rooms", "-o", "name")).To(BeEmpty())
}

// An update of an object that does not exist creates it, for those who may create. What was read
// and deleted since does not come back, and what was read and changed since is a conflict.
func TestUpdates(t *testing.T) {
	g := NewWithT(t)
	s := serve(t)
	everything := dynamic.NewForConfigOrDie(cp.Config()).Resource(reservations).Namespace("rooms")
	object := func(name, room string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "rooms.example.com/v1alpha1",
			"kind": "Reservation", "metadata": map[string]any{"name": name, "namespace": "rooms"},
			"spec": map[string]any{"room": room}}}
	}
	created, err := everything.Update(t.Context(), object("a", "red"), metav1.UpdateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(created.GetUID()).NotTo(BeEmpty())
	blind, err := everything.Update(t.Context(), object("a", "blue"), metav1.UpdateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(blind.GetUID()).To(Equal(created.GetUID()), "an update keeps the UID")
	g.Expect(blind.GetCreationTimestamp()).To(Equal(created.GetCreationTimestamp()))
	created.Object["spec"] = map[string]any{"room": "green"}
	_, err = everything.Update(t.Context(), created, metav1.UpdateOptions{})
	g.Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)

	old, other := created.GetUID(), types.UID("other")
	err = everything.Delete(t.Context(), "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}})
	g.Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)
	err = everything.Delete(t.Context(), "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &old}})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = everything.Update(t.Context(), blind, metav1.UpdateOptions{})
	g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
	_, err = everything.Patch(t.Context(), "a", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
	g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)

	config, err := cp.UserConfig("updater")
	g.Expect(err).NotTo(HaveOccurred())
	create(t, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: "rooms", Name: "updater"},
		Rules: []rbacv1.PolicyRule{
			{
				APIGroups: []string{"rooms.example.com"},
				Resources: []string{"reservations"},
				Verbs: []string{"get", "update",
					"patch"},
			}},
	})
	create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "rooms", Name: "updater"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "updater"},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "updater"}},
	})
	updater := dynamic.NewForConfigOrDie(config).Resource(reservations).Namespace("rooms")
	s.reserve("there", "red")
	eventually(t, func() error {
		_, err := updater.Update(t.Context(), object("there", "blue"), metav1.UpdateOptions{})
		return err
	}).Should(Succeed())
	_, err = updater.Update(t.Context(), object("missing", "blue"), metav1.UpdateOptions{})
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
	_, err = updater.Apply(t.Context(), "missing", object("missing", "blue"), metav1.ApplyOptions{FieldManager: "test"})
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
	g.Expect(s.store.Remove("rooms", "missing")).To(BeFalse())
}

// Clients that prefer protobuf get JSON, and those that take nothing else learn it.
func TestProtobuf(t *testing.T) {
	g := NewWithT(t)
	s := serve(t)
	s.reserve("a", "red")
	httpClient, err := rest.HTTPClientFor(cp.Config())
	g.Expect(err).NotTo(HaveOccurred())
	defer httpClient.CloseIdleConnections()
	get := func(accept string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			strings.TrimSuffix(cp.Config().Host, "/")+"/apis/rooms.example.com/v1alpha1/namespaces/rooms/reservations/a", nil)
		g.Expect(err).NotTo(HaveOccurred())
		req.Header.Set("Accept", accept)
		resp, err := httpClient.Do(req)
		g.Expect(err).NotTo(HaveOccurred())
		defer resp.Body.Close()
		return fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Content-Type"))
	}
	g.Expect(get("application/vnd.kubernetes.protobuf,application/json")).To(Equal("200 application/json"))
	g.Expect(get("application/yaml")).To(Equal("200 application/yaml"))
	g.Expect(get("application/vnd.kubernetes.protobuf")).To(HavePrefix("406 "))
}
