package accessor

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// PermissionRecord is what an identity used, and was refused; see clustercache.PermissionRecord.
type PermissionRecord struct {
	Username      string
	Used, Refused []permissions.Use
	Complete      bool
}

// recordOf is the record of one user of one API server, as which an extension was connected.
type recordOf struct {
	permissions.Record
	of recordKey
}

type recordKey struct {
	extension                      types.UID
	server, username, impersonator string
}

// uses returns what is on record, nil without a record.
func (r *recordOf) uses() *PermissionRecord {
	if r == nil {
		return nil
	}
	used, refused, complete := r.Uses(time.Now())
	return &PermissionRecord{Username: r.of.username, Used: used, Refused: refused, Complete: complete}
}

// recordLocked returns the record for the connection that begins: the same one after a reconnect as
// the same user. It returns nil if none is kept. The caller holds mu.
func (a *identityAccessor) recordLocked() *permissions.Record {
	if !a.set.options.Record {
		return nil
	}
	identity := a.conn.Identity()
	key := recordKey{a.object.GetUID(), a.membership.Host(), identity.Username, identity.ImpersonatorUsername}
	if a.record == nil || a.record.of != key {
		record := &recordOf{of: key}
		record.OnRefused = func() { a.set.grants.refused(a, record) }
		a.record = record
	}
	return &a.record.Record
}
