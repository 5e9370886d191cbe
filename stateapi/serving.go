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
	if !f.merged.awaitComplete(ctx, silence) {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		select {
		case <-ctx.Done():
		case err = <-failed:
			cancel()
		}
	})
	certificates := newCertificates(f.api.options.Server)
	running.Go(func() { certificates.run(ctx) })
	for ctx.Err() == nil {
		var turn sync.WaitGroup // ends before the next one: it withdraws its address, and closes its port
		pause := servingTimes.RetryPeriod
		holding.Hold(ctx, holding.Options{Times: servingTimes}, &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: f.options.Namespace, Name: f.options.Name + "-state"},
			Client:     leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: f.options.Identity},
		}, func(holds context.Context, _ *fence.Term) {
			server := f.serve(holds, &turn, certificates)
			select {
			case <-holds.Done():
			case err := <-server:
				log.FromContext(ctx).Error(err, "Cannot serve the state API; another replica may")
				pause = failedPause
			}
		})
		turn.Wait()
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	running.Wait()
	return err
}

// serve starts the server of the view. It ends at once when the lease is lost, and when ctx is done
// otherwise as soon as another replica serves.
func (f *fleet) serve(ctx context.Context, running *sync.WaitGroup, certificates *certificates) (failed <-chan error) {
	errs := make(chan error, 1)
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	server, err := f.api.newServer(certificates.while(life, f.api.options.Server), f.merged.connections(), f.merged.scopes)
	if err != nil {
		end()
		errs <- err
		return errs
	}
	log.FromContext(ctx).Info("Serves the state API for all replicas")
	running.Go(func() {
		defer end()
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), fence.ErrClosed) { // it has not lost the lease
			f.handOver()
		}
	})
	running.Go(func() {
		if !awaitCheck(ctx, server) {
			return
		}
		var publishing sync.WaitGroup
		publishing.Go(func() {
			select {
			case <-server.Listening():
			case <-life.Done():
				return
			}
			f.serves.Store(true)
			if f.api.publisher != nil {
				f.api.publisher.Run(ctx)
			}
		})
		if err := server.Run(life); err != nil {
			errs <- err
		}
		end()
		publishing.Wait()
		f.serves.Store(false)
		if f.api.publisher != nil {
			f.api.publisher.Withdraw(context.WithoutCancel(ctx))
		}
	})
	return errs
}

// handOver waits until another replica serves.
func (f *fleet) handOver() {
	if f.api.publisher == nil || !f.merged.hasPeers() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), handOverTimeout)
	defer cancel()
	tick := time.NewTicker(handOverInterval)
	defer tick.Stop()
	for f.api.publisher.Leads(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	<-time.After(handOverGrace)
}
