package controllersharding

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/latchkey-dev/latchkey/ownership"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// replica notes which of two extensions an engine gives up.
type replica struct {
	ownership.Replica
	mine, other client.Object
	givenUp     []string
	taken       int
	hangs       error // of GiveUp
}

func (r *replica) Take(context.Context, ownership.Share) error {
	r.taken++
	return nil
}

func (r *replica) GiveUp(_ context.Context, share ownership.Share) error {
	for name, object := range map[string]client.Object{"mine": r.mine, "other": r.other} {
		if share(object) {
			r.givenUp = append(r.givenUp, name)
		}
	}
	return r.hangs
}

// An extension is given up, and then loses both labels in one write that names its version. The
// write is not sent without the Lease, and a version that is old is left alone.
func TestDrain(t *testing.T) {
	g := NewWithT(t)
	var patches []string
	var refusal error
	writer := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(_ context.Context, _ client.WithWatch, object client.Object, patch client.Patch,
			_ ...client.PatchOption) error {
			data, err := patch.Data(object)
			patches = append(patches, object.GetObjectKind().GroupVersionKind().Kind+" "+
				client.ObjectKeyFromObject(object).String()+" "+string(data))
			return errors.Join(err, refusal)
		}}).Build()
	e := newEngine(t)
	e.api = writer
	mine := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: "mine"}}
	other := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: "other"}}
	r := &replica{mine: mine, other: other}
	d := drain{corev1.SchemeGroupVersion.WithKind("ConfigMap"), client.ObjectKey{Namespace: "a", Name: "x"}, "mine", "7"}
	g.Expect(e.drain(t.Context(), r, d)).To(MatchError(errNotHeld))
	g.Expect(r.givenUp).To(Equal([]string{"mine"}))
	g.Expect(patches).To(BeEmpty(), "without the Lease")

	lease, f := testutil.NewLease()
	lease.Renew(3600)
	e.term.Store(f.Term())
	r.hangs = errors.New("a Reconcile hangs")
	g.Expect(e.drain(t.Context(), r, d)).To(MatchError(r.hangs), "it is tried again")
	g.Expect(patches).To(BeEmpty())
	r.hangs = nil
	g.Expect(e.drain(t.Context(), r, d)).To(Succeed())
	want, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": "mine", "resourceVersion": "7",
		"labels": map[string]any{ShardLabelPrefix + "ring": nil, DrainLabelPrefix + "ring": nil}}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(patches).To(Equal([]string{"ConfigMap a/x " + string(want)}))

	maps := schema.GroupResource{Resource: "configmaps"}
	for _, left := range []error{apierrors.NewConflict(maps, "x", nil), apierrors.NewNotFound(maps, "x")} {
		refusal = left
		g.Expect(e.drain(t.Context(), r, d)).To(Succeed(), "the next event decides")
	}
	g.Expect(r.taken).To(Equal(1), "after a conflict it may be this shard's again")
	refusal = apierrors.NewForbidden(maps, "x", nil)
	g.Expect(e.drain(t.Context(), r, d)).To(MatchError(refusal), "it is tried again")
	lease.Release()
	patches = nil
	g.Expect(e.drain(t.Context(), r, d)).To(MatchError(errNotHeld))
	g.Expect(patches).To(BeEmpty(), "the Lease is lost")
}
