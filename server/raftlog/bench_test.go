package raftlog

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// The batch of the benchmarks: what a busy server stores at once.
const (
	benchBatch = 6
	benchEntry = 600 // bytes
)

func processorTime() (us float64) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3
}

// writtenBytes returns how many bytes this process has sent to disks.
func writtenBytes() (n float64) {
	b, _ := os.ReadFile("/proc/self/io")
	for _, line := range strings.Split(string(b), "\n") {
		fmt.Sscanf(line, "write_bytes: %f", &n)
	}
	return n
}

func benchOptions(b *testing.B, f func(b *testing.B, o Options)) {
	for _, v := range variants {
		v.o.SegmentBytes = 0
		b.Run(v.name, func(b *testing.B) { f(b, v.o) })
	}
}

// BenchmarkAppend stores batches with a sync each, and removes the head as after a snapshot.
func BenchmarkAppend(b *testing.B) {
	benchOptions(b, func(b *testing.B, o Options) {
		l, err := Open(b.TempDir(), o, hclog.NewNullLogger())
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		data, next, first := bytes.Repeat([]byte("entry "), benchEntry/6), uint64(1), uint64(1)
		b.ResetTimer()
		cpu, written := processorTime(), writtenBytes()
		for range b.N {
			es := make([]*raft.Log, benchBatch)
			for i := range es {
				es[i] = &raft.Log{Index: next, Term: 1, Data: data}
				next++
			}
			if err := l.StoreLogs(es); err != nil {
				b.Fatal(err)
			}
			if next-first > 4096+1024 {
				if err := l.DeleteRange(first, next-1024); err != nil {
					b.Fatal(err)
				}
				first = next - 1023
			}
		}
		n := float64(b.N)
		b.ReportMetric(n*benchBatch/b.Elapsed().Seconds(), "entries/s")
		b.ReportMetric((processorTime()-cpu)/n, "cpu-us/batch")
		b.ReportMetric((writtenBytes()-written)/n, "disk-B/batch")
	})
}

// BenchmarkOpen opens a log of 100,000 entries and reads all of it, as a server does at its start.
func BenchmarkOpen(b *testing.B) {
	benchOptions(b, func(b *testing.B, o Options) {
		dir := b.TempDir()
		l, err := Open(dir, o, hclog.NewNullLogger())
		if err != nil {
			b.Fatal(err)
		}
		data, next := bytes.Repeat([]byte("entry "), benchEntry/6), uint64(1)
		for range 100 {
			es := make([]*raft.Log, 1000)
			for i := range es {
				es[i] = &raft.Log{Index: next, Term: 1, Data: data}
				next++
			}
			if err := l.StoreLogs(es); err != nil {
				b.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
		size := 0.0
		filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
			if st, err := d.Info(); err == nil && d.Type().IsRegular() {
				size += float64(st.Size())
			}
			return err
		})
		b.ResetTimer()
		cpu := processorTime()
		for range b.N {
			l, err := Open(dir, o, hclog.NewNullLogger())
			if err != nil {
				b.Fatal(err)
			}
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric((processorTime()-cpu)/float64(b.N), "cpu-us/open")
		b.ReportMetric(size/100_000, "disk-B/entry")
	})
}
