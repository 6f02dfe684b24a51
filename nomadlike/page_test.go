package nomadlike

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/muster-sched/muster/internal/methods"
)

var update = flag.Bool("update", false, "write docs/reference/http-api.md")

const page = "../docs/reference/http-api.md"

// TestPage keeps the list of paths of the HTTP API equal to the routes, with the right that each needs, and the text above
// it free of paths that do not exist. `go generate ./nomadlike` writes it.
func TestPage(t *testing.T) {
	head, err := os.ReadFile("testdata/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	rt := newRouter(table())
	told := regexp.MustCompile("`(GET|PUT|POST|DELETE) (/v1/[^`? ]*)").FindAllStringSubmatch(string(head), -1)
	if len(told) < 20 {
		t.Errorf("%d paths in the text", len(told))
	}
	for _, m := range told {
		if r, _, allow := rt.find(m[1], m[2]); r == nil {
			t.Errorf("the text tells of %s %s, which is no route (allowed: %q)", m[1], m[2], allow)
		}
	}
	var b strings.Builder
	b.Write(head)
	b.WriteString("\n## Every path\n\n| method | path | right |\n|---|---|---|\n")
	for _, r := range table() {
		path := regexp.MustCompile(`\{(\w+)\}`).ReplaceAllString(r.pattern, ":$1")
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", strings.ReplaceAll(strings.ReplaceAll(r.methods, "PUT,POST", "PUT"), ",", ", "), path, right(t, r.rpc))
	}
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Errorf("%s is not what the routes say; write it with: go generate ./nomadlike", page)
	}
}

// right returns what a caller needs, in the words of ACL policies.
func right(t *testing.T, rpc string) string {
	switch rpc {
	case "":
		return "none"
	case needAgentRead:
		return "agent read"
	case needAgentWrite:
		return "agent write"
	case "node:read":
		return "node read"
	}
	row := methods.Find(rpc)
	if row == nil {
		t.Errorf("no method %q", rpc)
		return ""
	}
	n := row.Need
	words := []string{}
	for _, x := range []struct{ name, value string }{{"namespace", n.Namespace}, {"node", n.Node}, {"node_pool", n.NodePool}, {"queue", n.Queue}, {"quota", n.Quota}, {"variables", n.Variable}, {"agent", n.Agent}, {"operator", n.Operator}} {
		if x.value != "" {
			words = append(words, x.name+" "+x.value)
		}
	}
	switch {
	case n.Management:
		words = append(words, "management")
	case n.Anonymous:
		words = append(words, "none")
	case n.AnyToken:
		words = append(words, "any token; shows what it may see")
	}
	if len(words) == 0 {
		t.Errorf("%s: a right that HTTP callers cannot have: %+v", rpc, n)
	}
	return strings.Join(slices.Compact(words), ", ")
}
