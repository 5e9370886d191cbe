package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/pkg/errors"

	"github.com/latchkey-dev/latchkey/internal/advice"
	"github.com/latchkey-dev/latchkey/internal/metrics"
)

func main() {
	page, err := reference(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
	fmt.Print(page)
}

// programs are the commands whose flags the page lists.
var programs = []string{"manager", "check", "state-api manifests", "demo"}

// structs are the options that the page lists, by package.
var structs = []struct {
	pkg   string
	names []string
}{
	{"clustercache", []string{"Options", "ClientOptions", "ClientCacheOptions", "CacheOptions", "CacheOverrides",
		"MetricsOptions",
		"GetExtensionSourceOptions"}},
	{"healthprobe", []string{"Options"}},
	{"credential", []string{"ServiceAccountOptions", "ImpersonationOptions", "KubeconfigOptions"}},
	{"scopedcache", []string{"Options", "HoldOptions"}},
	{"stateapi", []string{"Options", "ServiceOptions"}},
	{"statuspage", []string{"Options"}},
	{"serviceprovider", []string{"ClusterOptions", "AccessOptions"}},
}

// reference returns the page for the module in root.
func reference(root string) (string, error) {
	var page strings.Builder
	page.WriteString("# Reference\n\nThis page is generated from the code (`make generate`). What the values mean for the people on " +
		"call, and\nwhat to do: [operations.md](operations.md).\n\n")
	for _, section := range []func(string, *strings.Builder) error{flags, options, reasons, series} {
		if err := section(root, &page); err != nil {
			return "", err
		}
	}
	return page.String(), nil
}

// flags writes what each command prints for -h.
func flags(root string, page *strings.Builder) error {
	dir, err := os.MkdirTemp("", "reference")
	if err != nil {
		return errors.WithStack(err)
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "latchkey")
	build := exec.Command("go", "build", "-o", program, "./cmd/latchkey")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return errors.Wrapf(err, "building cmd/latchkey: %s", out)
	}
	page.WriteString("## Flags\n")
	for _, name := range programs {
		command := exec.Command(program, append(strings.Fields(name), "-h")...)
		command.Env = []string{"HOME=" + dir} // no default depends on the one who runs this
		out, err := command.CombinedOutput()
		if err != nil {
			return errors.Wrapf(err, "latchkey %s -h: %s", name, out)
		}
		fmt.Fprintf(page, "\n### latchkey %s\n\n| flag | default | what it does |\n| --- | --- | --- |\n", name)
		for _, f := range parseFlags(string(out)) {
			fmt.Fprintf(page, "| `--%s` | %s | %s |\n", f.name, code(f.value), cell(f.usage))
		}
	}
	return nil
}

// flagLine is a flag as package flag prints it.
type flagLine struct{ name, value, usage string }

var (
	flagName     = regexp.MustCompile(`(?m)^  -([a-z-]+)(?: \S+)?(?:\t(.*))?$`)
	flagDefault  = regexp.MustCompile(`(?s) \(default (.*?)\)$`)
	quotedString = regexp.MustCompile(`^"(.*)"$`)
)

// parseFlags returns the flags in what package flag prints.
func parseFlags(text string) (found []flagLine) {
	places := flagName.FindAllStringSubmatchIndex(text, -1)
	for i, place := range places {
		end := len(text)
		if i+1 < len(places) {
			end = places[i+1][0]
		}
		f := flagLine{name: text[place[2]:place[3]]}
		rest := text[place[1]:end]
		if place[4] >= 0 {
			rest = text[place[4]:place[5]] + rest
		}
		f.usage = strings.Join(strings.Fields(rest), " ")
		if match := flagDefault.FindStringSubmatch(f.usage); match != nil {
			f.value = quotedString.ReplaceAllString(match[1], "$1")
			f.usage = strings.TrimSuffix(f.usage, match[0])
		}
		found = append(found, f)
	}
	return found
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// cell returns a text as the cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ").Replace(text)
}

// packageDoc returns the documentation of a package, and its files.
func packageDoc(root, name string) (*doc.Package, *token.FileSet, error) {
	set := token.NewFileSet()
	names, err := filepath.Glob(filepath.Join(root, name, "*.go"))
	if err != nil {
		return nil, nil, errors.WithStack(err)
	}
	var files []*ast.File
	for _, file := range names {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(set, file, nil, parser.ParseComments)
		if err != nil {
			return nil, nil, errors.WithStack(err)
		}
		files = append(files, parsed)
	}
	documented, err := doc.NewFromFiles(set, files, "github.com/latchkey-dev/latchkey/"+name)
	return documented, set, errors.WithStack(err)
}

// options writes the fields of the options.
func options(root string, page *strings.Builder) error {
	page.WriteString("\n## Options\n\nZero values mean the defaults, unless the text says otherwise.\n")
	for _, list := range structs {
		documented, set, err := packageDoc(root, list.pkg)
		if err != nil {
			return err
		}
		for _, name := range list.names {
			fields := fieldsOf(documented, name)
			if fields == nil {
				return errors.Errorf("package %s has no struct %s", list.pkg, name)
			}
			fmt.Fprintf(page, "\n### %s.%s\n\n| field | type | |\n| --- | --- | --- |\n", list.pkg, name)
			for _, field := range fields.List {
				for _, ident := range field.Names {
					if !ident.IsExported() {
						continue
					}
					fmt.Fprintf(page, "| `%s` | `%s` | %s |\n", ident.Name, typeText(set, field.Type),
						commentText(documented, field.Doc.Text()+field.Comment.Text()))
				}
			}
		}
	}
	return nil
}

// fieldsOf returns the fields of a struct, nil if the package has no such struct.
func fieldsOf(documented *doc.Package, name string) *ast.FieldList {
	for _, declared := range documented.Types {
		if declared.Name != name {
			continue
		}
		for _, spec := range declared.Decl.Specs {
			if structure, ok := spec.(*ast.TypeSpec).Type.(*ast.StructType); ok {
				return structure.Fields
			}
		}
	}
	return nil
}

// typeText returns a type as the code has it, on one line.
func typeText(set *token.FileSet, expr ast.Expr) string {
	var text bytes.Buffer
	_ = printer.Fprint(&text, set, expr) // a bytes.Buffer takes everything
	return strings.ReplaceAll(strings.Join(strings.Fields(text.String()), " "), "|", `\|`)
}

// commentText returns a comment as the cell of a table, without links.
func commentText(documented *doc.Package, text string) string {
	writer := documented.Printer()
	writer.DocLinkURL = func(*comment.DocLink) string { return "" }
	markdown := string(writer.Markdown(documented.Parser().Parse(text)))
	markdown = regexp.MustCompile(`\[([^\]]+)\]\(\)`).ReplaceAllString(markdown, "$1")
	return strings.ReplaceAll(strings.Join(strings.Fields(markdown), " "), "|", `\|`)
}

// reasons writes the reasons of package clustercache, with what to do.
func reasons(root string, page *strings.Builder) error {
	documented, _, err := packageDoc(root, "clustercache")
	if err != nil {
		return err
	}
	page.WriteString("\n## Reasons\n\nWhy an extension is not connected.\n\n" +
		"| reason | | what to do |\n| --- | --- | --- |\n")
	for _, group := range documented.Consts {
		for _, spec := range group.Decl.Specs {
			value := spec.(*ast.ValueSpec)
			name, isReason := strings.CutPrefix(value.Names[0].Name, "Reason")
			if !isReason {
				continue
			}
			_, text, _ := strings.Cut(value.Doc.Text(), ": ")
			fmt.Fprintf(page, "| `%s` | %s | %s |\n", name, cell(strings.TrimSpace(text)), cell(advice.For(name)))
		}
	}
	return nil
}

// series writes the metrics.
func series(_ string, page *strings.Builder) error {
	page.WriteString("\n## Metrics\n\nAll have the label `cache`: the name of the ClusterCache, or of the scoped cache.\n\n" +
		"| metric | more labels | |\n| --- | --- | --- |\n")
	for _, described := range metrics.Descriptions() {
		var labels []string
		for _, label := range described.Labels {
			if label != "cache" {
				labels = append(labels, "`"+label+"`")
			}
		}
		fmt.Fprintf(page, "| `%s` | %s | %s |\n", described.Name, strings.Join(labels, ", "), cell(described.Help))
	}
	return nil
}
