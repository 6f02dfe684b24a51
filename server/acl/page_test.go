package acl

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference/acl.md")

const page = "../../docs/reference/acl.md"

// TestPage keeps the table of words in the reference equal to the words that Parse knows: go test ./server/acl -update
// writes it.
func TestPage(t *testing.T) {
	head, err := os.ReadFile("testdata/acl.md")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.Write(head)
	b.WriteString("| rule | word | grants | includes |\n|---|---|---|---|\n")
	for _, w := range Words {
		word := "`" + w.Word + "`"
		if w.Level {
			word = fmt.Sprintf("`policy = %q`", w.Word)
		}
		includes := ""
		if len(w.Includes) > 0 && w.Word != CapDeny {
			includes = "`" + strings.Join(w.Includes, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", w.Rule, word, w.Grants, includes)
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
		t.Errorf("%s is not what the words say; write it with: go test ./server/acl -run TestPage -update", page)
	}
}

// TestExample parses the policy of the page.
func TestExample(t *testing.T) {
	head, err := os.ReadFile("testdata/acl.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(head), "```hcl\n")
	text, _, _ := strings.Cut(rest, "```")
	a := compile(t, text)
	if !a.AllowNamespaceOp("research", CapSubmitJob) || !a.AllowHostVolume("datasets", CapMountReadOnly) || a.AllowHostVolume("datasets", CapMountReadWrite) || !a.AllowQueue("research/nlp", CapQueueSubmit) {
		t.Error("the example of the page does not grant what it says")
	}
}
