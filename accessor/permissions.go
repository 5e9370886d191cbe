package accessor

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/latchkey-dev/latchkey/internal/permissions"
)

// PermissionRecord is what an identity used, and was refused; see clustercache.PermissionRecord.
type PermissionRecord struct {
	Username      string
	Source        string // of the credential
	Used, Refused []permissions.Use
	Complete      bool
}

// recordOf is the record of one user of one API server, as which an extension was connected.
type recordOf struct {
	permissions.Record
	of recordKey
}

type recordKey struct {
	extension              types.UID
	server, source         string
	untrusted              bool
	username, impersonator string
}

// uses returns what is on record, nil without a record.
func (r *recordOf) uses() *PermissionRecord {
	if r == nil {
		return nil
	}
	used, refused, complete := r.Uses(time.Now())
	return &PermissionRecord{
		Username: r.of.username,
		Source:   r.of.source,
		Used:     used,
		Refused:  refused,
		Complete: complete,
	}
}

// countPermissions returns how many permissions are on record.
func (a *identityAccessor) countPermissions() (used, refused int) {
	a.mu.Lock()
	record := a.record
	a.mu.Unlock()
	if record == nil {
		return 0, 0
	}
	return record.Count(time.Now())
}

// setRecordLocked gives the connection that begins its record: the same one after a reconnect as
// the same user by the same credential's source, and none if none is kept. The caller holds mu.
func (a *identityAccessor) setRecordLocked() {
	if !a.set.options.Record {
		return
	}
	identity, resolution := a.conn.Identity(), a.conn.Resolution()
	key := recordKey{
		extension:    a.object.GetUID(),
		server:       a.membership.Host(),
		source:       resolution.Source,
		untrusted:    resolution.UntrustedServer,
		username:     identity.Username,
		impersonator: identity.ImpersonatorUsername,
	}
	if a.record == nil || a.record.of != key {
		a.record = &recordOf{of: key}
	}
	conn, record := a.conn, a.record
	conn.SetRecord(&record.Record, func() { a.set.grants.refused(a, conn, record) })
}
