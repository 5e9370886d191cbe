package main

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestAdviceOf(t *testing.T) {
	g := NewWithT(t)
	code, err := adviceOf("# Page\n\n| `Other` | x | y |\n\n## Reasons\n\n| reason | what happened | what to do |\n| --- | --- | --- |\n" +
		"| `Slow` | It is. | Set `Fast`; \"now\". |\n\n## Metrics\n\n| `Count` | x | y |\n")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(code).To(HaveSuffix("var reasons = map[string]string{\n\t\"Slow\": \"Set Fast; \\\"now\\\".\",\n}\n"))
	_, err = adviceOf("# Page\n\n## Reasons\n\nNone.\n")
	g.Expect(err).To(MatchError(ContainSubstring("no table")))
}
