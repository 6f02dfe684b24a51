package nodes

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/structs"
)

// slowLog applies one entry after the other and takes each for every observation in it.
type slowLog struct {
	each     time.Duration
	refusing structs.AllocID // an entry with it is refused

	mu      sync.Mutex
	queue   []*slowEntry
	busy    bool
	entries [][]structs.AllocObserved // in the order of the log
	most    int                       // observations in the log at a time
	waiting int
}

type slowEntry struct {
	updates []structs.AllocObserved
	done    chan struct{}
	err     error
}

func (e *slowEntry) Done() <-chan struct{}           { return e.done }
func (e *slowEntry) Result() (structs.Result, error) { return structs.Result{Index: 7}, e.err }

func (l *slowLog) propose(cmd structs.Command) Proposed {
	e := &slowEntry{updates: cmd.Body.(*structs.AllocObservedCommand).Updates, done: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e.updates)
	l.queue = append(l.queue, e)
	l.waiting += len(e.updates)
	l.most = max(l.most, l.waiting)
	if !l.busy {
		l.busy = true
		go l.run()
	}
	return e
}

func (l *slowLog) run() {
	for {
		l.mu.Lock()
		if len(l.queue) == 0 {
			l.busy = false
			l.mu.Unlock()
			return
		}
		e := l.queue[0]
		l.mu.Unlock()
		time.Sleep(l.each * time.Duration(len(e.updates)))
		for i := range e.updates {
			if e.updates[i].ID == l.refusing && !l.refusing.IsZero() {
				e.err = structs.Errorf(structs.CodeInvalid, "no such thing")
			}
		}
		l.mu.Lock()
		l.queue = l.queue[1:]
		l.waiting -= len(e.updates)
		l.mu.Unlock()
		close(e.done)
	}
}

// written returns how many observations of the entries there are, and the last one of each allocation.
func (l *slowLog) written() (n int, last map[structs.AllocID]structs.ClientStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last = map[structs.AllocID]structs.ClientStatus{}
	for _, e := range l.entries {
		n += len(e)
		for i := range e {
			last[e[i].ID] = e[i].Client
		}
	}
	return n, last
}

// testAlloc returns the ID of the i-th allocation of a node.
func testAlloc(node, i int) (id structs.AllocID) {
	id[0], id[1], id[2], id[3] = byte(node>>8), byte(node), byte(i), 1
	return id
}

func testReport(node int, number uint64, size int, status structs.ClientStatus, allocs ...int) Report {
	r := Report{Node: beatID(node), Number: number, Bytes: size * len(allocs)}
	for _, i := range allocs {
		r.Updates = append(r.Updates, structs.AllocObserved{ID: testAlloc(node, i), Client: status})
	}
	return r
}

// TestReportsThroughSlowLog: many agents report at once, more than the log takes within their patience. The log holds a
// bounded part of it, the line is bounded, and nothing is written twice. Those who are refused return spread out, and all
// of them are done in little more than the time that the log needs. In between, each allocation ends, which goes into the
// report that waits.
func TestReportsThroughSlowLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const agents, allocs, size = 2000, 20, 250
		log := &slowLog{each: 2 * time.Millisecond}
		o := NewObservations(log.propose)
		began := time.Now()
		var refused, timeouts atomic.Int64
		var wg sync.WaitGroup
		for node := range agents {
			wg.Add(1)
			go func() {
				defer wg.Done()
				all := make([]int, allocs)
				for i := range all {
					all[i] = i
				}
				for number, done := uint64(1), false; !done; number++ {
					status := structs.ClientRunning
					if time.Since(began) > time.Second {
						status = structs.ClientComplete
					}
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
					_, err := o.Add(ctx, testReport(node, number, size, status, all...))
					cancel()
					switch again := structs.RetryAfter(err); {
					case err == nil:
						done = status == structs.ClientComplete
						time.Sleep(50 * time.Millisecond)
					case structs.CodeOf(err) == structs.CodeBusy:
						refused.Add(1)
						if again < againMin || again > againMax {
							t.Errorf("a refused agent is to return after %s; want %s to %s", again, againMin, againMax)
						}
						time.Sleep(again)
					default:
						timeouts.Add(1)
					}
				}
			}()
		}
		stop := make(chan struct{})
		go func() {
			wg.Wait()
			close(stop)
		}()
		for running := true; running; {
			select {
			case <-stop:
				running = false
			case <-time.After(100 * time.Millisecond):
			}
			if n := o.Metrics().Waiting; n > lineMax+flightMax+entryMax {
				t.Fatalf("%d bytes wait", n)
			}
		}
		took := time.Since(began)
		n, last := log.written()
		for id, status := range last {
			if status != structs.ClientComplete {
				t.Errorf("allocation %s is %s at the end", id, status)
			}
		}
		need := time.Duration(agents*allocs) * log.each
		t.Logf("%s for what takes the log %s; %d observations of %d allocations in %d entries, %d refusals, %d timeouts, %d superseded",
			took, need, n, len(last), len(log.entries), refused.Load(), timeouts.Load(), o.Metrics().Superseded)
		if len(last) != agents*allocs {
			t.Errorf("%d allocations were reported, of %d", len(last), agents*allocs)
		}
		if n > agents*allocs*5/4 {
			t.Errorf("%d observations were written of %d allocations that changed once or twice; want at most a quarter more than one of each", n, agents*allocs)
		}
		if most := (speedStart + entryMax) / size; log.most > most {
			t.Errorf("%d observations were in the log at a time; want at most %d", log.most, most)
		}
		if took > need*2 {
			t.Errorf("it took %s, and the log needs %s", took, need)
		}
		if timeouts.Load() > 0 || refused.Load() == 0 || refused.Load() > 20*agents {
			t.Errorf("%d refusals and %d reports whose patience ended", refused.Load(), timeouts.Load())
		}
	})
}

// TestLaterReportSupersedes: what waits of a node is replaced by a later report, both callers get their answer, and a report
// that was overtaken is not recorded.
func TestLaterReportSupersedes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &slowLog{each: time.Second}
		o := NewObservations(log.propose)
		results := make(chan error, 10)
		add := func(r Report) {
			go func() { _, err := o.Add(t.Context(), r); results <- err }()
			synctest.Wait()
		}
		for node := range 9 { // the log is full, and the tenth waits
			add(testReport(100+node, 1, entryMax, structs.ClientRunning, 1))
		}
		add(testReport(1, 1, 100, structs.ClientRunning, 1, 2))
		add(testReport(1, 3, 100, structs.ClientComplete, 2, 3))
		if _, err := o.Add(t.Context(), testReport(1, 2, 100, structs.ClientRunning, 2)); structs.CodeOf(err) != structs.CodeConflict {
			t.Errorf("an overtaken report: %v", err)
		}
		restarted := testReport(1, 1, 100, structs.ClientComplete, 1)
		restarted.Start = structs.StartID{9}
		add(restarted)
		for range 12 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		n, last := log.written()
		if n != 9+3 || last[testAlloc(1, 1)] != structs.ClientComplete || last[testAlloc(1, 2)] != structs.ClientComplete {
			t.Errorf("%d observations were written; allocation 1 is %s, 2 is %s", n, last[testAlloc(1, 1)], last[testAlloc(1, 2)])
		}
		if m := o.Metrics(); m.Waiting != 0 || m.Superseded != 2 {
			t.Errorf("%+v", m)
		}
	})
}

// TestBadReportFailsAlone: the log refuses a whole entry for one observation. Other nodes' reports in it are recorded.
func TestBadReportFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &slowLog{each: time.Millisecond, refusing: testAlloc(3, 1)}
		o := NewObservations(log.propose)
		var wg sync.WaitGroup
		for node := range 5 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				_, err := o.Add(t.Context(), testReport(node, 1, 100, structs.ClientRunning, 1))
				if want := node == 3; (structs.CodeOf(err) == structs.CodeInvalid && err != nil) != want {
					t.Errorf("node %d: %v", node, err)
				}
			}()
		}
		wg.Wait()
		if len(log.entries) != 6 {
			t.Errorf("%d entries; want one of all, and then one of each", len(log.entries))
		}
	})
}

// TestLargeReportIsSplit: a report larger than an entry is answered when all of it is applied.
func TestLargeReportIsSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &slowLog{each: time.Millisecond}
		o := NewObservations(log.propose)
		all := make([]int, 200)
		for i := range all {
			all[i] = i
		}
		if _, err := o.Add(t.Context(), testReport(1, 1, 5000, structs.ClientRunning, all...)); err != nil {
			t.Fatal(err)
		}
		n, last := log.written()
		if n != 200 || len(last) != 200 || len(log.entries) < 200*5000/entryMax {
			t.Errorf("%d observations of %d allocations in %d entries", n, len(last), len(log.entries))
		}
		for _, e := range log.entries {
			if len(e)*5000 > entryMax {
				t.Errorf("an entry of %s", fmt.Sprint(len(e)))
			}
		}
	})
}
