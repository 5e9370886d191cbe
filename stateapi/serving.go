package stateapi

import (
	"context"
	"sync"
	"time"

	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/holding"
	"github.com/latchkey-dev/latchkey/ownership"
)

// servingTimes are those of the Lease by which one replica serves. It is short: while the replica
// that served is killed, and its lease lasts, no other one serves.
var servingTimes = holding.Times{
	LeaseDuration: 6 * time.Second,
	RenewDeadline: 4 * time.Second,
	RetryPeriod:   time.Second,
}

const (
	// failedPause is how long a replica leaves the Lease to others after it could not serve.
	failedPause = 15 * time.Second
	// handOverTimeout bounds how long a replica serves on after it has given the Lease up, until
	// the next one serves.
	handOverTimeout = 6 * time.Second
	// handOverInterval is how often it looks.
	handOverInterval = 200 * time.Millisecond
	// handOverGrace is how long it serves on, for those who do not know yet that another one
	// serves.
	handOverGrace = time.Second
)

// serveInTurn serves the view of all replicas whenever this one holds the Lease, until ctx is done,
// or it receives an error.
func (f *fleet) serveInTurn(ctx context.Context, failed <-chan error) (err error) {
	config := rest.CopyConfig(f.api.options.Config)
	config.Timeout = servingTimes.RenewDeadline
	leases, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return errors.Wrap(err, "creating a client")
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		select {
		case <-ctx.Done():
		case err = <-failed:
			cancel()
		}
	})
	defer running.Wait()
	defer cancel()
	if !f.awaitEngine(ctx) || !f.merged.awaitComplete(ctx, silence) {
		cancel()
		running.Wait()
		return err
	}
	certificates := newCertificates(f.api.options.Server)
	running.Go(func() { certificates.run(ctx) })
	for ctx.Err() == nil {
		var serving sync.WaitGroup // ends before the next one: it withdraws its address, and closes its port
		pause := servingTimes.RetryPeriod
		holding.Hold(ctx, holding.Options{Times: servingTimes}, &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: f.options.Namespace, Name: f.options.Name + "-state"},
			Client:     leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: f.options.Identity},
		}, func(holds context.Context, term *fence.Term) {
			turn := f.serve(holds, term, &serving, certificates)
			select {
			case <-holds.Done():
			case err := <-turn.failed:
				log.FromContext(ctx).Error(err, "Cannot serve the state API; another replica may")
				pause = failedPause
			}
			ends := ctx.Err() != nil
			f.giveUp(turn, ends && term.Err() == nil) // before the Lease is released
		})
		serving.Wait()
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	running.Wait()
	return err
}

// awaitEngine waits until no leader from before may serve the state API: it would write the same
// EndpointSlice and APIService. awaitEngine returns false when ctx is done.
func (f *fleet) awaitEngine(ctx context.Context) bool {
	engine, ok := f.options.Engine.(ownership.Waiter)
	if !ok || !engine.Waiting() {
		return ctx.Err() == nil
	}
	log.FromContext(ctx).Info("Does not serve the state API yet: a leader from before has not ended")
	tick := time.NewTicker(servingTimes.RetryPeriod)
	defer tick.Stop()
	for engine.Waiting() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// turn is a server of the view.
type turn struct {
	current *current
	life    context.Context // done when the server ends
	end     context.CancelFunc
	failed  chan error // receives why it has ended; it has withdrawn its address then
	running *sync.WaitGroup
}

// serve starts the server of the view in a term, until giveUp.
func (f *fleet) serve(ctx context.Context, term *fence.Term, running *sync.WaitGroup,
	certificates *certificates) *turn {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	current := newCurrent(term, f.merged.hearOut)
	t := &turn{current: current, life: life, end: end, failed: make(chan error, 1), running: running}
	connections, scopes := f.merged.stores(current)
	server, err := f.api.newServer(certificates.while(life, f.api.options.Server), connections, scopes)
	if err != nil {
		end()
		t.failed <- err
		return t
	}
	log.FromContext(ctx).Info("Serves the state API for all replicas")
	reading, endReads := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(life, func() { time.AfterFunc(lastReads, endReads) })
	ended := make(chan struct{})
	running.Go(func() { f.hear(reading, current, ended) })
	running.Go(func() {
		defer close(ended)
		defer endReads()
		if !awaitCheck(ctx, server) {
			return
		}
		var publishing sync.WaitGroup
		publish, stop := context.WithCancel(ctx)
		defer stop()
		publishing.Go(func() {
			select {
			case <-server.Listening():
			case <-life.Done():
				return
			}
			f.serves.Store(true)
			if f.api.publisher != nil {
				f.api.publisher.Run(publish)
			}
		})
		err := server.Run(life)
		end()
		stop()
		publishing.Wait()
		f.serves.Store(false)
		if f.api.publisher != nil {
			f.api.publisher.Withdraw(context.WithoutCancel(ctx))
		}
		if err != nil {
			t.failed <- err
		}
	})
	return t
}

// hear hears out the other replicas when reads wait, and what is in doubt, until ctx is done. There
// is no doubt any more when the server has ended.
func (f *fleet) hear(ctx context.Context, current *current, ended <-chan struct{}) {
	var hearing sync.WaitGroup
	hearing.Go(func() { current.run(ctx) })
	hearing.Go(func() { f.merged.hearOutLater(ctx) })
	hearing.Wait()
	<-ended
	f.merged.settle()
}

// giveUp says that this replica does not serve any more: its server ends at once, or, if it hands
// over, as soon as another replica serves. Another one may do so when giveUp has returned.
func (f *fleet) giveUp(t *turn, handsOver bool) {
	if !handsOver {
		t.end()
		return
	}
	t.current.handOver()
	t.running.Go(func() {
		defer t.end()
		f.awaitNext(t.life)
	})
}

// awaitNext waits until another replica serves, or the server has ended.
func (f *fleet) awaitNext(serving context.Context) {
	if f.api.publisher == nil || !f.merged.hasPeers() {
		return
	}
	ctx, cancel := context.WithTimeout(serving, handOverTimeout)
	defer cancel()
	tick := time.NewTicker(handOverInterval)
	defer tick.Stop()
	for {
		if leads, err := f.api.publisher.Leads(ctx); err == nil && !leads {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	select {
	case <-serving.Done():
	case <-time.After(handOverGrace):
	}
}
