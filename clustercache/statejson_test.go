package clustercache

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/fence"
)

// everyFieldJSON is the JSON form of the state that everyField returns.
const everyFieldJSON = `{"namespace": "ns", "name": "red", "uid": "uid", "created": "2025-12-31T23:59:00Z",
	"observedGeneration": 3, "disconnectedSince": "2026-01-01T00:05:00Z", "healthy": true,
	"healthSince": "2026-01-01T00:06:00Z", "phase": "Disconnected", "reason": "Unreachable",
	"message": "first line\n\tsecond <line>",
	"since": "2026-01-01T00:00:00Z", "username": "system:serviceaccount:ns:sa", "groups": ["g"], "userUID": "user-uid",
	"target": "https://server", "source": "serviceaccount ns/sa", "epoch": 2, "term": 6,
	"tokenExpires": "2026-01-01T00:01:00Z",
	"credentialSince": "2026-01-01T00:07:00Z",
	"sharedCache": "abc",
	"problems": [{"reason": "RequestsRefused", "message": "may not create pods", "since": "2026-01-01T00:11:00Z",
		"muted": true}],
	"permissions": {"username": "u",
		"used": [{"verb": "get", "group": "apps", "resource": "deployments", "subresource": "scale",
		"namespace": "ns", "anyNamespace": true, "anyName": true, "names": ["d"], "count": 2, "first": "2026-01-01T00:08:00Z",
		"last": "2026-01-01T00:09:00Z"}], "refused": [{"verb": "get", "nonResourceURL": "/metrics", "count": 1,
		"last": "2026-01-01T00:10:00Z"}], "incomplete": true},
	"lastProbe": "2026-01-01T00:02:00Z", "lastProbeSuccess": "2026-01-01T00:03:00Z", "probeFailures": 1,
	"probeError": "down",
	"watches": [{"name": "w", "kind": "latchkey.dev/v1alpha1, Kind=ClusterExtension", "scope": "namespace ns",
		"dependents": ["d"]}],
	"scopes": [{"kind": "latchkey.dev/v1alpha1, Kind=ClusterExtension", "representation": "Metadata",
		"scope": "namespace ns", "state": "Forbidden", "since": "2026-01-01T00:04:00Z", "error": "denied", "objects": 5,
		"dependents": ["w d"]}]}`

// everyField returns a state in which every field is set.
func everyField(t *testing.T) ConnectionState {
	t.Helper()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(minute int) time.Time { return now.Add(time.Duration(minute) * time.Minute) }
	state := ConnectionState{
		Extension:          client.ObjectKey{Namespace: "ns", Name: "red"},
		UID:                "uid",
		Created:            at(-1),
		ObservedGeneration: 3,
		DisconnectedSince:  at(5),
		Healthy:            true,
		HealthSince:        at(6),
		Phase:              PhaseDisconnected,
		Since:              now,
		Reason:             ReasonUnreachable,
		Message:            "first line\n\tsecond <line>",
		Identity:           Identity{Username: "system:serviceaccount:ns:sa", UID: "user-uid", Groups: []string{"g"}},
		Target:             "https://server",
		Source:             "serviceaccount ns/sa",
		Epoch:              2,
		Term:               6,
		Lease:              (&fence.Fence{}).Term(),
		TokenExpires:       at(1),
		CredentialSince:    at(7),
		Health: HealthCheckingState{
			LastProbeTime:        at(2),
			LastProbeSuccessTime: at(3),
			ConsecutiveFailures:  1,
			LastError:            errors.New("down"),
		},
		Watches: []WatchState{{
			Name:       "w",
			Kind:       ClusterExtensionGVK,
			Scope:      Scope{Namespace: "ns"},
			Dependents: []types.UID{"d"},
		}},
		Scopes: []ScopeState{{
			GVK:            ClusterExtensionGVK,
			State:          StateForbidden,
			Since:          at(4),
			Dependents:     []string{"w d"},
			LastError:      errors.New("denied"),
			Representation: "Metadata",
			Scope:          Scope{Namespace: "ns"},
			Objects:        5,
		}},
		SharedCache: "abc",
		Problems:    []Problem{{Reason: ProblemRequestsRefused, Message: "may not create pods", Since: at(11), Muted: true}},
		Permissions: &PermissionRecord{
			Username: "u",
			Used: []PermissionUse{{
				Verb:         "get",
				Group:        "apps",
				Resource:     "deployments",
				Subresource:  "scale",
				Namespace:    "ns",
				AnyNamespace: true,
				AnyName:      true,
				Names:        []string{"d"},
				Count:        2,
				First:        at(8),
				Last:         at(9),
			}},
			Refused:    []PermissionUse{{Verb: "get", NonResourceURL: "/metrics", Count: 1, Last: at(10)}},
			Incomplete: true,
		},
	}
	for i := range reflect.TypeOf(state).NumField() {
		NewWithT(t).Expect(reflect.ValueOf(state).Field(i).IsZero()).To(BeFalse(), reflect.TypeOf(state).Field(i).Name)
	}
	return state
}

// Each field of a state is in its JSON form, under its own name, and what is empty is not.
func TestStateJSON(t *testing.T) {
	g := NewWithT(t)
	g.Expect(json.Marshal(everyField(t))).To(MatchJSON(everyFieldJSON))
	blue := ConnectionState{Extension: client.ObjectKey{Name: "blue"}, Phase: PhaseConnected}
	g.Expect(json.Marshal(blue)).To(MatchJSON(`{"name": "blue", "phase": "Connected", "healthy": false}`))
	g.Expect(json.Marshal(&blue)).To(MatchJSON(`{"name": "blue", "phase": "Connected", "healthy": false}`))
	all := reflect.ValueOf(everyField(t))
	none, err := json.Marshal(ConnectionState{})
	g.Expect(err).NotTo(HaveOccurred())
	for i := range all.NumField() {
		var one ConnectionState
		reflect.ValueOf(&one).Elem().Field(i).Set(all.Field(i))
		name := all.Type().Field(i).Name
		if name == "Lease" { // Term is what can be read of it
			continue
		}
		g.Expect(all.Type().Field(i).Tag.Get("json")).NotTo(BeEmpty(), "%s has no name in JSON", name)
		g.Expect(json.Marshal(one)).NotTo(MatchJSON(none), "%s is not in JSON", name)
	}
}
