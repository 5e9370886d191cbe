package stateapi

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// A replica says nothing about the scopes of another one's extensions, whatever name it gives them.
func TestScopesOfOthers(t *testing.T) {
	g := NewWithT(t)
	m := newMerged(&StateAPI{version: v1alpha1.GroupVersion}, "me")
	connection := func(name string) *v1alpha1.Connection {
		return &v1alpha1.Connection{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "1"}}
	}
	selection := v1alpha1.Selection{APIVersion: "v1", Kind: "ConfigMap"}
	scope := func(name, extension, state string) *v1alpha1.Scope {
		return &v1alpha1.Scope{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     v1alpha1.ScopeStatus{Extension: extension, Selection: selection, State: state},
		}
	}
	red := nameOfScope("red", selection, "")
	for replica, name := range map[string]string{"honest": "red", "liar": "blue"} {
		m.Replaced(replica, connectionsResource, []runtime.Object{connection(name)})
		m.Heard(replica)
	}
	m.Replaced("honest", scopesResource, []runtime.Object{scope(red, "red", "Synced")})
	m.Replaced("liar", scopesResource, []runtime.Object{scope(red, "blue", "Failing"), scope(red, "red", "Failing"),
		scope(nameOfScope("blue", selection, ""), "blue", "Forbidden")})
	m.Changed("liar", scopesResource, scope(red, "blue", "Failing"))
	states := map[string]string{}
	shown, err := m.scopes.List(apiserver.Context{}, &metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	for _, one := range shown.Items {
		states[one.Status.Extension] = one.Status.State
	}
	g.Expect(states).To(Equal(map[string]string{"red": "Synced", "blue": "Forbidden"}))
}

// What a replica says is shown if it can exist, and be read, and of its metadata only what it is.
func TestReceived(t *testing.T) {
	g := NewWithT(t)
	m := newMerged(&StateAPI{version: v1alpha1.GroupVersion}, "me")
	late := metav1.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	early := metav1.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC)
	fine := metav1.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	said := func() *v1alpha1.Connection {
		return &v1alpha1.Connection{
			ObjectMeta: metav1.ObjectMeta{
				Name:              "red",
				UID:               "1",
				ResourceVersion:   "7",
				CreationTimestamp: late,
				Labels:            map[string]string{v1alpha1.ExtensionUIDLabel: "2", "a": "b"},
				Annotations:       map[string]string{"a": "b"},
				Finalizers:        []string{"a"},
			},
			Status: v1alpha1.ConnectionStatus{
				State:           "Splendid",
				Replica:         "another",
				ClaimedBy:       []string{"another"},
				Term:            3,
				Since:           &late,
				TokenExpires:    &early,
				CredentialSince: &fine,
				Probe:           v1alpha1.ProbeStatus{LastTime: &late, LastSuccessTime: &late},
				Problems:        []v1alpha1.Problem{{Since: &late}},
				Conditions:      []metav1.Condition{{Type: "Healthy", Status: metav1.ConditionTrue, LastTransitionTime: late}},
				Permissions: &v1alpha1.PermissionRecord{
					Used:    []v1alpha1.PermissionUse{{First: &late, Last: late}},
					Refused: []v1alpha1.PermissionUse{{First: &fine, Last: fine}},
				},
			},
		}
	}
	c, ok := m.received(said(), "you")
	g.Expect(ok).To(BeTrue())
	g.Expect(c).To(Equal(&v1alpha1.Connection{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "red",
			UID:    "1",
			Labels: map[string]string{v1alpha1.ExtensionUIDLabel: "1"},
		},
		Status: v1alpha1.ConnectionStatus{
			State:           v1alpha1.StateUnknown,
			Replica:         "you",
			Term:            3,
			CredentialSince: &fine,
			Problems:        []v1alpha1.Problem{{}},
			Conditions:      []metav1.Condition{{Type: "Healthy", Status: metav1.ConditionUnknown}},
			Permissions: &v1alpha1.PermissionRecord{
				Used:    []v1alpha1.PermissionUse{{}},
				Refused: []v1alpha1.PermissionUse{{First: &fine, Last: fine}},
			},
		},
	}))
	for _, wrong := range []metav1.ObjectMeta{{}, {Name: "a/b"}, {Name: ".."}, {Name: strings.Repeat("a", 254)},
		{Namespace: "ns", Name: "red"}} {
		bad := said()
		bad.ObjectMeta = wrong
		_, ok := m.received(bad, "you")
		g.Expect(ok).To(BeFalse(), "%v", wrong)
	}
	m.namespaced, m.ignoreTerms = true, true
	_, ok = m.received(said(), "you")
	g.Expect(ok).To(BeFalse(), "without a namespace")
	bad := said()
	bad.Namespace = "a/b"
	_, ok = m.received(bad, "you")
	g.Expect(ok).To(BeFalse())
	good := said()
	good.Namespace = "ns"
	c, ok = m.received(good, "you")
	g.Expect(ok).To(BeTrue())
	g.Expect(c.Status.Term).To(BeZero())
}

// No condition of a replica that is not heard stays green, and the row says as of when it is.
func TestConditionsOfASilentReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := newView()
		m := f.merged
		c := claim("red", "1", "Connected", 1)
		c.Status.Conditions = []metav1.Condition{
			{Type: v1alpha1.ConditionConnected, Status: metav1.ConditionTrue},
			{Type: v1alpha1.ConditionHealthy, Status: metav1.ConditionTrue},
		}
		m.Replaced("a", connectionsResource, []runtime.Object{c})
		m.Heard("a")
		heard := time.Now()
		for range 8 {
			time.Sleep(time.Second)
			m.tick(time.Now())
		}
		shown, _, _ := (&Replicas{f}).Show(client.ObjectKey{Name: "red"})
		g.Expect(shown.Status.State).To(Equal(v1alpha1.StateUnknown))
		g.Expect(shown.Status.Since.Time).To(BeTemporally("==", heard))
		g.Expect(shown.Status.Conditions).To(HaveLen(2))
		for _, kind := range []string{v1alpha1.ConditionConnected, v1alpha1.ConditionHealthy} {
			g.Expect(meta.FindStatusCondition(shown.Status.Conditions, kind).Status).To(Equal(metav1.ConditionUnknown))
		}
	})
}

// What only the replica knows that is not heard is not shown: another one may have heard and shown
// later versions.
func TestVersionsOfASilentReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := newView()
		m := f.merged
		shows := func(state string, term, version int64, cell any) {
			t.Helper()
			shown, _, _ := (&Replicas{f}).Show(client.ObjectKey{Name: "red"})
			status := shown.Status
			g.Expect([]any{status.State, status.Term, status.Epoch, status.Replica}).To(Equal([]any{state, term, version, "a"}))
			if cell == nil {
				g.Expect(epochCell(shown)).To(BeNil())
				return
			}
			g.Expect(epochCell(shown)).To(Equal(cell))
		}
		said := claim("red", "1", v1alpha1.StateConnected, 11)
		said.Status.Epoch = 2
		m.Replaced("a", connectionsResource, []runtime.Object{said}) // and not heard since
		shows(v1alpha1.StateUnknown, 0, 0, nil)
		m.Heard("a")
		shows(v1alpha1.StateConnected, 11, 2, int64(2))
		for range 8 {
			time.Sleep(time.Second)
			m.tick(time.Now())
		}
		shows(v1alpha1.StateUnknown, 0, 0, nil)
		m.Members(nil)
		m.Changed("a", connectionsResource, claim("red", "1", v1alpha1.StateDegraded, 10))
		g.Expect(m.gauges(time.Now()).Unclaimed.Extensions).To(Equal(1), "the term that was shown still counts here")
		m.Changed("a", connectionsResource, said)
		m.Heard("a")
		shows(v1alpha1.StateConnected, 11, 2, int64(2))
		strange := claim("red", "1", "Splendid", 12)
		strange.Status.Epoch = 1
		m.Changed("a", connectionsResource, strange)
		shows(v1alpha1.StateUnknown, 0, 0, nil)
	})
}

// An extension is not said to be without a replica while one is not heard that may have it.
func TestUnheardMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := newView()
		m := f.merged
		begun := time.Now()
		f.know("red", "1")
		shows := func(state, reason, message string) {
			t.Helper()
			shown, _, _ := (&Replicas{f}).Show(client.ObjectKey{Name: "red"})
			status := shown.Status
			g.Expect([]string{status.State, status.Reason, status.Message, status.Replica}).To(Equal([]string{state, reason,
				message, ""}))
			g.Expect(status.Since.Time).To(BeTemporally("==", begun))
		}
		shows(v1alpha1.StateUnknown, v1alpha1.ReasonReplicaSilent,
			"no replica that is heard has it; it is not known which other replicas there are")
		g.Expect(m.gauges(time.Now()).Unclaimed.Extensions).To(BeZero())
		m.Members(nil)
		shows(v1alpha1.StateDisconnected, v1alpha1.ReasonNoReplica, "no replica has it")
		time.Sleep(time.Second)
		m.Members([]string{"e", "d", "c", "b", "a"})
		shows(v1alpha1.StateUnknown, v1alpha1.ReasonReplicaSilent,
			"no replica that is heard has it; not heard, or too late, and may have it: a, b, c and 2 more")
		g.Expect(m.gauges(time.Now()).Unclaimed.Oldest).To(Equal(time.Second), "it goes on to count")
		m.Members([]string{"a", "b"})
		shows(v1alpha1.StateUnknown, v1alpha1.ReasonReplicaSilent,
			"no replica that is heard has it; not heard, or too late, and may have it: a, b")
		m.Heard("a")
		m.Heard("b")
		shows(v1alpha1.StateDisconnected, v1alpha1.ReasonNoReplica, "no replica has it")
		for range 7 {
			time.Sleep(time.Second)
			m.Heard("a")
			m.tick(time.Now())
		}
		shows(v1alpha1.StateUnknown, v1alpha1.ReasonReplicaSilent,
			"no replica that is heard has it; not heard, or too late, and may have it: b")

		f.know("blue", "2")
		g.Expect(m.gauges(time.Now()).Unclaimed.Extensions).To(Equal(1), "b may have blue")
		m.Gone("b")
		m.Members([]string{"a"})
		g.Expect(m.gauges(time.Now()).Unclaimed.Extensions).To(Equal(2))
	})
}

// A replica serves the view of all when it knows who they are, and has listed each resource of
// each.
func TestAwaitComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		m := newView().merged
		m.met, m.members = false, nil
		complete := make(chan bool, 1)
		go func() { complete <- m.awaitComplete(t.Context(), time.Hour) }()
		step := func(f func()) {
			f()
			synctest.Wait()
		}
		step(func() { m.Members([]string{"a", "b"}) })
		for _, replica := range []string{"a", "b"} {
			for _, resource := range []string{connectionsResource, scopesResource} {
				g.Expect(complete).NotTo(Receive())
				step(func() { m.Replaced(replica, resource, nil) })
			}
		}
		g.Expect(complete).To(Receive(BeTrue()))
		m.Gone("b")
		begun := time.Now()
		g.Expect(m.awaitComplete(t.Context(), time.Minute)).To(BeTrue())
		g.Expect(time.Since(begun)).To(Equal(time.Minute), "it does not wait for ever")
	})
}
