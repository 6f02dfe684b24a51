package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// stopShown bounds the jobs that the question of a bulk stop names.
const stopShown = 20

// selection says which jobs a bulk stop is about.
type selection struct {
	name, user, queue, state string
	all                      bool
}

func (s *selection) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&s.name, "name", "", "instead of JOB: all jobs whose id matches, as sweep-*")
	f.StringVar(&s.user, "user", "", "instead of JOB: all jobs of this submitter")
	f.StringVar(&s.queue, "queue", "", "instead of JOB: all jobs of this queue and those below it")
	f.StringVar(&s.state, "state", "", "instead of JOB: all jobs in this state, pending or running")
	f.BoolVar(&s.all, "all", false, "instead of JOB: all jobs of the namespace")
}

func (s *selection) given() bool {
	return s.all || s.name != "" || s.user != "" || s.queue != "" || s.state != ""
}

func (s *selection) check() error {
	if s.state != "" && s.state != "pending" && s.state != "running" {
		return fmt.Errorf("-state %q: want pending or running", s.state)
	}
	if _, err := path.Match(s.name, ""); err != nil {
		return fmt.Errorf("-name %q: want a name with * and ? in it, as sweep-*", s.name)
	}
	return nil
}

// picks reports whether a job is meant: one that has not been stopped, and for which all conditions hold.
func (s *selection) picks(j *wire.JobListStub) bool {
	queue := cmp.Or(j.Queue, "default")
	match, _ := path.Match(strings.ReplaceAll(s.name, "/", "|"), strings.ReplaceAll(j.ID, "/", "|")) // * is for slashes of ids, too
	return !j.Stop && j.Status != "dead" && (s.name == "" || match) && (s.user == "" || j.User == s.user) &&
		(s.queue == "" || queue == s.queue || strings.HasPrefix(queue, s.queue+"/")) && (s.state == "" || j.Status == s.state)
}

// many stops all jobs of a selection, once the user has seen how many people and GPUs it concerns.
func (o *jobStopOptions) many(ctx context.Context, a *api) error {
	if err := o.pick.check(); err != nil {
		return err
	}
	var list []*wire.JobListStub
	if _, err := a.get(ctx, "/v1/jobs", nil, &list); err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(j *wire.JobListStub) bool { return !o.pick.picks(j) })
	if len(list) == 0 {
		o.println("No job matches")
		return nil
	}
	question := ""
	if !o.yes {
		var err error
		if question, err = o.blast(ctx, a, list); err != nil {
			return err
		}
		if !o.asks {
			return o.confirm(ctx, false, "%s", question)
		}
	}
	for _, j := range list[:min(len(list), stopShown)] {
		o.hint("  %s  %s  %s  %s", j.ID, j.Namespace, j.Status, orDash(j.User))
	}
	if len(list) > stopShown {
		o.hint("  ... and %d more", len(list)-stopShown)
	}
	if err := o.confirm(ctx, o.yes, "%s", question); err != nil {
		return err
	}
	answers, failed := []*wire.JobDeregisterResponse{}, 0
	for _, j := range list {
		resp, err := o.deregister(ctx, a, j)
		if ctx.Err() != nil {
			return exitCode(exitInterrupted)
		}
		if err != nil {
			o.hint("Error: %v", err)
			failed++
			continue
		}
		answers = append(answers, resp)
	}
	if done, err := o.form.done(o.env, answers); done || err != nil {
		return errors.Join(err, stopFailed(failed))
	}
	o.printf("%s stopped\n", plural(int64(len(answers)), "job"))
	return stopFailed(failed)
}

func stopFailed(n int) error {
	if n > 0 {
		return exitCode(exitError)
	}
	return nil
}

// blast asks the question: what would be stopped, of whom, and which GPUs it would free.
func (o *jobStopOptions) blast(ctx context.Context, a *api, list []*wire.JobListStub) (string, error) {
	type key struct{ namespace, id string }
	meant, users, spaces := map[key]bool{}, map[string]int{}, map[string]int{}
	for _, j := range list {
		meant[key{j.Namespace, j.ID}] = true
		users[cmp.Or(j.User, "nobody known")]++
		spaces[j.Namespace]++
	}
	from, q := "/v1/allocations", ns(a.namespace)
	q.Set("resources", "true")
	q.Set("task_states", "false")
	q.Set("filter", `ClientStatus == "running" or ClientStatus == "pending"`)
	what := fmt.Sprintf("%d jobs of %s in %s", len(list), counts(users), "namespace "+counts(spaces))
	if len(list) == 1 {
		from, q = jobPath(list[0].ID, "/allocations"), ns(list[0].Namespace)
		what = fmt.Sprintf("job %q of %s in namespace %q", list[0].ID, counts(users), list[0].Namespace)
	}
	var allocs []*wire.AllocationListStub
	if _, err := a.get(ctx, from, q, &allocs); err != nil {
		return "", fmt.Errorf("read what the jobs hold: %w", err)
	}
	allocs = slices.DeleteFunc(allocs, func(s *wire.AllocationListStub) bool {
		return !meant[key{s.Namespace, s.JobID}] || !liveAlloc(s.ClientStatus)
	})
	verb := "Stop"
	if o.purge {
		verb = "Stop and forget"
	}
	return fmt.Sprintf("%s %s, with %s and %s?", verb, what, plural(int64(len(allocs)), "live allocation"), plural(heldBy(allocs), "GPU")), nil
}

// counts lists names with how often each occurs: alice (3), bob (1). A single name stands alone.
func counts(m map[string]int) string {
	var parts []string
	for _, name := range sortedKeys(m) {
		if len(m) == 1 {
			return name
		}
		parts = append(parts, fmt.Sprintf("%s (%d)", name, m[name]))
	}
	return strings.Join(parts, ", ")
}
