package scopedcache

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/latchkey-dev/latchkey/scopedcache/internal/monitor"
)

// run is the goroutine of a scope. run owns the scope's machine, which makes every decision. run
// passes events to the machine and executes its effects.
type run struct {
	*entry
	ctx      context.Context
	machine  monitor.Machine
	timer    *time.Timer
	life     monitor.LifeID
	informer *informer       // the informer of that life; nil if none runs
	synced   <-chan struct{} // closed when the informer has synced; nil after that was reported
}

// runEntry runs an entry until ctx is done.
func runEntry(ctx context.Context, s *entry) {
	idleness := newTicker(s.cache.options.IdleTimeout)
	defer idleness.Stop()
	r := &run{entry: s, ctx: ctx, machine: monitor.New(s.cache.monitoring, time.Now()), timer: time.NewTimer(time.Hour)}
	defer r.timer.Stop()
	defer r.step(monitor.Stopped{})
	r.do(r.machine.Start(time.Now(), rand.Float64()))
	for ctx.Err() == nil {
		r.arm()
		select {
		case <-ctx.Done():
		case <-r.synced: // before the informer's reports in the mailbox
			r.informerSynced()
		case <-s.mail.ready:
			for _, event := range s.mail.take() {
				if ctx.Err() != nil {
					return // reviews that used ctx fail because ctx has ended
				}
				r.catchUp()
				r.step(event)
			}
		case <-r.timer.C:
			r.step(monitor.Tick{})
		case <-idleness.C:
			r.stopIfIdle()
		}
	}
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

// catchUp reports that the informer has synced, if it has, before the next event.
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
		r.mail.forgetRead()
	}
}

// do executes effects, in order.
func (r *run) do(effects []monitor.Effect) {
	for _, effect := range effects {
		switch e := effect.(type) {
		case monitor.AskMapping:
			r.ask(func() monitor.Event {
				mapping, err := r.discover(r.ctx, e.Distrust)
				return monitor.Mapped{Question: e.Question, Mapping: mapping, Err: err}
			})
		case monitor.AskReview:
			r.ask(func() monitor.Event { return r.review(r.ctx, e) })
		case monitor.AskReadiness:
			r.ask(func() monitor.Event {
				return monitor.Readied{Question: e.Question, Ready: r.cache.reviewer.Ready(r.ctx) != monitor.DeniedUnready}
			})
		case monitor.StartInformer:
			r.startInformer(e)
		case monitor.Serve:
			r.serve(r.informer)
		case monitor.RestartWatch:
			r.informer.restartWatch()
		case monitor.StopInformer:
			r.stopInformer()
		case monitor.SetState:
			r.setState(e)
		}
	}
}

// ask runs a question to the API server in another goroutine.
func (r *run) ask(question func() monitor.Event) {
	r.cache.running.Go(func() { r.mail.answer(question()) }) // this goroutine is counted in running
}

// startInformer starts an informer. StartInformer is the last effect of its step.
func (r *run) startInformer(e monitor.StartInformer) {
	r.life = e.Life
	i, err := r.newInformer(e.Mapping, e.Poll, e.Life)
	r.informer = i
	if err == nil {
		err = r.start(i)
	}
	if err != nil {
		r.step(monitor.InformerStartFailed{Life: e.Life, Err: err})
		return
	}
	r.synced = i.shared.HasSyncedChecker().Done()
}

func (r *run) stopInformer() {
	if r.informer != nil {
		r.stop(r.informer)
	}
	r.informer, r.synced = nil, nil
}

// newTicker returns a ticker that never ticks if d is 0.
func newTicker(d time.Duration) *time.Ticker {
	if d > 0 {
		return time.NewTicker(d)
	}
	ticker := time.NewTicker(time.Hour)
	ticker.Stop()
	return ticker
}

// stopIfIdle ends the scope if no read used it since the last call, and nothing else needs it.
func (r *run) stopIfIdle() {
	if !r.recent.Swap(false) {
		r.cache.dropIfIdle(r.entry)
	}
}
