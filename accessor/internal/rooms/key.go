package rooms

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/accessor/internal/targets"
	"github.com/latchkey-dev/latchkey/internal/connstate"
	"github.com/latchkey-dev/latchkey/internal/identity"
)

// Key identifies a room.
type Key struct {
	target          *targets.Target
	credential      string // Key of the Resolution
	untrusted       bool
	username        string
	uid             types.UID
	groups          string // sorted, each with its end
	impersonator    string
	impersonatorUID types.UID
	accountUID      types.UID
}

// KeyOf returns the room of a connection to the target, for which the API server stated the
// identity. ok is false if the connection must share nothing with others.
func KeyOf(target *targets.Target, resolution *identity.Resolution, stated connstate.Identity) (key Key, ok bool) {
	if resolution.Version != "" { // siblings would take up a newer secret at different times
		return Key{}, false
	}
	if !resolution.Sharable || len(resolution.ByObject) > 0 || stated.Username == "" {
		return Key{}, false
	}
	if stated.UID == "" && resolution.UID == "" { // a user of that name may have been deleted and created again
		return Key{}, false
	}
	var groups strings.Builder
	for _, group := range slices.Sorted(slices.Values(stated.Groups)) {
		groups.WriteString(group)
		groups.WriteByte(0)
	}
	return Key{
		target:          target,
		credential:      resolution.Key,
		untrusted:       resolution.UntrustedServer,
		username:        stated.Username,
		uid:             stated.UID,
		groups:          groups.String(),
		impersonator:    stated.ImpersonatorUsername,
		impersonatorUID: stated.ImpersonatorUID,
		accountUID:      resolution.UID,
	}, true
}
