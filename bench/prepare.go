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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/bench/internal/peer"
	"github.com/latchkey-dev/latchkey/bench/internal/stage"
	"github.com/latchkey-dev/latchkey/clustercache"
)

// definitions returns the files with the CustomResourceDefinitions of the peers.
func definitions(ctx context.Context) ([]string, error) {
	var files []string
	for _, one := range []struct{ module, path string }{
		{"github.com/latchkey-dev/latchkey", "config/crd"},
		{"sigs.k8s.io/cluster-api", "config/crd/bases/cluster.x-k8s.io_clusters.yaml"},
	} {
		dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", one.module).Output()
		if err != nil {
			return nil, errors.Wrapf(err, "finding the module %s: run this in the folder bench", one.module)
		}
		files = append(files, filepath.Join(strings.TrimSpace(string(dir)), one.path))
	}
	return files, nil
}

// prepare creates n tenants, and the objects that they read.
func prepare(ctx context.Context, config *rest.Config, n int) error {
	config.QPS, config.Burst = 1000, 1000
	s := runtime.NewScheme()
	if err := errors.WithStack(scheme.AddToScheme(s)); err != nil {
		return err
	}
	if err := errors.WithStack(v1beta2.AddToScheme(s)); err != nil {
		return err
	}
	admin, err := client.New(config, client.Options{Scheme: s})
	if err != nil {
		return errors.WithStack(err)
	}
	if err := prepareShared(ctx, admin); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for tenant := range n {
		group.Go(func() error { return prepareTenant(ctx, admin, config, peer.Name(tenant)) })
	}
	for object := range 1000 {
		group.Go(func() error {
			return errors.WithStack(admin.Create(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: stage.Shared, Name: fmt.Sprintf("object-%04d", object)},
				Data:       map[string]string{"content": strings.Repeat(fmt.Sprintf("%04d ", object), 200)}}))
		})
	}
	for object := range 100 {
		group.Go(func() error {
			return errors.WithStack(admin.Create(ctx, &corev1.LimitRange{
				ObjectMeta: metav1.ObjectMeta{Namespace: stage.Hundred, Name: fmt.Sprintf("object-%04d", object)}}))
		})
	}
	return group.Wait()
}

// prepareShared creates the namespaces, and lets all tenants read what the stages read.
func prepareShared(ctx context.Context, admin client.Client) error {
	for _, name := range []string{peer.Namespace, stage.Shared, stage.Hundred} {
		if err := admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return errors.WithStack(err)
		}
	}
	meta := metav1.ObjectMeta{Name: "bench-tenants"}
	for _, object := range []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps", "podtemplates", "limitranges"},
				Verbs: []string{"get", "list", "watch"}},
			{NonResourceURLs: []string{"/"}, Verbs: []string{"get"}}, // what Cluster API probes
		}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group",
				Name: "system:serviceaccounts:" + peer.Namespace}}},
	} {
		if err := admin.Create(ctx, object); err != nil {
			return errors.WithStack(err)
		}
	}
	return nil
}

// prepareTenant creates a ServiceAccount, an extension that names it, and a Cluster with a kubeconfig
// for it.
func prepareTenant(ctx context.Context, admin client.Client, config *rest.Config, name string) error {
	meta := metav1.ObjectMeta{Namespace: peer.Namespace, Name: name}
	account := &corev1.ServiceAccount{ObjectMeta: meta}
	if err := admin.Create(ctx, account); err != nil {
		return errors.WithStack(err)
	}
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(int64(24 * 3600))}}
	if err := admin.SubResource("token").Create(ctx, account, token); err != nil {
		return errors.WithStack(err)
	}
	kubeconfig, err := kubeconfigOf(config, token.Status.Token)
	if err != nil {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"value": kubeconfig}}
	secret.Name, secret.Labels = name+"-kubeconfig", map[string]string{v1beta2.ClusterNameLabel: name}
	extension := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"namespace": peer.Namespace, "serviceAccount": map[string]any{"name": name}}}}
	extension.SetGroupVersionKind(clustercache.ClusterExtensionGVK)
	extension.SetName(name)
	cluster := &v1beta2.Cluster{ObjectMeta: meta, Spec: v1beta2.ClusterSpec{
		InfrastructureRef: v1beta2.ContractVersionedObjectReference{APIGroup: "bench.example.com", Kind: "Bench",
			Name: name}}}
	for _, object := range []client.Object{secret, extension, cluster} {
		if err := admin.Create(ctx, object); err != nil {
			return errors.Wrapf(err, "%T", object)
		}
	}
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	return errors.WithStack(admin.Status().Update(ctx, cluster))
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
