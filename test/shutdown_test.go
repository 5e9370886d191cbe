package test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/healthprobe"
)

// A manager that is stopped while it connects ends in time and leaves nothing; startOperator looks for leaks.
func TestStopInTheMiddleOfConnects(t *testing.T) {
	g := NewWithT(t)
	ns := namespace(t)
	hosts := map[string]string{}
	hanging := neverAnswers(t)
	create(t, serviceAccount(ns, "all"))
	for i := range 50 {
		name := fmt.Sprintf("stop-%02d", i)
		create(t, extension(ns, name))
		if i%2 == 0 {
			hosts[name] = hanging
		}
	}
	o := startOperator(t, clustercache.Options{
		Credentials: elsewhere(token(t, ns, "all"), hosts),
		// So long that a connect that nobody cancels would not end in time by itself.
		HealthProbe: healthprobe.Options{Timeout: 5 * time.Minute},
		Client:      clustercache.ClientOptions{Timeout: 5 * time.Minute},
	})
	connecting := func() (n int) {
		for _, state := range o.ListConnectionStates(t.Context()) {
			if state.Phase == clustercache.Connecting {
				n++
			}
		}
		return n
	}
	g.Eventually(connecting).WithTimeout(patience).WithPolling(time.Millisecond).Should(BeNumerically(">=", 10))

	begin := time.Now()
	o.end(t)
	g.Expect(time.Since(begin)).To(BeNumerically("<", 8*time.Second))
	expectNotConnected(t, o, "stop-00", clustercache.NotStarted)
	expectNotConnected(t, o, "stop-01", clustercache.NotStarted)
}

// A manager that was never started, or does not lead, connects nobody and says so.
func TestNotStarted(t *testing.T) {
	ns := namespace(t)
	tenant(t, ns, "waiting")
	o := newOperator(t, clustercache.Options{})
	expectNotConnected(t, o, "waiting", clustercache.NotStarted)
}
