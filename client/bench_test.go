package client

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/driver/fake"
	"github.com/muster-sched/muster/client/fingerprint"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// BenchmarkStart reports the processor time and the memory that an agent without a disk spends on an allocation of the
// fake driver, from the encoded answer to its poll to the encoded report that it runs. Sockets are not in it. The answers
// have one allocation of one job each, or 30 of the same.
func BenchmarkStart(b *testing.B) {
	for _, per := range []int{1, 30} {
		b.Run(fmt.Sprintf("per=%d", per), func(b *testing.B) {
			const total = 600
			var took time.Duration
			var bytes, objects uint64
			for b.Loop() {
				c, n := newStartBench(b, per, total)
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				began := processorTime()
				close(n.begin)
				<-n.running
				took += processorTime() - began
				runtime.ReadMemStats(&after)
				bytes, objects = bytes+after.TotalAlloc-before.TotalAlloc, objects+after.Mallocs-before.Mallocs
				c.Close()
			}
			allocs := float64(total * b.N)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(took.Nanoseconds())/1e3/allocs, "cpu-us/alloc")
			b.ReportMetric(float64(bytes)/allocs, "B/alloc")
			b.ReportMetric(float64(objects)/allocs, "objects/alloc")
		})
	}
}

// processorTime returns the processor time that this process has used, in all its threads.
func processorTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// startBench is a Conn to servers that answer polls with what was encoded before.
type startBench struct {
	begin   chan struct{} // closed when the answers may be given
	answers chan rpc.Raw  // to polls
	all     int           // allocations in all answers
	running chan struct{} // closed when all are reported as running
	mu      sync.Mutex    // guards seen
	seen    map[structs.AllocID]bool
}

// newStartBench runs an agent whose servers have total allocations for it, per of them in each answer. It returns when the
// agent polls.
func newStartBench(b *testing.B, per, total int) (*Client, *startBench) {
	b.Helper()
	n := &startBench{begin: make(chan struct{}), answers: make(chan rpc.Raw, total), all: total, running: make(chan struct{}), seen: map[structs.AllocID]bool{}}
	drivers := driver.NewSet(fake.New())
	c, err := New(Config{
		Storage: StorageConfig{Ephemeral: true},
		Host: HostConfig{Drivers: drivers, Fingerprinters: []fingerprint.Fingerprinter{{Name: "bench", Look: func(ctx context.Context, f *fingerprint.Facts) error {
			f.BootID = "bench"
			f.Resources = structs.NodeResources{CPU: 64_000, Cores: 32, MHzPerCore: 2000, MemoryMiB: 1 << 18, Networks: []structs.NodeNetwork{{IP: "10.0.0.7"}}}
			return fingerprint.Drivers(ctx, fingerprint.Options{Drivers: drivers}, f)
		}}}},
		Connect: func(*rpc.Registry) (Conn, error) { return n, nil },
	})
	if err != nil {
		b.Fatal(err)
	}
	index := structs.Index(100)
	for i := 0; i < total; i += per {
		index++
		resp := &methods.NodePollResponse{Cluster: structs.ClusterID{1}, StateIndex: index, Partial: i > 0, Known: uint64(i)}
		resp.Index = index
		job := startJob(i)
		resp.Jobs = []*structs.Job{job}
		for k := i; k < i+per; k++ {
			a := &structs.Allocation{
				ID: structs.AllocID{1, byte(k), byte(k >> 8)}, EvalID: structs.EvalID{2, byte(i), byte(i >> 8)}, Namespace: job.Namespace, JobID: job.ID, Group: "g", NameIndex: k - i,
				NodeID: c.ID(), NodeName: "sim-7", Resources: structs.Vector{CPU: 1, MemoryMiB: 10, DiskMiB: 10}, Desired: structs.DesiredRun, Client: structs.ClientPending,
				CreateTime: 1795409592131910581, CreateIndex: index, AllocIndex: index, ModifyIndex: index, ModifyTime: 1795409592131910581,
			}
			resp.Changed = append(resp.Changed, a)
			resp.Refs = append(resp.Refs, methods.AllocRef{ID: a.ID, AllocIndex: index})
		}
		raw, err := rpc.Encode(resp)
		if err != nil {
			b.Fatal(err)
		}
		n.answers <- raw
	}
	go func() {
		if err := c.Run(context.Background()); err != nil {
			b.Error(err)
		}
	}()
	<-c.Joined()
	return c, n
}

// startJob is a job of the fake driver as servers store it.
func startJob(i int) *structs.Job {
	name := fmt.Sprintf("rate-%d", i)
	update := &structs.Update{Stagger: 30 * time.Second, MaxParallel: 1, HealthCheck: "checks", MinHealthyTime: 10 * time.Second, HealthyDeadline: 5 * time.Minute, ProgressDeadline: 10 * time.Minute}
	return &structs.Job{
		Namespace: "default", ID: name, Name: name, Region: "global", Type: structs.JobService, Priority: 50, Datacenters: []string{"*"}, NodePool: "default",
		Groups: []*structs.Group{{
			Name: "g", Count: 30, Update: update, Disk: structs.EphemeralDisk{SizeMiB: 10},
			Restart: structs.Restart{Attempts: 2, Interval: 30 * time.Minute, Delay: 15 * time.Second, Mode: "fail"},
			Tasks: []*structs.Task{{
				Name: "t", Driver: "fake", Config: []byte(`{"command":"sleep"}`), KillTimeout: 5 * time.Second, Logs: structs.LogConfig{MaxFiles: 1, MaxFileSizeMB: 1},
				Resources: structs.Resources{CPU: 1, MemoryMiB: 10},
			}},
		}},
		Update: update, SubmitTime: 1795409592131910581, CreateIndex: 100, ModifyIndex: 100, SpecIndex: 100,
	}
}

// Invoke implements rpc.Caller.
func (n *startBench) Invoke(ctx context.Context, h rpc.Header, req, resp any) error {
	switch r := resp.(type) {
	case *methods.NodeRegisterResponse:
		*r = methods.NodeRegisterResponse{Index: 50, HeartbeatTTL: time.Hour, Cluster: structs.ClusterID{1}}
	case *methods.NodeHeartbeatResponse:
		*r = methods.NodeHeartbeatResponse{Index: 50, HeartbeatTTL: time.Hour}
	case *methods.NodePollResponse:
		select {
		case <-n.begin:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case raw := <-n.answers:
			return rpc.Decode(raw, resp)
		case <-ctx.Done():
			return ctx.Err()
		}
	default:
		o, ok := req.(*methods.NodeObserveRequest)
		if !ok {
			return nil
		}
		if _, err := rpc.Encode(req); err != nil {
			return err
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		for i := range o.Updates {
			if u := &o.Updates[i]; u.Client == structs.ClientRunning && !n.seen[u.ID] {
				if n.seen[u.ID] = true; len(n.seen) == n.all {
					close(n.running)
				}
			}
		}
	}
	return nil
}

// InvokeRaw implements rpc.Caller.
func (*startBench) InvokeRaw(context.Context, rpc.Header, []byte) ([]byte, error) { return nil, nil }

// Open implements rpc.Caller.
func (*startBench) Open(context.Context, rpc.Header, any) (*rpc.Stream, error) {
	return nil, structs.Errorf(structs.CodeInvalid, "no streams here")
}

// SetServers, Failed and Close implement Conn.
func (*startBench) SetServers([]string) {}

func (*startBench) Failed(error) {}

func (*startBench) Close() error { return nil }
