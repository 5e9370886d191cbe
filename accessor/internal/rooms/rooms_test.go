package rooms

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

func targetOf(t *testing.T, host string) *targets.Target {
	membership, err := (&targets.Set{}).Join(&rest.Config{Host: host}, nil, &targets.Policy{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(membership.Leave)
	return membership.Target
}

func TestKeyOf(t *testing.T) {
	g := NewWithT(t)
	type user struct {
		target     *targets.Target
		resolution identity.Resolution
		stated     connstate.Identity
	}
	red := func() user {
		return user{
			resolution: identity.Resolution{Key: "serviceaccount red 1", UID: "1", Sharable: true},
			stated: connstate.Identity{
				Username:             "red",
				UID:                  "1",
				Groups:               []string{"b", "a"},
				ImpersonatorUsername: "host",
				ImpersonatorUID:      "2",
			},
		}
	}
	target := targetOf(t, "https://red.invalid")
	keyOf := func(change func(*user)) (Key, bool) {
		u := red()
		u.target = target
		change(&u)
		return KeyOf(u.target, &u.resolution, u.stated)
	}
	same, ok := keyOf(func(*user) {})
	g.Expect(ok).To(BeTrue())
	for name, change := range map[string]func(*user){
		"groups in another order": func(u *user) { u.stated.Groups = []string{"a", "b"} },
		"another reference":       func(u *user) { u.resolution.Reference.Name = "another" },
	} {
		key, ok := keyOf(change)
		g.Expect(ok).To(BeTrue(), name)
		g.Expect(key).To(Equal(same), name)
	}
	for name, change := range map[string]func(*user){
		"another target":                   func(u *user) { u.target = targetOf(t, "https://red.invalid") },
		"another credential":               func(u *user) { u.resolution.Key = "serviceaccount red 2" },
		"another user":                     func(u *user) { u.stated.Username = "blue" },
		"another UID":                      func(u *user) { u.stated.UID = "3" },
		"another UID, not stated":          func(u *user) { u.resolution.UID = "3" },
		"one more group":                   func(u *user) { u.stated.Groups = append(u.stated.Groups, "c") },
		"another group":                    func(u *user) { u.stated.Groups[0] = "c" },
		"groups that look the same":        func(u *user) { u.stated.Groups = []string{"ab"} },
		"no group":                         func(u *user) { u.stated.Groups = nil },
		"an empty group":                   func(u *user) { u.stated.Groups = append(u.stated.Groups, "") },
		"another impersonator":             func(u *user) { u.stated.ImpersonatorUsername = "guest" },
		"an impersonator of the same name": func(u *user) { u.stated.ImpersonatorUID = "4" },
		"no impersonator": func(u *user) {
			u.stated.ImpersonatorUsername, u.stated.ImpersonatorUID = "", ""
		},
		"a server of the tenant's": func(u *user) { u.resolution.UntrustedServer = true },
	} {
		key, ok := keyOf(change)
		g.Expect(ok).To(BeTrue(), name)
		g.Expect(key).NotTo(Equal(same), name)
	}
	for name, change := range map[string]func(*user){
		"a provider that does not know": func(u *user) { u.resolution.Sharable = false },
		"a secret with a Version":       func(u *user) { u.resolution.Version = "1" },
		"a user without a UID":          func(u *user) { u.resolution.UID, u.stated.UID = "", "" },
		"a user without a name":         func(u *user) { u.stated.Username = "" },
		"cache options of its own": func(u *user) {
			u.resolution.ByObject = map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {}}
		},
	} {
		_, ok := keyOf(change)
		g.Expect(ok).To(BeFalse(), name)
	}
}

func TestEvidenceOfTheRoom(t *testing.T) {
	g := NewWithT(t)
	set, other := &Set{}, &Set{}
	var doubted []string
	join := func(s *Set, name, key string) *Membership {
		return s.Join(Key{username: key}, &testMember{doubt: func() { doubted = append(doubted, name) }})
	}
	red1, red2, blue, elsewhere := join(set, "red1", "red"), join(set, "red2", "red"), join(set, "blue", "blue"),
		join(other, "elsewhere", "red")
	now := time.Now()
	red1.Evidence().Served(now)
	red2.Evidence().Verified(now.Add(1))
	red1.Evidence().Served(now.Add(-1))
	g.Expect(red2.Evidence().LastServed()).To(Equal(now), "the latest counts")
	g.Expect(red1.Evidence().LastVerified()).To(Equal(now.Add(1)))
	for _, m := range []*Membership{blue, elsewhere} {
		g.Expect(m.Evidence().LastServed()).To(BeZero())
		g.Expect(m.Evidence().LastVerified()).To(BeZero())
	}
	red3 := join(set, "red3", "red")
	red1.Leave()
	red1.Leave()
	red1.Doubt()
	g.Expect(doubted).To(Equal([]string{"red2", "red3"}), "the member itself has left")
	red2.Doubt()
	g.Expect(doubted).To(Equal([]string{"red2", "red3", "red3"}))
	red2.Leave()
	red3.Leave()
	red4 := join(set, "red4", "red")
	red1.Evidence().Served(now)
	g.Expect(red4.Evidence().LastServed()).To(BeZero(), "a room without members is gone")
}

// A room that is about to end takes no new member.
func TestJoinWhileTheLastLeaves(t *testing.T) {
	g := NewWithT(t)
	set := &Set{}
	var joined atomic.Int64
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			for range 1000 {
				m := set.Join(Key{username: "red"}, &testMember{doubt: func() {}})
				runtime.Gosched()
				set.mu.Lock()
				known := set.rooms[Key{username: "red"}] == m.room && slices.Contains(m.room.members, m)
				set.mu.Unlock()
				if known {
					joined.Add(1)
				}
				m.Doubt()
				m.Leave()
			}
		})
	}
	running.Wait()
	g.Expect(joined.Load()).To(BeEquivalentTo(4000), "each member is in the room that others join")
	g.Expect(set.rooms).To(BeEmpty())
}
