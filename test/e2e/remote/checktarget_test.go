package remote

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/credential"
)

// check returns the findings as text.
func check(t *testing.T, target credential.Target) (ok, failed, look string) {
	t.Helper()
	account := types.NamespacedName{Namespace: "operator", Name: "operator"}
	texts := map[string]*strings.Builder{"ok": {}, "failed": {}, "look": {}}
	for _, finding := range credential.CheckTarget(t.Context(), host.Config(), account, target) {
		kind, text := "ok", finding.What
		if finding.Err != nil {
			kind, text = "failed", text+": "+finding.Err.Error()
			if finding.Unknown {
				kind = "look"
			}
		}
		texts[kind].WriteString(text + "\n")
		t.Log(kind, text)
	}
	return texts["ok"].String(), texts["failed"].String(), texts["look"].String()
}

// What is missing between two clusters is found, as far as it can be from here.
func TestCheckTarget(t *testing.T) {
	g := NewWithT(t)
	ok, failed, look := check(t, at(second))
	g.Expect(failed + look).To(BeEmpty())
	g.Expect(ok).To(ContainSubstring(`it states the name "host:system:serviceaccount:operator:operator", as expected`))

	_, failed, look = check(t, withAudience(at(second), "unknown-there"))
	g.Expect(failed).To(Equal("the target accepts the token: it answers Unauthorized (401)\n"))
	g.Expect(look).To(ContainSubstring(`must have "unknown-there" in issuer.audiences`))
	g.Expect(look).To(ContainSubstring(`issuer.url there must be "` + host.Issuer() + `"`))

	_, failed, _ = check(t, withAudience(at(second), host.Issuer()))
	g.Expect(failed).To(ContainSubstring("does not refuse it (HTTP status 201)"))

	renamed := at(second)
	renamed.Username = func(types.NamespacedName) string { return "another" }
	_, failed, _ = check(t, renamed)
	g.Expect(failed).To(ContainSubstring(`it states "host:system:serviceaccount:operator:operator": change claimMappings`))

	elsewhere := at(second)
	elsewhere.CAData = third.Config().CAData
	_, failed, _ = check(t, elsewhere)
	g.Expect(failed).To(ContainSubstring("with a certificate of its authority"))

	g.Expect(host.Kubectl(t.Context(), "delete", "clusterrolebinding", "issuer-discovery")).NotTo(BeEmpty())
	defer func() {
		_, err := host.Kubectl(t.Context(), "create", "clusterrolebinding", "issuer-discovery",
			"--clusterrole=system:service-account-issuer-discovery", "--group=system:unauthenticated")
		g.Expect(err).NotTo(HaveOccurred())
	}()
	_, failed, _ = check(t, withAudience(at(second), "unknown-there"))
	g.Expect(failed).To(ContainSubstring("bind ClusterRole system:service-account-issuer-discovery"))
}
