package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/structs"
)

type queueOptions struct {
	*env
	form format
	mine bool
	only string // queue
}

func newQueue(e *env) *cobra.Command {
	o := &queueOptions{env: e}
	c := e.verb("queue [options]", "List what waits, in order, with the reason", "List the jobs that wait for a place, in the order in which they would be served now, each with what it asks for and why it waits. Under fair and weighted-fair it is the order in which they are predicted to start. Under lottery each start changes the order.", `
muster queue
muster queue -mine
muster queue -o wide
muster queue -namespace '*' -json`, 0, 0, o.run)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	c.Flags().BoolVar(&o.mine, "mine", false, "only jobs that you submitted")
	c.Flags().StringVar(&o.only, "queue", "", "only jobs of this queue and those below it")
	c.AddCommand(newQueueObjects(e), newQueueStatus(e), newQueueApply(e), newQueueInspect(e), newQueueDelete(e))
	return c
}

func (o *queueOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	q := ns(a.anyNamespace())
	var list []nomadlike.QueueItem
	list, err = pages[nomadlike.QueueItem](ctx, a, "/v1/queue", q)
	if err != nil {
		return err
	}
	if o.mine {
		me, err := a.me(ctx)
		if err != nil {
			return err
		}
		kept := []nomadlike.QueueItem{}
		for _, it := range list {
			if it.User == me {
				kept = append(kept, it)
			}
		}
		list = kept
	}
	if o.only != "" {
		list = slices.DeleteFunc(list, func(it nomadlike.QueueItem) bool {
			name := it.Queue
			if name == "" {
				name = "default"
			}
			return name != o.only && !strings.HasPrefix(name, o.only+"/")
		})
		if len(list) == 0 { // no work waits in the queue, or it does not exist
			if _, err := a.get(ctx, "/v1/queue/"+escapePath(o.only), nil, &nomadlike.QueueState{}); err != nil {
				return err
			}
		}
	}
	if err := a.inNoNamespace(ctx, len(list)); err != nil {
		return err
	}
	if done, err := listed(&o.form, o.env, list, "Nothing waits", func(it nomadlike.QueueItem) string { return it.JobID }); done || err != nil {
		return err
	}
	head, rows := "POS|JOB|USER|QUEUE|PRIO|ASKS|WAIT|REASON|EST. START", [][]string{}
	if o.form.wide {
		head += "|NODE POOL|MODEL|SHORT|SUBMITTED|STARTS AFTER"
	}
	for _, it := range list {
		queue := it.Queue
		if queue == "" {
			queue = it.NodePool
		}
		wait := "-"
		if it.SubmitTime > 0 {
			wait = span(o.now().Sub(time.Unix(0, it.SubmitTime)))
		}
		job := it.JobID
		if it.Namespace != "default" {
			job = it.Namespace + "/" + job
		}
		starts := "-"
		if it.StartEstimate > 0 {
			if left := time.Unix(0, it.StartEstimate).Sub(o.now()); left >= time.Second {
				starts = "in " + span(left)
			} else {
				starts = "any moment"
			}
		}
		if it.Held {
			starts = "when released"
		}
		pos := "-"
		if it.Position > 0 {
			pos = strconv.FormatInt(it.Position, 10)
		}
		row := []string{pos, job, orDash(it.User), orDash(queue), strconv.Itoa(it.Priority), asks(&it), wait, orDash(it.Reason), starts}
		if o.form.wide {
			row = append(row, it.NodePool, orDash(it.Model), strconv.FormatInt(it.Short, 10), date(time.Unix(0, it.SubmitTime)), orDash(it.Starts))
		}
		rows = append(rows, row)
	}
	o.table(head, rows)
	o.hint("\nWhy one of them waits:  muster job why %s%s", inNamespace(list[0].Namespace), word(list[0].JobID))
	return nil
}

// me returns the name under which the user submits jobs: that of the token or of the login, "anonymous" where the cluster
// has no ACLs, else the operating system's.
func (a *api) me(ctx context.Context) (string, error) {
	var t struct{ Name string }
	_, err := a.get(ctx, "/v1/acl/token/self", nil, &t)
	if err == nil && t.Name != "" {
		return t.Name, nil
	}
	if answer := (*apiError)(nil); errors.As(err, &answer) && strings.Contains(answer.Msg, structs.ACLDisabled) {
		return "anonymous", nil
	}
	u, err := user.Current()
	if err != nil {
		return "", fmt.Errorf("who you are is not known: %w", err)
	}
	return u.Username, nil
}

// notMine reports whether a job that a user submitted is not the caller's. One without a user is the caller's.
func (a *api) notMine(ctx context.Context, user string) bool {
	if user == "" {
		return false
	}
	me, err := a.me(ctx)
	return err != nil || me != user
}

// asks describes everything that a waiting job asks for.
func asks(it *nomadlike.QueueItem) string {
	parts := []string{}
	switch {
	case it.GPUMemoryMiB > 0:
		parts = append(parts, mib(it.GPUMemoryMiB)+" of GPU memory")
	case it.GPUs > 0:
		parts = append(parts, plural(it.GPUs, "GPU"))
	}
	if it.CPU > 0 {
		parts = append(parts, fmt.Sprintf("%d MHz", it.CPU))
	}
	if it.MemoryMiB > 0 {
		parts = append(parts, mib(it.MemoryMiB))
	}
	if it.Waiting > 1 {
		parts = append(parts, fmt.Sprintf("(%d allocations)", it.Waiting))
	}
	return strings.Join(parts, " ")
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
