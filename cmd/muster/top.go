package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-sched/muster/cmd/top"
	"github.com/muster-sched/muster/nomadlike"
)

type topOptions struct {
	*env
	form  format
	every time.Duration
	once  bool
	flags *pflag.FlagSet
}

// topRow is one task on one GPU, and its JSON form.
type topRow struct {
	JobID, AllocID, Task, Node, GPU string
	MemoryMiB, ShareMiB, PeakMiB    int64
	SMMillis, EnergyMJ, Refused     int64
	CPUPercent                      float64
	RSSBytes                        uint64
	Suspension                      string `json:",omitempty"` // "suspending", "suspended", "resuming"
}

func newTop(e *env) *cobra.Command {
	o := &topOptions{env: e}
	c := e.verb("top [options]", "Watch GPUs, jobs, nodes and the queue", "Watch GPUs, jobs, nodes and the queue on the whole screen: use of GPUs with its recent history, memory, power, temperature, and whose work it is. Keys sort, filter, and open details, logs and the reason why a job waits; ? lists them. Without -namespace it shows all that the token may see.\n\nWith -once, with -json, and where the output is not a terminal that can be drawn on, it prints once what running tasks use, those with GPUs first: memory of each GPU with the task's share, the most it held, the time in which it had all multiprocessors, energy, and allocations that were refused. At most 200 allocations are asked.", `
muster top
muster top -namespace ml
muster top -once -json`, 0, 0, o.run)
	c.Flags().DurationVar(&o.every, "every", 2*time.Second, "time between looks; more where a look takes long")
	c.Flags().BoolVar(&o.once, "once", false, "print once what running tasks use")
	o.form.flags(c)
	o.flags = c.Flags()
	return c
}

func (o *topOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	if o.every < 100*time.Millisecond {
		return fmt.Errorf("-every must be at least 100ms, got %s", o.every)
	}
	if !o.once && !o.form.json && o.form.tmpl == "" && o.screen() {
		return o.watch(ctx, a)
	}
	t, err := o.look(ctx, a, nil)
	if err != nil {
		return err
	}
	rows := topRows(t)
	if done, err := o.form.done(o.env, rows); done || err != nil {
		return err
	}
	o.show(rows, t.Unread)
	return nil
}

// screen reports whether there is a terminal to draw on.
func (o *topOptions) screen() bool {
	term := os.Getenv("TERM")
	return o.tty && term != "" && term != "dumb"
}

// scope is the namespace to show.
func (o *topOptions) scope() string {
	if o.namespace == "" {
		return "*"
	}
	return o.namespace
}

func (o *topOptions) look(ctx context.Context, a *api, nodes []string) (*nomadlike.Top, error) {
	q := url.Values{"namespace": {o.scope()}, "stale": {""}}
	if len(nodes) > 0 {
		q["node"] = nodes
	}
	t := &nomadlike.Top{}
	_, err := a.get(ctx, "/v1/top", q, t)
	return t, err
}

// watch runs the full-screen program until it is left.
func (o *topOptions) watch(ctx context.Context, a *api) error {
	model := top.New(ctx, top.Options{
		Every: o.every, Scope: o.scope(), ASCII: asciiOnly(),
		Look: func(ctx context.Context, nodes []string) (*nomadlike.Top, error) { return o.look(ctx, a, nodes) },
		Run:  o.command,
	})
	out := o.out
	if w, ok := out.(*outlet); ok {
		out = w.w // the program looks for the terminal behind it
	}
	options := []tea.ProgramOption{tea.WithContext(ctx), tea.WithInput(o.in), tea.WithOutput(out), tea.WithoutSignalHandler()} // run handles signals by ctx
	if o.noColor {
		options = append(options, tea.WithColorProfile(colorprofile.ASCII))
	}
	_, err := tea.NewProgram(model, options...).Run()
	if ctx.Err() != nil && errors.Is(err, tea.ErrProgramKilled) {
		return nil
	}
	return err
}

// command runs a command of this program, with the same options for the connection, and returns its output.
func (o *topOptions) command(ctx context.Context, args []string) (output string, failed bool) {
	line := append([]string{"muster"}, args...)
	general := generalFlags()
	o.flags.Visit(func(f *pflag.Flag) {
		if general.Lookup(f.Name) != nil && f.Name != "namespace" {
			line = append(line, "--"+f.Name+"="+f.Value.String())
		}
	})
	var out bytes.Buffer
	code := o.sub(ctx, append(line, "--no-color"), &out)
	return out.String(), code != exitOK
}

// asciiOnly reports whether the locale says that the terminal has no Unicode.
func asciiOnly() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(os.Getenv(name)); v != "" {
			return !strings.Contains(v, "utf-8") && !strings.Contains(v, "utf8")
		}
	}
	return false
}

// topRows makes a row of each task and GPU that was measured, those with GPUs first.
func topRows(t *nomadlike.Top) []*topRow {
	rows := []*topRow{}
	allocs := slices.Clone(t.Allocs)
	slices.SortStableFunc(allocs, func(a, b nomadlike.TopAlloc) int { return min(len(b.GPUs), 1) - min(len(a.GPUs), 1) })
	for i := range allocs {
		al := &allocs[i]
		for k := range al.Tasks {
			task := &al.Tasks[k]
			base := topRow{JobID: al.JobID, AllocID: al.ID, Task: task.Name, Node: al.NodeName, Suspension: al.Suspension, CPUPercent: task.CPUPercent, RSSBytes: task.Memory}
			for _, g := range task.GPUs {
				row := base
				row.GPU, row.MemoryMiB, row.ShareMiB, row.PeakMiB = g.ID, g.MemoryMiB, g.ShareMiB, g.PeakMiB
				row.SMMillis, row.EnergyMJ, row.Refused = g.SMMillis, g.EnergyMJ, g.Refused
				rows = append(rows, &row)
			}
			if len(task.GPUs) == 0 {
				rows = append(rows, &base)
			}
		}
	}
	return rows
}

func (o *topOptions) show(rows []*topRow, left int64) {
	if len(rows) == 0 {
		o.println("No running tasks")
		return
	}
	table := [][]string{}
	for _, r := range rows {
		cpu := fmt.Sprintf("%.0f%%", r.CPUPercent)
		if r.Suspension != "" {
			cpu = r.Suspension
		}
		line := []string{r.JobID, shortID(r.AllocID, false), r.Task, r.Node, cpu, bytesText(r.RSSBytes), "", "", "", "", "", ""}
		if r.GPU != "" {
			id := strings.TrimPrefix(r.GPU, "GPU-")
			copy(line[6:], []string{id[:min(8, len(id))], mib(r.MemoryMiB) + " / " + mib(r.ShareMiB), mib(r.PeakMiB),
				(time.Duration(r.SMMillis) * time.Millisecond).Round(time.Second / 10).String(), strconv.FormatInt(r.EnergyMJ/1000, 10) + " J", strconv.FormatInt(r.Refused, 10)})
		}
		table = append(table, line)
	}
	o.table("JOB|ALLOC|TASK|NODE|CPU|MEMORY|GPU|GPU MEMORY|PEAK|SM TIME|ENERGY|REFUSED", table)
	if left > 0 {
		o.printf("... and %d more allocations\n", left)
	}
}
