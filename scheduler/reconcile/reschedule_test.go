package reconcile

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

func TestNextReschedule(t *testing.T) {
	const sec = time.Second
	for _, c := range []struct {
		name   string
		policy structs.Reschedule
		past   []time.Duration // delays of earlier attempts, a minute apart
		want   time.Duration
		may    bool
	}{
		{"constant", structs.Reschedule{Unlimited: true, Delay: 5 * sec, DelayFunction: structs.DelayConstant}, []time.Duration{5 * sec, 5 * sec}, 5 * sec, true},
		{"exponential first", structs.Reschedule{Unlimited: true, Delay: 5 * sec, DelayFunction: structs.DelayExponential, MaxDelay: time.Hour}, nil, 5 * sec, true},
		{"exponential", structs.Reschedule{Unlimited: true, Delay: 5 * sec, DelayFunction: structs.DelayExponential, MaxDelay: time.Hour}, []time.Duration{5 * sec, 10 * sec}, 20 * sec, true},
		{"exponential at its limit", structs.Reschedule{Unlimited: true, Delay: 5 * sec, DelayFunction: structs.DelayExponential, MaxDelay: 2 * time.Minute}, []time.Duration{80 * sec}, 2 * time.Minute, true},
		{"ran longer than the limit", structs.Reschedule{Unlimited: true, Delay: 5 * sec, DelayFunction: structs.DelayExponential, MaxDelay: 30 * sec}, []time.Duration{20 * sec}, 5 * sec, true},
		{"fibonacci second", structs.Reschedule{Unlimited: true, Delay: 5 * sec, DelayFunction: structs.DelayFibonacci, MaxDelay: time.Hour}, []time.Duration{5 * sec}, 5 * sec, true},
		{"fibonacci third", structs.Reschedule{Unlimited: true, Delay: 5 * sec, DelayFunction: structs.DelayFibonacci, MaxDelay: time.Hour}, []time.Duration{5 * sec, 5 * sec}, 10 * sec, true},
		{"fibonacci fifth", structs.Reschedule{Unlimited: true, Delay: 5 * sec, DelayFunction: structs.DelayFibonacci, MaxDelay: time.Hour}, []time.Duration{5 * sec, 5 * sec, 10 * sec, 15 * sec}, 25 * sec, true},
		{"attempts used up", structs.Reschedule{Attempts: 2, Interval: time.Hour, Delay: sec}, []time.Duration{sec, sec}, 0, false},
		{"attempts long ago", structs.Reschedule{Attempts: 2, Interval: 90 * sec, Delay: sec}, []time.Duration{sec, sec}, sec, true},
		{"no policy", structs.Reschedule{}, nil, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			end := structs.LogTime(0).Add(time.Hour)
			a := &structs.Allocation{FinishedAt: end}
			for i, d := range c.past {
				a.OwnLineage().Reschedules = append(a.Lineage().Reschedules, structs.RescheduleEvent{Time: end.Add(-time.Duration(len(c.past)-i) * time.Minute), Delay: d})
			}
			when, delay, may := NextReschedule(&c.policy, a)
			if may != c.may || delay != c.want || may && when != end.Add(delay) {
				t.Errorf("%s: delay %v, may %v; want %v, %v", c.name, delay, may, c.want, c.may)
			}
		})
	}
}

func TestDestructive(t *testing.T) {
	base := func() *structs.Job {
		return &structs.Job{Groups: []*structs.Group{{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t", Driver: "exec", Env: map[string]string{"a": "b"}}}}}}
	}
	for name, c := range map[string]struct {
		change func(*structs.Job)
		want   bool
	}{
		"nothing":      {func(*structs.Job) {}, false},
		"empty is nil": {func(j *structs.Job) { j.Groups[0].Tasks[0].Meta = map[string]string{}; j.Meta = map[string]string{} }, false},
		"count":        {func(j *structs.Job) { j.Groups[0].Count = 9 }, false},
		"priority":     {func(j *structs.Job) { j.Priority = 9 }, false},
		"reschedule":   {func(j *structs.Job) { j.Groups[0].Reschedule.Attempts = 9 }, false},
		"kill timeout": {func(j *structs.Job) { j.Groups[0].Tasks[0].KillTimeout = 9 }, false},
		"constraint":   {func(j *structs.Job) { j.Groups[0].Constraints = []structs.Constraint{{LTarget: "x"}} }, false},
		"env":          {func(j *structs.Job) { j.Groups[0].Tasks[0].Env = map[string]string{"a": "c"} }, true},
		"config":       {func(j *structs.Job) { j.Groups[0].Tasks[0].Config = structs.RawConfig(`{}`) }, true},
		"memory":       {func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.MemoryMiB = 9 }, true},
		"driver":       {func(j *structs.Job) { j.Groups[0].Tasks[0].Driver = "docker" }, true},
		"port":         {func(j *structs.Job) { j.Groups[0].Networks = []structs.Network{{Mode: "host"}} }, true},
		"disk":         {func(j *structs.Job) { j.Groups[0].Disk.SizeMiB = 9 }, true},
		"job meta":     {func(j *structs.Job) { j.Meta = map[string]string{"a": "b"} }, true},
		"a task more":  {func(j *structs.Job) { j.Groups[0].Tasks = append(j.Groups[0].Tasks, &structs.Task{Name: "u"}) }, true},
		"queue": {func(j *structs.Job) {
			j.Queue, j.Meta, j.Runtime.Limit, j.Deadline = "a", map[string]string{"muster.queue": "a"}, 9, 9
			j.Requeue, j.Depends, j.Hold, j.Begin, j.Preemptible, j.Placement = &structs.Requeue{Max: 1}, []structs.Dependency{{Name: "a"}}, true, 9, true, "fgd"
			j.Tolerations = []structs.Toleration{{}}
		}, false},
		"elastic":    {func(j *structs.Job) { j.Groups[0].Elastic = &structs.Elastic{Max: 9} }, false},
		"gang":       {func(j *structs.Job) { j.Groups[0].Gang = &structs.Gang{} }, true},
		"launch":     {func(j *structs.Job) { j.Groups[0].Launch = &structs.Launch{Mode: "rank"} }, true},
		"checkpoint": {func(j *structs.Job) { j.Groups[0].Checkpoint = &structs.Checkpoint{Dir: "/d"} }, true},
		"array":      {func(j *structs.Job) { j.Array = &structs.Array{Count: 2} }, true},
		"shm":        {func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.ShmMiB = 9 }, true},
		"run as":     {func(j *structs.Job) { j.Groups[0].Tasks[0].WorkDir = "/w" }, true},
		"umask":      {func(j *structs.Job) { j.Groups[0].Tasks[0].Umask = "0077" }, true},
		"log path":   {func(j *structs.Job) { j.Groups[0].Tasks[0].LogPath = "/l" }, true},
		"rdma":       {func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.RDMA = true }, true},
		"ulimits":    {func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.Ulimits = map[string]string{"core": "0"} }, true},
		"group gone": {func(j *structs.Job) { j.Groups[0].Name = "h" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			after := base()
			c.change(after)
			if got := Destructive(base(), after, "g"); got != c.want {
				t.Errorf("%s: destructive %v, want %v", name, got, c.want)
			}
		})
	}
}
