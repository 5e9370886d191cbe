package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/scopedcache"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// checkInterval is how often check looks at the states.
const checkInterval = 200 * time.Millisecond

// runCheck connects every extension and prints the states, once or until it is interrupted.
// runCheck returns an error if an extension is not connected then, or degraded.
func runCheck(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "target" {
		return runCheckTarget(ctx, args[1:])
	}
	var m managerFlags
	flags := flag.NewFlagSet("latchkey check", flag.ContinueOnError)
	m.onlyLooks = true
	m.bind(flags)
	var running servedFlags
	running.bind(flags)
	once := flags.Bool("once", false, "print the states once and exit; otherwise print them again at each change")
	patience := flags.Duration("patience", 30*time.Second, "how long to wait until every extension has a result")
	restConfig, options, err := m.parse(flags, args)
	if restConfig == nil {
		return err
	}
	if err := running.validate(flags); err != nil {
		return err
	}
	ctrl.SetLogger(logr.Discard()) // the states have the errors
	klog.SetLogger(logr.Discard())
	if running.enabled {
		return running.check(ctx, restConfig, *once, *patience)
	}
	return m.check(ctx, restConfig, options, *once, *patience)
}

func (m *managerFlags) check(ctx context.Context, restConfig *rest.Config, options clustercache.Options, once bool,
	patience time.Duration) error {
	mgr, err := ctrl.NewManager(restConfig, manager.Options{
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		GracefulShutdownTimeout: new(gracefulShutdown),
		NewCache:                scopedcache.NewWithOptions(scopedcache.Options{AccessReviewInterval: permissionInterval}),
	})
	if err != nil {
		return errors.Wrap(err, "creating the manager")
	}
	connections, err := m.setUp(ctx, mgr, options)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(running) }()
	defer func() {
		stop()
		<-ended
	}()
	select {
	case err := <-ended:
		ended <- nil
		return errors.Wrap(err, "running the manager")
	case <-mgr.Elected():
	}

	c := checker{
		mgr:         mgr,
		connections: connections,
		kind:        options.Object.GetObjectKind().GroupVersionKind().Kind,
		list:        &unstructured.UnstructuredList{},
		out:         untrusted.Terminal(os.Stdout),
	}
	c.list.SetGroupVersionKind(options.Object.GetObjectKind().GroupVersionKind())
	c.list.SetKind(c.kind + "List")
	states, err := c.wait(ctx, patience)
	if err != nil {
		return err
	}
	c.print(states)
	for last := text(states); !once; {
		select {
		case <-ctx.Done():
			return result(states) // an interrupt also ends the connections; what was printed last counts
		case <-time.After(checkInterval):
		}
		now := connections.ListConnectionStates(ctx)
		if ctx.Err() != nil {
			continue
		}
		if states = now; text(states) != last {
			last = text(states)
			fmt.Fprintln(c.out)
			c.print(states)
		}
	}
	return result(states)
}

// checker prints the states of connections.
type checker struct {
	mgr         manager.Manager
	connections clustercache.ClusterCache
	kind        string
	list        *unstructured.UnstructuredList
	out         io.Writer
}

// wait returns the states once every extension has a result, or after patience.
func (c *checker) wait(ctx context.Context, patience time.Duration) ([]clustercache.ConnectionState, error) {
	deadline := time.Now().Add(patience)
	for {
		listed, cancel := context.WithDeadline(ctx, deadline)
		err := c.mgr.GetCache().List(listed, c.list)
		cancel()
		states := c.connections.ListConnectionStates(ctx)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err == nil && len(states) >= len(c.list.Items) && settled(states):
			return states, nil
		case time.Now().After(deadline) && err != nil:
			return nil, errors.Wrapf(err, "listing the objects of kind %s", c.kind)
		case time.Now().After(deadline):
			return states, nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(checkInterval):
		}
	}
}

// settled reports whether every connect has a result.
func settled(states []clustercache.ConnectionState) bool {
	for _, state := range states {
		if state.Phase == clustercache.PhaseConnecting || state.Reason.Pending() {
			return false
		}
	}
	return true
}

func (c *checker) print(states []clustercache.ConnectionState) {
	if len(states) == 0 {
		fmt.Fprintf(c.out, "There are no objects of kind %s.\n", c.kind)
		return
	}
	fmt.Fprint(c.out, text(states))
}

// text returns the states as a table.
func text(states []clustercache.ConnectionState) string { return table(rowsOf(states)) }

// checked is a line of the table.
type checked struct {
	extension, identity, state, reason, replica, message string
}

func rowsOf(states []clustercache.ConnectionState) []checked {
	rows := make([]checked, len(states))
	for i, state := range states {
		summary := state.Summary()
		rows[i] = checked{
			extension: strings.TrimPrefix(state.Extension.String(), "/"),
			identity:  state.Identity.Username,
			state:     summary.State,
			reason:    summary.Reason,
			message:   summary.Message,
		}
	}
	return rows
}

// table returns the rows as text, with the replicas if there are some.
func table(rows []checked) string {
	if len(rows) == 0 {
		return "There are no extensions.\n"
	}
	shared := slices.ContainsFunc(rows, func(row checked) bool { return row.replica != "" })
	var out strings.Builder
	writer := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	line := func(extension, identity, state, reason, replica, message string) {
		cells := []string{extension, identity, state, reason, replica, message}
		if !shared {
			cells = slices.Delete(cells, 4, 5)
		}
		fmt.Fprintln(writer, strings.Join(cells, "\t"))
	}
	line("EXTENSION", "IDENTITY", "STATE", "REASON", "REPLICA", "MESSAGE")
	for _, row := range rows {
		line(row.extension, orDash(row.identity), row.state, orDash(row.reason), orDash(row.replica),
			strings.Join(strings.Fields(row.message), " "))
	}
	_ = writer.Flush() // a write to a Builder does not fail
	return out.String()
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// result returns an error if an extension is not connected, or degraded.
func result(states []clustercache.ConnectionState) error { return resultOf(rowsOf(states)) }

func resultOf(rows []checked) error {
	failed, degraded := 0, 0
	for _, row := range rows {
		switch row.state {
		case v1alpha1.StateConnected:
		case v1alpha1.StateDegraded:
			degraded++
		default:
			failed++
		}
	}
	const advice = "docs/operations.md says what to do for each reason"
	switch {
	case failed > 0 && degraded > 0:
		return errors.Errorf("%d of %d extensions are not connected, and %d are degraded; %s", failed, len(rows), degraded,
			advice)
	case failed > 0:
		return errors.Errorf("%d of %d extensions are not connected; %s", failed, len(rows), advice)
	case degraded > 0:
		return errors.Errorf("%d of %d extensions are degraded; %s", degraded, len(rows), advice)
	}
	return nil
}
