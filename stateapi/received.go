package stateapi

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// states are those that a replica may say. What a newer one says besides is Unknown here.
var states = []string{v1alpha1.StateConnected, v1alpha1.StateDegraded, v1alpha1.StateConnecting,
	v1alpha1.StateDisconnected, v1alpha1.StateUnknown}

// received makes of what a replica says what may be shown, and returns false if there is nothing. A
// replica may be compromised, and no API server has looked at what it says: it cannot speak in the
// name of another one, or of what cannot exist, and says nothing that readers cannot read.
func (m *merged) received(c *v1alpha1.Connection, replica string) (*v1alpha1.Connection, bool) {
	if !m.mayExist(&c.ObjectMeta) {
		return nil, false
	}
	c.ObjectMeta = metav1.ObjectMeta{
		Namespace:         c.Namespace,
		Name:              c.Name,
		UID:               c.UID,
		CreationTimestamp: metav1.NewTime(readable(c.CreationTimestamp.Time)),
		Labels:            map[string]string{v1alpha1.ExtensionUIDLabel: string(c.UID)},
	}
	c.Status.Replica, c.Status.ClaimedBy = replica, nil
	if m.ignoreTerms {
		c.Status.Term = 0
	}
	if !slices.Contains(states, c.Status.State) {
		c.Status.State = v1alpha1.StateUnknown
		for i := range c.Status.Conditions {
			c.Status.Conditions[i].Status = metav1.ConditionUnknown
		}
	}
	for _, t := range []**metav1.Time{&c.Status.Since, &c.Status.TokenExpires, &c.Status.CredentialSince,
		&c.Status.Probe.LastTime, &c.Status.Probe.LastSuccessTime} {
		keepReadable(t)
	}
	for i := range c.Status.Problems {
		keepReadable(&c.Status.Problems[i].Since)
	}
	for i := range c.Status.Conditions {
		t := &c.Status.Conditions[i].LastTransitionTime
		*t = metav1.NewTime(readable(t.Time))
	}
	if record := c.Status.Permissions; record != nil {
		for _, uses := range [][]v1alpha1.PermissionUse{record.Used, record.Refused} {
			for i := range uses {
				keepReadable(&uses[i].First)
				uses[i].Last = metav1.NewTime(readable(uses[i].Last.Time))
			}
		}
	}
	return c, true
}

// receivedScope is received for a Scope. Its name is the one that follows from its content:
// otherwise it would take the place of another extension's.
func (m *merged) receivedScope(s *v1alpha1.Scope) bool {
	name := nameOfScope(s.Status.Extension, s.Status.Selection, s.Status.Representation)
	if s.Name != name || !m.mayExist(&s.ObjectMeta) {
		return false
	}
	s.ObjectMeta = metav1.ObjectMeta{
		Namespace:         s.Namespace,
		Name:              s.Name,
		CreationTimestamp: metav1.NewTime(readable(s.CreationTimestamp.Time)),
	}
	keepReadable(&s.Status.Since)
	return true
}

// mayExist reports whether an object may have that namespace, name and UID.
func (m *merged) mayExist(o *metav1.ObjectMeta) bool {
	if m.namespaced && len(validation.IsDNS1123Label(o.Namespace)) > 0 || !m.namespaced && o.Namespace != "" {
		return false
	}
	return o.Name != "" && len(o.Name) <= maxName && len(content.IsPathSegmentName(o.Name)) == 0 && len(o.UID) <= maxName
}

// keepReadable forgets a time that JSON cannot have.
func keepReadable(t **metav1.Time) {
	if *t != nil && !(*t).IsZero() && readable((*t).Time).IsZero() {
		*t = nil
	}
}

// readable returns the time, or zero if JSON cannot have it in each time zone.
func readable(t time.Time) time.Time {
	if year := t.UTC().Year(); year < 1 || year > 9998 {
		return time.Time{}
	}
	return t
}
