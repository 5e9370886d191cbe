package stateapi

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/clustercache"
	"github.com/latchkey-dev/latchkey/fence"
	"github.com/latchkey-dev/latchkey/internal/term"
	"github.com/latchkey-dev/latchkey/stateapi/apiserver"
	"github.com/latchkey-dev/latchkey/stateapi/v1alpha1"
)

// What a replica had in a term that is over is shown by none, before the replica gets to say so:
// another one may have it, and may have been shown.
func TestEndedTerms(t *testing.T) {
	key := client.ObjectKey{Name: "red"}
	ctx := apiserver.Context{Context: t.Context()}
	for name, look := range map[string]func(g Gomega, f *fleet){
		"this replica serves": func(g Gomega, f *fleet) { g.Expect(f.merged.hearOut(t.Context())).To(Succeed()) },
		"time passes":         func(_ Gomega, f *fleet) { f.merged.tick(time.Now()) },
		"another one lists": func(g Gomega, f *fleet) {
			own := ownStore[*v1alpha1.Connection, *v1alpha1.ConnectionList]{f.api.states, f.merged}
			list, err := own.List(ctx, &metav1.ListOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(list.Items).To(HaveLen(1))
			g.Expect(list.Items[0].Name).To(Equal("blue"))
		},
		"another one watches scopes": func(g Gomega, f *fleet) {
			own := ownStore[*v1alpha1.Scope, *v1alpha1.ScopeList]{f.api.scopes, f.merged}
			_, err := own.Watch(ctx, &metav1.ListOptions{})
			g.Expect(err).NotTo(HaveOccurred())
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newView()
			f.merged.Members(nil)
			lease, end := term.Join()
			scope := &v1alpha1.Scope{Status: v1alpha1.ScopeStatus{Extension: "red"}}
			scope.Name = nameOfScope("red", scope.Status.Selection, "")
			had := func() {
				f.update(key, claim("red", "1", v1alpha1.StateConnected, 4), []*v1alpha1.Scope{scope},
					&clustercache.ConnectionState{UID: "1", Lease: lease}, clustercache.NotOwnedExtension{})
			}
			had()
			f.update(client.ObjectKey{Name: "blue"}, claim("blue", "2", v1alpha1.StateConnected, 4), nil,
				&clustercache.ConnectionState{UID: "2"}, clustercache.NotOwnedExtension{})
			shows := func(reason, replica string, scopes int) {
				t.Helper()
				c, shown, _ := (&Replicas{f}).Show(key)
				g.Expect([]any{c.Status.Reason, c.Status.Replica, len(shown)}).To(Equal([]any{reason, replica, scopes}))
				all, err := f.merged.scopes.List(ctx, &metav1.ListOptions{})
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(all.Items).To(HaveLen(scopes))
				all, err = f.api.scopes.List(ctx, &metav1.ListOptions{})
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(all.Items).To(HaveLen(scopes))
				c, _, _ = (&Replicas{f}).Show(client.ObjectKey{Name: "blue"})
				g.Expect(c.Status.State).To(Equal(v1alpha1.StateConnected))
			}
			shows("", "me", 1)
			end("the lease was not renewed in time")
			shows("", "me", 1)
			look(g, f)
			shows(v1alpha1.ReasonNoReplica, "", 0)
			had() // the state is late, too
			shows(v1alpha1.ReasonNoReplica, "", 0)
			lease, _ = term.Join()
			had()
			shows("", "me", 1)
		})
	}
}

// BenchmarkDropEnded is what each question of another replica costs, and each second: terms that
// are not over, each of a bucket, the fleet, and the extension.
func BenchmarkDropEnded(b *testing.B) {
	f := newView()
	var buckets []*fence.Term
	all, _ := term.Join()
	for range 16 {
		bucket, _ := term.Join()
		buckets = append(buckets, bucket)
	}
	for n := range benchConnections {
		one, _ := term.Join(buckets[n%len(buckets)], all)
		f.merged.leases[client.ObjectKey{Name: fmt.Sprint("tenant-", n)}] = one
	}
	b.ReportAllocs()
	for b.Loop() {
		f.merged.dropEnded()
	}
}
