package monitor

import (
	"context"
	"io"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Errors that pass are retried by the informer, or by client-go, which knows what to do. A 403 or
// 404 of the API server is looked into.
func TestClassify(t *testing.T) {
	old := Request{}
	for name, tc := range map[string]struct {
		err   error
		verb  string
		want  Outcome
		retry bool
		what  Request
	}{
		"served": {nil, "watch", OutcomeServed, false, old},
		"403": {apierrors.NewForbidden(schema.GroupResource{}, "", nil), "watch",
			OutcomeRefused, true, old},
		"404": {apierrors.NewNotFound(schema.GroupResource{}, ""), "list", OutcomeRefused,
			true, old},
		"500": {apierrors.NewInternalError(context.DeadlineExceeded), "watch", OutcomeFailed,
			true, old},
		"429": {apierrors.NewTooManyRequests("later", 1), "list", OutcomeFailed, true, old},
		"410": {apierrors.NewResourceExpired("too old"), "watch", OutcomeIgnored, false, old},
		"410 to what names no version": {apierrors.NewResourceExpired("too old"), "list", OutcomeFailed, true,
			Request{Fresh: true}},
		"410 to a page": {apierrors.NewResourceExpired("too old"), "list", OutcomeIgnored, false,
			Request{}},
		"end of the stream": {io.EOF, "watch", OutcomeIgnored, false, old},
		"no streamed lists": {apierrors.NewBadRequest("sendInitialEvents"), "watch", OutcomeIgnored, false,
			Request{Fresh: true, Lists: true}},
		"a watch that is refused for good": {apierrors.NewBadRequest("resourceVersion"), "watch", OutcomeFailed, false,
			old},
		"a bad list": {apierrors.NewBadRequest("selector"), "list", OutcomeFailed, true, old},
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
	outcome, retry := Classify(old, apierrors.NewForbidden(schema.GroupResource{}, "", nil), false)
	g.Expect([]any{outcome, retry}).To(Equal([]any{OutcomeFailed, true}),
		"a credential that could not be had says nothing about access")
	outcome, _ = Classify(old, &meta.NoKindMatchError{}, false)
	g.Expect(outcome).To(Equal(OutcomeRefused))
}
