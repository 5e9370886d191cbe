package untrusted

import (
	"io"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
)

const (
	hostile = "a\x1b[2J\x07\r\u202e\u2066\u200b\u00ad\u2028\ue000\x7f\u009b\x9b\xffb\n\tc ä é 漢 🙂"
	shown   = "a\uFFFD[2J\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDb\n\tc ä é 漢 🙂"
)

func TestPrintable(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Printable(hostile)).To(Equal(shown))
	g.Expect(Printable(shown)).To(Equal(shown))
	g.Expect(Shorten(hostile)).To(Equal(shown), "every text that is shown is shortened")
	g.Expect(Shorten(strings.Repeat("x", 1023) + hostile)).To(HaveSuffix("xa…"))
	g.Expect(Show(hostile, nil).Error()).To(Equal(shown))
}

func TestError(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Error(nil)).To(Succeed())
	plain := errors.New("plain\nwith a line")
	g.Expect(Error(plain)).To(BeIdenticalTo(plain), "programs compare errors")
	bad := errors.WithMessage(io.ErrUnexpectedEOF, hostile)
	g.Expect(Error(bad).Error()).To(Equal(shown + ": unexpected EOF"))
	g.Expect(Error(bad)).To(MatchError(io.ErrUnexpectedEOF))
}

func TestTerminal(t *testing.T) {
	g := NewWithT(t)
	var out strings.Builder
	n, err := io.WriteString(Terminal(&out), hostile)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n).To(Equal(len(hostile)))
	g.Expect(out.String()).To(Equal(shown))
}
