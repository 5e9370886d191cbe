package clustercache

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestPermissionsCondition(t *testing.T) {
	missing := []MissingPermission{
		{Verb: "create", Group: "apps", Resource: "deployments", Namespace: "n", Name: "web"},
		{Verb: "patch", Group: "apps", Resource: "deployments", Namespace: "n", Name: "web"},
		{Verb: "get", Resource: "pods", Subresource: "log"},
	}
	kind := schema.GroupVersionKind{Group: "g", Version: "v1", Kind: "K"}
	for name, tc := range map[string]struct {
		report *PermissionReport
		err    error
		want   metav1.Condition
	}{
		"nothing":  {want: metav1.Condition{Status: "Unknown", Reason: "CheckFailed", Message: "there is no report"}},
		"an error": {err: errors.New("x"), want: metav1.Condition{Status: "Unknown", Reason: "CheckFailed", Message: "x"}},
		"not connected": {
			err: &NotConnectedError{Reason: ReasonUnreachable},
			want: metav1.Condition{
				Status:  "Unknown",
				Reason:  "NotConnected",
				Message: (&NotConnectedError{Reason: ReasonUnreachable}).Error(),
			},
		},
		"permitted": {report: &PermissionReport{}, want: metav1.Condition{Status: "True", Reason: "Permitted"}},
		"missing": {
			report: &PermissionReport{Missing: missing, NotFound: []ContentNotFound{{Kind: kind}}},
			want: metav1.Condition{
				Status: "False",
				Reason: "MissingPermissions",
				Message: "the identity lacks permission to create, patch deployments.apps web in namespace n; " +
					"get pods/log in the cluster",
			},
		},
		"refused": {
			report: &PermissionReport{Failed: []ContentFailure{{Err: errors.New("quota")}}},
			want:   metav1.Condition{Status: "False", Reason: "Refused", Message: "quota"},
		},
		"not served": {
			report: &PermissionReport{NotFound: []ContentNotFound{{Kind: kind}}},
			want:   metav1.Condition{Status: "False", Reason: "NotFound", Message: "the API server does not serve g/v1 K"},
		},
		"no namespace": {
			report: &PermissionReport{NotFound: []ContentNotFound{{
				Kind: schema.GroupVersionKind{Kind: "Namespace"},
				Name: "n",
			}}},
			want: metav1.Condition{Status: "False", Reason: "NotFound", Message: "there is no Namespace n"},
		},
		"made by the content": {
			report: &PermissionReport{NotFound: []ContentNotFound{{Kind: kind, Created: true}}},
			want:   metav1.Condition{Status: "True", Reason: "Permitted"},
		},
		"undecided": {
			report: &PermissionReport{Undecided: missing[2:]},
			want: metav1.Condition{
				Status:  "Unknown",
				Reason:  "Undecided",
				Message: "it is not known whether the identity may get pods/log in the cluster",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.want.Type, tc.want.ObservedGeneration = ConditionPermitted, 7
			NewWithT(t).Expect(PermissionsCondition(tc.report, tc.err, 7)).To(Equal(tc.want))
		})
	}
}
