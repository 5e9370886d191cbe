package statuspage

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	. "github.com/onsi/gomega"
)

var (
	update   = flag.Bool("update", false, "write the pictures of docs")
	pictures = flag.String("pictures", "", "the folder to write all pictures into")
)

// patience bounds waits on a loaded machine.
const patience = time.Minute

// browser is a tab of a headless Chromium.
type browser struct {
	*testing.T
	ctx context.Context

	mu     sync.Mutex
	errors []string // guarded by mu; what the console shows as errors
}

// openBrowser starts Chromium. It ends with the test.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.WindowSize(1400, 1000), chromedp.UserDataDir(t.TempDir()), chromedp.IgnoreCertErrors,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	for _, name := range []string{"chromium", "chromium-browser"} {
		if file := "/usr/bin/" + name; isFile(file) {
			options = append(options, chromedp.ExecPath(file))
			break
		}
	}
	ctx, cancel := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{T: t, ctx: ctx}
	// The first call starts Chromium, which ends with the context of that call.
	NewWithT(t).Expect(chromedp.Do(ctx, chromedp.EmulateViewport(1400, 1000))).To(Succeed())
	messages := chromedp.Console(ctx)
	go func() {
		for message, err := range messages {
			if err != nil {
				return
			}
			b.note(message)
		}
	}()
	return b
}

func isFile(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// note notes what the console shows as an error.
func (b *browser) note(message chromedp.ConsoleMessage) {
	if !message.IsException() && message.Type != "error" && message.Type != "warning" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.errors = append(b.errors, message.Text+" "+message.URL)
}

// consoleErrors returns what the console has shown as errors.
func (b *browser) consoleErrors() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.errors...)
}

func (b *browser) run(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	NewWithT(b.T).Expect(chromedp.Do(ctx, steps...)).To(Succeed())
}

// evaluate returns the value of an expression, awaited if it is a promise.
func evaluate[T any](b *browser, expression string) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	NewWithT(b.T).Expect(err).NotTo(HaveOccurred(), expression[:min(len(expression), 100)])
	return value
}

func (b *browser) text(selector string) string {
	b.Helper()
	return evaluate[string](b, fmt.Sprintf("(document.querySelector(%q) || {innerText: ''}).innerText", selector))
}

// eventually waits until the text of an element matches.
func (b *browser) eventually(selector string, matcher OmegaMatcher) {
	b.Helper()
	NewWithT(b.T).Eventually(func() string { return b.text(selector) }).WithTimeout(patience).
		WithPolling(50*time.Millisecond).Should(matcher, selector)
}

// click clicks on an element, once it is there and nothing covers it.
func (b *browser) click(selector string) {
	b.Helper()
	var center []float64
	NewWithT(b.T).Eventually(func() []float64 {
		center = evaluate[[]float64](b, fmt.Sprintf(`(() => {
			const e = document.querySelector(%q);
			if (!e) return [];
			e.scrollIntoView({block: "nearest"});
			const r = e.getBoundingClientRect();
			const [x, y] = [(r.left + r.right) / 2, (r.top + r.bottom) / 2];
			return e.contains(document.elementFromPoint(x, y)) ? [x, y] : [];
		})()`, selector))
		return center
	}).WithTimeout(patience).WithPolling(50*time.Millisecond).Should(HaveLen(2), selector)
	b.run(chromedp.MouseClickXY(center[0], center[1]))
}

// typeInto replaces the text of an input with what the keys give.
func (b *browser) typeInto(selector, keys string) {
	b.Helper()
	evaluate[chromedp.Void](b, fmt.Sprintf("{ const e = document.querySelector(%q); e.focus(); e.select() }", selector))
	b.run(chromedp.KeyEvent(keys))
}

// column returns the texts of the table's column, from 1.
func (b *browser) column(n int) []string {
	b.Helper()
	return evaluate[[]string](b, fmt.Sprintf(
		"[...document.querySelectorAll('#rows > tr > :nth-child(%d)')].map((e) => e.innerText)", n))
}

// dark makes the browser prefer dark colours, or light ones.
func (b *browser) dark(dark bool) {
	b.Helper()
	value := "light"
	if dark {
		value = "dark"
	}
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}}})
	NewWithT(b.T).Expect(err).NotTo(HaveOccurred())
}

// axe has axe check the page, in light and in dark, and returns what it finds that is serious.
func (b *browser) axe() (found []string) {
	b.Helper()
	g := NewWithT(b.T)
	script, err := os.ReadFile("node_modules/axe-core/axe.min.js")
	g.Expect(err).NotTo(HaveOccurred(), "make test-statuspage installs it")
	evaluate[chromedp.Void](b, string(script))
	for _, dark := range []bool{false, true} {
		b.dark(dark)
		var results struct {
			Passes     int
			Violations []struct {
				ID, Impact, Help string
				Nodes            []struct {
					HTML           string
					FailureSummary string
				}
			}
		}
		text := evaluate[string](b,
			"axe.run().then((r) => JSON.stringify({passes: r.passes.length, violations: r.violations}))")
		g.Expect(json.Unmarshal([]byte(text), &results)).To(Succeed())
		g.Expect(results.Passes).To(BeNumerically(">", 10), "axe has looked")
		for _, violation := range results.Violations {
			b.Logf("axe, dark %t: %s, %s: %s", dark, violation.Impact, violation.ID, violation.Help)
			for _, node := range violation.Nodes {
				found = append(found, strings.Join([]string{violation.Impact, violation.ID, node.HTML, node.FailureSummary},
					": "))
			}
		}
	}
	b.dark(false)
	return found
}

// docsPicture writes a picture of the page for docs, with -update.
func (b *browser) docsPicture(name string) {
	b.Helper()
	b.picture(name)
	if *update {
		b.write("../../docs", name)
	}
}

// picture writes a picture of the page for people who look at it, with -pictures.
func (b *browser) picture(name string) {
	b.Helper()
	if *pictures != "" {
		b.write(*pictures, name)
	}
}

func (b *browser) write(folder, name string) {
	b.Helper()
	content, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	NewWithT(b.T).Expect(err).NotTo(HaveOccurred())
	NewWithT(b.T).Expect(os.WriteFile(filepath.Join(folder, name), content, 0o644)).To(Succeed())
}

// resize gives the page another size.
func (b *browser) resize(width, height int64) {
	b.Helper()
	b.run(chromedp.EmulateViewport(width, height))
}
