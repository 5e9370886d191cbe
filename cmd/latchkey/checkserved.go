package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
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
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

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

// served follows the connections that a state API serves.
type served struct {
	group    string
	informer toolscache.SharedIndexInformer
	changed  atomic.Bool
	failed   atomic.Pointer[error] // the last one
}

// check prints the states that the state API serves, once or until ctx is done.
func (s *servedFlags) check(ctx context.Context, restConfig *rest.Config, once bool, patience time.Duration) error {
	client, err := dynamic.NewForConfig(restConfig)
	if err != nil {
		return errors.Wrap(err, "creating a client")
	}
	version := v1alpha1.GroupVersion
	version.Group = s.group
	all := served{
		group: s.group,
		informer: dynamicinformer.NewFilteredDynamicInformer(client, version.WithResource("connections"),
			metav1.NamespaceAll, 0, toolscache.Indexers{}, nil).Informer(),
	}
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
	for last := table(rows); !once && ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case <-time.After(checkInterval):
		}
		if !all.changed.Swap(false) {
			continue
		}
		if rows = all.rows(); table(rows) != last {
			last = table(rows)
			fmt.Fprint(out, "\n", last)
		}
	}
	return resultOf(rows)
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
	if err := s.informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *toolscache.Reflector, err error) {
		s.failed.Store(&err)
	}); err != nil {
		return errors.Wrap(err, "following the connections")
	}
	running.Go(func() { s.informer.RunWithContext(ctx) })
	return nil
}

// wait returns the rows once every extension has a result, or after patience.
func (s *served) wait(ctx context.Context, patience time.Duration) ([]checked, error) {
	deadline := time.Now().Add(patience)
	for {
		synced := s.informer.HasSynced()
		rows := s.rows()
		switch failed := s.failed.Load(); {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case synced && !slices.ContainsFunc(rows, func(row checked) bool { return row.state == v1alpha1.StateConnecting }):
			return rows, nil
		case synced && time.Now().After(deadline):
			return rows, nil
		case failed != nil && !synced && (apierrors.IsForbidden(*failed) || apierrors.IsNotFound(*failed)):
			return nil, s.explain(*failed)
		case time.Now().After(deadline) && failed != nil:
			return nil, s.explain(*failed)
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
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.(*unstructured.Unstructured).Object,
			&c); err != nil {
			continue // of another version
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
