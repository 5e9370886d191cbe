// Package fence keeps a replica from acting after its lease has ended.
//
// Leader election alone does not do that. A replica that was suspended, that cannot reach the API
// server, or that gets no CPU, notices late that another replica leads. Until then it sends
// requests beside its successor. A Fence knows when the lease ends, and lets no request pass after
// that.
//
// # Setup
//
// Wrap the lock of the leader election, and give the fence to what sends requests:
//
//	lock, f := fence.ForLeaderElection(lock, leaseDuration)
//	mgr, err := ctrl.NewManager(config, ctrl.Options{
//		LeaderElection:                      true,
//		LeaderElectionResourceLockInterface: lock,
//		LeaderElectionReleaseOnCancel:       true, // if the process ends when Start returns
//		LeaseDuration:                       &leaseDuration,
//	})
//	cc, err := clustercache.SetupWithManager(ctx, mgr,
//		clustercache.Options{Ownership: ownership.Leader(f)}, controller.Options{})
//
// resourcelock.NewFromKubeconfig makes a lock. The identity of the lock must be unique to the
// process. The host operator's own clients can pass the fence, too: config.Wrap(f.RoundTripper).
//
// # Usage
//
// The fence opens with the first renewal of the lease, and closes by itself when the lease ends. A
// renewal counts from the time before it was sent, because the API server may have carried it out
// at any time from then on. Other replicas count from the time at which they saw the renewal, which
// is later.
//
// While the fence is closed, requests fail with ErrClosed and are not sent. When the fence closes,
// requests under way end; a request that may have changed something fails with ErrOutcomeUnknown.
// The next renewal opens the fence again, with another [Term].
//
// # Considerations
//
//   - The fence goes by the monotonic clock. Setting the wall clock does not matter.
//   - The check costs an atomic load and a reading of the clock. Nothing depends on a goroutine
//     that runs in time: each request compares the time itself, before it starts and after its
//     answer, and latchkey's own TCP connections once more before each write. Streams of exec and
//     port-forward, whose connections client-go dials, do not end with the lease.
//   - Another replica must wait for the whole duration of the lease after the last renewal that it
//     saw, as client-go's leader election does.
//   - The clocks of the replicas must run at the same rate, as for client-go's leader election.
//   - If a whole machine is suspended, such as a virtual machine that is paused or moved, its
//     monotonic clock may stop, too. No program on the machine can notice; only the server could.
//   - The kernel sends what it has taken. When the fence closes, latchkey's connections discard
//     what the network has not taken yet. A suspended process cannot do that: a request that the
//     network has delayed can arrive late.
//   - If the Lease object is deleted, another replica leads at once. The fence closes with the next
//     try to renew.
package fence
