package statuspage

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html"
	"io"
	"net/http"
	"strings"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

//go:embed page.js
var pageJS string

// contentSecurityPolicy lets a browser run the page's own script and nothing else, and send
// requests to this server only.
var contentSecurityPolicy = "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; " +
	"frame-ancestors 'none'; img-src data:; style-src " + hashSource(pageCSS) + "; script-src " + hashSource(pageJS)

// hashSource returns the source expression that allows this very text.
func hashSource(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// writeDocument writes the page without any data, which the script requests. With signIn, the
// script asks for a token first.
func (p *Page) writeDocument(w http.ResponseWriter, status int, signIn bool) {
	access := "open"
	if signIn {
		access = "token"
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, strings.NewReplacer("{{name}}", html.EscapeString(p.name), "{{access}}", access,
		"{{css}}", pageCSS, "{{js}}", pageJS).Replace(pageHTML)) // an error is that of the client's connection
}
