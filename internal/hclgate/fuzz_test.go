package hclgate

import (
	"runtime"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// FuzzCheck checks what the gate is for: a file that passes is parsed with memory in proportion to its size.
func FuzzCheck(f *testing.F) {
	f.Add([]byte(`job "x" { group "g" { count = 1 } }`))
	f.Add([]byte(strings.Repeat("a { ", 50) + strings.Repeat("}", 50)))
	f.Add([]byte("a = " + strings.Repeat("(", 100) + "1" + strings.Repeat(")", 100)))
	f.Add([]byte("a = <<E\n${\"x\"}\nE\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if Check("f", b, 1<<20) != nil {
			return
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		hclsyntax.ParseConfig(b, "f", hcl.InitialPos)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20+16<<10*uint64(len(b)) {
			t.Fatalf("%d bytes took %d of memory", len(b), took)
		}
	})
}
