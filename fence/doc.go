// Package fence keeps a replica from acting after its lease has ended.
//
// Leader election alone does not do that. A replica that was suspended, that does not reach the API
// server, or that gets no CPU, notices late that another replica leads: until then its requests go
// out beside those of its successor. A Fence knows until when the lease lasts, and no request
// passes it later.
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
// resourcelock.NewFromKubeconfig makes a lock. Its identity must be unique to the process.
//
// Clients of the host operator's own can pass the fence, too: config.Wrap(f.RoundTripper).
//
// # Usage
//
// The fence opens with the first renewal of the lease, and closes by itself when the lease ends. A
// renewal counts from before it was sent, because the API server may have carried it out at any
// time from then on; another replica that counts from when it saw the renewal takes over later.
//
// While the fence is closed, requests fail with ErrClosed and are not sent. Requests under way end
// when the fence closes; those that may have been carried out fail with ErrOutcomeUnknown. The next
// renewal opens the fence again.
//
// # Considerations
//
//   - Time is that of the monotonic clock. A wall clock that is set does not matter.
//   - The check costs an atomic load and a reading of the clock. Nothing depends on a goroutine
//     that runs in time: each request compares the time itself, before it starts and after its
//     answer, and latchkey's own TCP connections once more before each write. Streams of exec and
//     port-forward, whose connections client-go dials, do not end with the lease.
//   - Another replica must wait for the whole duration of the lease after the last renewal that it
//     saw, as client-go's leader election does.
//   - A fence is as good as the clocks' rates: client-go's leader election has the same condition.
//   - A machine that is suspended as a whole, such as a virtual machine that is paused or moved,
//     may stop its monotonic clock, too. No program on it can notice; only a check by the server
//     could.
//   - What the kernel has taken is sent, unless the connection is closed before: latchkey's
//     connections discard it when the fence closes, as far as the network has not taken it. A
//     process that is suspended cannot do that, so that a request which the network has delayed can
//     arrive late.
//   - Deleting the Lease object makes another replica lead at once. The fence closes with the next
//     try to renew.
package fence
