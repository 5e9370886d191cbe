package accessor

import (
	"cmp"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/connection"
	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/metrics"
)

// commitLocked carries out a commit effect.
func (a *identityAccessor) commitLocked(effect lifecycle.Effect, payload eventPayload, previous previousState) {
	switch e := effect.(type) {
	case lifecycle.AdoptTarget:
		a.membership = payload.membership
	case lifecycle.OpenCredential:
		a.credentials.open(e.Credential, payload.resolution, a.membership.Target)
	case lifecycle.UseCredential:
		previous.conn.Use(a.credentials.get(e.Credential))
	case lifecycle.CreateAttempt:
		a.attempt = a.newAttemptLocked(e)
	case lifecycle.CancelAttempt:
		a.attempt.cancel()
		a.attempt = nil
	case lifecycle.BeginConnection:
		a.conn = payload.conn
		a.setRecordLocked()
		a.conn.Join()
		a.watches.Connected(payload.conn)
	case lifecycle.Publish:
		next := &snapshot{phase: e.Phase, reason: e.Reason, since: e.Since, epoch: e.Epoch}
		if e.Phase == connstate.PhaseConnected {
			next.conn = payload.conn
		} else {
			next.err = &connstate.NotConnectedError{
				Extension: a.key,
				Reason:    e.Reason,
				Since:     e.DisconnectedSince,
				Err:       e.Cause,
			}
		}
		a.published.Store(next)
	case lifecycle.EndConnection:
		previous.conn.Close(a.published.Load().err)
		previous.conn.Leave()
		a.conn = nil
	case lifecycle.Unregister:
		a.set.unregister(a, e.NotOwned)
		a.reportChange()
	case lifecycle.RefuseRequests:
		a.answered = a.requests.Refuse(a.published.Load().err)
	case lifecycle.EndTerm:
		a.endTermLocked()
	default:
		panic(fmt.Sprintf("unknown effect %T", effect))
	}
}

// afterEffectLocked returns what to run, without mu, for an after effect.
func (a *identityAccessor) afterEffectLocked(effect lifecycle.Effect, payload eventPayload,
	previous previousState) func() {
	switch e := effect.(type) {
	case lifecycle.DiscardSecret:
		cred := a.credentials.get(e.Credential)
		return func() { cred.Discard(e.Before) }
	case lifecycle.SubmitAttempt:
		submitted := a.attempt
		return submitted.submit
	case lifecycle.DiscardConnection:
		if payload.conn == nil {
			return func() {}
		}
		return func() {
			payload.conn.Close(&connstate.NotConnectedError{Extension: a.key, Reason: e.Reason, Err: e.Cause})
		}
	case lifecycle.RetireCredential:
		retired := a.credentials.take(e.Credential)
		return func() { retired.Retire(previous.conn.Life(), a.set.options.Client.Timeout) }
	case lifecycle.CloseCredential:
		return a.credentials.take(e.Credential).Close
	case lifecycle.ReleaseTarget:
		if a.membership == previous.membership { // otherwise the accessor has already joined the new target
			a.membership = nil
		}
		return previous.membership.Leave
	case lifecycle.PauseWatches:
		return func() { a.watches.Disconnected(previous.conn) }
	case lifecycle.EndWatches:
		return a.watches.End
	case lifecycle.AwaitAnswers:
		answered := a.answered
		return func() { a.awaitAnswers(answered, e.Until) }
	case lifecycle.AwaitTasks:
		return func() { a.awaitTasks(e.Timeout) }
	case lifecycle.Left:
		return func() { a.reportDone(e.Clean) }
	case lifecycle.ReportTarget:
		return func() {
			previous.membership.Report(targets.Outcome{Answered: e.Answered, Asked: e.Asked, ForAll: e.ForAll, Err: e.Err})
		}
	case lifecycle.ReportIdentity:
		conn := cmp.Or(previous.conn, payload.conn)
		return func() { conn.ReportIdentity(e.Verified) }
	case lifecycle.Log:
		conn := payload.conn
		return func() { logEffect(a.set.options.Logger, a.key, e, conn) }
	case lifecycle.Record:
		return func() { record(a.set.options.Metrics, e) }
	case lifecycle.Notify:
		object := a.object
		return func() {
			if object != nil {
				a.set.options.Changed(object)
			}
		}
	case lifecycle.Wake:
		return func() { a.set.options.Wake(a.key) }
	default:
		panic(fmt.Sprintf("unknown effect %T", effect))
	}
}

func logEffect(logger logr.Logger, key client.ObjectKey, e lifecycle.Log, conn *connection.Connection) {
	if e.Verbose {
		logger = logger.V(1)
	}
	values := []any{"extension", klog.KRef(key.Namespace, key.Name), "epoch", e.Epoch}
	switch {
	case e.Message == lifecycle.MessageConnected:
		values = append(values, "username", conn.Identity().Username, "uid", conn.Identity().UID, "target", conn.Host())
	case e.Reason != "":
		values = append(values, "reason", e.Reason, "error", connstate.ErrorText(e.Err))
	case e.Err != nil:
		values = append(values, "error", connstate.ErrorText(e.Err))
	}
	logger.Info(e.Message, values...)
}

func record(counts *metrics.Cache, e lifecycle.Record) {
	switch e.Counter {
	case lifecycle.Connects:
		counts.Connected(e.Result)
	case lifecycle.Probes:
		counts.Probed(e.Result)
	case lifecycle.Rotations:
		counts.Rotated(e.Result)
	case lifecycle.GivenUp:
		counts.GaveUp()
	}
}
