package server

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/internal/memnet"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// benchCluster returns three servers in this process with logs on disk, and simulated nodes that exist only in the
// state.
func benchCluster(b *testing.B, nodes int) *Server {
	c := startBench(b, 3)
	var s *Server
	for end := time.Now().Add(20 * time.Second); s == nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for _, x := range c {
			if x.IsLeader() && x.Published().Snapshot.ClusterMeta() != nil {
				s = x
			}
		}
	}
	if s == nil {
		b.Fatal("no leader")
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	go func() {
		for pause(ctx, 3*time.Second) {
			for i := range nodes {
				s.nodes.Beats.Beat(testNode(i).ID)
			}
		}
	}()
	for i := range nodes {
		n := testNode(i)
		n.Resources.CPU, n.Resources.MemoryMiB, n.Resources.DiskMiB = 1<<30, 1<<30, 1<<30
		for _, cmd := range []structs.Command{
			{Body: &structs.NodeRegisterCommand{Node: n}},
			{Body: &structs.NodeStatusCommand{ID: n.ID, Status: structs.NodeReady}},
		} {
			if p := s.replica.Propose(replica.LanePriority, cmd); i == nodes-1 {
				if _, err := p.Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	return s
}

// BenchmarkSubmitToPlaced registers one job of one allocation on an idle cluster, from the call to the allocation in
// the state.
func BenchmarkSubmitToPlaced(b *testing.B) {
	s := benchCluster(b, 50)
	var took, acked []time.Duration
	for i := 0; b.Loop(); i++ {
		j := passJob(fmt.Sprint("job-", i), 1, nil)
		began := time.Now()
		p := s.decide.ProposeJob(replica.LaneUser, structs.Command{Body: &structs.JobRegisterCommand{Job: j, Eval: true}})
		if _, err := p.Wait(context.Background()); err != nil {
			b.Fatal(err)
		}
		acked = append(acked, time.Since(began))
		for len(s.Published().Snapshot.AllocsByJob(j.Key())) == 0 {
			time.Sleep(20 * time.Microsecond)
			if time.Since(began) > 5*time.Second {
				b.Fatalf("job %d is not placed: %+v", i, s.decide.Metrics())
			}
		}
		took = append(took, time.Since(began))
		time.Sleep(time.Millisecond) // idle again
	}
	slices.Sort(took)
	slices.Sort(acked)
	at := func(ds []time.Duration, p int) float64 {
		return float64(ds[min(len(ds)*p/100, len(ds)-1)].Microseconds()) / 1000
	}
	b.ReportMetric(at(acked, 50), "ms-acked-p50")
	b.ReportMetric(at(took, 50), "ms-placed-p50")
	b.ReportMetric(at(took, 99), "ms-placed-p99")
	b.ReportMetric(float64(s.decide.Metrics().Broker.Speculated)/float64(len(took)), "speculated")
}

// BenchmarkPlacements registers jobs from many concurrent callers. An operation is one job.
func BenchmarkPlacements(b *testing.B) {
	for _, count := range []int{1, 30} {
		b.Run(fmt.Sprintf("%d-a-job", count), func(b *testing.B) {
			s := benchCluster(b, 200)
			began := time.Now()
			var wg sync.WaitGroup
			work := make(chan int)
			for range 64 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for i := range work {
						j := passJob(fmt.Sprint("job-", i), count, nil)
						if _, err := s.apply(context.Background(), replica.LaneUser, structs.Command{Body: &structs.JobRegisterCommand{Job: j, Eval: true}}); err != nil {
							b.Error(err)
						}
					}
				}()
			}
			n := 0
			for ; b.Loop(); n++ {
				work <- n
			}
			close(work)
			wg.Wait()
			for end := time.Now().Add(30 * time.Second); s.Published().Snapshot.AllocCount() < n*count; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					b.Fatalf("%d of %d placed: %+v", s.Published().Snapshot.AllocCount(), n*count, s.decide.Metrics())
				}
			}
			f := s.decide.Metrics()
			b.ReportMetric(float64(n*count)/time.Since(began).Seconds(), "placements/s")
			entries := float64(max(f.Planner.Entries, 1))
			_, deciding := s.metrics.pass.Count()
			commits, committing := s.metrics.commit.Count()
			b.ReportMetric(float64(f.Planner.Plans)/entries, "plans/entry")
			b.ReportMetric(float64(f.Planner.DepthSum)/entries, "depth")
			b.ReportMetric(deciding*1e6/float64(max(f.Broker.Taken, 1)), "us-decide/job")
			b.ReportMetric(committing*1e3/float64(max(commits, 1)), "ms-commit")
		})
	}
}

// startBench starts servers over an in-memory network, in real time, with fsync.
func startBench(b *testing.B, n int) (list []*Server) {
	network := memnet.New()
	for i := range n {
		network.Host(hostName(i))
	}
	for i := range n {
		h := network.Host(hostName(i))
		l, err := h.Listen(4647)
		if err != nil {
			b.Fatal(err)
		}
		cfg := Config{Name: hostName(i), ID: fmt.Sprintf("00000000-0000-4000-8000-%012d", i+1), DataDir: b.TempDir(), BootstrapExpect: n,
			Logger: hclog.NewNullLogger(), Listeners: []net.Listener{l}, Dial: h.Dial}
		cfg.Gossip.Key = []byte("0123456789abcdef")
		for k := range n {
			if k != i {
				cfg.Gossip.RetryJoin = append(cfg.Gossip.RetryJoin, network.Host(hostName(k)).IP().String()+":4648")
			}
		}
		if cfg.Gossip.Transport, err = h.Gossip(4648); err != nil {
			b.Fatal(err)
		}
		s, err := New(cfg)
		if err != nil {
			b.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- s.Run(context.Background()) }()
		b.Cleanup(func() { s.Close(); <-done })
		list = append(list, s)
	}
	return list
}

// BenchmarkQueueList lists 10,000 waiting jobs of 50 users as `muster queue` does: under fcfs by the line alone, under fair with a
// forecast.
func BenchmarkQueueList(b *testing.B) {
	s := benchCluster(b, 100)
	apply := func(cmd structs.Command) {
		if _, err := s.replica.Propose(replica.LaneUser, cmd).Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	order := func(o structs.Order) {
		apply(structs.Command{Body: &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: structs.QueueRoot, Order: o, Backfill: structs.BackfillEASY}}}})
	}
	order(structs.OrderFair)
	for i := range 10_200 {
		j := passJob(fmt.Sprint("job-", i), 1, func(j *structs.Job) {
			j.Type, j.Runtime.Expected, j.Runtime.Limit = structs.JobBatch, time.Duration(10+i%50)*time.Minute, time.Hour
			j.Groups[0].Tasks[0].Resources.CPU = 1 << 29
			j.Submitter.Name = fmt.Sprint("user-", i%50)
		})
		p := s.decide.ProposeJob(replica.LaneUser, structs.Command{By: j.Submitter, Body: &structs.JobRegisterCommand{Job: j, Eval: true}})
		if i%100 == 99 {
			if _, err := p.Wait(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
	for end := time.Now().Add(time.Minute); s.decide.Metrics().InFlight > 0 && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
	}
	for _, o := range []structs.Order{structs.OrderFCFS, structs.OrderFair} {
		order(o)
		b.Run(string(o), func(b *testing.B) {
			spent, n := processTime(b), 0
			for b.Loop() {
				r, err := rpc.Invoke(b.Context(), s.Caller(rpc.Peer{}), methods.QueueList, rpc.Header{}, &methods.ListRequest{})
				if err != nil || len(r.Items) < 9_000 {
					b.Fatal(len(r.Items), err)
				}
				n++
			}
			b.ReportMetric(float64((processTime(b)-spent).Microseconds())/1000/float64(n), "cpu-ms")
		})
	}
}

// processTime returns the processor time that the process has used.
func processTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
