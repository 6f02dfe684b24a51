package duty_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/script"
	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/structs"
)

// TestScripts plays the scripts of testdata, each to the duty that its file is named after. An answer lists what the duty
// writes, at which time, and when it is due next. Commands:
//
//	load                     a new leader: the duty forgets everything and reads the state
//	advance D                time passes
//	down D                   for that long nothing can be written
//	node NAME...             ready nodes; down=NAME one misses its heartbeat
//	job ID ...               type= count= gang=MINIMUM timeout= max_run= deadline= periodic= no_overlap array= parallel= healthy=
//	                         tolerate=KEY[:DURATION] grace= env= update=MAX_PARALLEL progress= auto_revert attempts (no reschedules)
//	stop ID [purge]          deregisters a job
//	place ID NODE,... [count=] the scheduler places allocations, in turns on the nodes
//	decide ID                the scheduler has nothing more to do for a job
//	end ID [node=]           the scheduler stops them
//	client ID STATUS [node=] agents report a status
//	suspend ID, resume ID
//	drain NODE ...           deadline=D, force, ignore_system; undrain NODE; ineligible NODE
//	taint NODE KEY, untaint NODE KEY
//	reserve ID ...           nodes=A,B start=D end=D [maintenance]; unreserve ID
//	savers ...               limits on checkpoints: cluster=
//	limits ...               of collection: acct_age= acct_kept= ids=; a new leader has them
//	force                    a collection without ages
//	token D D                a token that expires then, and a one-time token of it that does
func TestScripts(t *testing.T) {
	script.Walk(t, "testdata", func(t *testing.T, path string) {
		name := strings.TrimSuffix(filepath.Base(path), ".txt")
		if builtin[name] == nil {
			t.Fatalf("%s: no duty has that name", path)
		}
		s := &scripted{world: newWorld(t, builtin[name]()), name: name}
		s.told = s.print
		script.Run(t, path, s.command)
	})
	if t.Failed() {
		return
	}
	for name := range builtin {
		if m, _ := filepath.Glob(filepath.Join("testdata", name+"*.txt")); len(m) == 0 {
			t.Errorf("duty %s has no script in testdata", name)
		}
	}
}

type scripted struct {
	*world
	name string
	out  strings.Builder
}

func since(t structs.LogTime) string { return "+" + t.Sub(began).String() }

func (s *scripted) print(c duty.Command, res structs.Result) {
	fmt.Fprintf(&s.out, "%s %s", since(s.now), s.text(c))
	if res.Err != nil {
		fmt.Fprintf(&s.out, " (refused: %s)", res.Err.Code)
	}
	s.out.WriteString("\n")
}

func (s *scripted) command(t *testing.T, c *script.Case) string {
	s.tb = t
	s.out.Reset()
	until := s.now
	switch c.Cmd {
	case "load":
		s.duty = builtin[s.name]()
		s.duty.Load(s.snap(), s.now)
	case "advance":
		until = s.now.Add(duration(t, c.Args[0].Key))
	case "down":
		s.down = s.now.Add(duration(t, c.Args[0].Key))
	case "limits":
		l := duty.DefaultCollectLimits
		l.AcctAge, l.AcctKept = duration(t, c.String("acct_age", "1000h")), int64(c.Int(t, "acct_kept", 1000))
		l.EntryIDs = c.Int(t, "ids", l.EntryIDs)
		s.duty = duty.NewCollect(l)
		s.duty.Load(s.snap(), s.now)
	case "force":
		s.duty.(duty.Forced).Force()
	default:
		s.change(t, c)
	}
	next := s.runUntil(until)
	switch {
	case next == 0:
		s.out.WriteString("next never")
	default:
		s.out.WriteString("next " + since(next))
	}
	return s.out.String()
}

// change applies a command that changes the state.
func (s *scripted) change(t *testing.T, c *script.Case) {
	arg := func(i int) string {
		if i >= len(c.Args) || c.Args[i].HasValue {
			t.Fatalf("%s: too few arguments", c.Pos)
		}
		return c.Args[i].Key
	}
	switch c.Cmd {
	case "node":
		for _, a := range c.Args {
			if a.Key == "down" {
				s.nodeStatus(a.Value, structs.NodeDown)
			} else {
				s.addNode(a.Key)
			}
		}
	case "job":
		s.register(s.jobOf(t, c))
	case "stop":
		s.apply(structs.Command{Body: &structs.JobDeregisterCommand{Namespace: "default", JobID: arg(0), Purge: c.Has("purge")}})
	case "place":
		s.place(arg(0), strings.Split(arg(1), ","), c.Int(t, "count", 1))
	case "decide":
		s.decide(arg(0))
	case "end":
		s.world.stop(arg(0), c.String("node", ""))
	case "client":
		s.observe(s.live(arg(0), c.String("node", "")), structs.ClientStatus(arg(1)))
	case "suspend", "resume":
		s.apply(structs.Command{Body: &structs.SuspendCommand{Namespace: "default", JobID: arg(0), Resume: c.Cmd == "resume"}})
	case "drain":
		d := &structs.DrainStrategy{Deadline: duration(t, c.String("deadline", "0s")), IgnoreSystemJobs: c.Has("ignore_system")}
		if c.Has("force") {
			d.Deadline = -1
		}
		s.apply(structs.Command{Body: &structs.NodeDrainCommand{ID: nodeID(arg(0)), Strategy: d}})
	case "undrain":
		s.apply(structs.Command{Body: &structs.NodeDrainCommand{ID: nodeID(arg(0)), MarkEligible: true}})
	case "ineligible":
		s.apply(structs.Command{Body: &structs.NodeEligibilityCommand{ID: nodeID(arg(0)), Eligibility: structs.NodeIneligible}})
	case "taint":
		s.apply(structs.Command{Body: &structs.NodeTaintCommand{ID: nodeID(arg(0)), Add: []structs.Taint{{Key: arg(1), Effect: structs.TaintNoExecute}}}})
	case "untaint":
		s.apply(structs.Command{Body: &structs.NodeTaintCommand{ID: nodeID(arg(0)), Remove: []structs.Taint{{Key: arg(1)}}}})
	case "reserve":
		r := &structs.Reservation{ID: arg(0), Domain: "default", Start: s.now.Add(duration(t, c.String("start", ""))), End: s.now.Add(duration(t, c.String("end", ""))), Maintenance: c.Has("maintenance")}
		for _, name := range strings.Split(c.String("nodes", ""), ",") {
			r.Nodes = append(r.Nodes, nodeID(name))
		}
		s.apply(structs.Command{Body: &structs.ReserveCommand{Reservations: []*structs.Reservation{r}}})
	case "unreserve":
		s.apply(structs.Command{Body: &structs.UnreserveCommand{IDs: []string{arg(0)}}})
	case "savers":
		cfg := &structs.SchedulerConfig{MaxCheckpoints: int64(c.Int(t, "cluster", 0))}
		s.apply(structs.Command{Body: &structs.SchedulerConfigCommand{Config: cfg}})
	case "token": // expires after the first duration, and has a one-time token that expires after the second
		tok := &structs.ACLToken{Type: "management", Accessor: structs.DeriveID[structs.AccessorID](structs.Seed{5}, "token", "", uint64(s.index)),
			Secret: structs.DeriveID[structs.SecretID](structs.Seed{5}, "token", "", uint64(s.index)), ExpirationTTL: int64(duration(t, arg(0)))}
		s.apply(structs.Command{Body: &structs.TokenUpsertCommand{Tokens: []*structs.ACLToken{tok}}})
		s.apply(structs.Command{Body: &structs.OneTimeUpsertCommand{Token: &structs.OneTimeToken{Secret: tok.Secret, Accessor: tok.Accessor, ExpiresAt: s.now.Add(duration(t, arg(1)))}}})
	default:
		t.Fatalf("%s: no command %q", c.Pos, c.Cmd)
	}
}

func (s *scripted) jobOf(t *testing.T, c *script.Case) *structs.Job {
	j := newJob(c.Args[0].Key, structs.JobBatch, 1)
	g := j.Groups[0]
	for _, a := range c.Args[1:] {
		switch a.Key {
		case "type":
			j.Type = structs.JobType(a.Value)
		case "count":
			g.Count = c.Int(t, "count", 0)
		case "gang":
			g.Gang = &structs.Gang{Min: c.Int(t, "gang", 0), Timeout: duration(t, c.String("timeout", "0s"))}
		case "timeout":
		case "max_run":
			g.MaxRunDuration = duration(t, a.Value)
		case "deadline":
			j.Deadline = s.now.Add(duration(t, a.Value))
		case "periodic":
			j.Periodic = &structs.Periodic{Enabled: true, Specs: []string{a.Value}, ProhibitOverlap: c.Has("no_overlap")}
		case "no_overlap":
		case "array":
			j.Array = &structs.Array{Count: c.Int(t, "array", 0)}
		case "update":
			g.Update = &structs.Update{MaxParallel: c.Int(t, "update", 1), HealthCheck: "task_states", MinHealthyTime: 10 * time.Second, HealthyDeadline: 5 * time.Minute,
				ProgressDeadline: duration(t, c.String("progress", "10m")), AutoRevert: c.Has("auto_revert")}
			g.Reschedule.Unlimited = !c.Has("attempts")
		case "progress", "auto_revert", "attempts":
		case "env":
			g.Tasks[0].Env = map[string]string{"V": a.Value}
		case "parallel":
			g.Migrate = &structs.Migrate{MaxParallel: c.Int(t, "parallel", 1), HealthCheck: "task_states", MinHealthyTime: duration(t, c.String("healthy", "10s")), HealthyDeadline: 5 * time.Minute}
		case "healthy":
		case "tolerate":
			key, long, _ := strings.Cut(a.Value, ":")
			tol := structs.Toleration{Key: key}
			if long != "" {
				tol.For = duration(t, long)
			}
			j.Tolerations = append(j.Tolerations, tol)
		case "grace":
			g.Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Grace: duration(t, a.Value)}
		default:
			t.Fatalf("%s: no argument %q", c.Pos, a.Key)
		}
	}
	return j
}

func duration(t *testing.T, text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
