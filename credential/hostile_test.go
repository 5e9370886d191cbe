package credential

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unicode/utf16"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/test/support/testenv"
	"github.com/latchkey-dev/latchkey/test/support/testutil"
)

// hostileEnv makes the test binary parse the hostile kubeconfigs and print the cost.
const hostileEnv = "LATCHKEY_PARSE_HOSTILE"

func TestMain(m *testing.M) {
	if os.Getenv(hostileEnv) != "" {
		if err := json.NewEncoder(os.Stdout).Encode(parseHostile()); err != nil {
			panic(err)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// hostileSecrets is the number of hostile kubeconfigs.
const hostileSecrets = 200

// hostileKubeconfig returns one of them: 16 KiB to 1 MiB that could cost a parser much memory or
// time.
func hostileKubeconfig(i int) (what string, content []byte) {
	random := rand.New(rand.NewPCG(uint64(i), 0))
	size := 16<<10 + random.IntN(1<<20-16<<10)
	if i < 20 {
		size = 1 << 20
	}
	fill := func(unit string) string { return strings.Repeat(unit, size/len(unit)) }
	const good = "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n" +
		"clusters: [{name: k, cluster: {server: 'https://far'}}]\nusers: [{name: u, user: {token: t}}]\n"
	var text string
	switch i % 23 {
	case 0:
		what, text = "aliases of one long string", "x: &a "+strings.Repeat("y", size/2)+"\nusers: ["+
			strings.Repeat("*a, ", size/8)+"*a]\n"
	case 1:
		what = "aliases of aliases"
		text = "a0: &a0 [" + strings.Repeat("y", size-1000) + "]\n"
		for n := 1; n < 20; n++ {
			text += fmt.Sprintf("a%d: &a%d [*a%d, *a%d]\n", n, n, n-1, n-1)
		}
	case 2:
		what, text = "aliases of keys", "x: {&a "+strings.Repeat("y", size/2)+": 1}\nz:\n"+
			strings.Repeat("- {*a : 1}\n", size/25)
	case 3:
		what, text = "nested lists", fill("[")
	case 4:
		what, text = "nested maps", fill("{a: ")
	case 5:
		what, text = "a long list", "users: ["+fill("a,")+"]"
	case 6:
		what, text = "a long list of lines", "users:\n"+fill("-\n")
	case 7:
		what, text = "lists of lists in a line", fill("- ")
	case 8:
		what, text = "complex keys", fill("? ")
	case 9:
		what, text = "a long map", "users: {"+fill("a:,")+"}"
	case 10:
		what, text = "directives", fill("%TAG !a! b\n")+"---\n"+good
	case 11:
		what, text = "comments", good+fill("# c\n")
	case 12:
		what, text = "one long comment", good+"# "+fill("c")
	case 13:
		what, text = "escapes", good+`x: "`+fill(`\u0041`)+`"`
	case 14:
		what, text = "a string of many lines", good+"x: |\n"+fill(" a\n")
	case 15:
		what, text = "a folded string", good+"x: >\n"+fill(" a\n\n")
	case 16:
		what, text = "a long token", strings.Replace(good, "token: t", "token: "+fill("t"), 1)
	case 17:
		what, text = "long authorities",
			strings.Replace(good, "'https://far'", "'https://far', certificate-authority-data: "+
				base64.StdEncoding.EncodeToString(
					[]byte(strings.Repeat("-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n", size/80))), 1)
	case 18:
		what = "UTF-16"
		content = []byte{0xff, 0xfe}
		for _, unit := range utf16.Encode([]rune(strings.Repeat("[a,", size/6))) {
			content = append(content, byte(unit), byte(unit>>8))
		}
		return what, content
	case 19:
		what, text = "a map of as many indicators as allowed", strings.Repeat("a:         \n", 4000)
	case 20:
		what, text = "a list of as many indicators as allowed", strings.Repeat("- a        \n", 4000)
	case 21:
		what, text = "characters that JSON escapes", good+"x: \""+fill("<")+"\""
	default:
		what = "noise"
		var b strings.Builder
		for b.Len() < size {
			b.WriteString([]string{"a", " ", "\n", ":", "- ", "? ", "[", "]", "{", "}", ",", "&a ", "*a ", "!!x ", "#", "'",
				"\"", "|", ">", "%", "\\", "\t"}[random.IntN(22)])
		}
		text = b.String()
	}
	return what, []byte(text)
}

// hostileCost is the cost of parsing the hostile kubeconfigs.
type hostileCost struct {
	What      []string // description of each
	Size      []int    // in bytes
	Default   []uint64 // bytes allocated for each, with the default of MaxSize
	Lenient   []uint64 // the same with a MaxSize of 1 MiB
	Accepted  []bool   // with the latter
	PeakKiB   int      // VmHWM of the process
	Race      bool
	Goroutine int // goroutines that parsed concurrently, at the end
}

func parseHostile() (cost hostileCost) {
	cost.Race = testutil.RaceEnabled
	lenient := kubeconfigLimits{maxSize: 1 << 20}
	allocated := func(limits kubeconfigLimits, content []byte) (uint64, error) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := limits.parse(content)
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc, err
	}
	for i := range hostileSecrets {
		what, content := hostileKubeconfig(i)
		cost.What, cost.Size = append(cost.What, what), append(cost.Size, len(content))
		byDefault, _ := allocated(limits(false), content)
		byLenient, err := allocated(lenient, content)
		cost.Default, cost.Lenient, cost.Accepted = append(cost.Default, byDefault), append(cost.Lenient, byLenient),
			append(cost.Accepted, err == nil)
	}
	// Parse all of them concurrently, as at the start of a manager.
	s := newSecrets(nil, lenient.parse, nil)
	s.wake = func(client.ObjectKey) {}
	var parsing sync.WaitGroup
	cost.Goroutine = readsAtOnce
	for worker := range cost.Goroutine {
		parsing.Go(func() {
			for i := worker; i < hostileSecrets; i += readsAtOnce {
				_, content := hostileKubeconfig(i)
				w := &secretReflection{&watchedSecret{ref: SecretReference{Name: "s", Key: "value"}, all: s},
					context.Background()}
				_ = w.Add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Data: map[string][]byte{"value": content}})
			}
		})
	}
	parsing.Wait()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "VmHWM: %d kB", &cost.PeakKiB)
	}
	return cost
}

// A tenant controls the content of its Secret. A child process parses the hostile kubeconfigs. The
// child runs without the race detector, whose own memory would be most of the measured memory.
func TestHostileKubeconfigs(t *testing.T) {
	g := NewWithT(t)
	testenv.SkipIfShort(t)
	binary, err := os.Executable()
	g.Expect(err).NotTo(HaveOccurred())
	if testutil.RaceEnabled {
		binary = filepath.Join(t.TempDir(), "credential.test")
		out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", binary, ".").CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	}
	child := exec.CommandContext(t.Context(), binary)
	child.Env = append(os.Environ(), hostileEnv+"=1")
	out, err := child.Output()
	g.Expect(err).NotTo(HaveOccurred())
	var cost hostileCost
	g.Expect(json.Unmarshal(out, &cost)).To(Succeed(), "%s", out)
	g.Expect(cost.Race).To(BeFalse())
	g.Expect(cost.Size).To(HaveLen(hostileSecrets))
	var sizes, worst int
	for i, size := range cost.Size {
		sizes += size
		g.Expect(cost.Default[i]).To(BeNumerically("<=", 100*size), "%d: %s, %d bytes", i, cost.What[i], size)
		g.Expect(cost.Lenient[i]).To(BeNumerically("<=", 100*size), "%d: %s, %d bytes", i, cost.What[i], size)
		if cost.Lenient[i]/uint64(size) > cost.Lenient[worst]/uint64(cost.Size[worst]) {
			worst = i
		}
	}
	g.Expect(cost.Accepted).To(ContainElement(true), "some kubeconfigs are long, but valid")
	g.Expect(cost.PeakKiB).To(And(BeNumerically(">", 1024), BeNumerically("<=", 256<<10)))
	t.Logf("%d kubeconfigs of %d KiB in all: peak RSS %d MiB; the worst, %s, allocates %d times its size",
		len(cost.Size), sizes>>10, cost.PeakKiB>>10, cost.What[worst], cost.Lenient[worst]/uint64(cost.Size[worst]))
}
