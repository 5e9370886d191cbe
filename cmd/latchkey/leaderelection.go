package main

import (
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/leaderelection"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/latchkey-dev/latchkey/fence"
)

// The times of the leader election: controller-runtime's defaults.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// elect sets up the leader election in the options of the manager, and returns the fence of its
// lease. The caller calls end after the manager has ended. Without leader election the fence is
// nil.
func (m *managerFlags) elect(restConfig *rest.Config, options *manager.Options) (f *fence.Fence, end func(),
	err error) {
	if !m.leaderElect {
		return nil, func() {}, nil
	}
	recorders, err := newLeaseRecorders(restConfig)
	if err != nil {
		return nil, nil, err
	}
	lock, err := leaderelection.NewResourceLock(restConfig, recorders, leaderelection.Options{
		LeaderElection:          true,
		LeaderElectionID:        m.leaderElectionID,
		LeaderElectionNamespace: m.leaderElectionNamespace,
		RenewDeadline:           renewDeadline,
	})
	if err != nil {
		recorders.broadcaster.Shutdown()
		return nil, nil, errors.Wrap(err, "setting up leader election")
	}
	options.LeaderElection = true
	options.LeaderElectionReleaseOnCancel = true // the process exits when run returns
	options.LeaseDuration, options.RenewDeadline = new(leaseDuration), new(renewDeadline)
	options.RetryPeriod = new(retryPeriod)
	options.LeaderElectionResourceLockInterface, f = fence.ForLeaderElection(lock, leaseDuration)
	return f, recorders.broadcaster.Shutdown, nil
}

// leaseRecorders record the Events of the lease: who leads. It is a recorder.Provider for the time
// before there is a manager.
type leaseRecorders struct{ broadcaster record.EventBroadcaster }

func newLeaseRecorders(restConfig *rest.Config) (*leaseRecorders, error) {
	client, err := corev1client.NewForConfig(restConfig)
	if err != nil {
		return nil, errors.Wrap(err, "creating a client for Events")
	}
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: client.Events("")})
	return &leaseRecorders{broadcaster}, nil
}

// GetEventRecorderFor implements recorder.Provider.
func (l *leaseRecorders) GetEventRecorderFor(name string) record.EventRecorder {
	return l.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: name})
}

// GetEventRecorder implements recorder.Provider. Leader election does not use it.
func (l *leaseRecorders) GetEventRecorder(string) recorder.EventRecorder { return nil }
