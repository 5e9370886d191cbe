package untrusted

import (
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// isShown reports whether a character may be shown: letters, marks, numbers, punctuation, symbols
// and spaces. Control characters can steer a terminal, and format characters can hide or reorder
// text.
func isShown(r rune) bool { return unicode.IsGraphic(r) && r != utf8.RuneError }

// Printable replaces each control and format character, and each invalid byte, by U+FFFD. Line
// breaks and tabs stay.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || isShown(r) {
			return r
		}
		return utf8.RuneError
	}, text)
}

// Error returns err or, if its text has characters that Printable replaces, an error with the
// replaced text and with err in its chain. Error cuts nothing: a secret that is removed from the
// text later must be whole.
func Error(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if shown := Printable(text); shown != text {
		return &shownError{shown: shown, cause: err}
	}
	return err
}

// Terminal returns a writer for people: it replaces what Printable does. Each Write must have whole
// characters.
func Terminal(w io.Writer) io.Writer { return terminal{w} }

type terminal struct{ io.Writer }

func (t terminal) Write(p []byte) (int, error) {
	if _, err := io.WriteString(t.Writer, Printable(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
