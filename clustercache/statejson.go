package clustercache

import (
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/internal/connstate"
)

// stateJSON is the JSON form of a ConnectionState: its fields as they are, except for those that
// have fields of their own, and errors.
type stateJSON struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	plainState
	Username         string      `json:"username,omitempty"`
	Groups           []string    `json:"groups,omitempty"`
	UserUID          types.UID   `json:"userUID,omitempty"`
	LastProbe        time.Time   `json:"lastProbe,omitzero"`
	LastProbeSuccess time.Time   `json:"lastProbeSuccess,omitzero"`
	ProbeFailures    int         `json:"probeFailures,omitempty"`
	ProbeError       string      `json:"probeError,omitempty"`
	Watches          []watchJSON `json:"watches,omitempty"`
	Scopes           []scopeJSON `json:"scopes,omitempty"`
}

// plainState is a ConnectionState without its methods.
type plainState ConnectionState

type watchJSON struct {
	Name       string      `json:"name"`
	Kind       string      `json:"kind,omitempty"`
	Scope      string      `json:"scope,omitempty"`
	Dependents []types.UID `json:"dependents,omitempty"`
}

type scopeJSON struct {
	Kind           string    `json:"kind"`
	Representation string    `json:"representation"`
	Scope          string    `json:"scope,omitempty"`
	State          string    `json:"state"`
	Since          time.Time `json:"since,omitzero"`
	Error          string    `json:"error,omitempty"`
	Objects        int       `json:"objects"`
	Dependents     []string  `json:"dependents,omitempty"`
}

// MarshalJSON implements json.Marshaler. Errors become their texts, without any secret. What is
// empty is left out, but for name, phase, healthy, and the number of objects of a scope. The form
// is for people and scripts: it cannot be read back.
func (s ConnectionState) MarshalJSON() ([]byte, error) {
	form := stateJSON{
		Namespace:        s.Extension.Namespace,
		Name:             s.Extension.Name,
		plainState:       plainState(s),
		Username:         s.Identity.Username,
		Groups:           s.Identity.Groups,
		UserUID:          s.Identity.UID,
		LastProbe:        s.Health.LastProbeTime,
		LastProbeSuccess: s.Health.LastProbeSuccessTime,
		ProbeFailures:    s.Health.ConsecutiveFailures,
		ProbeError:       connstate.ErrorText(s.Health.LastError),
	}
	for _, watch := range s.Watches {
		form.Watches = append(form.Watches, watchJSON{
			Name:       watch.Name,
			Kind:       watch.Kind.String(),
			Scope:      watch.Scope.String(),
			Dependents: watch.Dependents,
		})
	}
	for _, scope := range s.Scopes {
		form.Scopes = append(form.Scopes, scopeJSON{
			Kind:           scope.GVK.String(),
			Representation: string(scope.Representation),
			Scope:          scope.Scope.String(),
			State:          string(scope.State),
			Since:          scope.Since,
			Error:          connstate.ErrorText(scope.LastError),
			Objects:        scope.Objects,
			Dependents:     scope.Dependents,
		})
	}
	return json.Marshal(form)
}
