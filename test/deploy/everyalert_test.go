package deploy

import (
	"flag"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// Each alert has a test with promtool, an end-to-end test, and a runbook that says what to do. Run
// without these (-run Alert), this test does not know which alerts they see. It runs after them,
// because tests run in the order of their files' names.
func TestEveryAlertIsTested(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile("../../docs/operations.md")
	g.Expect(err).NotTo(HaveOccurred())
	rulesTest, err := os.ReadFile(observability + "/rules_test.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	pattern := flag.Lookup("test.run").Value.String()
	ranAll := pattern == "" || pattern == "Alert"
	alerts := 0
	for _, group := range readRules(t).Groups {
		for _, rule := range group.Rules {
			name, isAlert := rule["alert"].(string)
			if !isAlert {
				continue
			}
			alerts++
			g.Expect(rule["annotations"]).To(HaveKeyWithValue("runbook_url",
				"https://github.com/latchkey-dev/latchkey/blob/main/docs/operations.md#"+strings.ToLower(name)))
			g.Expect(string(page)).To(MatchRegexp(`(?m)^### `+name+`$\n\n(.+\n)+\n(.+\n)*\*\*What to do\*\*: .{40,}`), name)
			g.Expect(string(rulesTest)).To(MatchRegexp(`alertname[=:] ?"?`+name+`\b`), name)
			if _, ok := fired.Load(name); ranAll {
				g.Expect(ok).To(BeTrue(), "no end-to-end test has seen %s", name)
			}
		}
	}
	g.Expect(alerts).To(BeNumerically(">", 10))
}
