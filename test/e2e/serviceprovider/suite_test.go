package serviceprovider

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/examples/serviceprovider/platformactor"
	"github.com/latchkey-dev/latchkey/examples/serviceprovider/v1alpha1"
	"github.com/latchkey-dev/latchkey/internal/controlplane"
	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

const patience = testenv.Patience

// The clusters of the tests. The remote cluster is the control plane of every tenant, and the
// workload cluster too.
var (
	onboarding, platform, remote place
	actor                        *platformactor.Actor
)

// place is a cluster and its administrator.
type place struct {
	client.Client
	cp   *controlplane.ControlPlane
	http *http.Client // of the administrator alone: the actor has connections of its own
}

func TestMain(m *testing.M) {
	log := logr.Discard()
	if os.Getenv("PROVIDER_LOG") != "" {
		log = funcr.New(func(_, args string) { fmt.Fprintln(os.Stderr, args) }, funcr.Options{})
	}
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	os.Exit(run(m))
}

// run starts the clusters, all at once, and the actor, and runs the tests.
func run(m *testing.M) int {
	if testenv.Short() {
		return 0
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	const examples = "../../../examples/serviceprovider/config/"
	starts := map[*place][]string{
		&onboarding: {examples + "crds/mail.example.com_mailboxes.yaml", "testdata/calendars.yaml"},
		&platform: {examples + "crds/mail.example.com_providerconfigs.yaml",
			"../../../serviceprovider/clustersv1alpha1/crds"},
		&remote: nil,
	}
	var started sync.WaitGroup
	for p, crds := range starts {
		started.Go(func() {
			if err := p.start(ctx, crds); err != nil {
				fmt.Fprintln(os.Stderr, "starting a control plane:", err)
			}
		})
	}
	started.Wait()
	for p := range starts {
		if p.cp != nil {
			defer func() { _ = p.cp.Stop() }()
		}
	}
	for p := range starts {
		if p.Client == nil {
			return 1
		}
	}
	if err := prepare(ctx, examples); err != nil {
		fmt.Fprintln(os.Stderr, "preparing the clusters:", err)
		return 1
	}
	acted := make(chan struct{})
	go func() {
		defer close(acted)
		actor.Run(ctx, func(err error) { fmt.Fprintln(os.Stderr, "the platform:", err) })
	}()
	defer func() {
		cancel()
		<-acted
	}()
	return m.Run()
}

func (p *place) start(ctx context.Context, crds []string) (err error) {
	if p.cp, err = controlplane.Start(ctx, controlplane.Options{CRDs: crds}); err != nil {
		return err
	}
	config := p.cp.Config()
	config.QPS, config.Dial = -1, new(net.Dialer).DialContext // another Dial is another transport
	if p.http, err = rest.HTTPClientFor(config); err != nil {
		return err
	}
	p.Client, err = client.New(config, client.Options{Scheme: newScheme(), HTTPClient: p.http})
	return err
}

func prepare(ctx context.Context, examples string) (err error) {
	for p, file := range map[*place]string{&onboarding: "rbac-onboarding.yaml", &platform: "rbac-platform.yaml"} {
		content, err := os.ReadFile(examples + file)
		if err != nil {
			return err
		}
		if _, err := p.cp.KubectlInput(ctx, string(content), "apply", "-f", "-"); err != nil {
			return err
		}
	}
	_, err = onboarding.cp.Kubectl(ctx, "create", "clusterrole", "calendar-provider", "--verb=get,list,watch,patch",
		"--resource=calendars.mail.example.com,calendars.mail.example.com/status")
	if err != nil {
		return err
	}
	actor, err = platformactor.New(platform.cp.Config(),
		map[string]*rest.Config{"mcp": remote.cp.Config(), clustersv1alpha1.PurposeWorkload: remote.cp.Config()})
	return err
}

// newScheme returns a scheme with all kinds of the tests.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clustersv1alpha1.AddToScheme,
		v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	scheme.AddKnownTypeWithName(v1alpha1.GroupVersion.WithKind("Calendar"), &Calendar{})
	scheme.AddKnownTypeWithName(v1alpha1.GroupVersion.WithKind("CalendarList"), &CalendarList{})
	return scheme
}

// Calendar is the kind of a second provider.
type Calendar struct{ v1alpha1.Mailbox }

// DeepCopyObject implements runtime.Object.
func (c *Calendar) DeepCopyObject() runtime.Object { return &Calendar{*c.DeepCopy()} }

// Finalizer implements serviceprovider.API.
func (c *Calendar) Finalizer() string { return "mail.example.com/calendar" }

// CalendarList is a list of Calendars.
type CalendarList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Calendar `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *CalendarList) DeepCopyObject() runtime.Object {
	c := &CalendarList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		c.Items = append(c.Items, *l.Items[i].DeepCopyObject().(*Calendar))
	}
	return c
}

// grantUser binds a ClusterRole to a user of a cluster.
func grantUser(ctx context.Context, p place, role, user string) error {
	_, err := p.cp.Kubectl(ctx, "create", "clusterrolebinding", strings.ReplaceAll(user, ".", "-")+"-"+role,
		"--clusterrole="+role, "--user="+user)
	return err
}
