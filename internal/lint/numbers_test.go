package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A pageNumber is one row of testdata/numbers.txt, which says for every number in the prose and the tables of pages
// written by hand where it comes from. Rows stand below the page's name; in a text {} stands for the value.
//
//	UNIT CONSTANT text {} text            a default or limit: the constant, or an expression of constants of one package ("a/b.x+y", or
//	                                      "a/b_test.len(x)" of its tests), in the unit, rounded up with ~
//	aim text                              what the page of aims aims at, which no code has
//	measured DATE `COMMAND` text          a figure, or all of the section whose heading is the text; the page names the command
//	tested FILE TEST text                 a figure that a test holds
//	example text                          numbers of an example, of other programs, or of the machine it is shown on
type pageNumber struct {
	page, kind, from, text string
	line                   int
}

// noAmounts are numbers that are no amounts, by what stands around them: of list items, footnotes and headings, of
// decisions and standards, of versions, file modes, HTTP statuses and exit codes, and years.
var noAmounts = regexp.MustCompile(`(?m)^ *(?:#+ )?[0-9]+\. ` +
	`|\([0-9]\)` +
	`|\b0[0-7]{2,3}\b|\b127\.0\.0\.1\b|\b(?:ADR|RFC|TLS|API|Engine \(|release|Go|Format|glibc|Python|CUDA|Linux|Ubuntu|v|status|rank|device|code|exit code|ends with|a token \(|index \(|answered with|requests with|Answers of)\s*[0-9][0-9.]*(?:(?:, | and | or )[45][0-9x]{2})*(?: or newer)?` +
	`|\b[45][0-9]{2}(?::| otherwise|\))` +
	`|\bH100 80GB\b|\b[0-9]{4}-[0-9]{2}-[0-9]{2}\b` +
	`|\b(?:19|20)[0-9]{2}\b`)

// numeral is an amount.
var numeral = regexp.MustCompile(`(?:^|[^\w.:/#-])([0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?)`)

// unit follows an amount; 0 and 1 without one are words, like "none" and "one".
var unit = regexp.MustCompile(`^ ?(?:ms|s|m|h|d|KiB|MiB|GiB|TiB|%|us|seconds?|minutes?|hours?|days?|percent|bytes?)\b`)

// spelled are amounts that words hide from this test.
var spelled = regexp.MustCompile(`\b(?i:two|three|four|five|six|seven|eight|nine|ten|twenty|thirty|sixty|hundred|thousand) (?:ms|milliseconds|seconds|minutes|hours|days|weeks|KiB|MiB|GiB|percent|per cent)\b`)

// Defaults and limits are tied; what is exempt may only become less.
const examplesMax = 26

// notPages are generated, or history: only what has a row is compared there.
var notPages = []string{"docs/reference/agent.md", "docs/reference/metrics.md", "docs/reference/job-support.md", "CHANGELOG.md"}

// TestNumbersOnPages finds every number on pages that are written by hand, and compares each with the constant that has it.
func TestNumbersOnPages(t *testing.T) {
	rows := pageNumbers(t)
	exprs := constants(t)
	tests := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test {
				tests[s.name+" "+f.Name.Name] = true
			}
		}
	}
	var pages []string
	for _, pattern := range []string{"README.md", "CHANGELOG.md", "docs/*.md", "docs/how-to/*.md", "docs/operate/*.md", "docs/tutorial/*.md", "docs/reference/*.md"} {
		list, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, list...)
	}
	known := map[string]bool{}
	tied, examples, measured := 0, 0, 0
	for _, path := range pages {
		name, _ := filepath.Rel(root, path)
		name = filepath.ToSlash(name)
		known[name] = true
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		prose := proseOf(text)
		covered := make([]bool, len(text))
		for _, r := range rows {
			if r.page != name {
				continue
			}
			fail := func(format string, args ...any) {
				t.Errorf("testdata/numbers.txt:%d: %s: %s", r.line, name, fmt.Sprintf(format, args...))
			}
			from, to := strings.Index(r.text, "{}"), 0
			want := r.text
			switch r.kind {
			case "measured":
				measured++
				if _, command, _ := strings.Cut(r.from, " "); !strings.Contains(string(text), strings.Trim(command, "`")) {
					fail("the page does not name the command %s", command)
				}
				from, to = 0, len(want)
			case "tested":
				if !tests[r.from] {
					fail("there is no test %s", r.from)
				}
				from, to = 0, len(want)
			case "aim":
				if name != aimsPage {
					fail("only %s has aims", aimsPage)
				}
				from, to = 0, len(want)
			case "example":
				examples++
				from, to = 0, len(want)
			default:
				tied++
				v, err := r.value(exprs)
				if err != nil {
					fail("%v", err)
					continue
				}
				if from < 0 {
					fail("%q has no {}", r.text)
					continue
				}
				want, to = strings.Replace(r.text, "{}", v, 1), from+len(v)
			}
			if strings.HasPrefix(want, "#") { // a section
				i, j := section(string(text), want)
				if i < 0 {
					fail("there is no section %q", want)
				}
				for ; i < j; i++ {
					covered[i] = true
				}
				continue
			}
			n := strings.Count(string(text), want)
			if n != 1 {
				fail("%q stands there %d times, want once; %s says what is true", want, n, r.from)
			}
			if i := strings.Index(string(text), want); i >= 0 {
				for k := i + from; k < i+to; k++ {
					covered[k] = true
				}
			}
		}
		if slices.Contains(notPages, name) {
			continue
		}
		for _, m := range noAmounts.FindAllIndex(prose, -1) {
			for k := m[0]; k < m[1]; k++ {
				covered[k] = true
			}
		}
		for _, m := range numeral.FindAllSubmatchIndex(prose, -1) {
			if n := string(prose[m[2]:m[3]]); !covered[m[2]] && (n != "0" && n != "1" || unit.Match(prose[m[3]:])) {
				t.Errorf("%s:%d: where does %q come from? Say so in internal/lint/testdata/numbers.txt: %s", name, 1+bytes.Count(text[:m[2]], []byte("\n")),
					prose[m[2]:m[3]], strings.ReplaceAll(string(text[max(0, m[2]-50):min(len(text), m[3]+30)]), "\n", " "))
			}
		}
		for _, m := range spelled.FindAllIndex(prose, -1) {
			if !covered[m[0]] {
				t.Errorf("%s:%d: write %q in digits, so that it is compared with the code", name, 1+bytes.Count(text[:m[0]], []byte("\n")), prose[m[0]:m[1]])
			}
		}
	}
	for _, r := range rows {
		if !known[r.page] {
			t.Errorf("testdata/numbers.txt:%d: there is no page %s", r.line, r.page)
		}
	}
	if examples != examplesMax {
		t.Errorf("%d rows are examples; %d were known. Tie the number to its constant, or, for fewer, lower examplesMax", examples, examplesMax)
	}
	t.Logf("%d numbers tied to the code, %d measured, %d examples", tied, measured, examples)
}

// pageNumbers reads testdata/numbers.txt.
func pageNumbers(t *testing.T) (out []pageNumber) {
	t.Helper()
	file, err := os.ReadFile("testdata/numbers.txt")
	if err != nil {
		t.Fatal(err)
	}
	page := ""
	for i, l := range strings.Split(string(file), "\n") {
		switch {
		case l == "" || strings.HasPrefix(l, "# "):
		case !strings.HasPrefix(l, "  "):
			page = l
		default:
			r := pageNumber{page: page, line: i + 1}
			r.kind, r.text, _ = strings.Cut(l[2:], " ")
			parts := 1
			switch r.kind {
			case "example", "aim":
				parts = 0
			case "tested":
				parts = 2
			case "measured":
				date, rest, _ := strings.Cut(r.text, " ")
				if _, err := time.Parse(time.DateOnly, date); err != nil {
					t.Fatalf("testdata/numbers.txt:%d: %v", i+1, err)
				}
				command, text, ok := strings.Cut(strings.TrimPrefix(rest, "`"), "` ")
				if !ok {
					t.Fatalf("testdata/numbers.txt:%d: want measured DATE `COMMAND` text", i+1)
				}
				r.from, r.text, parts = date+" "+command, text, 0
			}
			for range parts {
				first, rest, _ := strings.Cut(r.text, " ")
				r.from, r.text = strings.TrimSpace(r.from+" "+first), rest
			}
			out = append(out, r)
		}
	}
	return out
}

// proseOf returns a page of the same length without what is typed or printed: code, and the targets of links.
func proseOf(page []byte) []byte {
	for _, re := range []*regexp.Regexp{regexp.MustCompile("(?ms)^ *```.*?^ *```"), regexp.MustCompile("`[^`]*`"), regexp.MustCompile(`\]\([^)]*\)`)} {
		page = re.ReplaceAllFunc(page, func(b []byte) []byte {
			return regexp.MustCompile(`[^\n]`).ReplaceAll(b, []byte("-"))
		})
	}
	return page
}

// section returns where a heading and what is below it begin and end.
func section(page, heading string) (int, int) {
	i := strings.Index("\n"+page, "\n"+heading+"\n")
	if i < 0 {
		return -1, -1
	}
	level := strings.Index(heading, " ")
	next := regexp.MustCompile(`(?m)^#{1,` + strconv.Itoa(level) + `} `).FindStringIndex(page[i+len(heading):])
	if next == nil {
		return i, len(page)
	}
	return i, i + len(heading) + next[0]
}

// constants returns the expressions of all constants, and of variables that are literals, by directory and name. Those of tests
// have the directory with "_test".
func constants(t *testing.T) map[string]ast.Expr {
	exprs := map[string]ast.Expr{}
	for _, s := range sources(t) {
		dir := s.dir
		if s.test {
			dir += "_test"
		}
		for _, d := range s.file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok == token.IMPORT {
				continue
			}
			for _, spec := range g.Specs {
				switch v := spec.(type) {
				case *ast.ValueSpec:
					for i, name := range v.Names {
						if i >= len(v.Values) {
							continue
						}
						if _, literal := v.Values[i].(*ast.CompositeLit); g.Tok == token.CONST || literal {
							exprs[dir+"."+name.Name] = v.Values[i]
						}
					}
				case *ast.TypeSpec:
					if a, ok := v.Type.(*ast.ArrayType); ok && a.Len != nil {
						exprs[dir+"."+v.Name.Name] = a.Len
					}
				}
			}
		}
	}
	return exprs
}

// value returns what a page must say of a constant.
func (r *pageNumber) value(exprs map[string]ast.Expr) (string, error) {
	dir, text, _ := strings.Cut(r.from, ".")
	e, err := parser.ParseExpr(text)
	if err != nil {
		return "", err
	}
	v := valueOf(e, dir, exprs)
	if v.Kind() == constant.String {
		return constant.StringVal(v), nil
	}
	n, ok := constant.Int64Val(constant.ToInt(v))
	if !ok {
		return "", fmt.Errorf("the value of %s is not known", r.from)
	}
	kind, about := strings.CutPrefix(r.kind, "~")
	divisor, ok := units[kind]
	if !ok {
		return "", fmt.Errorf("unknown unit %q", kind)
	}
	if about {
		n += (divisor - n%divisor) % divisor
	}
	if n%divisor != 0 {
		return "", fmt.Errorf("%s is no whole number of %s", r.from, r.kind)
	}
	return written(n/divisor, kind), nil
}

// units are the divisors of what pages write; "plain" are numbers without a comma, such as ports.
var units = map[string]int64{"-": 1, "plain": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "milliseconds": int64(time.Millisecond), "seconds": int64(time.Second),
	"minutes": int64(time.Minute), "hours": int64(time.Hour), "days": 24 * int64(time.Hour), "permille": 10}

// written formats a value as pages do, thousands with a comma.
func written(v int64, unit string) string {
	s := strconv.FormatInt(v, 10)
	if unit == "plain" {
		return s
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// valueOf evaluates an expression of the package in dir: numbers, texts, durations, other constants, and elements of literals.
func valueOf(e ast.Expr, dir string, exprs map[string]ast.Expr) constant.Value {
	switch e := e.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(e.Value, e.Kind, 0)
	case *ast.ParenExpr:
		return valueOf(e.X, dir, exprs)
	case *ast.Ident:
		if x := exprs[dir+"."+e.Name]; x != nil {
			return valueOf(x, dir, exprs)
		}
	case *ast.SelectorExpr:
		if d, ok := map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}[e.Sel.Name]; ok {
			return constant.MakeInt64(int64(d))
		}
		x, ok := e.X.(*ast.Ident)
		if !ok {
			break
		}
		if lit, ok := exprs[dir+"."+x.Name].(*ast.CompositeLit); ok { // a field of a literal
			return element(lit, e.Sel.Name, dir, exprs)
		}
		for name, v := range exprs { // a constant of another package
			if strings.HasSuffix("/"+name, "/"+x.Name+"."+e.Sel.Name) {
				return valueOf(v, strings.TrimSuffix(name, "."+e.Sel.Name), exprs)
			}
		}
	case *ast.CallExpr: // len of a literal
		if f, ok := e.Fun.(*ast.Ident); ok && f.Name == "len" && len(e.Args) == 1 {
			if x, ok := e.Args[0].(*ast.Ident); ok {
				if lit, ok := exprs[dir+"."+x.Name].(*ast.CompositeLit); ok {
					return constant.MakeInt64(int64(len(lit.Elts)))
				}
			}
		}
	case *ast.IndexExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			if lit, ok := exprs[dir+"."+x.Name].(*ast.CompositeLit); ok {
				return element(lit, e.Index.(*ast.BasicLit).Value, dir, exprs)
			}
		}
	case *ast.BinaryExpr:
		x, y := valueOf(e.X, dir, exprs), valueOf(e.Y, dir, exprs)
		if x.Kind() == constant.Unknown || y.Kind() == constant.Unknown {
			return constant.MakeUnknown()
		}
		if n, ok := constant.Uint64Val(y); ok && e.Op == token.SHL {
			return constant.Shift(x, e.Op, uint(n))
		}
		if e.Op == token.QUO && x.Kind() == constant.Int && y.Kind() == constant.Int {
			return constant.BinaryOp(x, token.QUO_ASSIGN, y)
		}
		return constant.BinaryOp(x, e.Op, y)
	}
	return constant.MakeUnknown()
}

// element returns the element of a literal with a key, or with an index.
func element(lit *ast.CompositeLit, key, dir string, exprs map[string]ast.Expr) constant.Value {
	for i, x := range lit.Elts {
		if kv, ok := x.(*ast.KeyValueExpr); ok {
			switch k := kv.Key.(type) {
			case *ast.Ident:
				if k.Name == key {
					return valueOf(kv.Value, dir, exprs)
				}
			case *ast.BasicLit:
				if k.Value == key {
					return valueOf(kv.Value, dir, exprs)
				}
			}
		} else if strconv.Itoa(i) == key {
			return valueOf(x, dir, exprs)
		}
	}
	return constant.MakeUnknown()
}
