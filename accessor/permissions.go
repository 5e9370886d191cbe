package accessor

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/accessor/internal/lifecycle"
	"github.com/latchkey-dev/latchkey/internal/identity"
	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// PermissionRecord is what an identity used, and was refused; see clustercache.PermissionRecord.
type PermissionRecord struct {
	Used, Refused []permissions.Use
	Complete      bool
}

// recordOf is the record of one extension with one credential. Another credential may be that of
// another user.
type recordOf struct {
	permissions.Record
	extension  types.UID
	credential identity.Reference
}

// uses returns what is on record.
func (r *recordOf) uses() *PermissionRecord {
	used, refused, complete := r.Uses(time.Now())
	return &PermissionRecord{Used: used, Refused: refused, Complete: complete}
}

// recordLocked returns the record for the connection that an attempt may create: the same one after
// a reconnect. It returns nil if none is kept. The caller holds mu.
func (a *identityAccessor) recordLocked(e lifecycle.CreateAttempt) *permissions.Record {
	credential := a.credentials.get(e.Credential)
	if !a.set.options.Record || e.Kind != lifecycle.Connect || credential == nil {
		return nil
	}
	extension, reference := a.object.GetUID(), credential.Reference()
	if a.record == nil || a.record.extension != extension || a.record.credential != reference {
		a.record = &recordOf{extension: extension, credential: reference}
	}
	return &a.record.Record
}
