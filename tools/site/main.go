package main

import (
	"bytes"
	_ "embed"
	"flag"
	"fmt"
	"html/template"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pkg/errors"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

func main() {
	root := flag.String("root", ".", "root of the repository")
	out := flag.String("out", "dist/site", "folder of the site, which is replaced")
	forge := flag.String("forge", "https://github.com/latchkey-dev/latchkey/blob/main/", "where links to other files lead")
	flag.Parse()
	if err := build(*root, *out, *forge); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

//go:embed page.html
var layout string

var pageTemplate = template.Must(template.New("page").Parse(layout))

// page is one page of the site.
type page struct {
	source  string // path in the repository
	target  string // path in the site
	title   string
	content []byte
	anchors map[string]bool
}

// build writes the site.
func build(root, out, forge string) error {
	pages, err := read(root)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return errors.WithStack(err)
	}
	var problems []string
	for _, p := range pages {
		html, wrong, err := p.render(root, out, forge, pages)
		if err != nil {
			return errors.WithMessage(err, p.source)
		}
		problems = append(problems, wrong...)
		if err := write(filepath.Join(out, p.target), html); err != nil {
			return err
		}
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return errors.Errorf("links that lead nowhere:\n%s", strings.Join(problems, "\n"))
	}
	return nil
}

func write(name string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return errors.WithStack(err)
	}
	return errors.WithStack(os.WriteFile(name, content, 0o644))
}

// read reads the pages: those of docs, and those of the root.
func read(root string) (map[string]*page, error) {
	pages := map[string]*page{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/designs/*.md"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, errors.WithStack(err)
		}
		for _, name := range names {
			content, err := os.ReadFile(name)
			if err != nil {
				return nil, errors.WithStack(err)
			}
			source, err := filepath.Rel(root, name)
			if err != nil {
				return nil, errors.WithStack(err)
			}
			p := &page{source: filepath.ToSlash(source), content: content, anchors: map[string]bool{}}
			p.target = targetOf(p.source)
			pages[p.source] = p
			p.scan()
		}
	}
	return pages, nil
}

// targetOf returns the path of a page in the site. docs/README.md is the start.
func targetOf(source string) string {
	name := strings.TrimPrefix(source, "docs/")
	switch source {
	case "docs/README.md":
		return "index.html"
	case "README.md":
		return "overview.html"
	default:
		return strings.ToLower(strings.TrimSuffix(name, ".md")) + ".html"
	}
}

// markdown reads Markdown as forges do.
func markdown(options ...goldmark.Option) goldmark.Markdown {
	return goldmark.New(append(options, goldmark.WithExtensions(extension.GFM),
		goldmark.WithParserOptions(parser.WithAutoHeadingID()))...)
}

// ids makes the anchors of headings as GitHub does.
type ids struct{ used map[string]int }

var notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}\p{M}_ -]+`)

func (i *ids) Generate(value []byte, _ ast.NodeKind) []byte {
	anchor := strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(string(value)), ""), " ", "-")
	n := i.used[anchor]
	i.used[anchor]++
	if n > 0 {
		anchor = fmt.Sprintf("%s-%d", anchor, n)
	}
	return []byte(anchor)
}

func (i *ids) Put(value []byte) { i.used[string(value)]++ }

func (p *page) parse() ast.Node {
	return markdown().Parser().Parse(text.NewReader(p.content),
		parser.WithContext(parser.NewContext(parser.WithIDs(&ids{used: map[string]int{}}))))
}

// scan finds the title and the anchors.
func (p *page) scan() {
	_ = ast.Walk(p.parse(), func(node ast.Node, entering bool) (ast.WalkStatus, error) { // no error occurs
		if heading, ok := node.(*ast.Heading); ok && entering {
			if id, ok := heading.AttributeString("id"); ok {
				p.anchors[string(id.([]byte))] = true
			}
			if p.title == "" {
				p.title = plain(heading, p.content)
			}
		}
		return ast.WalkContinue, nil
	})
}

// plain returns the text of a node.
func plain(node ast.Node, source []byte) string {
	var words strings.Builder
	_ = ast.Walk(node, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // no error occurs
		if leaf, ok := n.(*ast.Text); ok && entering {
			words.Write(leaf.Segment.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return words.String()
}

// render returns the page as HTML, and what is wrong with its links. It copies the pictures.
func (p *page) render(root, out, forge string, pages map[string]*page) (html []byte, problems []string, err error) {
	document := p.parse()
	err = ast.Walk(document, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := node.(type) {
		case *ast.Link:
			link, problem := p.resolve(string(n.Destination), root, forge, pages)
			n.Destination = []byte(link)
			if problem != "" {
				problems = append(problems, p.source+": "+problem)
			}
		case *ast.Image:
			file := path.Join(path.Dir(p.source), string(n.Destination))
			content, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				problems = append(problems, p.source+": "+string(n.Destination))
				return ast.WalkContinue, nil
			}
			n.Destination = []byte(p.relative("pictures/" + path.Base(file)))
			return ast.WalkContinue, write(filepath.Join(out, "pictures", path.Base(file)), content)
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		return nil, nil, err
	}
	var body, whole bytes.Buffer
	if err := markdown().Renderer().Render(&body, p.content, document); err != nil {
		return nil, nil, errors.WithStack(err)
	}
	err = pageTemplate.Execute(&whole, map[string]any{"Title": p.title, "Body": template.HTML(body.String()),
		"Navigation": p.navigation(pages), "Start": p.relative("index.html")})
	return whole.Bytes(), problems, errors.WithStack(err)
}

// relative returns the link from the page to a path of the site.
func (p *page) relative(target string) string {
	return strings.Repeat("../", strings.Count(p.target, "/")) + target
}

// resolve returns where a link leads on the site, and what is wrong with it.
func (p *page) resolve(destination, root, forge string, pages map[string]*page) (link, problem string) {
	parsed, err := url.Parse(destination)
	if err != nil || parsed.Scheme != "" {
		return destination, ""
	}
	file := p.source
	if parsed.Path != "" {
		file = path.Join(path.Dir(p.source), parsed.Path)
	}
	if target := pages[file]; target != nil {
		if parsed.Fragment != "" && !target.anchors[parsed.Fragment] {
			return destination, destination
		}
		parsed.Path = p.relative(target.target)
		return parsed.String(), ""
	}
	if _, err := os.Stat(filepath.Join(root, file)); err != nil {
		return destination, destination
	}
	return forge + file, ""
}

// group is a group of pages in the navigation.
type group struct {
	Title string
	Pages []navigationLink
}

type navigationLink struct {
	Title, Link string
	Current     bool
}

var (
	groupTitle = regexp.MustCompile(`^\*\*(.+)\*\*$`)
	groupLink  = regexp.MustCompile(`^- \[([^\]]+)\]\(([^)]+)\)`)
)

// navigation returns the groups of docs/README.md.
func (p *page) navigation(pages map[string]*page) (groups []group) {
	for line := range strings.Lines(string(pages["docs/README.md"].content)) {
		line = strings.TrimSpace(line)
		if title := groupTitle.FindStringSubmatch(line); title != nil {
			groups = append(groups, group{Title: title[1]})
		} else if link := groupLink.FindStringSubmatch(line); link != nil && len(groups) > 0 {
			if target := pages[path.Join("docs", link[2])]; target != nil {
				last := &groups[len(groups)-1]
				last.Pages = append(last.Pages, navigationLink{link[1], p.relative(target.target), target == p})
			}
		}
	}
	return groups
}
