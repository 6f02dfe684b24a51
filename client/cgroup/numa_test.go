package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestMemoryNodes reads a machine of three NUMA nodes, one of which is memory alone.
func TestMemoryNodes(t *testing.T) {
	sys := t.TempDir()
	write := func(path, text string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(sys, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sys, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("node0/cpulist", "0-3,8-11\n")
	if got := memoryNodes(sys, []int{0}); got != nil {
		t.Errorf("a machine with one: %v", got)
	}
	write("node1/cpulist", "4-7,12-15\n")
	write("node10/cpulist", "\n")
	for _, c := range []struct{ cores, want []int }{
		{[]int{0, 9}, []int{0}}, {[]int{15, 4}, []int{1}}, {[]int{3, 4}, []int{0, 1}}, {[]int{99}, nil}, {nil, nil},
	} {
		t.Run(fmt.Sprint(c.cores), func(t *testing.T) {
			if got := memoryNodes(sys, c.cores); !slices.Equal(got, c.want) {
				t.Errorf("cores %v: %v, want %v", c.cores, got, c.want)
			}
		})
	}
}

// TestMems writes the memory nodes of a task into directories that stand for a cpuset of either version. Version 1 takes
// only what the parent has.
func TestMems(t *testing.T) {
	m := &Manager{Layout: Layout{V2: t.TempDir(), V2Controllers: []string{"cpuset"}}, scope: "s"}
	if err := os.MkdirAll(m.dir(m.Layout.V2), 0o755); err != nil {
		t.Fatal(err)
	}
	mems := func(g Group) string {
		b, err := os.ReadFile(g.path("cpuset", "cpuset.mems", "cpuset.mems"))
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
		return string(b)
	}
	g, err := m.Create("a", Limits{Cores: []int{4, 5}, Mems: []int{1}})
	if err != nil {
		t.Fatal(err)
	}
	if got := mems(g); got != "1" {
		t.Errorf("version 2: %q", got)
	}
	m = &Manager{Layout: Layout{V1: map[string]string{"cpuset": t.TempDir(), "pids": t.TempDir()}}, scope: "s"}
	for _, p := range m.Layout.V1 {
		if err := os.MkdirAll(m.dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(m.dir(m.Layout.V1["cpuset"]), "cpuset.mems"), []byte("0-1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		mems []int
		want string
	}{"one": {[]int{1}, "1"}, "none": {nil, "0-1\n"}, "foreign": {[]int{3}, "0-1\n"}} {
		g, err := m.Create(name, Limits{Cores: []int{4, 5}, Mems: c.mems})
		if err != nil {
			t.Fatal(err)
		}
		if got := mems(g); got != c.want {
			t.Errorf("version 1, %s: %q, want %q", name, got, c.want)
		}
	}
}
