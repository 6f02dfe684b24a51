package pages

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// notRun is how many blocks say why their commands are not run. It may only fall.
const notRun = 3

// typed matches a block in which a reader would type a line. Those of the reference of the commands are examples of help, which
// cmd/muster parses.
var typed = regexp.MustCompile(`(?m)^\s*(\$ )?(muster|make|curl|systemctl|dpkg|rpm|docker|nomad) +[a-z./-]`)

// TestEveryBlockHasItsKind reads all pages: each block says what it is, so that none escapes, and those that are not run
// say why.
func TestEveryBlockHasItsKind(t *testing.T) {
	files, err := all("../..")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{"sh": 0, "console": 0, "hcl": 0, "text": 0, "go": 0, "python": 0, "yaml": 0, "json": 0, "ini": 0, "bash": 0}
	reasons := 0
	for _, name := range files {
		page, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		bs, err := blocks(string(page))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, b := range bs {
			if _, known := kinds[b.lang]; !known {
				t.Errorf("%s:%d: the fence says %q; want one of sh (commands), console (commands with their output), hcl, text, go, python, yaml, json, ini", name, b.line-1, b.lang)
			}
			kinds[b.lang]++
			if b.reason != "" {
				reasons++
			}
			if (b.lang == "text" || b.lang == "bash") && typed.MatchString(b.text) && !strings.HasPrefix(name, "docs/reference/cli/") {
				t.Errorf("%s:%d: this block has commands: let the fence say sh, or console with their output", name, b.line-1)
			}
			if b.lang == "console" && len(b.commands()) == 0 {
				t.Errorf("%s:%d: no line of this block begins with \"$ \"", name, b.line)
			}
		}
	}
	if reasons != notRun {
		t.Errorf("%d blocks say why they are not run; %d were known. Run it, or, for fewer, lower notRun", reasons, notRun)
	}
	t.Logf("%v, %d not run", kinds, reasons)
}

// TestCommandsOfABlock splits a block into what a reader types.
func TestCommandsOfABlock(t *testing.T) {
	b := block{lang: "sh", text: "# first\ncat >a.sh <<'END'\n#!/bin/sh\n\necho hi\nEND\nmuster run \\\n  -- ./a.sh\ntrue\n"}
	var got []string
	for _, c := range b.commands() {
		got = append(got, c.text)
	}
	if want := []string{"cat >a.sh <<'END'\n#!/bin/sh\n\necho hi\nEND", "muster run \\\n  -- ./a.sh", "true"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestShown compares outputs as pages show them.
func TestShown(t *testing.T) {
	for _, c := range []struct {
		want, got string
		same      bool
	}{
		{"a  b\n", "a b\n", true},
		{"a b\n", "a c\n", false},
		{"id 1a2b3c4d since 3m2s\n", "id ffffffff since 17s\n", true},
		{"id 1a2b3c4d\n", "id none\n", false},
		{"first\n...\nlast\n", "first\nx\ny\nlast\n", true},
		{"first\n...\n", "first\n", true},
		{"first\n...\nlast\n", "first\nx\n", false},
		{"at 2026-01-31T12:00:00Z, 2 GPUs\n", "at 2027-02-03T04:05:06Z, 2 GPUs\n", true},
		{"2 GPUs\n", "3 GPUs\n", false},
	} {
		if got := shown(c.want, c.got); got != c.same {
			t.Errorf("shown(%q, %q) = %t", c.want, c.got, got)
		}
	}
}

// TestMetricsExist looks up the metrics that pages name in the reference, which is made from the code.
func TestMetricsExist(t *testing.T) {
	known, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := all("../..")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, name := range files {
		page, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\b(muster_(?:server|raft|cluster|model|client)_\w+|raft_\w+_seconds)(_sum|_count)?\b`).FindAllString(string(page), -1) {
			n++
			base := strings.TrimSuffix(strings.TrimSuffix(m, "_sum"), "_count")
			if !strings.Contains(string(known), "`"+base) && !strings.HasSuffix(m, "_") {
				t.Errorf("%s: there is no metric %s", name, m)
			}
		}
	}
	if n < 50 {
		t.Errorf("%d names of metrics found", n)
	}
}
