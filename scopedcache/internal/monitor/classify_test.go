package monitor

import (
	"context"
	"io"
	"net/url"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The informer, or client-go, retries temporary errors. The machine examines a 403 or 404 of the
// API server.
func TestClassify(t *testing.T) {
	expirable := Request{}
	for name, tc := range map[string]struct {
		err   error
		verb  string
		want  Outcome
		retry bool
		what  Request
	}{
		"served": {nil, "watch", OutcomeServed, false, expirable},
		"403": {apierrors.NewForbidden(schema.GroupResource{}, "", nil), "watch",
			OutcomeRefused, true, expirable},
		"404": {apierrors.NewNotFound(schema.GroupResource{}, ""), "list", OutcomeRefused,
			true, expirable},
		"500": {apierrors.NewInternalError(context.DeadlineExceeded), "watch", OutcomeFailed,
			true, expirable},
		"429": {apierrors.NewTooManyRequests("later", 1), "list", OutcomeFailed, true, expirable},
		"410": {apierrors.NewResourceExpired("too old"), "watch", OutcomeIgnored, false, expirable},
		"410 for a request without a version": {apierrors.NewResourceExpired("too old"), "list", OutcomeFailed, true,
			Request{Fresh: true}},
		"410 for a page": {apierrors.NewResourceExpired("too old"), "list", OutcomeIgnored, false,
			Request{}},
		"a list that is cut off":    {io.EOF, "list", OutcomeIgnored, false, expirable},
		"a watch without an answer": {&url.Error{Op: "Get", Err: io.EOF}, "watch", OutcomeFailed, true, expirable},
		"no streamed lists": {apierrors.NewBadRequest("sendInitialEvents"), "watch", OutcomeIgnored, false,
			Request{Fresh: true, Lists: true}},
		"a watch with an invalid parameter": {apierrors.NewBadRequest("resourceVersion"), "watch", OutcomeFailed, false,
			expirable},
		"a list with an invalid parameter": {apierrors.NewBadRequest("selector"), "list", OutcomeFailed, true, expirable},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			tc.what.Verb = tc.verb
			outcome, retry := Classify(tc.what, tc.err, true)
			g.Expect(outcome).To(Equal(tc.want))
			g.Expect(retry).To(Equal(tc.retry))
		})
	}
	g := NewWithT(t)
	outcome, retry := Classify(expirable, apierrors.NewForbidden(schema.GroupResource{}, "", nil), false)
	g.Expect([]any{outcome, retry}).To(Equal([]any{OutcomeFailed, true}),
		"a credential that cannot be obtained is no evidence about access")
	outcome, _ = Classify(expirable, &meta.NoKindMatchError{}, false)
	g.Expect(outcome).To(Equal(OutcomeRefused))
}
