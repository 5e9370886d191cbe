package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestDraw(t *testing.T) {
	g := NewWithT(t)
	var picture bytes.Buffer
	g.Expect(draw(strings.NewReader("Building\nlatchkey demo: <five> & more\n      ok    "+strings.Repeat("x", 200)+"\n"),
		&picture)).To(Succeed())
	g.Expect(picture.String()).To(And(Not(ContainSubstring("Building")), ContainSubstring("&lt;five&gt; &amp; more"),
		ContainSubstring(`fill="#7ee787"`), ContainSubstring("x…<")))
	decoder := xml.NewDecoder(&picture)
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	g.Expect(draw(strings.NewReader("make: *** failed\n"), &picture)).NotTo(Succeed())
}
