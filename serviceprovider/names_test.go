package serviceprovider

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The vectors come from another implementation (Python's hashlib and uuid): other controllers find
// the same namespaces and names.
func TestTenantNamespace(t *testing.T) {
	g := NewWithT(t)
	for key, want := range map[client.ObjectKey]string{
		{Namespace: "default", Name: "hello"}:                                "mcp--63074ec8-f7be-8b82-bdf8-1a12e3c1129d",
		{Name: "cluster-scoped"}:                                             "mcp--a644ab55-b176-8ab8-ab4a-2caca38651ad",
		{Namespace: "team.a", Name: "b"}:                                     "mcp--92282b59-d103-8f79-b71a-e94bdafacb15",
		{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("a", 253)}: "mcp--f89af860-bb8d-82cc-bd20-d9e8f02c915c",
	} {
		g.Expect(tenantNamespace(key)).To(Equal(want), key.String())
	}
}

func TestRequestName(t *testing.T) {
	g := NewWithT(t)
	long := strings.Repeat("a", 253)
	for _, tc := range []struct{ controller, name, suffix, want string }{
		{"mailbox", "hello", "mcp", "mailbox--hello--mcp"},
		{"Mailbox", "hello", "wl", "mailbox--hello--wl"},
		{"mailbox", long, "mcp", "mailbox--aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa--ysl6b7kd--mcp"},
		{"mailbox", long, "wl", "mailbox--aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa--ysl6b7kd--wl"},
		{strings.Repeat("p", 253), "b", "mcp", "pppppppppppppppppppppppppppppppppppppppppppppppp--xx4zseok--mcp"},
		{"mailbox", strings.Repeat("a", 38) + strings.Repeat("-.b", 9) + "tail-that-is-long", "mcp",
			"mailbox--aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa--bcee6ham--mcp"},
	} {
		got := requestName(tc.controller, tc.name, tc.suffix)
		g.Expect(got).To(Equal(tc.want))
		g.Expect(validation.IsDNS1123Subdomain(got)).To(BeEmpty())
		g.Expect(len(got)).To(BeNumerically("<=", maxName))
	}
	g.Expect(shorten(strings.Repeat("x", 40)+"."+strings.Repeat("y", 40), maxName)).To(
		Equal(strings.Repeat("x", 40) + "." + strings.Repeat("y", 12) + "--wobpvm2x"))
}

func TestIdentify(t *testing.T) {
	g := NewWithT(t)
	id := identify("mailbox", client.ObjectKey{Namespace: "team", Name: "hello"}, workloadCluster)
	g.Expect(id.key.Name).To(Equal("mailbox--hello--wl"))
	g.Expect(id.labels).To(Equal(map[string]string{
		labelManagedBy:           "mailbox",
		labelManagedPurpose:      "team.hello.workload",
		labelOnboardingName:      "hello",
		labelOnboardingNamespace: "team",
	}))
	id = identify("mailbox", client.ObjectKey{Name: "hello"}, mcpCluster)
	g.Expect(id.labels).To(Equal(map[string]string{
		labelManagedBy:      "mailbox",
		labelManagedPurpose: "hello.mcp",
		labelOnboardingName: "hello",
	}))

	long := client.ObjectKey{Namespace: strings.Repeat("n", 253), Name: strings.Repeat("a", 253)}
	id = identify(strings.Repeat("c", 253), long, mcpCluster)
	for label, value := range id.labels {
		g.Expect(validation.IsValidLabelValue(value)).To(BeEmpty(), label)
	}
	request := pendingRequest()
	id.mark(request)
	object, ok := objectOf(request)
	g.Expect(ok).To(BeTrue())
	g.Expect(object).To(Equal(long), "events map back, whatever the length")
	g.Expect(id.isMarked(request)).To(BeTrue())
	g.Expect(id.owns(request)).To(Succeed())

	request.Annotations = nil
	request.Labels = map[string]string{labelOnboardingName: "hello", labelOnboardingNamespace: "team"}
	object, _ = objectOf(request)
	g.Expect(object).To(Equal(client.ObjectKey{Namespace: "team", Name: "hello"}))
	_, ok = objectOf(pendingRequest())
	g.Expect(ok).To(BeFalse())
}
