package raftlog

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// childEnv makes this test program a child that the tests below kill: "append VARIANT DIR" or "migrate VARIANT DIR".
const childEnv = "MUSTER_RAFTLOG_CHILD"

func TestMain(m *testing.M) {
	if job := os.Getenv(childEnv); job != "" {
		if err := child(strings.Fields(job)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func child(args []string) error {
	var o Options
	for _, v := range variants {
		if v.name == args[1] {
			o = v.o
		}
	}
	if args[0] == "migrate" {
		_, err := Migrate(args[2], o, hclog.NewNullLogger(), nil)
		return err
	}
	l, err := Open(args[2], o, hclog.NewNullLogger())
	if err != nil {
		return err
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	term, err := l.GetUint64([]byte("CurrentTerm"))
	if err != nil {
		return err
	}
	for { // until killed; printed entries are acknowledged
		var es []*raft.Log
		for range 1 + last%5 {
			last++
			es = append(es, entryOf(last, killSize))
		}
		if err := l.StoreLogs(es); err != nil {
			return err
		}
		if last%7 == 0 {
			term++
			if err := l.SetUint64([]byte("CurrentTerm"), term); err != nil {
				return err
			}
		}
		fmt.Println(last, term)
		if last > 50 && last%11 == 0 { // replace the end, as a follower of a new leader does
			last--
			fmt.Println(last, term)
			if err := l.DeleteRange(last+1, last+1); err != nil {
				return err
			}
			if err := l.StoreLogs([]*raft.Log{entryOf(last+1, killSize)}); err != nil {
				return err
			}
			last++
		}
	}
}

const killSize = 300

func startChild(t *testing.T, job string, args ...any) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+fmt.Sprintf(job, args...))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

// TestKill: a process that is killed again and again while it writes loses no entry and no term that it had
// acknowledged.
func TestKill(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			dir := memoryDir(t) // a killed process leaves the same files on any file system
			rnd := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
			var last, term uint64
			for round := range 12 {
				cmd, out := startChild(t, "append %s %s", v.name, dir)
				lines := bufio.NewScanner(out)
				for n := rnd.IntN(60); n >= 0 && lines.Scan(); n-- {
					f := strings.Fields(lines.Text())
					last, _ = strconv.ParseUint(f[0], 10, 64)
					term, _ = strconv.ParseUint(f[1], 10, 64)
				}
				time.Sleep(time.Duration(rnd.IntN(3000)) * time.Microsecond)
				cmd.Process.Kill()
				for lines.Scan() { // what it acknowledged before it died
					if f := strings.Fields(lines.Text()); len(f) == 2 {
						last, _ = strconv.ParseUint(f[0], 10, 64)
						term, _ = strconv.ParseUint(f[1], 10, 64)
					}
				}
				cmd.Wait()
				l := mustOpen(t, dir, v.o)
				have, err := l.LastIndex()
				if err != nil || have < last {
					t.Fatalf("round %d: entries to %d, %v; %d was acknowledged", round, have, err, last)
				}
				if err := wantEntries(l, killSize, have); err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				if n, err := l.GetUint64([]byte("CurrentTerm")); n < term || err != nil {
					t.Fatalf("round %d: term %d, %v; %d was acknowledged", round, n, err, term)
				}
				mustClose(t, l)
			}
			if last < 50 {
				t.Errorf("%d entries were written: the test kills too early", last)
			}
		})
	}
}

// TestKilledMigration: a migration that is killed at any instant, and repeated until it succeeds, loses nothing.
func TestKilledMigration(t *testing.T) {
	eachDirection(t, func(t *testing.T, from, to Options) {
		const entries, size = 4000, 1000
		data := written(t, from, entries, size)
		begin := time.Now()
		cmd, _ := startChild(t, "migrate %s %s", to.Backend, data)
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		whole := time.Since(begin)
		rnd, ended := rand.New(rand.NewPCG(uint64(begin.UnixNano()), 2)), 0
		rounds := 10
		if testing.Short() {
			rounds = 4
		}
		for round := range rounds {
			o := []Options{from, to}[round%2]
			cmd, _ := startChild(t, "migrate %s %s", o.Backend, data)
			time.Sleep(time.Duration(rnd.Int64N(int64(whole))))
			cmd.Process.Kill()
			if cmd.Wait() == nil {
				ended++
			}
			if _, err := Migrate(data, o, hclog.NewNullLogger(), nil); err != nil {
				t.Fatalf("round %d: repeated: %v", round, err)
			}
			wantWritten(t, data, o, entries, size)
		}
		t.Logf("a migration takes %s; %d of %d ended before they were killed", whole.Round(time.Millisecond), ended, rounds)
		if ended == rounds {
			t.Error("no migration was killed in the middle")
		}
	})
}
