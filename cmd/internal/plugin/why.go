package plugin

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/latchkey-dev/latchkey/internal/advice"
	"github.com/latchkey-dev/latchkey/internal/leastrole"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// why prints why an extension is not connected, or what its identity may not do.
func (c *cli) why(ctx context.Context, out io.Writer, name string) error {
	out = untrusted.Terminal(out)
	connection, err := c.get(ctx, name)
	if err != nil {
		return err
	}
	var scopes []v1alpha1.Scope
	if connection.Status.Scopes > 0 {
		if scopes, err = c.scopesOf(ctx, connection); err != nil {
			return err
		}
		scopes = slices.DeleteFunc(scopes, func(s v1alpha1.Scope) bool { return s.Status.State == "Synced" })
	}
	_, err = io.WriteString(out, explain(connection, scopes, time.Now()))
	return err
}

// explain returns what why prints. scopes are those that are not Synced.
func explain(c *v1alpha1.Connection, scopes []v1alpha1.Scope, now time.Time) string {
	var out strings.Builder
	line := func(name, value string) {
		if value = strings.Join(strings.Fields(value), " "); value != "" {
			if name != "" {
				name += ":"
			}
			fmt.Fprintf(&out, "%-12s%s\n", name, value)
		}
	}
	status := &c.Status
	line("Connection", keyOf(c))
	state := status.State
	if status.Since != nil {
		state += " for " + duration.HumanDuration(now.Sub(status.Since.Time)) + " (since " +
			status.Since.UTC().Format(time.RFC3339) + ")"
	}
	line("State", state)
	line("Reason", status.Reason)
	line("Message", status.Message)
	if status.Identity != nil {
		line("Identity", status.Identity.Username)
	}
	line("Source", status.Source)
	line("API server", status.Target)
	if status.Probe.Failures > 0 {
		line("Probes", fmt.Sprintf("%d failed in a row: %s", status.Probe.Failures, status.Probe.Error))
	}
	line("What to do", advice.For(status.Reason))
	for _, problem := range status.Problems {
		if problem.Reason == status.Reason && !problem.Muted {
			continue // it is above
		}
		text := problem.Reason + ": " + problem.Message
		if problem.Muted {
			text += " (muted)"
		}
		line("Also", text)
		line("", advice.For(problem.Reason))
	}
	if len(scopes) > 0 {
		fmt.Fprintf(&out, "\nIt cannot read %d of its %d scopes:\n", len(scopes), status.Scopes)
	}
	lacks := false
	for i := range scopes {
		fmt.Fprintf(&out, "  %s\n", describe(&scopes[i].Status))
		lacks = lacks || isForbidden(&scopes[i])
	}
	if record := status.Permissions; record != nil && len(record.Refused) > 0 {
		lacks = true
		out.WriteString("\nIt was refused, in the last hour:\n")
		for _, refused := range record.Refused {
			u := useOf(refused)
			fmt.Fprintf(&out, "  %s %s in %s, %s\n", u.Verb, u.of(), u.in(), timesOf(u.count))
		}
	}
	_, isServiceAccount := leastrole.SubjectOf(status.Source)
	switch {
	case lacks && isServiceAccount:
		fmt.Fprintf(&out, "\n\"%s --missing\" prints roles that would allow it.\n", commandOf(c))
	case lacks:
		fmt.Fprintf(&out, "\nGrant it there, at %s.\n", status.Target)
	case len(scopes) == 0 && status.State == v1alpha1.StateConnected && len(status.Problems) == 0:
		out.WriteString("\nIt is connected, and may read all that is asked for.\n")
	}
	return out.String()
}

// timesOf returns a number of times.
func timesOf(count int64) string {
	if count == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", count)
}

// describe returns a scope in a line.
func describe(s *v1alpha1.ScopeStatus) string {
	text := s.State + ": " + s.Kind + "." + s.APIVersion
	if s.Namespace != "" {
		text += " in namespace " + s.Namespace
	} else {
		text += " in all namespaces"
	}
	if s.LabelSelector != "" {
		text += ", labels " + s.LabelSelector
	}
	if s.FieldSelector != "" {
		text += ", fields " + s.FieldSelector
	}
	if len(s.Dependents) > 0 {
		text += ", for " + strings.Join(s.Dependents, ", ")
	}
	if s.State != "Forbidden" && s.Message != "" {
		text += ": " + strings.Join(strings.Fields(s.Message), " ")
	}
	return text
}
