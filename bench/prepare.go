package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pkg/errors"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/bench/internal/peer"
	"github.com/latchkey-dev/latchkey/bench/internal/stage"
)

// definitions returns the files with the CustomResourceDefinitions of the peers.
func definitions(ctx context.Context) ([]string, error) {
	var files []string
	for _, one := range []struct{ module, path string }{
		{"github.com/latchkey-dev/latchkey", "config/crd"},
		{"sigs.k8s.io/cluster-api", "core/config/crd/bases/cluster.x-k8s.io_clusters.yaml"},
	} {
		dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", one.module).Output()
		if err != nil {
			return nil, errors.Wrapf(err, "finding the module %s: run this in the folder bench", one.module)
		}
		files = append(files, filepath.Join(strings.TrimSpace(string(dir)), one.path))
	}
	return files, nil
}

// fixtures creates what the stages need, when they need it.
type fixtures struct {
	admin   client.Client
	config  *rest.Config
	tenants int         // that exist with a Cluster and a kubeconfig
	alone   int         // all that exist: the others have an extension only
	peers   []peer.Peer // in which a tenant is registered
	sharers []peer.Peer // in which one that shares its ServiceAccount is
	sharing int         // tenants that share ServiceAccounts
	owned   int         // tenants that have a namespace and permissions of their own
	shared  bool        // the namespaces with the objects that all tenants read exist
}

func newFixtures(config *rest.Config) (*fixtures, error) {
	config.QPS, config.Burst = 1000, 1000
	s, err := peer.NewScheme()
	if err != nil {
		return nil, err
	}
	admin, err := client.New(config, client.Options{Scheme: s})
	if err != nil {
		return nil, errors.WithStack(err)
	}
	f := &fixtures{admin: admin, config: config}
	for _, name := range []string{peer.Latchkey, peer.ClusterAPI} {
		for fleet, registered := range map[peer.Fleet]*[]peer.Peer{peer.Alone: &f.peers, peer.Siblings: &f.sharers} {
			p, err := peer.New(name, config, fleet)
			if err != nil {
				return nil, err
			}
			*registered = append(*registered, p)
		}
	}
	return f, nil
}

// prepare creates what a run needs.
func (f *fixtures) prepare(ctx context.Context, r run) error {
	if !f.shared {
		f.shared = true
		if err := f.createShared(ctx); err != nil {
			return err
		}
	}
	switch r.stage {
	case "siblings":
		return f.prepareSiblings(ctx, r.n)
	case "watchers":
		return f.prepareWatchers(ctx, r.n)
	}
	all := len(r.peers) > 1 // latchkey alone needs neither Clusters nor Secrets
	if all && f.alone > f.tenants {
		return errors.New("tenants for all peers are to be created before tenants for latchkey alone")
	}
	if r.n > f.alone {
		fmt.Printf("Creating tenants %d to %d\n", f.alone, r.n-1)
		if err := each(ctx, f.alone, r.n, func(ctx context.Context, tenant int) error {
			return f.createTenant(ctx, tenant, all)
		}); err != nil {
			return err
		}
		f.alone = r.n
		if all {
			f.tenants = r.n
		}
	}
	if r.owned && r.n > f.owned {
		fmt.Printf("Creating %d namespaces with permissions\n", r.n-f.owned)
		if err := each(ctx, f.owned, r.n, f.createNamespace); err != nil {
			return err
		}
		f.owned = r.n
	}
	return nil
}

// prepareSiblings creates tenants that share ServiceAccounts, which exist or are created first.
func (f *fixtures) prepareSiblings(ctx context.Context, n int) error {
	accounts := peer.Siblings.Accounts(n)
	if err := f.prepare(ctx, run{n: accounts, peers: []string{peer.Latchkey, peer.ClusterAPI}}); err != nil {
		return err
	}
	if n <= f.sharing {
		return nil
	}
	fmt.Printf("Creating %d tenants that share %d ServiceAccounts\n", n-f.sharing, accounts)
	defer func() { f.sharing = n }()
	return each(ctx, f.sharing, n, func(ctx context.Context, tenant int) error {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Namespace: peer.Namespace,
			Name:      peer.Siblings.Account(tenant),
		}}
		return f.register(ctx, account, peer.Siblings.Name(tenant), tenant, f.sharers)
	})
}

// prepareWatchers creates extensions that share ServiceAccounts with a namespace each. Other
// extensions and ServiceAccounts are deleted, because the host operator's own cache has them all,
// so this comes after all other stages.
func (f *fixtures) prepareWatchers(ctx context.Context, n int) error {
	accounts := peer.Watchers.Accounts(n)
	if err := f.prepare(ctx, run{n: accounts, peers: []string{peer.Latchkey}, owned: true}); err != nil {
		return err
	}
	fmt.Printf("Creating %d tenants that share %d ServiceAccounts\n", n, accounts)
	for _, others := range []struct {
		peer peer.Peer
		n    int
	}{{f.peers[0], f.alone}, {f.sharers[0], f.sharing}} {
		if err := each(ctx, 0, others.n, func(ctx context.Context, tenant int) error {
			host, err := others.peer.Host(tenant)
			if err != nil {
				return err
			}
			return errors.WithStack(f.admin.Delete(ctx, host))
		}); err != nil {
			return err
		}
	}
	if err := each(ctx, accounts, f.alone, func(ctx context.Context, tenant int) error {
		return errors.WithStack(f.admin.Delete(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Namespace: peer.Namespace,
			Name:      peer.Name(tenant),
		}}))
	}); err != nil {
		return err
	}
	watchers, err := peer.New(peer.Latchkey, f.config, peer.Watchers)
	if err != nil {
		return err
	}
	return each(ctx, 0, n, func(ctx context.Context, tenant int) error {
		return peer.Register(ctx, f.admin, watchers, tenant)
	})
}

// each calls f for the numbers from a to b-1, 16 at a time.
func each(ctx context.Context, a, b int, f func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for n := a; n < b; n++ {
		group.Go(func() error { return f(ctx, n) })
	}
	return group.Wait()
}

// createShared creates the namespaces and objects that all tenants may read.
func (f *fixtures) createShared(ctx context.Context) error {
	for _, name := range []string{peer.Namespace, stage.Shared, stage.Hundred} {
		if err := f.admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return errors.WithStack(err)
		}
	}
	meta := metav1.ObjectMeta{Name: "bench-tenants"}
	for _, object := range []client.Object{
		&rbacv1.ClusterRole{
			ObjectMeta: meta,
			Rules: []rbacv1.PolicyRule{
				{
					APIGroups: []string{""},
					Resources: []string{"configmaps", "podtemplates", "limitranges"},
					Verbs:     []string{"get", "list", "watch"},
				},
				{NonResourceURLs: []string{"/"}, Verbs: []string{"get"}}, // what Cluster API probes
			},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
			Subjects: []rbacv1.Subject{{
				APIGroup: rbacv1.GroupName,
				Kind:     "Group",
				Name:     "system:serviceaccounts:" + peer.Namespace,
			}},
		},
	} {
		if err := f.admin.Create(ctx, object); err != nil {
			return errors.WithStack(err)
		}
	}
	if err := each(ctx, 0, 1000, func(ctx context.Context, n int) error {
		return errors.WithStack(f.admin.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: stage.Shared, Name: fmt.Sprintf("object-%04d", n)},
			Data:       map[string]string{"content": strings.Repeat(fmt.Sprintf("%04d ", n), 200)}}))
	}); err != nil {
		return err
	}
	return each(ctx, 0, 100, func(ctx context.Context, n int) error {
		return errors.WithStack(f.admin.Create(ctx, &corev1.LimitRange{
			ObjectMeta: metav1.ObjectMeta{Namespace: stage.Hundred, Name: fmt.Sprintf("object-%04d", n)}}))
	})
}

// createTenant creates a ServiceAccount, and what names it: an extension, and for all peers a
// Cluster with a kubeconfig.
func (f *fixtures) createTenant(ctx context.Context, tenant int, all bool) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: peer.Namespace,
		Name:      peer.Name(tenant),
	}}
	if err := f.admin.Create(ctx, account); err != nil {
		return errors.WithStack(err)
	}
	if !all {
		return peer.Register(ctx, f.admin, f.peers[0], tenant)
	}
	return f.register(ctx, account, account.Name, tenant, f.peers)
}

// register creates what all peers need for a tenant: a Secret with a kubeconfig of its
// ServiceAccount, and an object each.
func (f *fixtures) register(ctx context.Context, account *corev1.ServiceAccount, name string, tenant int,
	peers []peer.Peer) error {
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(int64(24 * 3600))}}
	if err := f.admin.SubResource("token").Create(ctx, account, token); err != nil {
		return errors.WithStack(err)
	}
	kubeconfig, err := kubeconfigOf(f.config, token.Status.Token)
	if err != nil {
		return err
	}
	if err := f.admin.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: peer.Namespace,
			Name:      name + "-kubeconfig",
			Labels:    map[string]string{v1beta2.ClusterNameLabel: name},
		},
		Data: map[string][]byte{"value": kubeconfig}}); err != nil {
		return errors.WithStack(err)
	}
	for _, p := range peers {
		if err := peer.Register(ctx, f.admin, p, tenant); err != nil {
			return err
		}
	}
	return nil
}

// createNamespace creates a tenant's own namespace, and a ClusterRole that permits the tenant to
// watch there.
func (f *fixtures) createNamespace(ctx context.Context, tenant int) error {
	name := peer.Name(tenant)
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: stage.RulesOfKinds()},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "tenant"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: peer.Namespace, Name: name}},
		},
	} {
		if err := f.admin.Create(ctx, object); err != nil {
			return errors.WithStack(err)
		}
	}
	return nil
}

func kubeconfigOf(config *rest.Config, token string) ([]byte, error) {
	result := clientcmdapi.NewConfig()
	result.Clusters["bench"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	result.AuthInfos["bench"] = &clientcmdapi.AuthInfo{Token: token}
	result.Contexts["bench"] = &clientcmdapi.Context{Cluster: "bench", AuthInfo: "bench"}
	result.CurrentContext = "bench"
	text, err := clientcmd.Write(*result)
	return text, errors.WithStack(err)
}
