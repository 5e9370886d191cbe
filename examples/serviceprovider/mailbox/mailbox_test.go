package mailbox

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/latchkey-dev/latchkey/examples/serviceprovider/v1alpha1"
	"github.com/latchkey-dev/latchkey/fake"
	"github.com/latchkey-dev/latchkey/serviceprovider"
	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

// docs/serviceprovider.md shows the beginning of this test.
func TestCreateOrUpdate(t *testing.T) {
	tenant := clientfake.NewClientBuilder().Build()
	access := &clustersv1alpha1.AccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "access", UID: "1"}}
	connections := fake.NewFakeCache(tenant, client.ObjectKeyFromObject(access))
	mailbox := &v1alpha1.Mailbox{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello"},
		Spec:       v1alpha1.MailboxSpec{Address: "hello"},
	}
	mcp, err := serviceprovider.NewCluster(t.Context(), connections, serviceprovider.ClusterOptions{
		ID:         "mcp",
		Extension:  access,
		Controller: fake.NewController(t),
		Request:    ctrl.Request{NamespacedName: client.ObjectKeyFromObject(mailbox)},
	})
	if err != nil {
		t.Fatal(err)
	}
	config := &v1alpha1.ProviderConfig{Spec: v1alpha1.ProviderConfigSpec{Domain: "example.com"}}
	clusters := serviceprovider.ClusterContext{MCPCluster: mcp}
	if _, err := (reconciler{}).CreateOrUpdate(t.Context(), mailbox, config, clusters); err != nil {
		t.Fatal(err)
	}

	made := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: Namespace, Name: "hello"}
	if err := tenant.Get(t.Context(), key, made); err != nil || made.Data["address"] != "hello@example.com" {
		t.Errorf("made %v, error %v", made.Data, err)
	}
	if mailbox.Status.Phase != serviceprovider.StatusPhaseReady {
		t.Errorf("the phase is %q", mailbox.Status.Phase)
	}

	for mayBeDone := false; ; mayBeDone = true { // the first call deletes, the second finds nothing
		result, err := (reconciler{}).Delete(t.Context(), mailbox, config, clusters)
		if err != nil {
			t.Fatal(err)
		}
		if done := result.RequeueAfter == 0; done != mayBeDone {
			t.Fatalf("done: %t", done)
		} else if done {
			break
		}
	}
}
