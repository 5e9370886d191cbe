package permissions

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/fields"
)

// Permission is what the authorizer of an API server is asked about a request.
type Permission struct {
	Verb                               string
	Group, Resource, Subresource, Name string
	// Namespace is empty for resources without namespaces, and for requests about all namespaces.
	Namespace string
	// Path is set instead of a resource for requests about none.
	Path string
}

// Object returns what the permission is about: the resource with its subresource and group, as
// kubectl writes it, or the path.
func (p Permission) Object() string {
	if p.Path != "" {
		return p.Path
	}
	text := p.Resource
	if p.Subresource != "" {
		text += "/" + p.Subresource
	}
	if p.Group != "" {
		text += "." + p.Group
	}
	return text
}

// String returns the permission as a person says it.
func (p Permission) String() string {
	text := p.Verb + " " + p.Object()
	if p.Name != "" {
		text += " " + strconv.Quote(p.Name)
	}
	if p.Namespace != "" {
		text += " in namespace " + p.Namespace
	}
	return text
}

// Normal returns the permission as it is on record, and as roles grant it. A request about one
// Namespace is authorized in that namespace, which may not exist yet; a ClusterRole with its name
// grants the same.
func (p Permission) Normal() Permission {
	p.normalize()
	return p
}

func (p *Permission) normalize() {
	if p.Resource == "namespaces" && p.Group == "" {
		p.Namespace = ""
	}
}

// Of returns the permission that a request needs, as the API server sees its path: without the path
// of the server's own URL. ok is false if no API server could serve the request. The strings of the
// result are parts of the arguments.
func Of(method, path, rawQuery string) (p Permission, ok bool) {
	rest := strings.Trim(path, "/")
	prefix, rest, _ := cut(rest)
	if count(rest) < 2 || prefix != "api" && prefix != "apis" {
		return nonResource(method, path)
	}
	if prefix == "apis" {
		if count(rest) < 3 {
			return nonResource(method, path)
		}
		p.Group, rest, _ = cut(rest)
	}
	_, rest, _ = cut(rest) // the version
	first, after, more := cut(rest)
	if special := first == "proxy" || first == "watch"; special {
		if !more {
			return Permission{}, false
		}
		p.Verb, rest = first, after
	} else if p.Verb = verbOf(method); p.Verb == "" {
		return Permission{}, false
	}
	if first, after, more = cut(rest); first == "namespaces" && more {
		var inside bool
		p.Namespace, after, inside = cut(after)
		if next, _, _ := cut(after); inside && next != "status" && next != "finalize" {
			rest = after
		}
	}
	p.Resource, rest, _ = cut(rest)
	p.Name, rest, _ = cut(rest)
	if p.Verb != "proxy" {
		p.Subresource, _, _ = cut(rest)
	}
	switch {
	case p.Name != "":
	case p.Verb == "get":
		p.Verb = "list"
		watches, selector := listOptions(rawQuery)
		if watches {
			p.Verb = "watch"
		}
		p.Name = nameIn(selector)
	case p.Verb == "delete":
		p.Verb = "deletecollection"
	}
	return p, true
}

// verbOf returns the verb of a request about a resource, "" if it has none. The method of a client
// may be empty.
func verbOf(method string) string {
	switch method {
	case "", http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return ""
}

// nonResource returns the permission of a request about no resource.
func nonResource(method, path string) (Permission, bool) {
	p := Permission{Path: path}
	switch method {
	case "", http.MethodGet:
		p.Verb = "get"
	case http.MethodHead:
		p.Verb = "head"
	case http.MethodPost:
		p.Verb = "post"
	case http.MethodPut:
		p.Verb = "put"
	case http.MethodPatch:
		p.Verb = "patch"
	case http.MethodDelete:
		p.Verb = "delete"
	case http.MethodOptions:
		p.Verb = "options"
	}
	return p, p.Verb != ""
}

// count returns the number of parts of a path.
func count(path string) int {
	if path == "" {
		return 0
	}
	return strings.Count(path, "/") + 1
}

// cut is strings.Cut at the first slash, faster.
func cut(path string) (part, rest string, found bool) {
	if at := strings.IndexByte(path, '/'); at >= 0 {
		return path[:at], path[at+1:], true
	}
	return path, "", false
}

// listOptions returns whether a request without a name watches, and its field selector.
func listOptions(rawQuery string) (watches bool, selector string) {
	seenWatch, seenSelector := false, false
	for rawQuery != "" {
		var pair string
		pair, rawQuery, _ = strings.Cut(rawQuery, "&")
		key, value, _ := strings.Cut(pair, "=")
		key, err := url.QueryUnescape(key) // allocates only if there is something to unescape
		if err != nil || strings.Contains(pair, ";") {
			continue // as url.Values does
		}
		switch {
		case key == "watch" && !seenWatch:
			if value, err = url.QueryUnescape(value); err == nil {
				seenWatch, watches = true, value != "0" && !strings.EqualFold(value, "false")
			}
		case key == "fieldSelector" && !seenSelector:
			if value, err = url.QueryUnescape(value); err == nil {
				seenSelector, selector = true, value
			}
		}
	}
	return watches, selector
}

// nameIn returns the name of the only object that a field selector can select, or "".
func nameIn(selector string) string {
	if selector == "" {
		return ""
	}
	parsed, err := fields.ParseSelector(selector)
	if err != nil {
		return ""
	}
	name, found := parsed.RequiresExactMatch("metadata.name")
	if !found || len(content.IsPathSegmentName(name)) > 0 {
		return ""
	}
	return name
}
