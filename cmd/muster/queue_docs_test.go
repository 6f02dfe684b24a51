package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/muster-sched/muster/nomadlike/objectfile"
	"github.com/muster-sched/muster/nomadlike/wire"
)

// TestDocumentedQueues reads the queues, quotas and reservations of the documentation as the commands do: what people copy
// must work.
func TestDocumentedQueues(t *testing.T) {
	page, err := os.ReadFile("../../docs/operate/queues.md")
	if err != nil {
		t.Fatal(err)
	}
	e, read := &env{}, map[string]int{}
	for _, m := range regexp.MustCompile("(?ms)^```hcl[^\\n]*\\n(.*?)^```").FindAllSubmatch(page, -1) {
		path := filepath.Join(t.TempDir(), "x.hcl")
		if err := os.WriteFile(path, m[1], 0o600); err != nil {
			t.Fatal(err)
		}
		kind := string(bytes.SplitN(m[1], []byte(" "), 2)[0])
		var specs []objectfile.Object
		if kind == "quota" {
			specs, err = e.quotaSpecs(path)
		} else {
			specs, err = e.specBlocks(path, kind)
		}
		if err != nil {
			t.Errorf("%v\n%s", err, m[1])
		}
		for _, s := range specs {
			read[kind]++
			switch kind {
			case "queue":
				q := &wire.Queue{}
				if err = s.Decode(kind, q); err == nil {
					_, err = q.ToStructs()
				}
			case "quota":
				q := &wire.QuotaSpec{}
				if err = s.Decode(kind, q); err == nil {
					_, err = q.ToStructs()
				}
			case "reservation":
				r := &wire.Reservation{}
				if err = s.Decode(kind, r); err == nil {
					for i := range r.Nodes {
						r.Nodes[i] = nodeA // the command replaces names
					}
					_, err = r.ToStructs(time.Unix(0, 0))
				}
			default:
				t.Errorf("a block of kind %q", kind)
			}
			if err != nil {
				t.Errorf("%v\n%s", err, s.JSON)
			}
		}
	}
	for _, kind := range []string{"queue", "quota", "reservation"} {
		if read[kind] == 0 {
			t.Errorf("the page shows no %s", kind)
		}
	}
}
