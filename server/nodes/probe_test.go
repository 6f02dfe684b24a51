package nodes

import (
	"context"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestJudge: only agreement about silence is a verdict, and any other sign outweighs it.
func TestJudge(t *testing.T) {
	for _, x := range []struct {
		seen  []Sign
		alone bool
		want  Sign
	}{
		{[]Sign{SignSilent, SignSilent, SignSilent}, false, SignSilent},
		{[]Sign{SignSilent, SignSilent, SignUnsure}, false, SignSilent},
		{[]Sign{SignSilent, SignUnsure, SignUnsure}, false, SignUnsure}, // no second witness
		{[]Sign{SignUnsure, SignSilent, SignSilent}, false, SignUnsure}, // the leader itself was late
		{[]Sign{SignSilent, SignSilent, SignAlive}, false, SignAlive},
		{[]Sign{SignSilent, SignListens, SignSilent}, false, SignListens},
		{[]Sign{SignSilent, SignEnded, SignSilent}, false, SignEnded},
		{[]Sign{SignEnded, SignAlive}, false, SignAlive},
		{[]Sign{SignEnded, SignListens}, false, SignListens},
		{[]Sign{SignSilent}, false, SignUnsure},
		{[]Sign{SignSilent}, true, SignSilent},
		{[]Sign{SignUnsure}, true, SignUnsure},
	} {
		if got := judge(x.seen, x.alone); got != x.want {
			t.Errorf("%v, alone %v: %s, want %s", x.seen, x.alone, got, x.want)
		}
	}
}

// field is a network of addresses that a Prober dials.
type field struct {
	mu    sync.Mutex
	off   map[string]error // the error of a connection; nil: it never answers
	dials map[string]int
}

func (f *field) dial(ctx context.Context, addr string) (net.Conn, error) {
	f.mu.Lock()
	f.dials[addr]++
	err, off := f.off[addr]
	f.mu.Unlock()
	switch {
	case !off:
		a, b := net.Pipe()
		b.Close()
		return a, nil
	case err != nil:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
	<-ctx.Done()
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
}

func (f *field) set(addr string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.off[addr] = err
}

func address(id structs.NodeID) string { return id.String() + ":4648" }

// prober returns a Prober of a server that does not lead. reports counts what it reports to the leader.
func prober(f *field, reports func(structs.NodeID)) *Prober {
	return NewProber(ProbeEnvironment{
		Log: hclog.NewNullLogger(), Now: time.Now, Sessions: NewSessions(), Beats: NewHeartbeats(Environment{Now: time.Now}),
		IsLeader: func() bool { return false }, Dial: f.dial, Address: address,
		Lost:    func(structs.NodeID) bool { return false },
		Members: func() []structs.NodeID { return nil }, Others: func() []string { return nil },
		Ask:    func(context.Context, string, structs.NodeID) (Sign, error) { return SignUnsure, nil },
		Report: func(_ context.Context, id structs.NodeID) error { reports(id); return nil },
	})
}

func newField() *field { return &field{off: map[string]error{}, dials: map[string]int{}} }

// TestLook: what a server sees of an address, and that it trusts silence only where it has been answered before and when
// it was not late itself.
func TestLook(t *testing.T) {
	for _, x := range []struct {
		name    string
		reached bool
		off     bool
		err     error
		late    time.Duration
		want    Sign
	}{
		{"listens", true, false, nil, 0, SignListens},
		{"refused", true, true, syscall.ECONNREFUSED, 0, SignEnded},
		{"refused, late here", true, true, syscall.ECONNREFUSED, time.Second, SignEnded},
		{"silent", true, true, nil, 0, SignSilent},
		{"no route", true, true, syscall.EHOSTUNREACH, 0, SignSilent},
		{"silent from the start, as behind a firewall", false, true, nil, 0, SignUnsure},
		{"silent, late here", true, true, nil, probeLate, SignUnsure},
		{"no network here", true, true, syscall.ENETUNREACH, 0, SignUnsure},
		{"no descriptors here", true, true, syscall.EMFILE, 0, SignUnsure},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, id := newField(), beatID(1)
				p := prober(f, nil)
				p.lateness = func() *lateness {
					l := newLateness()
					l.max = x.late
					return l
				}
				if x.reached {
					if s := p.Look(t.Context(), id); s != SignListens {
						t.Fatalf("the first look: %s", s)
					}
				}
				if x.off {
					f.set(address(id), x.err)
				}
				began := time.Now()
				if got := p.Look(t.Context(), id); got != x.want {
					t.Errorf("%s, want %s", got, x.want)
				}
				if took := time.Since(began); took > probeTime {
					t.Errorf("a look took %s", took)
				}
				f.mu.Lock()
				defer f.mu.Unlock()
				if x.want == SignSilent && f.dials[address(id)] < 5 {
					t.Errorf("%d attempts: a lost packet would look like a lost machine", f.dials[address(id)])
				}
			})
		})
	}
}

// TestLateness: a process that does not run sees itself late.
func TestLateness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLateness()
		defer l.stop()
		time.Sleep(time.Second)
		if m := l.most(); m >= probeStep {
			t.Errorf("a process that runs is late by %s", m)
		}
		l.mu.Lock()
		l.at = l.at.Add(-time.Second) // the timer should have fired long ago
		l.mu.Unlock()
		if m := l.most(); m < 900*time.Millisecond {
			t.Errorf("a process whose timer is due since 1 s is late by %s", m)
		}
	})
}

// TestDoubtIsLimited: doubt about everything at once is followed at the rate of probes, each node once, and a node that
// stays in doubt is not probed again at once.
func TestDoubtIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		at := map[structs.NodeID][]time.Time{}
		p := prober(newField(), func(id structs.NodeID) {
			mu.Lock()
			defer mu.Unlock()
			at[id] = append(at[id], time.Now())
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go p.Run(ctx)
		const fleet = 1000
		began := time.Now()
		for time.Since(began) < 20*time.Second {
			for i := range fleet {
				p.Doubt(beatID(i))
			}
			time.Sleep(100 * time.Millisecond)
		}
		cancel()
		synctest.Wait()
		total, all := 0, 0
		for id, list := range at {
			all++
			total += len(list)
			for i := 1; i < len(list); i++ {
				if gap := list[i].Sub(list[i-1]); gap < probeGap {
					t.Errorf("node %s was followed twice within %s", id, gap)
				}
			}
		}
		if most := probeRateMax*20 + probeRateMax; total > most || total < most/2 {
			t.Errorf("%d doubts were followed in 20 s, want at most %d", total, most)
		}
		if all != fleet {
			t.Errorf("%d of %d nodes were followed at all", all, fleet)
		}
	})
}

// TestDoubtAboutLostNodes: the silent sessions of nodes that are down raise doubt again and again. It takes no probe from others.
func TestDoubtAboutLostNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lost = 1000
		var mu sync.Mutex
		var followed []structs.NodeID
		p := prober(newField(), func(id structs.NodeID) {
			mu.Lock()
			defer mu.Unlock()
			followed = append(followed, id)
		})
		down := map[structs.NodeID]bool{}
		for i := range lost {
			down[beatID(i)] = true
		}
		p.env.Lost = func(id structs.NodeID) bool { return down[id] }
		for i := range lost + 1 {
			p.Doubt(beatID(i))
		}
		ctx, cancel := context.WithCancel(t.Context())
		go p.Run(ctx)
		synctest.Wait()
		cancel()
		if len(followed) != 1 || down[followed[0]] {
			t.Errorf("%d doubts were followed, want that about the node that is not down", len(followed))
		}
	})
}

// TestSessionEndIsDoubt: the end of a node's session raises doubt, unless it has another session here.
func TestSessionEndIsDoubt(t *testing.T) {
	var lost []structs.NodeID
	s := NewSessions()
	s.lost = func(id structs.NodeID) { lost = append(lost, id) }
	s.ended(beatID(1), nil)
	if len(lost) != 0 {
		t.Errorf("doubt about a node that has no session: %v", lost)
	}
	var sess rpc.Session
	s.byID[beatID(1)] = &sess
	s.ended(beatID(1), &rpc.Session{})
	if len(lost) != 0 || s.byID[beatID(1)] == nil {
		t.Errorf("doubt about a node that has a newer session: %v", lost)
	}
	s.ended(beatID(1), &sess)
	if len(lost) != 1 || s.byID[beatID(1)] != nil {
		t.Errorf("the end of a node's session raised no doubt: %v", lost)
	}
}
