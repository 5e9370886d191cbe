package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/examples/serviceprovider/config"
	"github.com/latchkey-dev/latchkey/examples/serviceprovider/mailbox"
	"github.com/latchkey-dev/latchkey/examples/serviceprovider/v1alpha1"
	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

// patience is how long a step waits for what it expects.
const patience = time.Minute

// tour walks through the life of an order.
type tour struct {
	*world
	out       io.Writer
	namespace string // of the order's requests, on the platform cluster
}

func (t *tour) did(format string, args ...any) {
	fmt.Fprintf(t.out, "      did   "+format+"\n", args...)
}

// expect waits until look sees something, and prints it. look returns what it sees, and whether
// that is what was expected.
func (t *tour) expect(ctx context.Context, what string, look func() (string, bool)) error {
	start, seen, last := time.Now(), "", ""
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		var done bool
		if seen, done = look(); done {
			return true, nil
		}
		if seen != last && seen != "" {
			fmt.Fprintf(t.out, "      wait  %s\n", seen)
			last = seen
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("expected %s; last seen: %s: %w", what, seen, err)
	}
	fmt.Fprintf(t.out, "      saw   %s (%s)\n", seen, since(start))
	return nil
}

func (t *tour) walk(ctx context.Context) error {
	for i, step := range []struct {
		title string
		run   func(context.Context) error
	}{
		{"A tenant orders a Mailbox before the platform team has configured the provider", t.order},
		{"The platform team configures the provider", t.configure},
		{"The mailbox is deleted on the tenant's control plane", t.drift},
		{"The tenant deletes the order", t.delete},
	} {
		fmt.Fprintf(t.out, "%d/4   %s\n", i+1, step.title)
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("step %d (%s): %w", i+1, step.title, err)
		}
		fmt.Fprintln(t.out)
	}
	return nil
}

// apply applies a file of the config.
func apply(ctx context.Context, p place, file string) error {
	yaml, err := config.Files.ReadFile(file)
	if err != nil {
		return err
	}
	_, err = p.cp.KubectlInput(ctx, string(yaml), "apply", "-f", "-")
	return err
}

func hello() *v1alpha1.Mailbox {
	return &v1alpha1.Mailbox{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello"}}
}

// status returns what the order says about itself.
func (t *tour) status(ctx context.Context) string {
	found := hello()
	err := t.onboarding.Get(ctx, client.ObjectKeyFromObject(found), found)
	switch {
	case apierrors.IsNotFound(err):
		return "the Mailbox is gone"
	case err != nil:
		return err.Error()
	}
	if ready := meta.FindStatusCondition(found.Status.Conditions, "Ready"); ready != nil {
		return fmt.Sprintf("Mailbox hello is %s: %s, %s", found.Status.Phase, ready.Reason, ready.Message)
	}
	return ""
}

func (t *tour) order(ctx context.Context) error {
	if err := apply(ctx, t.onboarding, "sample.yaml"); err != nil {
		return err
	}
	t.did("kubectl apply -f config/sample.yaml     on the onboarding cluster")
	return t.expect(ctx, "the Mailbox to wait for its config", func() (string, bool) {
		seen := t.status(ctx)
		return seen, strings.Contains(seen, "ProviderConfigMissing")
	})
}

func (t *tour) configure(ctx context.Context) error {
	if err := apply(ctx, t.platform, "providerconfig.yaml"); err != nil {
		return err
	}
	t.did("kubectl apply -f config/providerconfig.yaml     on the platform cluster")
	requests := &clustersv1alpha1.AccessRequestList{}
	if err := t.expect(ctx, "an AccessRequest", func() (string, bool) {
		if err := t.platform.List(ctx, requests); err != nil || len(requests.Items) == 0 {
			return "", false
		}
		t.namespace = requests.Items[0].Namespace
		return "AccessRequest " + t.namespace + "/" + requests.Items[0].Name, true
	}); err != nil {
		return err
	}
	// The tenant's control plane, which others order.
	err := t.platform.Create(ctx, &clustersv1alpha1.ClusterRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace, Name: "hello"},
		Spec:       clustersv1alpha1.ClusterRequestSpec{Purpose: "mcp"}})
	if err != nil {
		return err
	}
	t.did("created the ClusterRequest of the tenant's control plane, as the platform does for each tenant")
	if err := t.expect(ctx, "a Mailbox that is ready", func() (string, bool) {
		seen := t.status(ctx)
		return seen, strings.Contains(seen, "is Ready")
	}); err != nil {
		return err
	}
	return t.seeMailbox(ctx)
}

// seeMailbox waits for the ConfigMap on the tenant's control plane.
func (t *tour) seeMailbox(ctx context.Context) error {
	return t.expect(ctx, "the ConfigMap", func() (string, bool) {
		found := &corev1.ConfigMap{}
		err := t.tenant.Get(ctx, client.ObjectKey{Namespace: mailbox.Namespace, Name: "hello"}, found)
		if err != nil {
			return "no ConfigMap mailboxes/hello", false
		}
		return "ConfigMap mailboxes/hello with address " + found.Data["address"], found.Data["address"] != ""
	})
}

func (t *tour) drift(ctx context.Context) error {
	damaged := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: mailbox.Namespace, Name: "hello"}}
	if err := t.tenant.Delete(ctx, damaged); err != nil {
		return err
	}
	t.did("kubectl delete configmap hello -n mailboxes     on the tenant's control plane")
	return t.seeMailbox(ctx)
}

func (t *tour) delete(ctx context.Context) error {
	if err := t.onboarding.Delete(ctx, hello()); err != nil {
		return err
	}
	t.did("kubectl delete mailbox hello     on the onboarding cluster")
	if err := t.expect(ctx, "the Mailbox to go", func() (string, bool) {
		seen := t.status(ctx)
		return seen, strings.HasSuffix(seen, "is gone")
	}); err != nil {
		return err
	}
	return t.expect(ctx, "nothing left", func() (string, bool) {
		left, err := t.left(ctx)
		if err != nil || len(left) > 0 {
			return strings.Join(left, ", "), false
		}
		return "no AccessRequest, no access Secret, no ConfigMap, no ServiceAccount: nothing is left", true
	})
}

// left returns what is left of the order.
func (t *tour) left(ctx context.Context) (left []string, err error) {
	for _, kind := range []struct {
		place
		name      string
		list      client.ObjectList
		namespace string
	}{
		{t.platform, "AccessRequest", &clustersv1alpha1.AccessRequestList{}, t.namespace},
		{t.platform, "Secret", &corev1.SecretList{}, t.namespace},
		{t.tenant, "ConfigMap", &corev1.ConfigMapList{}, mailbox.Namespace},
		{t.tenant, "ServiceAccount", &corev1.ServiceAccountList{}, "access"},
	} {
		if err := kind.List(ctx, kind.list, client.InNamespace(kind.namespace)); err != nil {
			return nil, err
		}
		if n := meta.LenList(kind.list); n > 0 {
			left = append(left, fmt.Sprintf("%d %s", n, kind.name))
		}
	}
	return left, nil
}
