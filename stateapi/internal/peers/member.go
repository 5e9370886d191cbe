package peers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/pkg/errors"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/holding"
)

// FleetLabel is on the Leases of the replicas of a fleet. Its value is the name of the fleet.
const FleetLabel = "state.latchkey.dev/fleet"

// member is a replica of the fleet, as its Lease says.
type member struct {
	lease    string // name of the Lease
	identity string
	address  netip.AddrPort
}

// hash is what the name of a replica's Lease, and that in its certificate, has of its identity.
func hash(identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return hex.EncodeToString(sum[:])[:hashLength]
}

const hashLength = 20

// leaseName returns the name of a replica's Lease.
func (o *Options) leaseName(identity string) string { return o.Name + "-peer-" + hash(identity) }

// ServerName returns the name in the certificate of a replica.
func (o *Options) ServerName(identity string) string { return hash(identity) + o.suffix() }

func (o *Options) suffix() string {
	return "." + o.Name + "." + o.Namespace + ".peers.state.latchkey.dev"
}

// IsMember reports whether a certificate with that name is that of a replica of the fleet.
func (p *Peers) IsMember(name string) bool {
	member, ok := strings.CutSuffix(name, p.options.suffix())
	return ok && len(member) == hashLength && !strings.Contains(member, ".")
}

// holder is how the Lease of a replica names it: who it is, and where it serves.
func holder(identity string, address netip.AddrPort) string { return identity + " " + address.String() }

// memberOf returns the member whose Lease it is, or false if the Lease names none. The name of the
// Lease must be that of the identity.
func (o *Options) memberOf(lease *coordinationv1.Lease) (m member, ok bool) {
	if lease.Spec.HolderIdentity == nil {
		return m, false
	}
	at := strings.LastIndexByte(*lease.Spec.HolderIdentity, ' ')
	if at < 0 {
		return m, false
	}
	address, err := netip.ParseAddrPort((*lease.Spec.HolderIdentity)[at+1:])
	if err != nil || address.Port() == 0 || address.Addr().IsUnspecified() || address.Addr().IsMulticast() {
		return m, false
	}
	m = member{lease: lease.Name, identity: (*lease.Spec.HolderIdentity)[:at], address: address}
	return m, CheckIdentity(m.identity) == nil && m.lease == o.leaseName(m.identity)
}

// CheckIdentity returns an error if no member can have that identity.
func CheckIdentity(identity string) error {
	if identity == "" || len(identity) > maxIdentity || strings.ContainsFunc(identity, unprintable) {
		return errors.Errorf("%q must be printable, and have 1 to %d bytes", identity, maxIdentity)
	}
	return nil
}

// maxIdentity is how long an identity may be, which is in logs and on pages.
const maxIdentity = 253

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// maxMembers is how many replicas are followed. More Leases than that are not those of replicas.
const maxMembers = 100

// membersOf returns the members whose Leases they are, but this replica, by identity. Of more than
// maxMembers, those that are heard come first, and then those that are the oldest.
func (o *Options) membersOf(leases []*coordinationv1.Lease, isHeard func(identity string) bool) (
	members map[string]member, left int) {
	type candidate struct {
		member
		heard   bool
		created time.Time
	}
	var all []candidate
	for _, lease := range leases {
		if m, ok := o.memberOf(lease); ok && m.identity != o.Identity {
			all = append(all, candidate{m, isHeard(m.identity), lease.CreationTimestamp.Time})
		}
	}
	slices.SortFunc(all, func(x, y candidate) int {
		switch {
		case x.heard != y.heard && x.heard:
			return -1
		case x.heard != y.heard:
			return 1
		}
		return cmp.Or(x.created.Compare(y.created), cmp.Compare(x.lease, y.lease))
	})
	left = max(0, len(all)-maxMembers)
	members = make(map[string]member, len(all)-left)
	for _, c := range all[:len(all)-left] {
		members[c.identity] = c.member
	}
	return members, left
}

// announce keeps the Lease of this replica until ctx is done, and calls in with the term in which
// it is a member.
func (p *Peers) announce(ctx context.Context, in func(term *fence.Term)) {
	for ctx.Err() == nil {
		holding.Hold(ctx, holding.Options{Times: p.options.Times}, &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: p.options.Namespace, Name: p.options.leaseName(p.options.Identity)},
			Client:    p.leases,
			LockConfig: resourcelock.ResourceLockConfig{
				Identity: holder(p.options.Identity, p.options.Address),
			},
			Labels: map[string]string{FleetLabel: p.options.Name},
		}, func(ctx context.Context, term *fence.Term) {
			in(term)
			<-ctx.Done()
		})
		select {
		case <-ctx.Done():
		case <-time.After(p.options.RetryPeriod):
		}
	}
	// A Lease that is released would stay for ever.
	p.remove(context.WithoutCancel(ctx), p.options.leaseName(p.options.Identity), metav1.DeleteOptions{})
}

func (p *Peers) remove(ctx context.Context, name string, options metav1.DeleteOptions) {
	ctx, cancel := context.WithTimeout(ctx, p.options.RenewDeadline)
	defer cancel()
	err := p.leases.Leases(p.options.Namespace).Delete(ctx, name, options)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		ctrl.LoggerFrom(ctx).V(1).Info("The Lease of a replica that has ended stays", "lease", name, "error", err.Error())
	}
}
