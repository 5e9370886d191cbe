package lifecycle

import "github.com/latchkey-dev/latchkey/internal/connstate"

// stage says how far the end of a machine is: not of one connection, which disconnect ends, after
// which the machine connects again. A machine passes the stages in this order, and may skip
// refusing. There is one machine for each extension, UID and term.
type stage int8

const (
	// serving: the machine connects, probes and reconnects.
	serving stage = iota
	// refusing: another replica is to have the extension. No request starts, and those under way may
	// still get their answers.
	refusing
	// ending: the connection and the term have ended. Event handlers may still run.
	ending
	// gone: nothing of the extension runs here any more, or what hangs has had its time.
	gone
)

// giveUp lets no request start any more. Those under way may still get their answers, because
// another replica waits until they have. The review of an attempt is such a request.
func (s *step) giveUp(e GiveUp) {
	s.emit(Unregister{NotOwned: true})
	s.stage = refusing
	s.rotationErr = nil
	s.publish(connstate.PhaseDisconnected, connstate.ReasonNotOwned, e.Cause)
	s.emit(RefuseRequests{})
	s.notify()
	s.emit(Record{Counter: GivenUp})
	s.emit(AwaitAnswers{Until: s.now.Add(s.config.AnswerTimeout)})
}

// leaseEnded ends the machine before it handles the event. What failed because the lease has ended
// says nothing about the credential or the target.
func (s *step) leaseEnded(e LeaseEnded, event Event) {
	s.forgetAttempt(event)
	if s.stage == serving {
		s.emit(Wake{}) // no Reconcile caused the end, and one must learn of it
	}
	s.end(s.config.LeaseReason(), e.Cause)
}

// forgetAttempt forgets the attempt that the event is the end of.
func (s *step) forgetAttempt(event Event) {
	if finished, ok := event.(AttemptFinished); ok && finished.Attempt == s.attempt.id {
		s.attempt = attempt{}
	}
}

// leave handles an event after the machine has left the registry.
func (s *step) leave(event Event) {
	switch e := event.(type) {
	case AttemptFinished:
		s.forgetAttempt(e)
		s.discard(e)
	case RequestsAnswered, NoMoreTime, LeaseEnded, Removed:
		if s.stage == refusing {
			s.end(s.reason, s.cause)
		}
	case TasksEnded:
		if s.stage == ending {
			s.stage = gone
			s.emit(Left(e))
		}
	}
}

// end ends the connection, the term and the watches. What still runs has TaskTimeout to end.
func (s *step) end(reason connstate.Reason, cause error) {
	wasServing := s.stage == serving
	if wasServing {
		s.emit(Unregister{NotOwned: reason == connstate.ReasonNotOwned})
	}
	s.stage = ending
	if !wasServing { // first: what is cut must not arrive after an answer to those who wait
		s.emit(EndTerm{})
		reason, cause = s.reason, s.cause // those of the requests that were refused
	}
	connected := s.connection != 0
	s.drop(reason, cause)
	if connected && s.connection != 0 { // given up: the state said so before the connection ends
		s.endConnection()
	}
	s.emit(EndWatches{})
	if wasServing {
		s.emit(EndTerm{}) // last: the requests of the connection have its reason
		s.notify()
		if reason == connstate.ReasonNotOwned {
			s.emit(Record{Counter: GivenUp})
		}
	}
	s.emit(AwaitTasks{Timeout: s.config.TaskTimeout})
}
