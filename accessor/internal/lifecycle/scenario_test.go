package lifecycle

import (
	"bufio"
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/latchkey-dev/latchkey/credential"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/test/support/machinetest"
)

// TestScenarios replays the scenarios under testdata. A line that begins with ">" is an event. The
// indented lines below an event are the machine's effects. -update writes the effects.
func TestScenarios(t *testing.T) { machinetest.RunScenarios(t, play) }

// scenarioConfig has the default options, without jitter.
var scenarioConfig = &Config{
	Probe:   connstate.ProbeOptions{}.WithDefaults(),
	Backoff: wait.Backoff{Duration: 30 * time.Second, Factor: 2, Steps: 10, Cap: 5 * time.Minute},

	DenialRetry: wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Steps: 10},

	AnswerTimeout: 2 * time.Second,
	TaskTimeout:   5 * time.Second,
}

// removals are the removals by the words of scenarios.
var removals = map[string]Removal{"deleted": Deleted, "filtered": Filtered, "stopped": Stopped}

// failure is an error of resolving, or of a credential, that has the reason.
type failure struct {
	error
	reason connstate.Reason
}

// Is makes errors.Is find what has the reason.
func (f failure) Is(target error) bool { return target == failures[f.reason] }

var failures = map[connstate.Reason]error{
	connstate.ReasonNotAllowed:             credential.ErrNotAllowed,
	connstate.ReasonInvalidReference:       credential.ErrInvalidReference,
	connstate.ReasonInvalidCredential:      credential.ErrInvalidCredential,
	connstate.ReasonServiceAccountNotFound: identity.ErrServiceAccountNotFound,
	connstate.ReasonTokenRequestFailed:     identity.ErrTokenRequestFailed,
	connstate.ReasonOperatorForbidden:      identity.ErrOperatorForbidden,
	connstate.ReasonUnreachable:            nil,
}

// player is the driver of a scenario.
type player struct {
	machine        Machine
	now            time.Time
	seen           Observed
	target         TargetID
	generation     int64
	earlierAttempt AttemptID // an attempt that was cancelled
}

func play(t *testing.T, script []byte) []byte {
	p := &player{now: epoch0, generation: 1}
	p.machine = New(scenarioConfig, p.now, 0)
	var out bytes.Buffer
	lines := bufio.NewScanner(bytes.NewReader(script))
	for lines.Scan() {
		line := lines.Text()
		command, isEvent := strings.CutPrefix(line, "> ")
		if !isEvent {
			if !strings.HasPrefix(line, "    ") {
				fmt.Fprintln(&out, line)
			}
			continue
		}
		fmt.Fprintln(&out, line)
		command, _, _ = strings.Cut(command, " #")
		effects, err := p.do(strings.Fields(command))
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for _, effect := range effects {
			fmt.Fprintln(&out, "    "+describe(effect))
		}
		if version := p.machine.ObjectVersion(); version != "" {
			fmt.Fprintln(&out, "    for object version "+version)
		}
		if at := p.machine.Deadline(p.now, p.seen); at.IsZero() {
			fmt.Fprintln(&out, "    ... until an event")
		} else {
			fmt.Fprintf(&out, "    ... %s\n", max(at.Sub(p.now), 0))
		}
	}
	return out.Bytes()
}

// options are the words of a command after the first, as "key=value" or "flag".
type options map[string]string

func (o options) get(key, fallback string) string {
	if value, ok := o[key]; ok {
		return value
	}
	return fallback
}

func (o options) has(key string) bool { _, ok := o[key]; return ok }

func (p *player) do(words []string) ([]Effect, error) {
	o := options{}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		o[key] = value
	}
	event, err := p.event(words[0], o)
	if event == nil || err != nil {
		return nil, err
	}
	if p.machine.attempt.id != 0 {
		p.earlierAttempt = p.machine.attempt.id
	}
	return p.machine.Step(p.now, p.seen, event), nil
}

// event returns the event of a command, nil if the command is not an event for the machine.
func (p *player) event(verb string, o options) (Event, error) {
	switch verb {
	case "wait":
		for word := range o {
			d, err := time.ParseDuration(word)
			if err != nil {
				return nil, err
			}
			p.now = p.now.Add(d)
		}
		return nil, nil
	case "jitter":
		for word := range o {
			p.seen.Jitter, _ = strconv.ParseFloat(word, 64)
		}
		p.machine.config = &Config{Probe: scenarioConfig.Probe, Backoff: scenarioConfig.Backoff}
		p.machine.config.Backoff.Jitter = 0.2
		p.machine.backoff.Jitter = 0.2
		return nil, nil
	case "served":
		p.seen.Served = p.now
		return nil, nil
	case "sibling-verified":
		p.seen.Verified = p.now
		return nil, nil
	case "request", "review":
		return p.exchanged(verb, o)
	case "target":
		p.seen.Target = connstate.Health{}
		if o.has("silent") {
			p.seen.Target = connstate.Health{LastProbeTime: p.now, ConsecutiveFailures: 1, LastError: errors.New("silence")}
		}
		return nil, nil
	case "edited":
		p.generation++
		return nil, nil
	case "resolved", "resolve-error":
		return p.resolved(verb, o), nil
	case "answer", "late-answer":
		return p.answered(verb, o), nil
	case "request-401":
		return RequestUnauthorized{Attempt: p.machine.connection + AttemptID(len(o))}, nil
	case "probe-for-all":
		return ProbeRequested{Target: p.machine.target + TargetID(len(o))}, nil
	case "target-down":
		return TargetDown{Target: p.machine.target + TargetID(len(o)), Err: errors.New("silence")}, nil
	case "retry":
		d, err := time.ParseDuration(o.get("in", "0s"))
		return RetryAt{Target: p.machine.target, At: p.now.Add(d)}, err
	case "access-changed":
		return AccessChanged{}, nil
	case "removed":
		return Removed{Why: removals[o.get("why", "deleted")]}, nil
	case "lease-ended":
		return LeaseEnded{Cause: errors.New("the lease was not renewed")}, nil
	case "given-up":
		return GiveUp{Cause: errors.New("another replica is to have it")}, nil
	case "requests-answered":
		return RequestsAnswered{}, nil
	case "no-more-time":
		return NoMoreTime{}, nil
	case "tasks-ended":
		return TasksEnded{Clean: !o.has("hang")}, nil
	}
	return nil, errors.Errorf("no such event: %s", verb)
}

// exchanged classifies the answer to a request, as the driver does. A review does not state a user.
func (p *player) exchanged(verb string, o options) (Event, error) {
	status, err := strconv.Atoi(o.get("status", "200"))
	x := connstate.Exchange{
		Path:        podsPath,
		Accept:      []string{"application/json, */*"},
		Status:      status,
		ContentType: o.get("type", "application/json"),
	}
	if verb == "review" {
		x.Path = reviewPath
	}
	if x.Serves() {
		p.seen.Served = p.now
	}
	if verb == "review" {
		return p.answered("answer", options{"500": ""}), err
	}
	return nil, err
}

func (p *player) resolved(verb string, o options) Event {
	e := Resolved{
		Generation: p.generation,
		Resolution: Resolution{
			Key:     o.get("key", "k"),
			Version: o.get("version", "1"),
			Source:  o.get("source", "secret"),
			ServiceAccount: types.NamespacedName{
				Name: o.get("serviceaccount", "sa"),
			},
			KeepCurrent:   o.has("keep"),
			Impersonated:  o.has("impersonated"),
			Expected:      connstate.Identity{Username: o.get("expected", "")},
			ObjectVersion: o.get("object", ""),
			Reference:     o.get("reference", ""),
		},
	}
	switch {
	case verb == "resolve-error":
		e.Err = failure{errors.New(o.get("error", "failed")), connstate.Reason(o.get("reason", "NotAllowed"))}
	case o.has("no-target"):
		e.TargetErr = errors.New("no such target")
	case e.Resolution.Key != p.machine.CredentialKey():
		p.target++
		e.Target = p.target
	}
	return e
}

func (p *player) answered(verb string, o options) Event {
	answer := Answer{
		Err:            errors.New("failed"),
		Own:            o.has("own"),
		OwnConnections: o.has("own-connections"),
		NotSent:        connstate.Reason(o.get("not-sent", "")),
	}
	verdicts := map[string]connstate.Verdict{"401": connstate.Unauthorized, "403": connstate.Denied,
		"500": connstate.Failing, "silence": connstate.Silent, "not-sent": connstate.Failing, "429": connstate.Throttled}
	answer.RetryAfter, _ = time.ParseDuration(o.get("retry", "0s"))
	for word, verdict := range verdicts {
		if o.has(word) {
			answer.Verdict = verdict
		}
	}
	if user, ok := o["user"]; ok {
		answer.Verdict, answer.Err = connstate.Valid, nil
		answer.Identity = connstate.Identity{
			Username: user,
			UID:      types.UID(o.get("uid", "")),
			Groups:   strings.Split(o.get("groups", "g"), ","),
		}
	}
	id := p.machine.attempt.id
	if verb == "late-answer" {
		id = p.earlierAttempt
	}
	return AttemptFinished{Attempt: id, Asked: p.now.Add(-time.Second), Answer: answer}
}

// describeLeaving returns the text for an effect of a machine that leaves.
func describeLeaving(effect Effect) string {
	switch e := effect.(type) {
	case Unregister:
		return "unregister"
	case RefuseRequests:
		return "refuse requests"
	case EndTerm:
		return "end the term"
	case AwaitAnswers:
		return fmt.Sprintf("await answers until %s", e.Until.Sub(epoch0))
	case AwaitTasks:
		return fmt.Sprintf("await tasks for %s", e.Timeout)
	case Left:
		if !e.Clean {
			return "left, and something hangs"
		}
		return "left"
	}
	return fmt.Sprintf("%T", effect)
}

// describe returns the text for an effect.
func describe(effect Effect) string {
	formatReason := func(reason connstate.Reason, err error) string {
		switch {
		case err == nil:
			return string(reason)
		case reason == "":
			return err.Error()
		}
		return fmt.Sprintf("%s: %v", reason, err)
	}
	switch e := effect.(type) {
	case AdoptTarget:
		return fmt.Sprintf("adopt target %d", e.Target)
	case OpenCredential:
		return fmt.Sprintf("open credential %d", e.Credential)
	case UseCredential:
		return fmt.Sprintf("use credential %d", e.Credential)
	case CreateAttempt:
		text := fmt.Sprintf("create %s %d with credential %d",
			map[AttemptKind]string{Connect: "connect", Probe: "probe", Verify: "verify"}[e.Kind], e.Attempt, e.Credential)
		if e.Kind == Connect {
			text += fmt.Sprintf(", epoch %d", e.Epoch)
		}
		if e.Urgent {
			text += ", urgent"
		}
		if e.Deferred {
			text += ", deferred"
		}
		return text
	case CancelAttempt:
		return fmt.Sprintf("cancel attempt %d", e.Attempt)
	case BeginConnection:
		return fmt.Sprintf("begin the connection of attempt %d", e.Attempt)
	case Publish:
		if e.Phase == connstate.PhaseConnected {
			return fmt.Sprintf("publish Connected, epoch %d, since %s", e.Epoch, e.Since.Sub(epoch0))
		}
		return fmt.Sprintf("publish %s (%s), since %s, down since %s", e.Phase, formatReason(e.Reason, e.Cause),
			e.Since.Sub(epoch0), e.DisconnectedSince.Sub(epoch0))
	case EndConnection:
		return "end the connection"
	case DiscardSecret:
		return fmt.Sprintf("discard the secret of credential %d, if it is from before %s", e.Credential,
			e.Before.Sub(epoch0))
	case SubmitAttempt:
		return fmt.Sprintf("submit attempt %d", e.Attempt)
	case DiscardConnection:
		return fmt.Sprintf("discard what attempt %d made", e.Attempt)
	case RetireCredential:
		return fmt.Sprintf("retire credential %d", e.Credential)
	case CloseCredential:
		return fmt.Sprintf("close credential %d", e.Credential)
	case ReleaseTarget:
		return fmt.Sprintf("release target %d", e.Target)
	case PauseWatches:
		return "pause the watches"
	case EndWatches:
		return "end the watches"
	case ReportTarget:
		switch {
		case e.Answered:
			return fmt.Sprintf("report: target %d answered", e.Target)
		case e.ForAll:
			return fmt.Sprintf("report: target %d was silent, asked for all", e.Target)
		}
		return fmt.Sprintf("report: target %d was silent", e.Target)
	case ReportIdentity:
		if e.Verified.IsZero() {
			return "report: the identity is in doubt"
		}
		return "report: the identity is verified"
	case Log:
		text := "log: " + e.Message
		if why := formatReason(e.Reason, e.Err); why != "" {
			text += " (" + why + ")"
		}
		if e.Verbose {
			text += ", verbose"
		}
		return text
	case Record:
		return fmt.Sprintf("count %s %s",
			map[Counter]string{Connects: "connects", Probes: "probes", Rotations: "rotations", GivenUp: "given up"}[e.Counter],
			e.Result)
	case Notify:
		return "notify the extension sources"
	case Wake:
		return "wake"
	}
	return describeLeaving(effect)
}
