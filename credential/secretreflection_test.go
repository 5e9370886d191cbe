package credential

import (
	"context"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// A reflector that was replaced changes nothing any more: neither what is known of the Secret, nor
// whether it may be read.
func TestReplacedReflector(t *testing.T) {
	g := NewWithT(t)
	woken := 0
	s := newSecrets(nil, func(data []byte) (kubeconfig, error) { return kubeconfig{}, errors.New(string(data)) }, nil)
	s.wake = func(client.ObjectKey) { woken++ }
	watched := &watchedSecret{
		ref:   SecretReference{Namespace: "n", Name: "s", Key: "k"},
		all:   s,
		users: map[client.ObjectKey]struct{}{{Name: "red"}: {}},
	}
	secret := func(value string) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"},
			Data:       map[string][]byte{"k": []byte(value)},
		}
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

// What decompresses an answer would stay with the watch of each Secret.
func TestSecretsAreNotCompressed(t *testing.T) {
	g := NewWithT(t)
	var sent []http.Header
	transport := testutil.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		sent = append(sent, req.Header)
		return nil, errors.New("down")
	})
	reader, err := corev1client.NewForConfigAndClient(&rest.Config{}, &http.Client{Transport: transport})
	g.Expect(err).NotTo(HaveOccurred())
	watched := &watchedSecret{ref: SecretReference{Namespace: "n", Name: "s"}, all: newSecrets(nil, nil, nil)}
	listerWatcher := toolscache.ToListerWatcherWithContext(
		(&secretReflection{watched, t.Context()}).listerWatcher(reader.RESTClient()))
	_, err = listerWatcher.WatchWithContext(t.Context(), metav1.ListOptions{})
	g.Expect(err).To(HaveOccurred())
	_, err = listerWatcher.ListWithContext(t.Context(), metav1.ListOptions{})
	g.Expect(err).To(HaveOccurred())
	g.Expect(len(sent)).To(BeNumerically(">=", 2))
	for _, header := range sent {
		g.Expect(header).To(HaveKeyWithValue("Accept-Encoding", []string{"identity"}))
	}
}
