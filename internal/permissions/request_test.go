package permissions

import (
	"net/http"
	"net/url"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// asServer returns what an API server asks its authorizer.
func asServer(method, path, rawQuery string) (p Permission, ok bool) {
	factory := request.RequestInfoFactory{
		APIPrefixes:          sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api"),
	}
	info, err := factory.NewRequestInfo(&http.Request{Method: method, URL: &url.URL{Path: path, RawQuery: rawQuery}})
	switch {
	case err != nil:
		return Permission{}, false
	case !info.IsResourceRequest:
		return Permission{Verb: info.Verb, Path: info.Path}, true
	}
	return Permission{
		Verb:        info.Verb,
		Group:       info.APIGroup,
		Resource:    info.Resource,
		Subresource: info.Subresource,
		Namespace:   info.Namespace,
		Name:        info.Name,
	}, info.Verb != ""
}

var requests = []struct{ method, path, query string }{
	{"GET", "/api/v1/namespaces/n/pods", ""},
	{"GET", "/api/v1/namespaces/n/pods", "limit=500"},
	{"GET", "/api/v1/namespaces/n/pods", "watch=true&resourceVersion=7"},
	{"GET", "/api/v1/namespaces/n/pods", "watch=1"},
	{"GET", "/api/v1/namespaces/n/pods", "watch"},
	{"GET", "/api/v1/namespaces/n/pods", "watch=0"},
	{"GET", "/api/v1/namespaces/n/pods", "watch=False"},
	{"GET", "/api/v1/namespaces/n/pods", "watch=false&watch=true"},
	{"GET", "/api/v1/namespaces/n/pods", "w%61tch=true"},
	{"GET", "/api/v1/namespaces/n/pods", "fieldSelector=metadata.name%3Dp&watch=true"},
	{"GET", "/api/v1/namespaces/n/pods", "fieldSelector=metadata.name%3Dp%2Cspec.nodeName%3Dx"},
	{"GET", "/api/v1/namespaces/n/pods", "fieldSelector=metadata.name%21%3Dp"},
	{"GET", "/api/v1/namespaces/n/pods", "fieldSelector=metadata.name%3Da%2Fb"},
	{"GET", "/api/v1/namespaces/n/pods/p", ""},
	{"HEAD", "/api/v1/namespaces/n/pods/p", ""},
	{"GET", "/api/v1/namespaces/n/pods/p/log", "follow=true"},
	{"POST", "/api/v1/namespaces/n/pods/p/exec", "command=sh"},
	{"GET", "/api/v1/namespaces/n/pods/p/proxy/some/path", ""},
	{"POST", "/api/v1/namespaces/n/pods", ""},
	{"POST", "/api/v1/namespaces/n/serviceaccounts/s/token", ""},
	{"PUT", "/apis/apps/v1/namespaces/n/deployments/d/status", ""},
	{"PATCH", "/apis/apps/v1/namespaces/n/deployments/d", "fieldManager=m&force=true"},
	{"PATCH", "/apis/apps/v1/namespaces/n/deployments/d/scale", ""},
	{"DELETE", "/apis/apps/v1/namespaces/n/deployments/d", ""},
	{"DELETE", "/apis/apps/v1/namespaces/n/deployments", ""},
	{"GET", "/apis/apps/v1/deployments", ""},
	{"GET", "/api/v1/namespaces", ""},
	{"POST", "/api/v1/namespaces", ""},
	{"GET", "/api/v1/namespaces/n", ""},
	{"PUT", "/api/v1/namespaces/n/status", ""},
	{"PUT", "/api/v1/namespaces/n/finalize", ""},
	{"GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/c", ""},
	{"GET", "/api/v1/watch/namespaces/n/pods", ""},
	{"GET", "/api/v1/watch/namespaces/n/pods/p", ""},
	{"GET", "/api/v1/proxy/namespaces/n/pods/p/x", ""},
	{"GET", "/api/v1/watch", ""},
	{"GET", "/api", ""},
	{"GET", "/api/v1", ""},
	{"GET", "/apis/apps/v1", ""},
	{"GET", "/version", ""},
	{"OPTIONS", "/metrics", ""},
	{"POST", "/", ""},
	{"GET", "", ""},
	{"GET", "//api//v1/pods", ""},
	{"GET", "/api/v1/namespaces//pods/p", ""},
	{"GET", "/api/v1/namespaces/n/", ""},
	{"GET", "/api/v1/namespaces/n/pods//x", ""},
	{"OPTIONS", "/api/v1/pods", ""},
}

// A request needs the permission that the API server's own rules say.
func TestOf(t *testing.T) {
	for _, r := range requests {
		t.Run(r.method+" "+r.path+"?"+r.query, func(t *testing.T) {
			g := NewWithT(t)
			got, ok := Of(r.method, r.path, r.query)
			want, known := asServer(r.method, r.path, r.query)
			g.Expect(ok).To(Equal(known))
			if ok {
				g.Expect(got).To(Equal(want))
			}
		})
	}
	g := NewWithT(t)
	p, _ := Of("GET", "/api/v1/namespaces/n/pods/p/log", "")
	g.Expect(p).To(Equal(Permission{Verb: "get", Resource: "pods", Subresource: "log", Namespace: "n", Name: "p"}))
}

// FuzzOf compares with the API server's rules. Options that it cannot decode count as none there.
func FuzzOf(f *testing.F) {
	for _, r := range requests {
		f.Add(r.method, r.path, r.query)
	}
	f.Fuzz(func(t *testing.T, method, path, query string) {
		if _, known := nonResource(method, path); !known || method == "" {
			return
		}
		got, ok := Of(method, path, query)
		want, known := asServer(method, path, query)
		if values, err := url.ParseQuery(query); err != nil || values.Has("fieldSelector") || len(values) > 1 {
			got.Name, want.Name = "", "" // see TestOf
		}
		if ok != known || ok && got != want {
			t.Errorf("%s %s?%s: %+v %t, want %+v %t", method, path, query, got, ok, want, known)
		}
	})
}
