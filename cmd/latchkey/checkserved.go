package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/latchkey-dev/latchkey/internal/untrusted"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// servedFlags make check print what the running operator says, by its state API.
type servedFlags struct {
	enabled bool
	group   string
}

func (s *servedFlags) bind(flags *flag.FlagSet) {
	flags.BoolVar(&s.enabled, "from-state-api", false,
		"connect nothing, and print what the running operator says, with all its replicas, by its state API; needs "+
			"\"list\" and \"watch\" on its connections")
	flags.StringVar(&s.group, "state-api-group", v1alpha1.GroupVersion.Group, "with --from-state-api: group of the API")
}

// goWithServed are the flags that have a meaning with --from-state-api.
var goWithServed = []string{"from-state-api", "state-api-group", "once", "patience", "kubeconfig", "context"}

// validate returns an error that names flags without a meaning.
func (s *servedFlags) validate(flags *flag.FlagSet) (err error) {
	flags.Visit(func(f *flag.Flag) {
		switch without := slices.Contains(goWithServed, f.Name); {
		case s.enabled && !without:
			err = errors.Errorf("--%s says how to connect, and --from-state-api connects nothing", f.Name)
		case !s.enabled && f.Name == "state-api-group":
			err = errors.New("--state-api-group needs --from-state-api")
		}
	})
	return err
}

const (
	// refusedPatience is how long the state API may be unknown, or refuse, at the start: the API
	// server in front learns of it, and of permissions, a moment after they were created.
	refusedPatience = 5 * time.Second
	// silencePatience is how long the state API may not answer before check says so. Another replica
	// takes seconds to serve in the place of one that has ended.
	silencePatience = 10 * time.Second
)

// served follows the connections that a state API serves.
type served struct {
	group    string
	informer toolscache.SharedIndexInformer
	changed  atomic.Bool
	failure  atomic.Pointer[failure] // nil while the API answers
	answered atomic.Int64            // when it was first nil again, in nanoseconds
}

// failure is why the state API does not answer, and since when.
type failure struct {
	err   error
	since time.Time
}

// answers notes the result of a request.
func (s *served) answers(err error) {
	if err == nil {
		if s.failure.Swap(nil) != nil {
			s.answered.Store(time.Now().UnixNano())
		}
		return
	}
	now := failure{err, time.Now()}
	if before := s.failure.Load(); before != nil {
		now.since = before.since
	}
	s.failure.Store(&now)
}

// newServed returns what follows the connections, and notes whether the API answers.
func newServed(dynamicClient dynamic.Interface, group string) *served {
	version := v1alpha1.GroupVersion
	version.Group = group
	client := dynamicClient.Resource(version.WithResource("connections"))
	s := &served{group: group}
	s.informer = toolscache.NewSharedIndexInformer(toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := client.List(ctx, options)
			s.answers(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := client.Watch(ctx, options)
			if err != nil || !ptr.Deref(options.SendInitialEvents, false) {
				s.answers(err)
				return events, err
			}
			return watch.Filter(events, func(event watch.Event) (watch.Event, bool) {
				if event.Type == watch.Bookmark { // it has said all
					s.answers(nil)
				}
				return event, true
			}), nil
		},
	}, dynamicClient), &unstructured.Unstructured{}, 0, toolscache.Indexers{})
	return s
}

// check prints the states that the state API serves, once or until ctx is done.
func (s *servedFlags) check(ctx context.Context, restConfig *rest.Config, once bool, patience time.Duration) error {
	client, err := dynamic.NewForConfig(restConfig)
	if err != nil {
		return errors.Wrap(err, "creating a client")
	}
	all := newServed(client, s.group)
	ctx, cancel := context.WithCancel(logr.NewContext(ctx, logr.Discard()))
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	if err := all.start(ctx, &running); err != nil {
		return err
	}
	rows, err := all.wait(ctx, patience)
	if err != nil {
		return err
	}
	out := untrusted.Terminal(os.Stdout)
	fmt.Fprint(out, table(rows))
	if once {
		return resultOf(rows)
	}
	return all.follow(ctx, out, rows)
}

// follow prints the rows when they change, and when the state API does not answer, until ctx is
// done.
func (s *served) follow(ctx context.Context, out io.Writer, rows []checked) error {
	var silent *failure // what was said
	for last := table(rows); ; {
		select {
		case <-ctx.Done():
			if silent != nil {
				return s.explain(silent.err)
			}
			return resultOf(rows)
		case <-time.After(checkInterval):
		}
		switch failed := s.failure.Load(); {
		case failed != nil && silent == nil && time.Since(failed.since) > silencePatience:
			silent = failed
			fmt.Fprintf(out, "\nNo answer since %s, and the lines above are of then: %s\n",
				failed.since.Format(time.TimeOnly), s.explain(failed.err))
		// What was answered is in the store a moment later.
		case failed == nil && silent != nil && time.Since(time.Unix(0, s.answered.Load())) > time.Second:
			silent, last = nil, ""
			s.changed.Store(true)
		}
		if silent != nil && s.failure.Load() == nil || !s.changed.Swap(false) {
			continue
		}
		if rows = s.rows(); table(rows) != last {
			last = table(rows)
			fmt.Fprint(out, "\n", last)
		}
	}
}

func (s *served) start(ctx context.Context, running *sync.WaitGroup) error {
	note := func() { s.changed.Store(true) }
	if _, err := s.informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { note() },
		UpdateFunc: func(any, any) { note() },
		DeleteFunc: func(any) { note() },
	}); err != nil {
		return errors.Wrap(err, "following the connections")
	}
	quiet := func(context.Context, *toolscache.Reflector, error) {} // answers has noted it
	if err := s.informer.SetWatchErrorHandlerWithContext(quiet); err != nil {
		return errors.Wrap(err, "following the connections")
	}
	running.Go(func() { s.informer.RunWithContext(ctx) })
	return nil
}

// mayChange reports whether an extension is without a result for a moment: it connects, or moves
// from one replica to another.
func (c checked) mayChange() bool {
	return c.state == v1alpha1.StateConnecting || c.reason == v1alpha1.ReasonNoReplica ||
		c.reason == v1alpha1.ReasonReplicaSilent
}

// wait returns the rows once every extension has a result, or after patience.
func (s *served) wait(ctx context.Context, patience time.Duration) ([]checked, error) {
	deadline := time.Now().Add(patience)
	refused := time.Now().Add(min(patience, refusedPatience))
	for {
		synced := s.informer.HasSynced()
		rows := s.rows()
		switch failed := s.failure.Load(); {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case synced && !slices.ContainsFunc(rows, checked.mayChange):
			return rows, nil
		case synced && time.Now().After(deadline):
			return rows, nil
		case failed != nil && !synced && time.Now().After(refused) &&
			(apierrors.IsForbidden(failed.err) || apierrors.IsNotFound(failed.err)):
			return nil, s.explain(failed.err)
		case time.Now().After(deadline) && failed != nil:
			return nil, s.explain(failed.err)
		case time.Now().After(deadline):
			return nil, errors.Errorf("the state API %s has not answered within %s", s.group, patience)
		}
		select {
		case <-ctx.Done():
		case <-time.After(checkInterval):
		}
	}
}

// explain says what to do about an error of the state API.
func (s *served) explain(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return errors.Errorf("there is no state API %s here: run the operator with --state-api (docs/stateapi.md), or name "+
			"its group by --state-api-group", s.group)
	case apierrors.IsForbidden(err):
		return errors.Wrapf(err, "listing the connections needs list and watch on connections.%s (ClusterRole "+
			"latchkey-state-viewer), if that is the group of a state API (--state-api-group)", s.group)
	case apierrors.IsServiceUnavailable(err):
		return errors.Wrapf(err, "no replica serves the state API %s (kubectl describe apiservice %s.%s)", s.group,
			v1alpha1.GroupVersion.Version, s.group)
	}
	return errors.Wrap(err, "listing the connections")
}

// rows returns what is served, sorted.
func (s *served) rows() (rows []checked) {
	for _, object := range s.informer.GetStore().List() {
		var c v1alpha1.Connection
		served := object.(*unstructured.Unstructured)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(served.Object, &c); err != nil { // of another version
			rows = append(rows, checked{
				extension: strings.TrimPrefix(served.GetNamespace()+"/"+served.GetName(), "/"),
				state:     v1alpha1.StateUnknown,
				message:   "this latchkey cannot read what the state API says: " + err.Error(),
			})
			continue
		}
		row := checked{
			extension: strings.TrimPrefix(c.Namespace+"/"+c.Name, "/"),
			state:     c.Status.State,
			reason:    c.Status.Reason,
			replica:   c.Status.Replica,
			message:   c.Status.Message,
		}
		if c.Status.Identity != nil {
			row.identity = c.Status.Identity.Username
		}
		if len(c.Status.ClaimedBy) > 1 {
			row.message = "claimed by " + strings.Join(c.Status.ClaimedBy, " and ") + "; " + row.message
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(x, y checked) int { return cmp.Compare(x.extension, y.extension) })
	return rows
}
