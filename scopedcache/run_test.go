package scopedcache

import (
	"context"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// A question cancels the one before it, whose late answer does not make the run forget the newer
// one.
func TestNextQuestionCancelsTheEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := &run{entry: &entry{env: &environment{}, entries: &entrySet{}}, ctx: t.Context()}
		cancelled := make(chan error, 1)
		r.ask(func(ctx context.Context) monitor.Event {
			<-ctx.Done()
			cancelled <- ctx.Err()
			return monitor.Readied{Question: 1}
		})
		synctest.Wait()
		g.Expect(cancelled).To(BeEmpty(), "before the next question")
		var latest context.Context
		answered := make(chan struct{})
		r.ask(func(ctx context.Context) monitor.Event {
			latest = ctx
			<-answered
			return monitor.Readied{Question: 2}
		})
		synctest.Wait()
		g.Expect(cancelled).To(Receive(MatchError(context.Canceled)))
		g.Expect(latest.Err()).NotTo(HaveOccurred())
		g.Expect(r.cancelQuestion.Load()).NotTo(BeNil(), "the end of the run cancels the question that is open")
		close(answered)
		r.entry.entries.running.Wait()
		g.Expect(r.cancelQuestion.Load()).To(BeNil())
		g.Expect(r.entry.mail.answers).To(HaveLen(2))
	})
}
