package raftlog

import (
	"strings"
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
