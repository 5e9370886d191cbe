package scopedcache

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/latchkey-dev/latchkey/internal/tracing"
	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// run runs a scope. run owns the scope's machine, which makes every decision. run passes events to
// the machine and executes its effects, in a goroutine that exists while there are events. Only
// that goroutine uses the fields of run, except ended and cancelQuestion.
type run struct {
	entry          *entry
	ctx            context.Context                    // of the cache
	ended          atomic.Bool                        // the scope is not needed any more; any goroutine may set it
	cancelQuestion atomic.Pointer[context.CancelFunc] // ends the latest question; nil if it is answered
	machine        monitor.Machine
	begun          bool        // the machine has started
	timer          *time.Timer // puts a tick into the mailbox at the machine's deadline
	idleness       *time.Timer // the same for checks for idleness; nil if the scope does not end when idle
	life           monitor.LifeID
	informer       *informer       // the informer of that life; nil if none runs
	synced         <-chan struct{} // closed when the informer has synced; nil after that was reported
}

// startRun runs an entry until end is called. The end of ctx only cancels what the run does: it
// wakes no one. The caller holds entries.mu.
func startRun(ctx context.Context, s *entry) (end func()) {
	r := &run{entry: s, ctx: ctx, machine: monitor.New(s.env.monitoring, time.Now())}
	s.entries.running.Add(1) // until end, so that running is not zero when the mailbox starts a goroutine
	s.mail.open(func() { s.entries.running.Go(r.handleEvents) })
	return func() {
		r.ended.Store(true)
		s.mail.wake()
	}
}

// isOver reports whether the scope is not needed any more, or the cache has stopped.
func (r *run) isOver() bool { return r.ended.Load() || r.ctx.Err() != nil }

// handleEvents handles what is in the mailbox.
func (r *run) handleEvents() {
	for {
		taken, ok := r.entry.mail.take()
		if !ok {
			return
		}
		if !r.begun && !r.isOver() {
			r.begin()
			taken.watched = true
		}
		r.stepAll(taken.watches)
		if taken.watched {
			r.step(r.entry.env.eventsWatched())
		}
		r.stepAll(taken.events)
		if r.catchUp(); taken.idle && !r.isOver() {
			r.stopIfIdle()
		}
		if taken.fresh && !r.isOver() {
			r.makeFresh()
		}
		if r.isOver() {
			r.end()
			return
		}
		r.arm()
	}
}

// stepAll passes events to the machine, unless the scope is over.
func (r *run) stepAll(events []monitor.Event) {
	for _, event := range events {
		if r.isOver() {
			return // questions fail because they were cancelled
		}
		r.catchUp() // before the informer's reports in the mailbox
		r.step(event)
	}
}

// begin starts the machine.
func (r *run) begin() {
	r.begun = true
	r.timer = time.AfterFunc(time.Hour, r.entry.mail.markTick)
	if timeout := r.entry.idleTimeout(); timeout > 0 {
		r.idleness = time.AfterFunc(timeout, r.entry.mail.checkIdle)
	}
	r.do(r.machine.Start(time.Now(), rand.Float64()))
}

// end ends the scope. The mailbox starts no goroutine after that.
func (r *run) end() {
	r.entry.mail.close()
	for _, timer := range []*time.Timer{r.timer, r.idleness} {
		if timer != nil {
			timer.Stop()
		}
	}
	r.step(monitor.Stopped{})
	if cancel := r.cancelQuestion.Load(); cancel != nil {
		(*cancel)()
	}
	r.entry.entries.running.Done()
}

// arm sets the timer to the machine's deadline.
func (r *run) arm() {
	deadline := r.machine.Deadline()
	if deadline.IsZero() {
		r.timer.Stop()
		return
	}
	r.timer.Reset(time.Until(deadline))
}

// catchUp reports that the informer has synced, if it has.
func (r *run) catchUp() {
	select {
	case <-r.synced:
		r.informerSynced()
	default:
	}
}

func (r *run) informerSynced() {
	r.synced = nil
	r.step(monitor.InformerSynced{Life: r.life})
}

func (r *run) step(event monitor.Event) {
	r.do(r.machine.Step(time.Now(), rand.Float64(), event))
	if !r.machine.HasRead() {
		r.entry.mail.forgetRead()
	}
}

// do executes effects, in order.
func (r *run) do(effects []monitor.Effect) {
	for _, effect := range effects {
		switch e := effect.(type) {
		case monitor.AskMapping:
			r.ask(func(ctx context.Context) monitor.Event {
				mapping, err := r.discover(ctx, e)
				return monitor.Mapped{Question: e.Question, Mapping: mapping, Err: err}
			})
		case monitor.AskReview:
			r.ask(func(ctx context.Context) monitor.Event { return r.review(ctx, e) })
		case monitor.AskReadiness:
			r.ask(func(ctx context.Context) monitor.Event {
				return monitor.Readied{Question: e.Question, Ready: r.entry.env.reviewer.Ready(ctx) != monitor.DeniedUnready}
			})
		case monitor.StartInformer:
			r.startInformer(e)
		case monitor.Serve:
			r.entry.serve(r.informer)
		case monitor.RestartWatch:
			r.informer.restartWatch()
		case monitor.ListInstead:
			r.entry.env.unstreamed.add(r.informer.mapping.Resource)
			r.informer.stopWatch()
		case monitor.StopInformer:
			r.stopInformer()
		case monitor.SetState:
			r.entry.setState(e)
		}
	}
}

// ask runs a question to the API server in another goroutine. An earlier question, whose answer the
// machine does not wait for any more, is cancelled.
func (r *run) ask(question func(context.Context) monitor.Event) {
	ctx, cancel := context.WithCancel(r.ctx)
	if earlier := r.cancelQuestion.Swap(&cancel); earlier != nil {
		(*earlier)()
	}
	r.entry.entries.running.Go(func() { // this goroutine is counted in running
		defer cancel()
		r.entry.mail.answer(question(ctx))
		r.cancelQuestion.CompareAndSwap(&cancel, nil) // so that run does not keep ctx
	})
}

// startInformer starts an informer. StartInformer is the last effect of its step.
func (r *run) startInformer(e monitor.StartInformer) {
	r.life = e.Life
	_, span := r.startSpan(r.ctx, tracing.Informer)
	i, err := r.newInformer(e.Mapping, e.Poll, e.Life)
	r.informer = i
	if err == nil {
		err = r.entry.start(i)
	}
	if err != nil {
		tracing.End(span, "Failing", true)
		r.step(monitor.InformerStartFailed{Life: e.Life, Err: err})
		return
	}
	r.synced = i.shared.HasSyncedChecker().Done()
	synced := r.synced
	r.entry.entries.running.Go(func() { // this goroutine is counted in running
		select {
		case <-synced:
			tracing.End(span, string(StateSynced), false)
			r.entry.mail.wake()
		case <-i.life.Done():
			tracing.End(span, "Stopped", true)
		}
	})
}

func (r *run) stopInformer() {
	if r.informer != nil {
		r.entry.stop(r.informer)
	}
	r.informer, r.synced = nil, nil
}

// stopIfIdle ends the scope if no read used it since the last call, and nothing else needs it.
func (r *run) stopIfIdle() {
	if !r.entry.entries.endIdle(r.entry) {
		r.idleness.Reset(r.entry.idleTimeout())
	}
}
