package platformactor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/latchkey-dev/latchkey/serviceprovider/clustersv1alpha1"
)

// accessNamespace has the ServiceAccounts, on each remote cluster.
const accessNamespace = "access"

// ServiceAccountOf returns the ServiceAccount for an AccessRequest, on the remote cluster.
func ServiceAccountOf(request client.Object) types.NamespacedName {
	hash := sha256.Sum256([]byte(request.GetNamespace() + "/" + request.GetName()))
	return types.NamespacedName{Namespace: accessNamespace, Name: "access-" + hex.EncodeToString(hash[:8])}
}

// give creates a ServiceAccount with the permissions of the request, and the Secret with its token.
func (a *Actor) give(ctx context.Context, request *clustersv1alpha1.AccessRequest) error {
	r, ok := a.remotes[request.Spec.ClusterRef.Name]
	if !ok {
		return fmt.Errorf("there is no cluster %q", request.Spec.ClusterRef.Name)
	}
	for _, object := range objectsFor(ServiceAccountOf(request), request.Spec.Token) {
		if err := r.apply(ctx, object); err != nil {
			return err
		}
	}
	return a.Rotate(ctx, request)
}

// objectsFor returns the objects on the remote cluster that a request asks for.
func objectsFor(account types.NamespacedName, token *clustersv1alpha1.TokenConfig) []client.Object {
	objects := []client.Object{
		namespace(accessNamespace),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: account.Namespace, Name: account.Name}},
	}
	for _, permissions := range token.Permissions {
		objects = append(objects, roleFor(account, permissions)...)
	}
	for _, role := range token.RoleRefs {
		objects = append(objects, bindingFor(account, role.Namespace, role.Kind, role.Name))
	}
	return objects
}

// apply creates the object, or replaces its rules.
func (r remote) apply(ctx context.Context, object client.Object) error {
	wanted := object.DeepCopyObject().(client.Object)
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, object, func() error {
		switch o := object.(type) {
		case *rbacv1.Role:
			o.Rules = wanted.(*rbacv1.Role).Rules
		case *rbacv1.ClusterRole:
			o.Rules = wanted.(*rbacv1.ClusterRole).Rules
		}
		return nil
	})
	return err
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// roleFor returns a role with the permissions, its binding, and its namespace.
func roleFor(account types.NamespacedName, permissions clustersv1alpha1.PermissionsRequest) []client.Object {
	name := account.Name + "-" + permissions.Name
	if permissions.Name == "" {
		name = account.Name
	}
	if permissions.Namespace == "" {
		return []client.Object{
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: permissions.Rules},
			bindingFor(account, "", "ClusterRole", name),
		}
	}
	return []client.Object{
		namespace(permissions.Namespace),
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: permissions.Namespace, Name: name}, Rules: permissions.Rules},
		bindingFor(account, permissions.Namespace, "Role", name),
	}
}

func bindingFor(account types.NamespacedName, namespace, kind, role string) client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: account.Name + "-" + role}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}}
	if namespace == "" {
		return &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}
	}
	return &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}
}

// Rotate puts a new token into the Secret of an AccessRequest. The token before stays valid until
// RevokeOldTokens.
func (a *Actor) Rotate(ctx context.Context, request *clustersv1alpha1.AccessRequest) error {
	r := a.remotes[request.Spec.ClusterRef.Name]
	account := ServiceAccountOf(request)
	// A token is valid as long as the Secret to which it is bound.
	bound := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: account.Namespace,
		Name:      account.Name + "-" + string(uuid.NewUUID()),
		Labels:    map[string]string{"account": account.Name},
	}}
	if err := r.Create(ctx, bound); err != nil {
		return err
	}
	review := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{
			APIVersion: "v1",
			Kind:       "Secret",
			Name:       bound.Name,
			UID:        bound.UID,
		}}}
	err := r.SubResource("token").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: account.Namespace, Name: account.Name}}, review)
	if err != nil {
		return err
	}
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		CurrentContext: "access",
		Contexts:       map[string]*clientcmdapi.Context{"access": {Cluster: "access", AuthInfo: "access"}},
		Clusters: map[string]*clientcmdapi.Cluster{"access": {
			Server:                   r.config.Host,
			CertificateAuthorityData: r.config.CAData,
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"access": {Token: review.Status.Token}},
	})
	if err != nil {
		return err
	}
	a.mu.Lock()
	replace := a.kubeconfig
	a.secrets[client.ObjectKeyFromObject(request)] = bound.Name
	a.mu.Unlock()
	if replace != nil {
		kubeconfig = replace(request, kubeconfig)
	}
	secret := secretFor(request, r.config, kubeconfig, review.Status.Token, review.Status.ExpirationTimestamp.Time)
	data := secret.Data
	_, err = controllerutil.CreateOrUpdate(ctx, a.platform, secret, func() error {
		secret.Data = data
		return nil
	})
	return err
}

// RevokeOldTokens revokes all tokens for an AccessRequest but the newest.
func (a *Actor) RevokeOldTokens(ctx context.Context, request *clustersv1alpha1.AccessRequest) error {
	a.mu.Lock()
	newest := a.secrets[client.ObjectKeyFromObject(request)]
	a.mu.Unlock()
	r, account := a.remotes[request.Spec.ClusterRef.Name], ServiceAccountOf(request)
	bound := &corev1.SecretList{}
	if err := r.List(ctx, bound, client.InNamespace(account.Namespace),
		client.MatchingLabels{"account": account.Name}); err != nil {
		return err
	}
	for i := range bound.Items {
		if bound.Items[i].Name == newest {
			continue
		}
		if err := r.Delete(ctx, &bound.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// revoke deletes the ServiceAccount, with which all tokens end, its roles, and the Secret.
func (a *Actor) revoke(ctx context.Context, request *clustersv1alpha1.AccessRequest) error {
	if request.Spec.ClusterRef == nil {
		return nil
	}
	r, account := a.remotes[request.Spec.ClusterRef.Name], ServiceAccountOf(request)
	for _, object := range objectsFor(account, request.Spec.Token) {
		if _, ok := object.(*corev1.Namespace); ok {
			continue // others may use it
		}
		if err := r.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return client.IgnoreNotFound(a.platform.Delete(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: request.Namespace, Name: SecretName(request)}}))
}
