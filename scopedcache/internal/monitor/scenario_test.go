package monitor

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/latchkey-dev/latchkey/test/support/machinetest"
)

// TestScenarios replays the scenarios under testdata. A line that begins with ">" is an event. The
// indented lines below it are the effects of the machine, which -update writes.
func TestScenarios(t *testing.T) { machinetest.RunScenarios(t, play) }

// player is the driver of a scenario. Without jitter, an interval of 60 s is 48 s.
type player struct {
	machine Machine
	now     time.Time
	out     bytes.Buffer
	sent    time.Time // when the next refused request was sent
}

func play(t *testing.T, script []byte) []byte {
	p := &player{now: epoch0}
	config := &Config{Interval: time.Minute, Timing: DefaultTiming}
	lines := bufio.NewScanner(bytes.NewReader(script))
	for lines.Scan() {
		line := lines.Text()
		command, isEvent := strings.CutPrefix(line, "> ")
		if !isEvent {
			if !strings.HasPrefix(line, "    ") {
				fmt.Fprintln(&p.out, line)
			}
			continue
		}
		fmt.Fprintln(&p.out, line)
		command, _, _ = strings.Cut(command, " #")
		command = strings.TrimSpace(command)
		verb, argument, _ := strings.Cut(command, " ")
		switch verb {
		case "start":
			config.PollWithoutWatch = argument == "poll"
			p.machine = New(config, p.now)
			p.print(p.machine.Start(p.now, 0))
		case "wait":
			d, err := time.ParseDuration(argument)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			p.wait(d)
		default:
			event, err := p.event(verb, argument)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			p.print(p.machine.Step(p.now, 0, event))
		}
		if at := p.machine.Deadline(); at.IsZero() {
			fmt.Fprintln(&p.out, "    ... until an event")
		} else {
			fmt.Fprintf(&p.out, "    ... %s\n", at.Sub(p.now))
		}
	}
	return p.out.Bytes()
}

// wait advances the clock, and passes the ticks that are due.
func (p *player) wait(d time.Duration) {
	end := p.now.Add(d)
	for {
		at := p.machine.Deadline()
		if at.IsZero() || at.After(end) {
			p.now = end
			return
		}
		fmt.Fprintf(&p.out, "    after %s:\n", d-end.Sub(at))
		p.now = at
		p.print(p.machine.Step(p.now, 0, Tick{}))
	}
}

func (p *player) event(verb, argument string) (Event, error) {
	question, life := p.machine.question.id, p.machine.life.id
	switch argument {
	case "late":
		question, life = question+100, life+100
	case "sent before":
		p.sent = p.now.Add(-time.Minute)
	}
	sent := p.now
	if argument == "sent before" {
		sent = p.sent
	}
	verdicts := map[string]Verdict{"allowed": Allowed, "denied": Denied,
		"denied-readiness-unknown": DeniedReadinessUnknown, "denied-unready": DeniedUnready, "unaskable": Unaskable,
		"unanswered": Unanswered}
	if verdict, ok := verdicts[verb]; ok {
		e := Reviewed{Question: question, Verdict: verdict, ListOnly: argument == "list-only"}
		if verdict != Allowed {
			e.Err = errors.New(strings.ReplaceAll(verb, "-", " "))
		}
		return e, nil
	}
	switch verb {
	case "mapped":
		if argument == "otherwise" {
			return Mapped{Question: question, Mapping: otherMapping}, nil
		}
		return Mapped{Question: question, Mapping: oneMapping}, nil
	case "no-match":
		return Mapped{Question: question, Err: &meta.NoKindMatchError{}}, nil
	case "discovery-fails":
		return Mapped{Question: question, Err: errors.New("discovery fails")}, nil
	case "ready", "not-ready":
		return Readied{Question: question, Ready: verb == "ready"}, nil
	case "start-fails":
		return InformerStartFailed{Life: life, Err: errors.New("no informer")}, nil
	case "synced":
		return InformerSynced{Life: life}, nil
	case "served":
		return Served{Life: life}, nil
	case "watch-began":
		return WatchBegan{Life: life, Lists: argument == "list"}, nil
	case "watch-listed":
		return WatchListed{Life: life}, nil
	case "watch-stopped":
		return WatchEnded{Life: life, Stopped: true}, nil
	case "watch-ended", "watch-ended-with-error": // after so long
		lasted, err := time.ParseDuration(argument)
		e := WatchEnded{Life: life, Lasted: lasted, Early: lasted < 5*time.Minute} // which client-go asked for
		if verb == "watch-ended-with-error" {
			e.Err = errors.New("too old")
		}
		return e, err
	case "failed":
		return Failed{Life: life, Err: errors.New("500")}, nil
	case "refused-403":
		return Refused{Life: life, Err: errForbidden, Sent: sent, At: p.now}, nil
	case "refused-404":
		return Refused{Life: life, Err: errNotFound, Sent: sent, At: p.now}, nil
	case "events-watched":
		return EventsWatched{Watched: true}, nil
	case "changed-before": // events are watched, and the latest came so long ago
		ago, err := time.ParseDuration(argument)
		return EventsWatched{Watched: true, Latest: p.now.Add(-ago)}, err
	case "events-not-watched":
		return EventsWatched{}, nil
	case "access-may-have-changed":
		return AccessMayHaveChanged{}, nil
	case "read":
		return Read{}, nil
	case "stopped":
		return Stopped{}, nil
	}
	return nil, errors.Errorf("no such event: %s", verb)
}

func (p *player) print(effects []Effect) {
	for _, effect := range effects {
		fmt.Fprintln(&p.out, "    "+describe(effect, p.now))
	}
}

// describe returns an effect as text.
func describe(effect Effect, now time.Time) string {
	switch e := effect.(type) {
	case AskMapping:
		if e.Distrust {
			return "ask discovery, distrusting what is known"
		}
		return "ask discovery"
	case AskReview:
		text := "review " + strings.Join(e.Verbs, " and ")
		if e.OrListOnly {
			text += ", or list alone"
		}
		return text
	case AskReadiness:
		return "ask whether the API server is ready"
	case StartInformer:
		if e.Poll > 0 {
			return fmt.Sprintf("start informer %d, which lists every %s", e.Life, e.Poll)
		}
		return fmt.Sprintf("start informer %d", e.Life)
	case Serve:
		return fmt.Sprintf("serve from informer %d", e.Life)
	case RestartWatch:
		return fmt.Sprintf("restart the watch of informer %d", e.Life)
	case ListInstead:
		return fmt.Sprintf("informer %d lists and then watches", e.Life)
	case StopInformer:
		return fmt.Sprintf("stop informer %d", e.Life)
	case SetState:
		text := fmt.Sprintf("state %s", e.State)
		if e.Err != nil {
			text += fmt.Sprintf(" (%v)", e.Err)
		}
		return fmt.Sprintf("%s, since %s, after %s", text, e.Since.Sub(now), e.Before)
	}
	return fmt.Sprintf("%T", effect)
}
