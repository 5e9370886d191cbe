package clustercache

import (
	"testing"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/util/wait"
)

func TestMain(m *testing.M) {
	// A goroutine that the metadata informers of a manager leave behind when it stops; see package test.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"))
}

func TestOptionsAreValidated(t *testing.T) {
	for problem, options := range map[string]Options{
		"UserAgent must be set": {},
		"must not be negative":  {Client: ClientOptions{UserAgent: "x", Timeout: -1}},
		"must be positive":      {Client: ClientOptions{UserAgent: "x"}, ConnectBackoff: wait.Backoff{Steps: 1}},
	} {
		NewWithT(t).Expect(options.validate()).To(MatchError(ContainSubstring(problem)))
	}
	NewWithT(t).Expect((&Options{Client: ClientOptions{UserAgent: "x"}, ConnectBackoff: wait.Backoff{Duration: 1}}).validate()).To(Succeed())
}
