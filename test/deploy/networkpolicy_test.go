package deploy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/latchkey-dev/latchkey/test/support/deployment"
)

// policyOf returns the rendered policy, and the Pods that it is for.
func policyOf(t *testing.T, args ...string) (policy *networkingv1.NetworkPolicy, pod *corev1.PodTemplateSpec) {
	t.Helper()
	g := NewWithT(t)
	manifests, err := render(t, args...)
	g.Expect(err).NotTo(HaveOccurred())
	objects, err := deployment.Decode(manifests)
	g.Expect(err).NotTo(HaveOccurred())
	for _, object := range objects {
		switch object.GetKind() {
		case "NetworkPolicy":
			policy = &networkingv1.NetworkPolicy{}
			g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, policy)).To(Succeed())
		case "Deployment":
			var d appsv1.Deployment
			g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &d)).To(Succeed())
			pod = &d.Spec.Template
		}
	}
	return policy, pod
}

// portsOf returns the ports of a rule, such as "TCP 443".
func portsOf(ports []networkingv1.NetworkPolicyPort) (list []string) {
	for _, port := range ports {
		list = append(list, string(*port.Protocol)+" "+port.Port.String())
	}
	return list
}

// Whatever the values, the policy is for the manager's Pods; others reach the ports that the Pods
// declare, but for that of the probes and of the status page; and the manager reaches API servers,
// and DNS if it has to look up their names. Replicas with one view reach each other, and no other
// Pod reaches them there.
func TestNetworkPolicy(t *testing.T) {
	files, err := filepath.Glob("testdata/*.values.yaml")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			g := NewWithT(t)
			policy, pod := policyOf(t, "-f", file, "--set",
				"networkPolicy.enabled=true,networkPolicy.apiServer.ports={443,6443}")
			g.Expect(policy).NotTo(BeNil())
			g.Expect(policy.Spec.PodSelector.MatchLabels).NotTo(BeEmpty())
			selector := labels.SelectorFromSet(policy.Spec.PodSelector.MatchLabels)
			g.Expect(selector.Matches(labels.Set(pod.Labels))).To(BeTrue())
			g.Expect(policy.Spec.PolicyTypes).To(ConsistOf(networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress))
			var declared, admitted, reached []string
			peers := "" // the port at which the replicas reach each other, if they do
			for _, port := range pod.Spec.Containers[0].Ports {
				number := fmt.Sprint("TCP ", port.ContainerPort)
				if port.Name != "probes" {
					declared = append(declared, number)
				}
				if port.Name == "state-peers" {
					peers = number
				}
			}
			replicas := []networkingv1.NetworkPolicyPeer{{PodSelector: &policy.Spec.PodSelector}}
			for _, rule := range policy.Spec.Ingress {
				g.Expect(rule.Ports).NotTo(BeEmpty(), "no rule is for all ports")
				admitted = append(admitted, portsOf(rule.Ports)...)
				if slices.Contains(portsOf(rule.Ports), peers) {
					g.Expect(rule.From).To(Equal(replicas))
				}
			}
			g.Expect(admitted).To(ConsistOf(declared))
			for _, rule := range policy.Spec.Egress {
				g.Expect(rule.Ports).NotTo(BeEmpty(), "no rule is for all ports")
				reached = append(reached, portsOf(rule.Ports)...)
				if slices.Contains(portsOf(rule.Ports), peers) {
					g.Expect(rule.To).To(Equal(replicas))
				}
			}
			want := []string{"TCP 443", "TCP 6443"}
			if peers != "" {
				want = append(want, peers)
			}
			g.Expect(peers != "").To(Equal(strings.HasPrefix(filepath.Base(file), "view.")))
			if strings.HasPrefix(filepath.Base(file), "kubeconfigs.") {
				want = append(want, "UDP 53", "TCP 53")
			}
			g.Expect(reached).To(ConsistOf(want))
		})
	}
	g := NewWithT(t)
	policy, _ := policyOf(t, "--set", "stateAPI.enabled=true,networkPolicy.apiServer.cidrs[0]=192.0.2.0/24,"+
		"networkPolicy.apiServer.ports={8443},networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.a=b")
	g.Expect(policy.Spec.Ingress).To(HaveLen(2))
	g.Expect(policy.Spec.Ingress[0].From).To(HaveLen(1))
	g.Expect(policy.Spec.Ingress[0].From[0].NamespaceSelector.MatchLabels).To(Equal(map[string]string{"a": "b"}))
	g.Expect(policy.Spec.Ingress[1].From).To(BeEmpty(), "no selector matches the API server")
	g.Expect(portsOf(policy.Spec.Egress[0].Ports)).To(Equal([]string{"TCP 8443"}))
	g.Expect(policy.Spec.Egress[0].To).To(Equal([]networkingv1.NetworkPolicyPeer{
		{IPBlock: &networkingv1.IPBlock{CIDR: "192.0.2.0/24"}}}))
	policy, _ = policyOf(t, "--set", "networkPolicy.enabled=false")
	g.Expect(policy).To(BeNil())
}
