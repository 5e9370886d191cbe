package deployment

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

const rightfulManifests = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: latchkey, namespace: system}
spec:
  template:
    spec:
      serviceAccountName: manager
      containers:
      - {name: manager, args: [manager, --service-account-namespaces=blue]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: latchkey}
rules:
- {apiGroups: [latchkey.dev], resources: [clusterextensions], verbs: [list, watch]}
- {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}
- {apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: latchkey}
roleRef: {kind: ClusterRole, name: latchkey}
subjects: [{kind: ServiceAccount, namespace: system, name: manager}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: latchkey, namespace: blue}
rules:
- {apiGroups: [""], resources: [serviceaccounts], verbs: [list, watch]}
- {apiGroups: [""], resources: [serviceaccounts/token], resourceNames: [a, b], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: latchkey, namespace: blue}
roleRef: {kind: Role, name: latchkey}
subjects: [{kind: ServiceAccount, namespace: system, name: manager}]
`

const (
	byCluster = `RBAC: allowed by ClusterRoleBinding "latchkey" of ClusterRole "latchkey" to ServiceAccount "manager/system"`
	byRole    = `RBAC: allowed by RoleBinding "latchkey/blue" of Role "latchkey" to ServiceAccount "manager/system"`
	byAny     = `RBAC: allowed by ClusterRoleBinding "system:basic-user" of ClusterRole "system:basic-user" to Group "system:authenticated"`
	byAdmins  = `RBAC: allowed by ClusterRoleBinding "admins" of ClusterRole "cluster-admin" to Group "system:serviceaccounts"`
)

// request returns an event of the audit log.
func request(verb, uri, reason string, object auditv1.ObjectReference) auditv1.Event {
	event := auditv1.Event{
		Stage:       auditv1.StageResponseComplete,
		Verb:        verb,
		RequestURI:  uri,
		ObjectRef:   &object,
		Annotations: map[string]string{"authorization.k8s.io/reason": reason},
	}
	event.User.Username = "system:serviceaccount:system:manager"
	return event
}

func rightfulRequests() []auditv1.Event {
	extensions := auditv1.ObjectReference{APIGroup: "latchkey.dev", Resource: "clusterextensions"}
	accounts := auditv1.ObjectReference{Resource: "serviceaccounts", Namespace: "blue"}
	token := func(name string) auditv1.ObjectReference {
		return auditv1.ObjectReference{Resource: "serviceaccounts", Subresource: "token", Namespace: "blue", Name: name}
	}
	return []auditv1.Event{
		request("list", "/list", byCluster, extensions),
		request("watch", "/watch", byCluster, extensions),
		request("watch", "/watch?sendInitialEvents=true", byRole, accounts),
		request("create", "/token", byRole, token("a")),
		request("create", "/token", byRole, token("b")),
		request("create", "/reviews", byCluster, auditv1.ObjectReference{
			APIGroup: "authentication.k8s.io",
			Resource: "tokenreviews",
		}),
		request("create", "/reviews", byCluster, auditv1.ObjectReference{
			APIGroup: "authorization.k8s.io",
			Resource: "subjectaccessreviews",
		}),
		request("create", "/reviews", byAny, auditv1.ObjectReference{
			APIGroup: "authorization.k8s.io",
			Resource: "selfsubjectaccessreviews",
		}),
	}
}

// CheckPermissions finds permissions that are missing, not used, or wider than used.
func TestCheckPermissions(t *testing.T) {
	tokens := `- {apiGroups: [""], resources: [serviceaccounts/token], resourceNames: [a, b], verbs: [create]}`
	for name, tc := range map[string]struct {
		manifests func(string) string
		requests  func([]auditv1.Event) []auditv1.Event
		want      string // part of the error, "" for none
	}{
		"as it should be": {},
		"denied": {
			requests: func(r []auditv1.Event) []auditv1.Event {
				denied := request("get", "/secrets", "", auditv1.ObjectReference{Resource: "secrets", Namespace: "blue"})
				_ = json.Unmarshal([]byte(`{"code": 403}`), &denied.ResponseStatus)
				return append(r, denied)
			},
			want: "denied: get /secrets",
		},
		"a name is not used": {
			requests: func(r []auditv1.Event) []auditv1.Event {
				r[4] = r[3]
				return r
			},
			want: "not used: Role/latchkey rule 1: create serviceaccounts/token b in blue",
		},
		"used, but allowed by another binding": {
			requests: func(r []auditv1.Event) []auditv1.Event {
				r[4].Annotations["authorization.k8s.io/reason"] = byCluster
				return r
			},
			want: "not used: Role/latchkey rule 1: create serviceaccounts/token b in blue",
		},
		"in the whole cluster": {
			manifests: func(m string) string {
				return strings.Replace(strings.Replace(m, tokens, "", 1), "rules:\n", "rules:\n"+tokens+"\n", 1)
			},
			requests: func(r []auditv1.Event) []auditv1.Event {
				r[3].Annotations["authorization.k8s.io/reason"] = byCluster
				r[4].Annotations["authorization.k8s.io/reason"] = byCluster
				return r
			},
			want: "used in single namespaces only: ClusterRole/latchkey rule 0: create serviceaccounts/token a",
		},
		"in the whole cluster, with flags for all namespaces": {
			manifests: func(m string) string {
				m = strings.Replace(m, ", --service-account-namespaces=blue", "", 1)
				return strings.Replace(strings.Replace(m, tokens, "", 1), "rules:\n", "rules:\n"+tokens+"\n", 1)
			},
			requests: func(r []auditv1.Event) []auditv1.Event {
				r[3].Annotations["authorization.k8s.io/reason"] = byCluster
				r[4].Annotations["authorization.k8s.io/reason"] = byCluster
				return r
			}},
		"everything that is no resource": {
			manifests: func(m string) string {
				return strings.Replace(m, "rules:\n", "rules:\n- {nonResourceURLs: ['*'], verbs: ['*']}\n", 1)
			},
			want: `ClusterRoleBinding "latchkey" grants nonResourceURLs`,
		},
		"for a group": {
			manifests: func(m string) string {
				return m + "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: admins}\n" +
					"roleRef: {kind: ClusterRole, name: cluster-admin}\n" +
					"subjects: [{kind: Group, name: 'system:serviceaccounts'}]\n"
			},
			want: `ClusterRoleBinding "admins" is for Group system:serviceaccounts`,
		},
		"by something else": {
			requests: func(r []auditv1.Event) []auditv1.Event {
				return append(r, request("get", "/secrets", byAdmins, auditv1.ObjectReference{Resource: "secrets"}))
			},
			want: "allowed by something else than the manifests: get /secrets",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			manifests, requests := rightfulManifests, rightfulRequests()
			if tc.manifests != nil {
				manifests = tc.manifests(manifests)
				g.Expect(manifests).NotTo(Equal(rightfulManifests))
			}
			if tc.requests != nil {
				requests = tc.requests(requests)
			}
			objects, err := Decode(manifests)
			g.Expect(err).NotTo(HaveOccurred())
			var log strings.Builder
			for _, event := range requests {
				line, err := json.Marshal(event)
				g.Expect(err).NotTo(HaveOccurred())
				log.Write(append(line, '\n'))
			}
			file := filepath.Join(t.TempDir(), "audit.log")
			g.Expect(os.WriteFile(file, []byte(log.String()), 0o600)).To(Succeed())
			if err = CheckPermissions(file, objects); tc.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(ContainSubstring(tc.want)))
			}
		})
	}
}
