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
//	job ID ...               type= count= gang=MINIMUM timeout= max_run= deadline=
//	stop ID [purge]          deregisters a job
//	place ID NODE,... [count=] the scheduler places allocations, in turns on the nodes
//	decide ID                the scheduler has nothing more to do for a job
//	end ID [node=]           the scheduler stops them
//	client ID STATUS [node=] agents report a status
//	suspend ID, resume ID
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
