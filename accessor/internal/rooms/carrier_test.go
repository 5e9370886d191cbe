package rooms

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/latchkey-dev/latchkey/internal/term"
	"github.com/latchkey-dev/latchkey/scopedcache"
)

// testMember is a member that answers with its name.
type testMember struct {
	name  string
	err   error // Err
	doubt func()
	// sent is called for each request, and may end the member.
	sent  func(*http.Request) error
	body  io.Reader // of answers; nil for the name
	short bool      // body has the length of the name
}

func (m *testMember) Doubt()     { m.doubt() }
func (m *testMember) Err() error { return m.err }
func (m *testMember) RoundTrip(req *http.Request) (*http.Response, error) {
	if m.err != nil {
		closeBody(req)
		return nil, m.err
	}
	if req.Body != nil {
		content, _ := io.ReadAll(req.Body)
		if closeBody(req); string(content) != "question" {
			return nil, fmt.Errorf("the body is %q", content)
		}
	}
	if m.sent != nil {
		if err := m.sent(req); err != nil {
			return nil, err
		}
	}
	body := m.body
	if body == nil {
		body = strings.NewReader(m.name)
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body), ContentLength: m.length()}, nil
}

// length returns the Content-Length of answers.
func (m *testMember) length() int64 {
	if m.body == nil || m.short {
		return int64(len(m.name))
	}
	return -1
}

var errEnded = errors.New("the member has ended")

// senderOf returns who sends a request.
func senderOf(transport http.RoundTripper, req *http.Request) (string, error) {
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	content, err := io.ReadAll(resp.Body)
	return string(content), err
}

func newRoom(names ...string) (transport http.RoundTripper, members []*testMember, memberships []*Membership) {
	set := &Set{}
	for _, name := range names {
		m := &testMember{name: name}
		members = append(members, m)
		memberships = append(memberships, set.Join(Key{username: "red"}, m))
	}
	return carrier{set, memberships[0].room}, members, memberships
}

func newRequest(g Gomega, method, path string) *http.Request {
	var body io.Reader
	if method == http.MethodPost {
		body = bytes.NewReader([]byte("question"))
	}
	req, err := http.NewRequestWithContext(context.Background(), method, "https://red.invalid"+path, body)
	g.Expect(err).NotTo(HaveOccurred())
	return req
}

const reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

// A request goes out as the same member as long as that member may send requests. Whatever the
// members do, no request goes out as one that has ended, and each goes out that one may send.
func TestPick(t *testing.T) {
	g := NewWithT(t)
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		set, alive, last := &Set{}, map[*testMember]*Membership{}, ""
		first := set.Join(Key{}, &testMember{name: "first"})
		transport := carrier{set, first.room}
		alive[first.member.(*testMember)] = first
		for step := range 40 {
			switch random.IntN(4) {
			case 0:
				m := &testMember{name: fmt.Sprint(step)}
				alive[m] = set.Join(Key{}, m)
			case 1: // one ends, and has not left yet, or not at all
				for m, membership := range alive {
					if len(alive) == 1 {
						break
					}
					m.err = errEnded
					if delete(alive, m); random.IntN(2) == 0 {
						membership.Leave()
					}
					break
				}
			default:
				sender, err := senderOf(transport, newRequest(g, http.MethodGet, "/api/v1/pods"))
				g.Expect(err).NotTo(HaveOccurred())
				stays, known := false, false
				for m := range alive {
					stays = stays || m.name == last
					known = known || m.name == sender
				}
				g.Expect(known).To(BeTrue(), "%s has ended", sender)
				g.Expect(sender == last || !stays).To(BeTrue(), "%s still may, and %s sent", last, sender)
				last = sender
			}
		}
	}
}

// A request that has no answer when its sender ends is sent again by the next one: reads, and
// reviews with their body. Nothing else is.
func TestRequestsOfAMemberThatEnds(t *testing.T) {
	for _, test := range []struct {
		method, path string
		again        bool
	}{
		{http.MethodGet, "/api/v1/pods?watch=true", true},
		{http.MethodPost, reviews, true},
		{http.MethodPost, "/api/v1/namespaces/n/pods", false},
	} {
		g := NewWithT(t)
		transport, members, memberships := newRoom("a", "b", "c")
		for _, m := range members[:2] {
			m.sent = func(*http.Request) error { m.err = errEnded; return errors.New("cut") }
		}
		sender, err := senderOf(transport, newRequest(g, test.method, test.path))
		if test.again {
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(sender).To(Equal("c"))
		} else {
			g.Expect(err).To(MatchError("cut"))
		}
		members[1].err, members[2].err = errEnded, errEnded
		_, err = senderOf(transport, newRequest(g, http.MethodPost, reviews))
		g.Expect(err).To(MatchError(errNoMember))
		for _, m := range memberships {
			m.Leave()
		}
		_, err = senderOf(transport, newRequest(g, test.method, test.path))
		g.Expect(err).To(MatchError(errNoMember))
	}
}

// What the API server or the caller ends is no reason to send a request again.
func TestRequestsThatFail(t *testing.T) {
	g := NewWithT(t)
	transport, members, _ := newRoom("a", "b")
	members[0].sent = func(*http.Request) error { return errors.New("refused") }
	_, err := senderOf(transport, newRequest(g, http.MethodGet, "/api"))
	g.Expect(err).To(MatchError("refused"))
	ctx, cancel := context.WithCancel(t.Context())
	members[0].sent = func(*http.Request) error { cancel(); members[0].err = errEnded; return errEnded }
	_, err = senderOf(transport, newRequest(g, http.MethodGet, "/api").WithContext(ctx))
	g.Expect(err).To(MatchError(context.Canceled))
}

// An answer that is being read when its sender ends is handed over, unless it has ended by itself.
func TestAnswersOfAMemberThatEnds(t *testing.T) {
	g := NewWithT(t)
	transport, members, _ := newRoom("a", "b")
	readWatch := func(end, memberErr error) error {
		reader, writer := io.Pipe()
		members[0].body = reader
		resp, err := transport.RoundTrip(newRequest(g, http.MethodGet, "/api/v1/pods?watch=true"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resp.Request.URL.Path).To(Equal("/api/v1/pods"))
		go func() {
			_, _ = writer.Write([]byte("event"))
			_ = writer.CloseWithError(end)
		}()
		content := make([]byte, 10)
		n, err := resp.Body.Read(content)
		g.Expect(string(content[:n]), err).To(Equal("event"))
		members[0].err = memberErr
		_, err = resp.Body.Read(content)
		members[0].err = nil
		return err
	}
	g.Expect(readWatch(io.ErrUnexpectedEOF, nil)).To(MatchError(io.ErrUnexpectedEOF))
	g.Expect(readWatch(io.EOF, errEnded)).To(MatchError(io.EOF))
	g.Expect(readWatch(errEnded, errEnded)).To(MatchError(term.ErrHandedOver))
}

// counted is a cache with one scope.
type counted struct{ scopedcache.Cache }

func (counted) AllStates() []scopedcache.ScopeState { return make([]scopedcache.ScopeState, 1) }

// A short answer that is being read when its sender ends is asked for again.
func TestShortAnswersOfAMemberThatEnds(t *testing.T) {
	g := NewWithT(t)
	transport, members, _ := newRoom("a", "b")
	reader, writer := io.Pipe()
	members[0].body, members[0].short = reader, true
	members[0].sent = func(*http.Request) error {
		go func() {
			members[0].err = errEnded
			_ = writer.CloseWithError(errEnded)
		}()
		return nil
	}
	sender, err := senderOf(transport, newRequest(g, http.MethodPost, reviews))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sender).To(Equal("b"))
}

// The first member that needs the room's cache creates it, for all. It ends with the last.
func TestCacheOfARoom(t *testing.T) {
	g := NewWithT(t)
	_, _, members := newRoom("a", "b")
	var life context.Context
	created := 0
	create := func(ctx context.Context, _ http.RoundTripper) (scopedcache.Cache, error) {
		life = ctx
		created++
		return nil, errors.New("an index is wrong")
	}
	for _, m := range members {
		_, err := m.Cache(create)
		g.Expect(err).To(MatchError("an index is wrong"))
	}
	g.Expect(created).To(Equal(2), "what fails is tried again")
	g.Expect(members[0].set.Scopes()).To(BeEmpty())
	_, _, others := newRoom("c", "d")
	for _, m := range others {
		_, err := m.Cache(func(context.Context, http.RoundTripper) (scopedcache.Cache, error) { return counted{}, nil })
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(others[0].set.Scopes()).To(HaveLen(1), "each scope counts once")
	members[0].Leave()
	g.Expect(life.Err()).NotTo(HaveOccurred())
	members[1].Leave()
	g.Expect(life.Err()).To(HaveOccurred())
}
