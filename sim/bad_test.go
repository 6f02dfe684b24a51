package sim

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A faulty trace or cluster is reported in one error with its place.
func TestBadInput(t *testing.T) {
	for _, c := range []struct {
		text, nodes, policy string
		want                []string // in the error, after FILE:
	}{
		{"submit,runtime\n0,10\n5,x\n", "1x1", "", []string{":3: column runtime", `"x" is neither seconds`}},
		{"submit,runtime,gpus\n0,10,1.5\n", "1x1", "", []string{":2: column gpus", "not a whole number"}},
		{"submit,runtime,gpus\n0,-10,1\n", "1x1", "", []string{":2: column runtime", "below zero"}},
		{"submit,runtime,priority\n0,10,101\n", "1x1", "", []string{":2: column priority", "1 to 100"}},
		{"submit,runtime,gpu_memory\n0,10,5XB\n", "1x1", "", []string{":2: column gpu_memory", "not an amount of memory"}},
		{"submit,runtime,preemptible\n0,10,maybe\n", "1x1", "", []string{":2: column preemptible"}},
		{"submit,gpus\n0,1\n", "1x1", "", []string{":1:", `no column "runtime"`}},
		{"submit,submit,runtime\n", "1x1", "", []string{"twice"}},
		{"", "1x1", "", []string{"is empty"}},
		{"submit,runtime\n", "1x1", "", []string{"no job in it"}},
		{"submit,runtime\n,1\n", "1x1", "", []string{":2: column submit is empty"}},
		{"submit,runtime\n0\n", "1x1", "", []string{":2: not as many fields"}},
		{"submit,runtime\nnan,1\n", "1x1", "", []string{":2: column submit", "neither seconds"}},
		{"submit,runtime\n0,1\n1,1e300\n", "1x1", "", []string{":3: column runtime"}},
		{"submit,runtime,gpus\n0,1,1\n1,1,1e9\n", "1x1", "", []string{":3:", "the most"}},
		{"submit,runtime\n\"0,1\n", "1x1", "", []string{":2:"}},
		{"submit,runtime\n0,1\n", "8y8", "", []string{`nodes "8y8"`, "COUNTxGPUS"}},
		{"submit,runtime\n0,1\n", "0x8", "", []string{"number of nodes"}},
		{"submit,runtime\n0,1\n", "8x8/ram=1", "", []string{"cpu=CORES"}},
		{"submit,runtime\n0,1\n", "", "", []string{"say -nodes"}},
		{"submit,runtime\n0,1\n", "1x1", "fastest", []string{`"fastest"`, "easy-tsafrir", "fgd"}},
		{"; a comment\n1 0 0 10 1 -1 -1 1 10 -1 1 1 1 1 1 1 -1\n", "1x1", "", []string{":2: 17 columns"}},
		{"1 0 0 ten 1 -1 -1 1 10 -1 1 1 1 1 1 1 -1 -1\n", "1x1", "", []string{":1: column 4 (run time)", `"ten"`}},
		{"; only a comment\n", "1x1", "", []string{"no job in it"}},
		{"; a\n1 0 0 -1 1 -1 -1 1 10 -1 1 1 1 1 1 1 -1 -1\n", "1x1", "", []string{"no job in it"}},
		{"1 0 0 NaN 1 -1 -1 1 10 -1 1 1 1 1 1 1 -1 -1\n", "1x1", "", []string{":1: column 4 (run time)", "not a number"}},
		{"1 1e12 0 1 1 -1 -1 1 10 -1 1 1 1 1 1 1 -1 -1\n", "1x1", "", []string{":1: column 2 (submit time)", "too large"}},
		{"[{\"JobID\": 5}]", "1x1", "", []string{"JobID"}},
		{"[]", "1x1", "", []string{"no record"}},
	} {
		t.Run(strings.Join(c.want, " "), func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "trace")
			if err := os.WriteFile(name, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			format := ""
			if strings.HasPrefix(c.text, "1 ") || strings.HasPrefix(c.text, ";") {
				format = "csv" // a plain log on a cluster of nodes
			}
			_, err := Run(context.Background(), &Options{Trace: name, Format: format, Nodes: c.nodes, Policies: []string{c.policy}})
			if err == nil {
				t.Errorf("%q on %q under %q is accepted", c.text, c.nodes, c.policy)
				return
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q: %v; want %q in it", c.text, err, w)
				}
			}
		})
	}
	if _, err := Run(context.Background(), &Options{Trace: filepath.Join(t.TempDir(), "none"), Nodes: "1x1"}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a missing file: %v", err)
	}
	for spec, want := range map[string]Machine{
		"8x8":                                 {Count: 8, GPUs: 8, Model: "GPU", GPUMiB: 80 << 10, CPU: 192_000, MemoryMiB: 2 << 20},
		"1000x8xH100-80GiB":                   {Count: 1000, GPUs: 8, Model: "H100", GPUMiB: 80 << 10, CPU: 192_000, MemoryMiB: 2 << 20},
		"2x4xA100-SXM4-40GiB/cpu=96/mem=1TiB": {Count: 2, GPUs: 4, Model: "A100-SXM4", GPUMiB: 40 << 10, CPU: 96_000, MemoryMiB: 1 << 20},
		"3x0/cpu=64":                          {Count: 3, Model: "GPU", GPUMiB: 80 << 10, CPU: 64_000, MemoryMiB: 2 << 20},
	} {
		got, err := ParseNodes(spec)
		if err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s: %+v, %v; want %+v", spec, got, err, want)
		}
	}
	if got, err := ParseNodes("1x8+2x4xL4-24GB"); err != nil || len(BuildNodes(got)) != 3 || got[1].GPUMiB != 22888 {
		t.Errorf("two kinds: %+v, %v", got, err)
	}
}
