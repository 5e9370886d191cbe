package accessor

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
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

// driveSiblings connects three extensions of one user, and two of others. They are probed when
// there is a reason, and not by the clock.
func driveSiblings(t *testing.T, sharable bool) (*driver, *reviewer, *reviewCounter) {
	r := newReviewer(t)
	reviews := countReviews(r)
	probes := fastProbes
	probes.Interval, probes.IdentityInterval = time.Second, time.Hour
	d := drive(t, r.URL, probes, noRetry)
	d.sharable = sharable
	for name, token := range map[string]string{"red-1": "red", "red-2": "red", "red-3": "red", "blue": "blue",
		"green": "green"} {
		d.extension(name, token)
		d.eventually(name, connectedAs("user-of-"+token))
	}
	return d, r, reviews
}

// deadline returns when an extension is probed next, unless something happens before.
func (d *driver) deadline(name string) time.Time {
	a, _ := d.byKey.Load(client.ObjectKey{Name: name})
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.machine.Deadline(time.Now(), a.observedLocked())
}

// A review of one connection in which the server states the identity postpones the probes of its
// siblings, and of no other connection.
func TestSiblingsShareProbes(t *testing.T) {
	for name, shared := range map[string]bool{"certainly one user": true, "perhaps one user": false} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			d, _, reviews := driveSiblings(t, shared)
			sibling, other := d.deadline("red-2"), d.deadline("blue")
			g.Expect(apierrors.IsUnauthorized(d.get("red-1"))).To(BeTrue(), "so that it probes")
			g.Eventually(func() int { return reviews.of("red-1") }).WithTimeout(patience).Should(BeNumerically(">=", 2))
			postponed := func() time.Duration { return d.deadline("red-2").Sub(sibling) }
			if shared {
				g.Eventually(postponed).WithTimeout(patience).Should(BeNumerically(">", 500*time.Millisecond))
			} else if reviews.of("red-2") == 1 {
				g.Expect(postponed()).To(BeZero())
			}
			if reviews.of("blue") == 1 { // else it has probed because the server was silent for a while
				g.Expect(d.deadline("blue")).To(Equal(other))
			}
		})
	}
}

// get sends a request as an extension.
func (d *driver) get(name string) error {
	g := NewWithT(d.t)
	config, err := d.At(client.ObjectKey{Name: name}).GetRESTConfig(d.t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	requests, err := corev1client.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = requests.ConfigMaps("n").Get(d.t.Context(), "c", metav1.GetOptions{})
	return err
}

// A 401 ends the connection that got it. Its siblings, whose requests are served, ask for
// themselves. Other identities do not.
func TestSiblingsAskAfterADoubt(t *testing.T) {
	g := NewWithT(t)
	d, r, reviews := driveSiblings(t, true)
	r.refuse.Store(new("red-1"))
	g.Expect(apierrors.IsUnauthorized(d.get("red-1"))).To(BeTrue())
	r.nothing.Store(true)
	g.Eventually(func() []int {
		_ = d.get("green") // the server answers, so that none is probed for that
		return []int{reviews.of("red-1"), reviews.of("red-2"), reviews.of("red-3")}
	}).WithTimeout(patience).Should(Equal([]int{3, 2, 2}), "a connect each, two of red-1, and a probe each")
	d.eventually("red-1", connectedAs("user-of-red"))
	for _, name := range []string{"red-2", "red-3"} {
		state, _ := d.At(client.ObjectKey{Name: name}).State()
		g.Expect(state.Phase).To(Equal(connstate.PhaseConnected), name)
		g.Expect(state.Epoch).To(BeEquivalentTo(1), "a failure is not shared")
	}
	g.Expect(reviews.of("blue")).To(Equal(1))
	d.mu.Lock()
	defer d.mu.Unlock()
	g.Expect(d.reasons).To(Equal([]string{"Unauthorized"}))
}
