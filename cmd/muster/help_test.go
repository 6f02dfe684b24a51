package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/muster-sched/muster/nomadlike/jobspec"
	"github.com/muster-sched/muster/structs"
)

// TestEveryCommandHasAGroup checks that the root's help shows every command, each once.
func TestEveryCommandHasAGroup(t *testing.T) {
	var out bytes.Buffer
	root := newRoot(&env{out: &out, err: &out})
	if err := root.Help(); err != nil {
		t.Fatal(err)
	}
	for _, c := range root.Commands() {
		if n := strings.Count(out.String(), "\n  "+c.Name()+" "); !c.Hidden && n != 1 || c.Hidden && n != 0 && c.Name() != "run" {
			t.Errorf("help shows the command %s %d times; its group is %q (helpGroups in help.go)", c.Name(), n, c.GroupID)
		}
	}
	for _, g := range helpGroups {
		if got := len(ordered(root, g.title)); got != len(g.commands) {
			t.Errorf("group %q names %d commands, %d exist", g.title, len(g.commands), got)
		}
	}
	for _, line := range strings.Split(out.String(), "\n") {
		if len(line) > 140 {
			t.Errorf("a line of %d characters: %q", len(line), line)
		}
	}
	if !strings.Contains(out.String(), "arrays, checkpoints") {
		t.Errorf("help does not name the topics:\n%s", out.String())
	}
}

// TestTopics checks that what a topic shows is true: its commands exist with their flags, its files parse, and it knows
// every reason.
func TestTopics(t *testing.T) {
	if len(topics()) < 10 {
		t.Errorf("only the topics %v", topics())
	}
	f := newAgentFake(t)
	for _, name := range topics() {
		text, _ := topic(name)
		commands, files := 0, 0
		for block := range strings.SplitSeq(text, "\n\n") {
			kind, _, _ := strings.Cut(strings.TrimSpace(block), " ")
			switch kind {
			case "job":
				files++
				if job, diags := jobspec.ParseHCL(name+".hcl", []byte(block), jobspec.ParseOptions{}); job == nil || len(diags) > 0 {
					t.Errorf("topic %s: %v in\n%s", name, diags, block)
				}
			case "queue", "quota":
				files++
				file := filepath.Join(t.TempDir(), name+".hcl")
				if err := os.WriteFile(file, []byte(block), 0o600); err != nil {
					t.Fatal(err)
				}
				if r := f.run(t, "", kind, "apply", file); r.code != 0 {
					t.Errorf("topic %s: %s", name, r.errOut)
				}
			}
		}
		for line := range strings.SplitSeq(text, "\n") {
			if line, _, _ = strings.Cut(line, "   #"); !strings.HasPrefix(line, "  muster ") {
				continue
			}
			commands++
			root := newRoot(&env{out: new(bytes.Buffer), err: new(bytes.Buffer)})
			args := normalize(root, shellWords(strings.TrimPrefix(line, "  muster ")))
			found, rest, err := root.Find(args)
			if err != nil || !found.Runnable() {
				t.Errorf("topic %s: no such command: %s", name, line)
			} else if err := found.ParseFlags(rest); err != nil {
				t.Errorf("topic %s: %s: %v", name, line, err)
			}
		}
		first, _, _ := strings.Cut(text, "\n")
		if commands < 2 || first == "" || strings.HasSuffix(first, ".") || strings.Count(text, "\n") > 60 {
			t.Errorf("topic %s: %d commands, %d files, %d lines, begins with %q", name, commands, files, strings.Count(text, "\n"), first)
		}
	}
	waiting, _ := topic("waiting")
	for _, code := range []structs.ReasonCode{structs.ReasonResources, structs.ReasonPriority, structs.ReasonQuota, structs.ReasonPower, structs.ReasonGang, structs.ReasonTopology, structs.ReasonFragmentation,
		structs.ReasonConstraint, structs.ReasonDriver, structs.ReasonDeviceUnhealthy, structs.ReasonNodeIneligible, structs.ReasonReservation, structs.ReasonDependency, structs.ReasonBeginTime,
		structs.ReasonRateLimit, structs.ReasonPreemptionPending, structs.ReasonHeld} {
		if !strings.Contains(waiting, "\n  "+string(code)+" ") {
			t.Errorf("the topic waiting does not explain %s", code)
		}
	}
}

func TestHelp(t *testing.T) {
	f := newAgentFake(t)
	for line, want := range map[string]string{
		"help": "Start work:", "help gangs": "start together or not at all", "help gang": "start together or not at all", "help Queues": "In which order", "help dependency": "depends_on", "help MIG": "MIG instances",
		"help topics": "  gangs          Several nodes", "help job run": "muster job run", "help job": "Usage: muster job COMMAND", "help help": "gangs",
	} {
		if r := f.run(t, "", strings.Fields(line)...); r.code != 0 || !strings.Contains(r.out, want) || r.errOut != "" {
			t.Errorf("%s: exit %d, no %q in %q, %q", line, r.code, want, r.out, r.errOut)
		}
	}
	for line, want := range map[string]string{
		"help gnags": `no command or topic "gnags"; did you mean "gangs"?`, "help xyzzy": `no command or topic "xyzzy" (`, "help job rnu": `no command "rnu" under muster job; did you mean "run"?`, "help jbo": `did you mean "job"?`,
		"help job run x": "no command", "help gangs x": "no command or topic",
	} {
		if r := f.run(t, "", strings.Fields(line)...); r.code != 1 || !strings.Contains(r.errOut, want) || r.out != "" {
			t.Errorf("%s: exit %d, %q, %q; want %q", line, r.code, r.out, r.errOut, want)
		}
	}
	if r := f.run(t, "", "__complete", "help", "g"); !slices.Contains(strings.Split(r.out, "\n"), "gangs") {
		t.Errorf("completion offers %q", r.out)
	}
}
