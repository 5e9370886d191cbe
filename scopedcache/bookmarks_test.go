package scopedcache

import (
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// A cache whose options turn bookmarks off asks for none, and so for no streamed list.
func TestNoBookmarks(t *testing.T) {
	for name, bookmarks := range map[string]*bool{"default": nil, "off": new(bool)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				a := newAPIServer(t)
				var mu sync.Mutex
				var queries []url.Values
				a.answers(func(_ http.ResponseWriter, req *http.Request) bool {
					if strings.HasSuffix(req.URL.Path, "/configmaps") {
						mu.Lock()
						defer mu.Unlock()
						queries = append(queries, req.URL.Query())
					}
					return false
				})
				count := func(parameter, value string) func() int {
					return func() (n int) {
						mu.Lock()
						defer mu.Unlock()
						for _, query := range queries {
							if query.Get(parameter) == value {
								n++
							}
						}
						return n
					}
				}
				c := a.newCacheOf(t, cache.Options{DefaultEnableWatchBookmarks: bookmarks})
				g.Expect(list(t.Context(), c, "n")).To(Succeed())
				g.Eventually(count("watch", "true")).WithTimeout(patience).Should(BeNumerically(">", 0))
				if bookmarks == nil {
					g.Expect(count("sendInitialEvents", "true")()).To(BeNumerically(">", 0))
					g.Expect(count("allowWatchBookmarks", "true")()).To(BeNumerically(">", 0))
					return
				}
				g.Expect(count("watch", "")()).To(Equal(1), "a list")
				g.Expect(count("sendInitialEvents", "true")()).To(BeZero())
				g.Expect(count("allowWatchBookmarks", "true")()).To(BeZero())
			})
		})
	}
}
