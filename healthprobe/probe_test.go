package healthprobe

import (
	"context"
	"net"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var errDown = errors.New("down")

func TestClassify(t *testing.T) {
	reviews := schema.GroupResource{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"}
	for name, tc := range map[string]struct {
		err  error
		want Verdict
	}{
		"no error":               {nil, Valid},
		"401":                    {errors.WithMessage(apierrors.NewUnauthorized("no"), "asking"), Unauthorized},
		"403":                    {apierrors.NewForbidden(reviews, "", errDown), Denied},
		"429":                    {apierrors.NewTooManyRequests("later", 1), Throttled},
		"429 without a time":     {apierrors.NewTooManyRequests("later", 0), Throttled},
		"503":                    {apierrors.NewServiceUnavailable("down"), Failing},
		"503 with Retry-After":   {apierrors.NewGenericServerResponse(503, "POST", reviews, "", "", 3, true), Throttled},
		"500":                    {apierrors.NewInternalError(errDown), Failing},
		"404":                    {apierrors.NewNotFound(reviews, ""), Failing},
		"refused":                {&net.OpError{Op: "dial", Err: errDown}, Silent},
		"deadline":               {context.DeadlineExceeded, Silent},
		"error without a status": {errDown, Silent},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(Classify(tc.err)).To(Equal(tc.want))
		})
	}
}
