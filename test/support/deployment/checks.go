package deployment

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/pkg/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/latchkey-dev/latchkey/internal/controlplane"
)

// Everything returns all objects that the API server lists, except for what controllers write into
// each namespace at any time.
func Everything(ctx context.Context, cp *controlplane.ControlPlane) (found []string, err error) {
	kinds, err := cp.Kubectl(ctx, "api-resources", "--verbs=list", "-o", "name")
	if err != nil {
		return nil, err
	}
	resources := slices.DeleteFunc(strings.Fields(kinds), func(name string) bool {
		return strings.HasPrefix(name, "events") || strings.HasPrefix(name, "componentstatuses")
	})
	list, err := cp.Kubectl(ctx, "get", strings.Join(resources, ","), "-A", "-o",
		`jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{"\n"}{end}`)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(list) {
		line = strings.TrimSpace(line)
		if !strings.HasSuffix(line, "/kube-root-ca.crt") && !strings.HasSuffix(line, "/default") {
			found = append(found, line)
		}
	}
	slices.Sort(found)
	return found, nil
}

// Leftovers returns what [Everything] returns, except for what was there before.
func Leftovers(ctx context.Context, cp *controlplane.ControlPlane, before []string) ([]string, error) {
	found, err := Everything(ctx, cp)
	return slices.DeleteFunc(found, func(object string) bool { return slices.Contains(before, object) }), err
}

// CheckPod returns an error unless the Pod of the Deployment fits the Pod Security profile of its
// namespace, and controllers create it. To see that there is such a profile, it also sends a Pod
// that does not fit.
func CheckPod(ctx context.Context, cp *controlplane.ControlPlane, objects []*unstructured.Unstructured) error {
	pod, err := Pod(objects)
	if err != nil {
		return err
	}
	create := func() error {
		content, err := json.Marshal(pod)
		if err != nil {
			return errors.WithStack(err)
		}
		_, err = cp.KubectlInput(ctx, string(content), "create", "--dry-run=server", "-f", "-")
		return err
	}
	if err := create(); err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			pods, err := cp.Kubectl(ctx, "get", "pods", "-n", pod.Namespace, "-o", "name")
			return strings.HasPrefix(pods, "pod/"+pod.Name), err
		})
	if err != nil {
		return errors.Wrap(err, "waiting for a Pod of the Deployment")
	}
	pod.Spec.Containers[0].SecurityContext = nil
	if err := create(); err == nil || !strings.Contains(err.Error(), `violates PodSecurity "restricted:latest"`) {
		return errors.Errorf("a Pod without securityContext: %v, want a violation of the profile restricted", err)
	}
	return nil
}

// ofEveryUser are the bindings that every API server has for all users.
var ofEveryUser = []string{`ClusterRoleBinding "system:basic-user"`, `ClusterRoleBinding "system:discovery"`,
	`ClusterRoleBinding "system:public-info-viewer"`, `ClusterRoleBinding "system:service-account-issuer-discovery"`}

func allowedByOneOf(request Request, permissions []Permission, bindings []string) bool {
	return request.ImpersonatedUser != nil || slices.ContainsFunc(permissions, func(p Permission) bool {
		return request.AllowedBy(p.Binding)
	}) || slices.ContainsFunc(slices.Concat(bindings, ofEveryUser), request.AllowedBy)
}

// allNamespaces reports whether the flags of the manager include all namespaces.
func allNamespaces(pod *corev1.Pod) bool {
	args := pod.Spec.Containers[0].Args
	return !slices.Contains(args, "--credentials=kubeconfigs") && !slices.ContainsFunc(args, func(arg string) bool {
		return strings.HasPrefix(arg, "--service-account-namespaces=")
	})
}

// CheckPermissions returns an error unless the manager had all permissions that it needed, and used
// each of them, by the audit log. A permission in the whole cluster counts as used if a request was
// about the whole cluster, unless the flags of the manager include all namespaces.
func CheckPermissions(auditLog string, objects []*unstructured.Unstructured) error {
	pod, err := Pod(objects)
	if err != nil {
		return err
	}
	user := "system:serviceaccount:" + pod.Namespace + ":" + pod.Spec.ServiceAccountName
	requests, err := Requests(auditLog, user)
	if err != nil {
		return err
	}
	permissions, bindings, err := Permissions(objects, user)
	if err != nil {
		return err
	}
	if len(permissions) < 8 || len(requests) < len(permissions) {
		return errors.Errorf("%s has %d permissions and sent %d requests", user, len(permissions), len(requests))
	}
	var problems []string
	for _, request := range requests {
		if request.Denied() {
			problems = append(problems, "denied: "+request.String())
		}
	}
	for _, permission := range permissions {
		switch {
		case !permission.Used(requests):
			problems = append(problems, "not used: "+permission.String())
		case permission.TooWide(requests) && !allNamespaces(pod):
			problems = append(problems, "used in single namespaces only: "+permission.String())
		}
	}
	for _, binding := range bindings {
		if !slices.ContainsFunc(requests, func(r Request) bool { return r.AllowedBy(binding) }) {
			problems = append(problems, "not used: "+binding)
		}
	}
	for _, request := range requests {
		if reason := request.Annotations["authorization.k8s.io/reason"]; strings.Contains(reason, "allowed by") &&
			!allowedByOneOf(request, permissions, bindings) {
			problems = append(problems, "allowed by something else than the manifests: "+request.String()+": "+reason)
		}
	}
	if len(problems) > 0 {
		return errors.Errorf("permissions of %s:\n%s", user, strings.Join(problems, "\n"))
	}
	return nil
}
