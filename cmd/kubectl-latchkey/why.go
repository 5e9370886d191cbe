package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/latchkey-dev/latchkey/internal/advice"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// why prints why an extension is not connected, or what its identity may not read.
func (c *cli) why(ctx context.Context, out io.Writer, name string, onlyRole bool) error {
	out = untrusted.Terminal(out)
	connection, err := c.get(ctx, name)
	if err != nil {
		return err
	}
	var scopes []v1alpha1.Scope
	roles := ""
	if connection.Status.Scopes > 0 {
		if scopes, err = c.scopesOf(ctx, name); err != nil {
			return err
		}
		objects, err := rolesFor(connection, scopes, c.mapper())
		if err != nil {
			return err
		}
		if roles, err = manifest(objects); err != nil {
			return err
		}
		scopes = slices.DeleteFunc(scopes, func(s v1alpha1.Scope) bool { return s.Status.State == "Synced" })
	}
	if onlyRole && roles == "" && slices.ContainsFunc(scopes, func(s v1alpha1.Scope) bool { return isForbidden(&s) }) {
		return errors.Errorf("the connection is not that of a ServiceAccount of this cluster (source %q): grant list and "+
			"watch at its API server, %s", connection.Status.Source, connection.Status.Target)
	}
	if onlyRole {
		_, err = io.WriteString(out, roles)
		return err
	}
	_, err = io.WriteString(out, explain(connection, scopes, roles, time.Now()))
	return err
}

// explain returns what why prints. scopes are those that are not Synced.
func explain(c *v1alpha1.Connection, scopes []v1alpha1.Scope, roles string, now time.Time) string {
	var out strings.Builder
	line := func(name, value string) {
		if value = strings.Join(strings.Fields(value), " "); value != "" {
			fmt.Fprintf(&out, "%-12s%s\n", name+":", value)
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
	if len(scopes) > 0 {
		fmt.Fprintf(&out, "\nIt cannot read %d of its %d scopes:\n", len(scopes), status.Scopes)
	}
	forbidden := false
	for i := range scopes {
		fmt.Fprintf(&out, "  %s\n", describe(&scopes[i].Status))
		forbidden = forbidden || isForbidden(&scopes[i])
	}
	command := "why " + c.Name + " --role"
	if c.Namespace != "" {
		command += " -n " + c.Namespace
	}
	switch {
	case roles != "":
		fmt.Fprintf(&out, "\nThese roles would allow it. Read them first; \"%s\" prints only them, to apply:\n\n%s",
			command, roles)
	case forbidden:
		fmt.Fprintf(&out, "\nGrant list and watch there, at %s.\n", status.Target)
	case len(scopes) == 0 && status.State == v1alpha1.StateConnected && status.Message == "":
		out.WriteString("\nIt is connected, and may read all that is asked for.\n")
	}
	return out.String()
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
