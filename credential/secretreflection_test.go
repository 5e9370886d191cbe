package credential

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A reflector that was replaced changes nothing any more: neither what is known of the Secret, nor
// whether it may be read.
func TestReplacedReflector(t *testing.T) {
	g := NewWithT(t)
	woken := 0
	s := newSecrets(nil, func(data []byte) (kubeconfig, error) { return kubeconfig{}, errors.New(string(data)) }, nil)
	s.wake = func(client.ObjectKey) { woken++ }
	watched := &watchedSecret{ref: SecretReference{Namespace: "n", Name: "s", Key: "k"}, all: s,
		users: map[client.ObjectKey]struct{}{{Name: "red"}: {}}}
	secret := func(value string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"},
			Data: map[string][]byte{"k": []byte(value)}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	old, current := &secretReflection{watched, ctx}, &secretReflection{watched, t.Context()}
	g.Expect(old.Add(secret("first"))).To(Succeed())
	g.Expect(woken).To(Equal(1))
	cancel() // what follows was under way
	g.Expect(current.Update(secret("second"))).To(Succeed())
	g.Expect(woken).To(Equal(2))
	watched.forbidden = true

	g.Expect(old.Update(secret("late"))).To(Succeed())
	g.Expect(old.Delete(secret("late"))).To(Succeed())
	old.recordFailure(errors.New("late"))
	old.recordWatchStart()
	g.Expect(watched.content.err).To(MatchError("second"))
	g.Expect(watched.failure).NotTo(HaveOccurred())
	g.Expect(watched.forbidden).To(BeTrue())
	g.Expect(woken).To(Equal(2))
}
