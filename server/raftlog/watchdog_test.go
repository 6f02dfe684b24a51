package raftlog

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// hangingStore is a log store whose disk hangs.
type hangingStore struct {
	raft.LogStore
	hang chan struct{}
}

func (h hangingStore) StoreLogs([]*raft.Log) error { <-h.hang; return nil }

func TestHungDiskEndsTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		exited := make(chan string, 1)
		w := Watch(hangingStore{raft.NewInmemStore(), hang}, new(Health), 5*time.Second, func(why string) { exited <- why })
		began := time.Now()
		done := make(chan error, 1)
		go func() { done <- w.StoreLogs([]*raft.Log{{Index: 1}}) }()
		why := <-exited
		if took := time.Since(began); took != 5*time.Second || !strings.Contains(why, "hangs") {
			t.Errorf("exit after %s: %s", took, why)
		}
		close(hang)
		<-done
		ok := &watchdog{LogStore: raft.NewInmemStore(), health: new(Health), limit: 5 * time.Second, exit: func(why string) { t.Error("exit although the disk is well: " + why) }}
		if err := ok.StoreLogs([]*raft.Log{{Index: 1}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
	})
}

// syncingStore is a log store whose writes are system calls that block for 20 ms each, as syncs of a healthy disk do.
type syncingStore struct {
	raft.LogStore
	calls int
}

func (s syncingStore) StoreLogs([]*raft.Log) error {
	for range s.calls {
		ts := syscall.NsecToTimespec(int64(20 * time.Millisecond))
		for syscall.Nanosleep(&ts, &ts) == syscall.EINTR {
		}
	}
	return nil
}

// TestStarvedProcessGoesOn: the disk is well, but many goroutines are ready to run, so that each system call of a write waits
// for its turn for longer than the limit. That does not end the process.
func TestStarvedProcessGoesOn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const limit, turn = 200 * time.Millisecond, 5 * time.Millisecond
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 100 { // a round takes 500 ms
		wg.Add(1)
		go func() {
			defer wg.Done()
			for !stop.Load() {
				for began := time.Now(); time.Since(began) < turn && !stop.Load(); {
				}
				runtime.Gosched()
			}
		}()
	}
	var why atomic.Pointer[string]
	w := Watch(syncingStore{raft.NewInmemStore(), 3}, new(Health), limit, func(s string) { why.CompareAndSwap(nil, &s) })
	began := time.Now()
	err := w.StoreLogs([]*raft.Log{{Index: 1}})
	took := time.Since(began)
	stop.Store(true)
	wg.Wait()
	if err != nil || took < 2*limit {
		t.Fatalf("a write of the starved process: %v after %s, which tests nothing", err, took)
	}
	if s := why.Load(); s != nil {
		t.Errorf("the process ended after a write that took %s: %s", took, *s)
	}
}

// TestStoppedProcessGoesOn: a process that was stopped (SIGSTOP) for longer than the limit in the middle of a write continues.
func TestStoppedProcessGoesOn(t *testing.T) {
	const limit = 250 * time.Millisecond
	if os.Getenv("RAFTLOG_STOPPED") != "" {
		w := Watch(syncingStore{raft.NewInmemStore(), 5}, new(Health), limit, func(why string) { fmt.Println("exit:", why); os.Exit(3) })
		fmt.Println("begun")
		if err := w.StoreLogs([]*raft.Log{{Index: 1}}); err != nil {
			t.Fatal(err)
		}
		return
	}
	c := exec.Command(os.Args[0], "-test.run", "^TestStoppedProcessGoesOn$")
	c.Env = append(os.Environ(), "RAFTLOG_STOPPED=1")
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	if line, err := r.ReadString('\n'); line != "begun\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(3 * limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if c.Process.Signal(syscall.Signal(0)) != nil {
			t.Fatal("the stopped process ended")
		}
	}
	if err := c.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(r)
	if err := c.Wait(); err != nil {
		t.Errorf("%v: %s", err, rest)
	}
}

// sickStable fails some of its calls.
type sickStable struct {
	raft.StableStore
	fails int
}

func (s *sickStable) SetUint64(key []byte, n uint64) error {
	if s.fails--; s.fails >= 0 {
		return errPower
	}
	return s.StableStore.SetUint64(key, n)
}

func TestTermIsStoredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var exits int
		p := patient{&sickStable{raft.NewInmemStore(), 20}, new(Health), 5 * time.Second, func(string) { exits++ }}
		if err := p.SetUint64([]byte("CurrentTerm"), 4); err != nil || exits > 0 {
			t.Errorf("%v, %d exits, after the disk was well again", err, exits)
		}
		p.StableStore.(*sickStable).fails = 1 << 30
		if err := p.SetUint64([]byte("CurrentTerm"), 5); err == nil || exits != 1 {
			t.Errorf("%v, %d exits; want one, as the disk stays ill", err, exits)
		}
	})
}
