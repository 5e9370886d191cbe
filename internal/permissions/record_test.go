package permissions

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
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
	for _, path := range []string{"/api", "/api/v1", "/apis/apps/v1", "/version", "/openapi/v3", "/livez",
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
	others := []string{"/versions", "/livez/etcd", "/", "/metrics", "/apis/authorization.k8s.io/v1/subjectaccessreviews"}
	for _, path := range others {
		p, _ := Of("GET", path, "")
		r.Note(p, false, start)
	}
	used, _, _ = r.Uses(start)
	g.Expect(used).To(HaveLen(len(others)))
	denied, _ := Of("GET", "/apis/apps/v1", "")
	r.Note(denied, true, start)
	_, refused, _ := r.Uses(start)
	g.Expect(refused).To(HaveLen(1), "where an administrator has taken the default roles away")
}

// With more names than a record has, the use is one of any name, and so is a refusal. What is
// refused takes no name of what was used.
func TestManyNames(t *testing.T) {
	g := NewWithT(t)
	r := &Record{}
	for n := range maxNames {
		r.Note(get("n", fmt.Sprint(n)), n%2 == 0, start)
	}
	used, refused, _ := r.Uses(start)
	g.Expect(used[0].Names).To(HaveLen(maxNames / 2))
	g.Expect(refused[0].Names).To(HaveLen(maxNames / 2))
	for n := range 100 {
		r.Note(get("n", fmt.Sprint("refused", n)), true, start)
	}
	used, refused, _ = r.Uses(start)
	g.Expect(used[0].Names).To(HaveLen(maxNames / 2))
	g.Expect(used[0].AnyName).To(BeFalse())
	g.Expect(refused[0].Names).To(BeNil())
	g.Expect(refused[0].AnyName).To(BeTrue())
	ask, others := r.Refused(start)
	g.Expect(ask).To(HaveLen(maxNames / 2))
	g.Expect(others).To(BeTrue())
	for n := range maxNames / 2 {
		r.Note(get("n", fmt.Sprint("used", n)), false, start)
	}
	used, _, _ = r.Uses(start)
	g.Expect(used[0].Names).To(HaveLen(maxNames))
	ask, _ = r.Refused(start)
	g.Expect(ask).To(BeEmpty(), "their names made room")
	r.Note(get("n", "one more"), false, start)
	used, refused, complete := r.Uses(start)
	g.Expect(used[0].Names).To(BeNil())
	g.Expect(used[0].AnyName).To(BeTrue())
	g.Expect(refused).To(HaveLen(1))
	g.Expect(refused[0].Names).To(BeNil())
	g.Expect(complete).To(BeTrue())
	g.Expect(r.TakeCleared()).To(BeFalse())
	r.Note(get("n", ""), false, start)
	g.Expect(r.TakeCleared()).To(BeTrue())
	g.Expect(r.TakeCleared()).To(BeFalse())
}

// Whatever requests name, a record takes no more than its bound. What it forgets becomes wider, and
// never narrower: each use and each refusal is covered, or the record says that it is incomplete.
func TestBound(t *testing.T) {
	complete, named := 0, 0
	for seed := range uint64(250) {
		random := rand.New(rand.NewPCG(seed, 7))
		r := &Record{}
		resources, namespaces, names := 1+random.IntN(4), 1+random.IntN(30), 1+random.IntN(30)
		if seed%5 == 0 {
			resources *= 10
		}
		long := strings.Repeat("x", random.IntN(60))
		served, refused := map[Permission]bool{}, map[Permission]bool{}
		for range 400 {
			p := Permission{
				Verb:      knownVerbs[random.IntN(6)],
				Resource:  fmt.Sprint("r", random.IntN(resources)),
				Namespace: fmt.Sprint(random.IntN(namespaces)) + long,
			}
			if random.IntN(8) == 0 {
				p.Namespace = ""
			}
			if random.IntN(4) > 0 {
				p.Name = fmt.Sprint("n", random.IntN(names))
			}
			if seed%2 == 0 && random.IntN(3) == 0 { // for which there may be no room
				refused[p] = true
				r.Note(p, true, start)
			} else {
				served[p] = true
				delete(refused, p)
				maps.DeleteFunc(refused, func(other Permission, _ bool) bool {
					other.Name = ""
					return other == p // what is permitted for all is permitted for each
				})
				r.Note(p, false, start)
			}
			if r.size() > MaxBytes {
				t.Fatalf("seed %d: %d bytes", seed, r.size())
			}
		}
		used, denied, all := r.Uses(start)
		if usedCount, deniedCount := r.Count(start); usedCount != len(used) || deniedCount != len(denied) {
			t.Fatalf("seed %d: %d and %d permissions are %d and %d", seed, usedCount, deniedCount, len(used), len(denied))
		}
		if !all {
			continue
		}
		complete++
		for p := range served {
			if !slices.ContainsFunc(used, covers(p)) {
				t.Fatalf("seed %d: %+v is not on record", seed, p)
			}
		}
		for p := range refused {
			if !slices.ContainsFunc(denied, covers(p)) {
				t.Fatalf("seed %d: the refusal of %+v is not on record", seed, p)
			}
		}
		if slices.ContainsFunc(used, func(u Use) bool { return u.Names != nil }) {
			named++
		}
	}
	g := NewWithT(t)
	g.Expect(complete).To(BeNumerically(">", 100))
	g.Expect(complete).To(BeNumerically("<", 250))
	g.Expect(named).To(BeNumerically(">", 10))
}

// A record takes as much memory as it says.
func TestMemory(t *testing.T) {
	g := NewWithT(t)
	records := make([]*Record, 200)
	heap := func() int64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	before := heap()
	for n := range records {
		records[n] = &Record{}
		for k := range 12 {
			for _, verb := range knownVerbs[:6] {
				p := Permission{Verb: verb, Group: "apps", Resource: fmt.Sprint("kind", k), Namespace: "n", Name: fmt.Sprint(k)}
				records[n].Note(p, false, start)
			}
		}
	}
	each := (heap() - before) / int64(len(records))
	g.Expect(each).To(BeNumerically("<", MaxBytes*6/5), "size classes of the allocator included")
	g.Expect(records[0].size()).To(BeNumerically(">", MaxBytes*3/4))
	runtime.KeepAlive(records)
}

// A refusal of long ago does not come back with another one, and those that were granted are not
// counted. What is not to be shown to people is not on record.
func TestOldRefusals(t *testing.T) {
	g := NewWithT(t)
	r := &Record{}
	r.Note(get("n", "c"), true, start)
	r.Note(get("n", "d"), true, start.Add(2*time.Hour))
	_, refused, _ := r.Uses(start.Add(2 * time.Hour))
	g.Expect(refused).To(HaveLen(1))
	g.Expect(refused[0].Names).To(Equal([]string{"d"}))
	g.Expect(refused[0].Count).To(BeEquivalentTo(1))
	r.Note(get("n", "d"), false, start.Add(2*time.Hour))
	r.Note(get("n", "e"), true, start.Add(2*time.Hour))
	_, refused, _ = r.Uses(start.Add(2 * time.Hour))
	g.Expect(refused[0].Names).To(Equal([]string{"e"}))
	g.Expect(refused[0].Count).To(BeEquivalentTo(1))

	r.Note(get("n", "a\u202eb"), false, start)
	used, _, complete := r.Uses(start)
	g.Expect(used).To(HaveLen(1))
	g.Expect(used[0].AnyName).To(BeTrue())
	g.Expect(complete).To(BeTrue())
	for _, p := range []Permission{get("n\u202em", ""), get(strings.Repeat("n", MaxBytes/2), "")} {
		r.Note(p, false, start)
		used, _, complete = r.Uses(start)
		g.Expect(used).To(HaveLen(1))
		g.Expect(complete).To(BeFalse())
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

// Where namespaces are merged, a refusal of long ago gets no later time from another namespace,
// where the permission was granted since.
func TestMergedRefusals(t *testing.T) {
	g := NewWithT(t)
	r := &Record{}
	list := Permission{Verb: "list", Resource: "configmaps", Namespace: "a"}
	r.Note(list, true, start)
	list.Namespace = "b"
	now := start.Add(2 * time.Hour)
	r.Note(list, true, now)
	r.Note(list, false, now)
	for n := 0; len(r.resources) != 1; n++ {
		list.Namespace = fmt.Sprint(n, strings.Repeat("x", 30))
		r.Note(list, false, now)
	}
	used, refused, _ := r.Uses(now)
	g.Expect(used).To(ConsistOf(HaveField("AnyNamespace", true)))
	g.Expect(refused).To(BeEmpty())
}

// A request that is served had what an earlier one lacked beside its verb: to impersonate for it,
// or to write that role.
func TestWhatAVerbGrants(t *testing.T) {
	g := NewWithT(t)
	for n, name := range knownVerbs {
		onBehalf, found := strings.CutPrefix(name, ImpersonateOn)
		g.Expect(found).To(Equal(verb(n) >= impersonateOnGet && verb(n) < bind), name)
		for m, other := range knownVerbs {
			writes := other == "create" || other == "update" || other == "patch"
			granted := found && onBehalf == other || writes && verb(n) >= bind
			g.Expect(verb(m).grants(verb(n))).To(Equal(granted), "%s: %s", other, name)
		}
	}
	r := &Record{}
	refused := func() (verbs []string) {
		_, uses, _ := r.Uses(start)
		for _, use := range uses {
			verbs = append(verbs, use.Verb+" "+strings.Join(use.Names, ","))
		}
		return verbs
	}
	of := func(verb, name string) Permission {
		return Permission{Verb: verb, Group: "rbac.authorization.k8s.io", Resource: "roles", Namespace: "n", Name: name}
	}
	for _, name := range []string{"a", "b"} {
		r.Note(of(Escalate, name), true, start)
		r.Note(of(ImpersonateOn+"patch", name), true, start)
	}
	g.Expect(refused()).To(Equal([]string{"escalate a,b", ImpersonateOn + "patch a,b"}))
	r.Note(of("get", "a"), false, start)
	g.Expect(refused()).To(HaveLen(2))
	r.Note(of("patch", "a"), false, start)
	g.Expect(refused()).To(Equal([]string{"escalate b", ImpersonateOn + "patch b"}))
	r.Note(of("create", ""), false, start)
	g.Expect(refused()).To(Equal([]string{ImpersonateOn + "patch b"}))
}

// A namespace is on record once, whatever part of it a request was about.
func TestNamespaceOnRecord(t *testing.T) {
	g := NewWithT(t)
	r := &Record{}
	for _, name := range []string{"a", "b"} {
		p, ok := Of("PATCH", "/api/v1/namespaces/"+name, "")
		g.Expect(ok).To(BeTrue())
		g.Expect(p.Namespace).To(Equal(name))
		r.NoteAnswer(p, 201, nil, start)
	}
	used, _, _ := r.Uses(start)
	g.Expect(used).To(HaveLen(2))
	for n, verb := range []string{"create", "patch"} {
		g.Expect(used[n].Permission).To(Equal(Permission{Verb: verb, Resource: "namespaces"}))
		g.Expect(used[n].Names).To(Equal([]string{"a", "b"}))
	}
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

// A record that is full of what was refused has room for what is used, and what no API server has
// is not on record.
func TestRefusalsTakeNoRoom(t *testing.T) {
	g := NewWithT(t)
	r := &Record{}
	for n := range 200 {
		r.Note(get(fmt.Sprint("namespace-", n), "name"), true, start)
	}
	_, others := r.Refused(start)
	g.Expect(others).To(BeTrue(), "there was no room for all")
	for n := range 15 {
		p := get("n", "name")
		p.Resource = fmt.Sprint("resource", n)
		r.Note(p, false, start)
	}
	used, _, complete := r.Uses(start)
	g.Expect(used).To(HaveLen(15))
	g.Expect(complete).To(BeFalse())
	for _, use := range used {
		g.Expect(use.Names).To(Equal([]string{"name"}))
	}
	r = &Record{}
	r.Note(Permission{Verb: "list", Group: "*", Resource: "*", Namespace: "n"}, true, start)
	_, refused, _ := r.Uses(start)
	g.Expect(refused).To(BeEmpty())
}
