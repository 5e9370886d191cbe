package permissions

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

var start = time.Unix(1_000_000, 0)

// get is the permission to read a ConfigMap.
func get(namespace, name string) Permission {
	return Permission{Verb: "get", Resource: "configmaps", Namespace: namespace, Name: name}
}

// A record has what was used, with names, times and a count, and what was refused until it is
// served.
func TestRecord(t *testing.T) {
	g := NewWithT(t)
	r := &Record{}
	list := Permission{Verb: "list", Resource: "configmaps", Namespace: "n"}
	r.Note(get("n", "b"), false, start)
	r.Note(get("n", "a"), false, start.Add(time.Minute))
	r.Note(get("n", "a"), false, start.Add(2*time.Minute))
	r.Note(get("n", "c"), true, start.Add(3*time.Minute))
	r.Note(get("n", "d"), true, start.Add(4*time.Minute))
	r.Note(list, true, start.Add(5*time.Minute))
	r.Note(Permission{Verb: "get", Path: "/metrics"}, false, start)
	now := start.Add(6 * time.Minute)
	used, refused, complete := r.Uses(now)
	g.Expect(complete).To(BeTrue())
	bare := get("n", "")
	g.Expect(used).To(Equal([]Use{
		{Permission: Permission{Verb: "get", Path: "/metrics"}, Count: 1, First: start, Last: start},
		{Permission: bare, Names: []string{"a", "b"}, Count: 3, First: start, Last: start.Add(2 * time.Minute)},
	}))
	g.Expect(refused).To(Equal([]Use{
		{Permission: bare, Names: []string{"c", "d"}, Count: 2, Last: start.Add(4 * time.Minute)},
		{Permission: list, Count: 1, Last: start.Add(5 * time.Minute)},
	}))

	r.Note(get("n", "c"), false, now)
	r.Note(list, false, now)
	_, refused, _ = r.Uses(now)
	g.Expect(refused).To(HaveLen(1))
	g.Expect(refused[0].Names).To(Equal([]string{"d"}))
	_, refused, _ = r.Uses(start.Add(4*time.Minute + time.Hour))
	g.Expect(refused).To(BeEmpty(), "an hour after the last refusal")

	var none *Record
	none.Note(bare, false, start)
	used, refused, complete = none.Uses(now)
	g.Expect(used).To(BeEmpty())
	g.Expect(refused).To(BeEmpty())
	g.Expect(complete).To(BeTrue())
}

// What each user may do is not on record: discovery, and what latchkey asks about the identity.
func TestEverybodys(t *testing.T) {
	g := NewWithT(t)
	r := &Record{}
	for _, path := range []string{"/api", "/api/v1", "/apis/apps/v1", "/version", "/openapi/v3", "/livez", "/", "",
		"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "/apis/authentication.k8s.io/v1/selfsubjectreviews"} {
		method := "GET"
		if strings.Contains(path, "selfsubject") {
			method = "POST"
		}
		p, ok := Of(method, path, "")
		g.Expect(ok).To(BeTrue())
		r.Note(p, false, start)
	}
	used, _, _ := r.Uses(start)
	g.Expect(used).To(BeEmpty())
	for _, path := range []string{"/versions", "/metrics", "/apis/authorization.k8s.io/v1/subjectaccessreviews"} {
		p, _ := Of("POST", path, "")
		r.Note(p, false, start)
	}
	used, _, _ = r.Uses(start)
	g.Expect(used).To(HaveLen(3))
}

// With more names than a record has, the use is one of any name, and so is a refusal.
func TestManyNames(t *testing.T) {
	g := NewWithT(t)
	r := &Record{}
	for n := range maxNames {
		r.Note(get("n", fmt.Sprint(n)), n%2 == 0, start)
	}
	used, refused, _ := r.Uses(start)
	g.Expect(used[0].Names).To(HaveLen(maxNames / 2))
	g.Expect(refused[0].Names).To(HaveLen(maxNames / 2))
	r.Note(get("n", "one more"), false, start)
	used, refused, complete := r.Uses(start)
	g.Expect(used[0].Names).To(BeNil())
	g.Expect(refused).To(HaveLen(1))
	g.Expect(refused[0].Names).To(BeNil())
	g.Expect(complete).To(BeTrue())
}

// Whatever requests name, a record takes no more than its bound. What it forgets becomes wider, and
// never narrower: each use is covered, or the record says that it is incomplete.
func TestBound(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			g := NewWithT(t)
			random := rand.New(rand.NewPCG(seed, 1))
			r := &Record{}
			long := strings.Repeat("x", 1+random.IntN(300))
			resources, namespaces, names := 1+random.IntN(40), 1+random.IntN(20), 1+random.IntN(30)
			served, refused := map[Permission]bool{}, map[Permission]bool{}
			for range 1500 {
				p := Permission{
					Verb:      knownVerbs[random.IntN(6)],
					Group:     "g",
					Resource:  fmt.Sprint("r", random.IntN(resources)),
					Namespace: fmt.Sprint(random.IntN(namespaces)),
				}
				switch random.IntN(4) {
				case 0:
					p.Namespace = ""
				case 1:
					p.Subresource = "status"
				case 2:
					p.Namespace += long
				}
				if p.Verb != "list" && p.Verb != "create" {
					p.Name = fmt.Sprint("n", random.IntN(names))
				}
				if random.IntN(3) == 0 {
					refused[p] = true
				} else {
					served[p] = true
					delete(refused, p)
				}
				r.Note(p, refused[p], start)
				if r.size() > MaxBytes {
					t.Fatalf("%d bytes", r.size())
				}
			}
			used, denied, complete := r.Uses(start)
			if complete {
				for p := range served {
					if !slices.ContainsFunc(used, covers(p)) {
						t.Fatalf("%+v is not on record", p)
					}
				}
			}
			g.Expect(len(denied)).To(BeNumerically("<=", len(used)+len(refused)))
		})
	}
}

// covers returns whether a use is that of a permission, or a wider one.
func covers(p Permission) func(Use) bool {
	return func(u Use) bool {
		bare := p
		bare.Name = ""
		if u.AnyNamespace && p.Namespace != "" {
			bare.Namespace = ""
		}
		return u.Permission == bare && (u.Names == nil || slices.Contains(u.Names, p.Name))
	}
}

// A request about all namespaces is not one about some of them, and is kept apart.
func TestAllNamespacesAreKeptApart(t *testing.T) {
	g := NewWithT(t)
	r := &Record{}
	all := Permission{Verb: "list", Resource: "configmaps"}
	r.Note(all, false, start)
	one := all
	for n := range 100 {
		one.Namespace = fmt.Sprint(n, strings.Repeat("x", 30))
		r.Note(one, false, start)
	}
	used, _, complete := r.Uses(start)
	g.Expect(complete).To(BeTrue())
	g.Expect(used).To(ContainElement(And(HaveField("Permission", all), HaveField("AnyNamespace", false))))
	g.Expect(used).To(ContainElement(And(HaveField("Permission", all), HaveField("AnyNamespace", true))))
}

// A request whose permission is on record allocates nothing.
func TestNoAllocations(t *testing.T) {
	g := NewWithT(t)
	r := &Record{}
	note := func() {
		p, _ := Of("PATCH", "/apis/apps/v1/namespaces/n/deployments/d", "fieldManager=m&force=true")
		r.Note(p, false, start)
		p, _ = Of("GET", "/apis/apps/v1/namespaces/n/deployments", "limit=500&watch=true")
		r.Note(p, true, start)
	}
	note()
	g.Expect(testing.AllocsPerRun(100, note)).To(BeZero())
}

func BenchmarkNote(b *testing.B) {
	r := &Record{}
	for n := range 12 {
		for _, verb := range knownVerbs[:6] {
			r.Note(Permission{Verb: verb, Group: "apps", Resource: fmt.Sprint("kinds", n), Namespace: "n"}, false, start)
		}
	}
	paths := []string{"/apis/apps/v1/namespaces/n/kinds0/d", "/apis/apps/v1/namespaces/n/kinds6/d",
		"/apis/apps/v1/namespaces/n/kinds11/d"}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ { // a connection with 72 permissions on record
		p, _ := Of("PATCH", paths[n%len(paths)], "fieldManager=m&force=true")
		r.Note(p, false, start)
	}
}
