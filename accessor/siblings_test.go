package accessor

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// reviewCounter counts the reviews that each extension sends.
type reviewCounter struct {
	mu    sync.Mutex
	count map[string]int
}

func countReviews(r *reviewer) *reviewCounter {
	c := &reviewCounter{count: map[string]int{}}
	hold := func(req *http.Request) {
		if !strings.HasSuffix(req.URL.Path, "/selfsubjectreviews") {
			return
		}
		_, name, _ := strings.Cut(req.UserAgent(), "extension/")
		c.mu.Lock()
		defer c.mu.Unlock()
		c.count[name]++
	}
	r.hold.Store(&hold)
	return c
}

// of returns how many reviews the extensions whose names have the prefix have sent.
func (c *reviewCounter) of(prefix string) (sum int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, n := range c.count {
		if strings.HasPrefix(name, prefix) {
			sum += n
		}
	}
	return sum
}

// The probes of one identity are as many as those of one connection, however many connections there
// are.
func TestSiblingsShareProbes(t *testing.T) {
	for name, shared := range map[string]bool{"certainly one user": true, "perhaps one user": false} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := newReviewer(t)
			reviews := countReviews(r)
			probes := fastProbes
			probes.Interval, probes.IdentityInterval = 100*time.Millisecond, 400*time.Millisecond
			d := drive(t, r.URL, probes, noRetry)
			d.sharable = shared
			const siblings, rounds = 20, 6
			for n := range siblings {
				d.extension(fmt.Sprint("red-", n), "red")
			}
			d.extension("blue", "blue")
			for n := range siblings {
				d.eventually(fmt.Sprint("red-", n), connectedAs("user-of-red"))
			}
			d.eventually("blue", connectedAs("user-of-blue"))
			red, blue := reviews.of("red"), reviews.of("blue")
			g.Eventually(func() int { return reviews.of("blue") - blue }).WithTimeout(patience).
				Should(BeNumerically(">=", rounds))
			if sent := reviews.of("red") - red; shared {
				g.Expect(sent).To(BeNumerically("<", siblings*rounds/2), "siblings do not each probe")
				g.Expect(sent).To(BeNumerically(">=", rounds/2), "the identity is probed")
			} else {
				g.Expect(sent).To(BeNumerically(">=", siblings*rounds/2))
			}
			for n := range siblings {
				state, _ := d.At(client.ObjectKey{Name: fmt.Sprint("red-", n)}).State()
				g.Expect(state.Phase).To(Equal(connstate.PhaseConnected))
			}
		})
	}
}

// A 401 ends the connection that got it. Its siblings, whose requests are served, ask for
// themselves. Other identities do not.
func TestDoubtIsTold(t *testing.T) {
	g := NewWithT(t)
	r := newReviewer(t)
	reviews := countReviews(r)
	probes := fastProbes
	probes.Interval, probes.IdentityInterval = 100*time.Millisecond, time.Hour
	d := drive(t, r.URL, probes, noRetry)
	d.sharable = true
	for name, token := range map[string]string{"red-1": "red", "red-2": "red", "red-3": "red", "blue": "blue"} {
		d.extension(name, token)
		d.eventually(name, connectedAs("user-of-"+token))
	}
	refused := &sync.Once{}
	r.answers(func(token string) (int, authenticationv1.UserInfo) {
		status := http.StatusCreated
		refused.Do(func() { status = http.StatusUnauthorized })
		return status, authenticationv1.UserInfo{Username: "user-of-" + token, UID: "uid-of-" + token}
	})
	config, err := d.At(client.ObjectKey{Name: "red-1"}).GetRESTConfig(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	requests, err := corev1client.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	before, _ := d.At(client.ObjectKey{Name: "red-2"}).State()
	_, err = requests.ConfigMaps("n").Get(t.Context(), "c", metav1.GetOptions{})
	g.Expect(apierrors.IsUnauthorized(err)).To(BeTrue(), "%v", err)

	g.Eventually(func() []int {
		return []int{reviews.of("red-1"), reviews.of("red-2"), reviews.of("red-3")}
	}).WithTimeout(patience).Should(Equal([]int{3, 2, 2}), "a connect each, two of red-1, and a probe each")
	d.eventually("red-1", connectedAs("user-of-red"))
	for _, name := range []string{"red-2", "red-3"} {
		state, _ := d.At(client.ObjectKey{Name: name}).State()
		g.Expect(state.Phase).To(Equal(connstate.PhaseConnected), name)
		g.Expect(state.Epoch).To(BeEquivalentTo(1), "a failure is not shared")
	}
	g.Eventually(func() time.Time {
		state, _ := d.At(client.ObjectKey{Name: "red-2"}).State()
		return state.Health.LastProbeSuccessTime
	}).WithTimeout(patience).Should(BeTemporally(">", before.Health.LastProbeSuccessTime))
	g.Expect(reviews.of("blue")).To(Equal(1))
	d.mu.Lock()
	defer d.mu.Unlock()
	g.Expect(d.reasons).To(Equal([]string{"Unauthorized"}))
}
