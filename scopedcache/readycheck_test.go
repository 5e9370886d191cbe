package scopedcache

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
)

// inStates is a Cache whose scopes are in fixed states.
type inStates struct {
	Cache
	states []ScopeState
}

func (c inStates) States() []ScopeState { return c.states }

func TestReadyCheck(t *testing.T) {
	secrets := corev1.SchemeGroupVersion.WithKind("Secret")
	denied := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", errors.New("no"))
	for name, tc := range map[string]struct {
		states  []ScopeState
		problem string // empty if the check passes
	}{
		"nothing read yet": {nil, ""},
		"synced":           {[]ScopeState{{GVK: secrets, State: StateSynced}}, ""},
		"another kind":     {[]ScopeState{{GVK: corev1.SchemeGroupVersion.WithKind("Pod"), State: StateForbidden}}, ""},
		"live":             {[]ScopeState{{GVK: secrets, State: StateLive, LastError: denied}}, ""},
		"first list":       {[]ScopeState{{GVK: secrets, State: StateSyncing}}, "waiting for the first list of Secret"},
		"forbidden": {[]ScopeState{{GVK: secrets, State: StateForbidden, LastError: denied}},
			"grant this program list and watch"},
		"refused": {[]ScopeState{{GVK: secrets, State: StateFailing, LastError: denied}},
			"cannot list and watch Secret"},
		"failing": {[]ScopeState{{GVK: secrets, State: StateFailing, LastError: errors.New("down")}}, ""},
		"not served": {[]ScopeState{{GVK: secrets, State: StateNotServed, LastError: errors.New("no match")}},
			"install its CustomResourceDefinition"},
		"forbidden, for no reason": {[]ScopeState{{GVK: secrets, State: StateForbidden}}, "cannot list and watch Secret"},
		"one of two": {[]ScopeState{{GVK: secrets, State: StateSynced},
			{GVK: secrets, State: StateForbidden, LastError: denied}}, "forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			err := ReadyCheck(inStates{states: tc.states}, scheme.Scheme, &corev1.ConfigMap{}, &corev1.Secret{})(nil)
			if tc.problem == "" {
				NewWithT(t).Expect(err).NotTo(HaveOccurred())
			} else {
				NewWithT(t).Expect(err).To(MatchError(ContainSubstring(tc.problem)))
			}
		})
	}
	g := NewWithT(t)
	g.Expect(ReadyCheck(inStates{}, runtime.NewScheme(), &corev1.Secret{})(nil)).
		To(MatchError(ContainSubstring("the kind of *v1.Secret")))
	g.Expect(ReadyCheck(&informertest.FakeInformers{}, scheme.Scheme)(nil)).
		To(MatchError(ContainSubstring("set ctrl.Options.NewCache to scopedcache.New")))
}
