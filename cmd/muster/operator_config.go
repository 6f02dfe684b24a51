package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

func newOperatorScheduler(e *env) *cobra.Command {
	return e.group("scheduler", "How the cluster decides", "", `
muster operator scheduler get-config
muster operator scheduler set-config -scheduler-algorithm spread
muster operator scheduler dump decision.bin`, newSchedulerGet, newSchedulerSet, newSchedulerPredictions, newSchedulerDump, newSchedulerReplay)
}

type schedulerGetOptions struct {
	*env
	form format
}

func newSchedulerGet(e *env) *cobra.Command {
	o := &schedulerGetOptions{env: e}
	c := e.verb("get-config [options]", "Show the scheduler configuration", "", `
muster operator scheduler get-config
muster operator scheduler get-config -t '{{.SchedulerConfig.SchedulerAlgorithm}}'`, 0, 0, o.run)
	o.form.flags(c)
	return c
}

func (o *schedulerGetOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var resp wire.SchedulerConfigurationResponse
	if _, err := a.get(ctx, "/v1/operator/scheduler/configuration", nil, &resp); err != nil {
		return err
	}
	if done, err := o.form.done(o.env, &resp); done || err != nil {
		return err
	}
	c := resp.SchedulerConfig
	if c == nil {
		return errors.New("the answer holds no configuration")
	}
	yes := strconv.FormatBool
	fit := c.GPUFit
	if fit == "" {
		fit = structs.GPUFitBest
	}
	algorithm := c.SchedulerAlgorithm
	if c.AlgorithmFollowsDefault {
		algorithm += " (default)"
	}
	o.kv([][2]string{
		{"Scheduler Algorithm", algorithm}, {"GPU Fit", fit}, {"Score Weights", weightsText(c.ScoreWeights)}, {"Checkpoints At A Time", savesText(c)}, {"Topology Levels", levelsText(c)}, {"Memory Oversubscription", yes(c.MemoryOversubscriptionEnabled)}, {"Reject Job Registration", yes(c.RejectJobRegistration)},
		{"Pause Eval Broker", yes(c.PauseEvalBroker)}, {"Preemption System Scheduler", yes(c.PreemptionConfig.SystemSchedulerEnabled)},
		{"Preemption Service Scheduler", yes(c.PreemptionConfig.ServiceSchedulerEnabled)}, {"Preemption Batch Scheduler", yes(c.PreemptionConfig.BatchSchedulerEnabled)},
		{"Preemption SysBatch Scheduler", yes(c.PreemptionConfig.SysBatchSchedulerEnabled)}, {"Modify Index", strconv.FormatUint(c.ModifyIndex, 10)},
	})
	o.saveStorages(c.CheckpointStorageInForce)
	o.warn(strings.Join(resp.Warnings, "\n"))
	return nil
}

// saveStorages prints what is known of the storages that limit saves.
func (o *env) saveStorages(list []wire.CheckpointStorage) {
	if len(list) == 0 {
		return
	}
	var rows [][]string
	rate := func(mibps int64) string {
		if mibps == 0 {
			return "-"
		}
		return fmt.Sprintf("%d MiB/s", mibps)
	}
	count := func(n int64) string { // 0 is no limit
		if n == 0 {
			return ""
		}
		return strconv.FormatInt(n, 10)
	}
	for i := range list {
		x := &list[i]
		row := []string{x.Name, orDash(count(x.Limit)), orDash(count(x.Most)), rate(x.AloneMiBps), rate(x.TogetherMiBps)}
		for _, n := range []int64{x.Measured, x.Saving, x.Waiting} {
			row = append(row, strconv.FormatInt(n, 10))
		}
		rows = append(rows, row)
	}
	o.heading("Checkpoint Storages")
	o.table("STORAGE|AT A TIME|MOST|ALONE|TOGETHER|MEASURED|SAVING|WAITING", rows)
}

// savesText formats the limits of concurrent checkpoints.
func savesText(c *wire.SchedulerConfiguration) string {
	out := []string{"no limit"}
	if c.MaxCheckpoints > 0 {
		out[0] = strconv.FormatInt(c.MaxCheckpoints, 10)
	}
	for _, name := range sortedKeys(c.CheckpointStorage) {
		out = append(out, fmt.Sprintf("%s=%d", name, c.CheckpointStorage[name]))
	}
	return strings.Join(out, ", ")
}

// levelsText formats the levels of the topology, from near to far.
func levelsText(c *wire.SchedulerConfiguration) string {
	switch {
	case len(c.TopologyLevels) > 0:
		return strings.Join(c.TopologyLevels, " < ")
	case len(c.TopologyLevelsInForce) == 0:
		return "none discovered"
	}
	return strings.Join(c.TopologyLevelsInForce, " < ") + " (discovered)"
}

// readSaves applies changes of storage limits such as "lustre1=4,nfs=0"; 0 removes a limit.
func readSaves(now map[string]int64, text string) (map[string]int64, error) {
	out := maps.Clone(now)
	if out == nil {
		out = map[string]int64{}
	}
	for part := range strings.SplitSeq(text, ",") {
		name, n, ok := strings.Cut(strings.TrimSpace(part), "=")
		most, err := strconv.ParseInt(n, 10, 64)
		if !ok || name == "" || err != nil || most < 0 {
			return nil, fmt.Errorf("%q: want storage=number, such as lustre1=4; 0 removes the limit", part)
		}
		out[name] = most
		if most == 0 {
			delete(out, name)
		}
	}
	return out, nil
}

type schedulerSetOptions struct {
	*env
	form       format
	checkIndex string
	set        map[string]*string
}

// The flags of set-config; each is optional and changes only its own setting.
var schedulerFlags = []struct{ name, help string }{
	{"scheduler-algorithm", "how nodes are chosen: binpack, spread, ...; default (" + structs.AlgorithmDefault + "): as the release chooses"},
	{"gpu-fit", "which GPU of a node gives a share: best, first, next or worst"},
	{"score-weights", "weights of the terms of a node's score, as fit=30,cost=40: fit, affinity, load, spread, locality, cost or reliability, 0 to 100, or default"},
	{"max-checkpoints", "how many allocations save their state at a time when drains or preemptions end them; 0: no limit"},
	{"checkpoint-storage", "the same for those whose checkpoint block names a storage, as lustre1=4,nfs=8; 0 removes a limit"},
	{"topology-levels", "keys of the nodes' meta or attributes, from near to far, as rack,leaf,pod: gangs start in the nearest place with room; none: no levels; default: as discovered"},
	{"memory-oversubscription", "true or false: tasks may use memory up to memory_max"},
	{"reject-job-registration", "true or false: only tokens that manage may submit jobs"},
	{"pause-eval-broker", "true or false: nothing is decided"},
	{"preempt-service-scheduler", "true or false: service jobs may displace others"},
	{"preempt-batch-scheduler", "true or false: batch jobs may displace others"},
	{"preempt-sysbatch-scheduler", "true or false: sysbatch jobs may displace others"},
	{"preempt-system-scheduler", "true or false: system jobs may displace others"},
}

func newSchedulerSet(e *env) *cobra.Command {
	o := &schedulerSetOptions{env: e, set: map[string]*string{}}
	c := e.verb("set-config [options]", "Change the scheduler configuration", "Change the scheduler configuration. Settings without a flag keep their values.", `
muster operator scheduler set-config -scheduler-algorithm spread
muster operator scheduler set-config -score-weights cost=40,load=default
muster operator scheduler set-config -topology-levels rack,leaf,pod
muster operator scheduler set-config -preempt-batch-scheduler=true -check-index 12`, 0, 0, o.run)
	o.form.flags(c)
	for _, f := range schedulerFlags {
		o.set[f.name] = c.Flags().String(f.name, "", f.help)
	}
	c.Flags().StringVar(&o.checkIndex, "check-index", "", "change it only if its modify index is this one")
	return c
}

func (o *schedulerSetOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var cur wire.SchedulerConfigurationResponse
	if _, err := a.get(ctx, "/v1/operator/scheduler/configuration", nil, &cur); err != nil {
		return err
	}
	c := cur.SchedulerConfig
	if c == nil {
		return errors.New("the answer holds no configuration")
	}
	if v := *o.set["scheduler-algorithm"]; v != "" {
		c.SchedulerAlgorithm, c.AlgorithmFollowsDefault = v, false
	}
	if v := *o.set["gpu-fit"]; v != "" {
		c.GPUFit = v
	}
	if v := *o.set["score-weights"]; v != "" {
		if c.ScoreWeights, err = readWeights(c.ScoreWeights, v); err != nil {
			return fmt.Errorf("-score-weights %w", err)
		}
	}
	if v := *o.set["max-checkpoints"]; v != "" {
		if c.MaxCheckpoints, err = strconv.ParseInt(v, 10, 64); err != nil {
			return fmt.Errorf("-max-checkpoints %q: want a number", v)
		}
	}
	if v := *o.set["checkpoint-storage"]; v != "" {
		if c.CheckpointStorage, err = readSaves(c.CheckpointStorage, v); err != nil {
			return fmt.Errorf("-checkpoint-storage %w", err)
		}
	}
	if v := *o.set["topology-levels"]; v == "default" {
		c.TopologyLevels = nil
	} else if v != "" {
		c.TopologyLevels = strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
	}
	p := &c.PreemptionConfig
	for name, field := range map[string]*bool{
		"memory-oversubscription": &c.MemoryOversubscriptionEnabled, "reject-job-registration": &c.RejectJobRegistration, "pause-eval-broker": &c.PauseEvalBroker,
		"preempt-service-scheduler": &p.ServiceSchedulerEnabled, "preempt-batch-scheduler": &p.BatchSchedulerEnabled,
		"preempt-sysbatch-scheduler": &p.SysBatchSchedulerEnabled, "preempt-system-scheduler": &p.SystemSchedulerEnabled,
	} {
		if v := *o.set[name]; v != "" {
			if *field, err = strconv.ParseBool(v); err != nil {
				return fmt.Errorf("-%s %q: want true or false", name, v)
			}
		}
	}
	q := url.Values{"cas": {strconv.FormatUint(c.ModifyIndex, 10)}}
	if o.checkIndex != "" {
		if err := setUint(q, "cas", "-check-index", o.checkIndex); err != nil {
			return err
		}
	}
	var resp wire.SchedulerSetConfigurationResponse
	if _, err := a.put(ctx, "/v1/operator/scheduler/configuration", q, c, &resp); err != nil {
		return err
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	if !resp.Updated {
		return errors.New("the configuration was changed in between; look at it and try again")
	}
	o.println("Scheduler configuration updated")
	o.warn(strings.Join(resp.Warnings, "\n"))
	return nil
}

func newOperatorAutopilot(e *env) *cobra.Command {
	return e.group("autopilot", "How servers are looked after", "", `
muster operator autopilot health
muster operator autopilot get-config
muster operator autopilot set-config -cleanup-dead-servers=false`, newAutopilotGet, newAutopilotSet, newAutopilotHealth)
}

type autopilotOptions struct {
	*env
	form                                                  format
	cleanup, lastContact, stabilization, trailing, quorum string
	checkIndex                                            string
}

func newAutopilotGet(e *env) *cobra.Command {
	o := &autopilotOptions{env: e}
	c := e.verb("get-config [options]", "Show the autopilot configuration", "", `muster operator autopilot get-config`, 0, 0, o.get)
	o.form.flags(c)
	return c
}

func (o *autopilotOptions) get(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var c wire.AutopilotConfiguration
	if _, err := a.get(ctx, "/v1/operator/autopilot/configuration", nil, &c); err != nil {
		return err
	}
	if done, err := o.form.done(o.env, &c); done || err != nil {
		return err
	}
	o.kv([][2]string{
		{"CleanupDeadServers", strconv.FormatBool(c.CleanupDeadServers)}, {"LastContactThreshold", time.Duration(c.LastContactThreshold).String()},
		{"MaxTrailingLogs", strconv.FormatUint(c.MaxTrailingLogs, 10)}, {"MinQuorum", fmt.Sprint(c.MinQuorum)},
		{"ServerStabilizationTime", time.Duration(c.ServerStabilizationTime).String()}, {"ModifyIndex", strconv.FormatUint(c.ModifyIndex, 10)},
	})
	return nil
}

func newAutopilotSet(e *env) *cobra.Command {
	o := &autopilotOptions{env: e}
	c := e.verb("set-config [options]", "Change the autopilot configuration", "Change the autopilot configuration. Settings without a flag keep their values.", `
muster operator autopilot set-config -cleanup-dead-servers=false
muster operator autopilot set-config -last-contact-threshold 500ms -min-quorum 3`, 0, 0, o.put)
	o.form.flags(c)
	f := c.Flags()
	f.StringVar(&o.cleanup, "cleanup-dead-servers", "", "true or false: dead servers are taken out of raft")
	f.StringVar(&o.lastContact, "last-contact-threshold", "", "how long a healthy server may not have heard from the leader, such as 200ms")
	f.StringVar(&o.trailing, "max-trailing-logs", "", "how many entries a healthy server may be behind")
	f.StringVar(&o.quorum, "min-quorum", "", "how many servers are kept at least")
	f.StringVar(&o.stabilization, "server-stabilization-time", "", "how long a new server must be healthy before it votes, such as 10s")
	f.StringVar(&o.checkIndex, "check-index", "", "change it only if its modify index is this one")
	return c
}

func (o *autopilotOptions) put(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var c wire.AutopilotConfiguration
	if _, err := a.get(ctx, "/v1/operator/autopilot/configuration", nil, &c); err != nil {
		return err
	}
	if o.cleanup != "" {
		if c.CleanupDeadServers, err = strconv.ParseBool(o.cleanup); err != nil {
			return fmt.Errorf("-cleanup-dead-servers %q: want true or false", o.cleanup)
		}
	}
	for _, d := range []struct {
		flag, text string
		to         *wire.TextDuration
	}{{"-last-contact-threshold", o.lastContact, &c.LastContactThreshold}, {"-server-stabilization-time", o.stabilization, &c.ServerStabilizationTime}} {
		if d.text != "" {
			v, err := time.ParseDuration(d.text)
			if err != nil || v < 0 {
				return fmt.Errorf("%s %q is not a duration, such as 10s", d.flag, d.text)
			}
			*d.to = wire.TextDuration(v)
		}
	}
	if o.trailing != "" {
		if c.MaxTrailingLogs, err = strconv.ParseUint(o.trailing, 10, 64); err != nil {
			return fmt.Errorf("-max-trailing-logs %q is not a whole number", o.trailing)
		}
	}
	if o.quorum != "" {
		n, err := strconv.ParseUint(o.quorum, 10, 16)
		if err != nil {
			return fmt.Errorf("-min-quorum %q is not a whole number", o.quorum)
		}
		c.MinQuorum = uint(n)
	}
	q := url.Values{"cas": {strconv.FormatUint(c.ModifyIndex, 10)}}
	if o.checkIndex != "" {
		if err := setUint(q, "cas", "-check-index", o.checkIndex); err != nil {
			return err
		}
	}
	var updated bool
	if _, err := a.put(ctx, "/v1/operator/autopilot/configuration", q, c, &updated); err != nil {
		return err
	}
	if done, err := o.form.done(o.env, updated); done || err != nil {
		return err
	}
	if !updated {
		return errors.New("the configuration was changed in between; look at it and try again")
	}
	o.println("Autopilot configuration updated")
	return nil
}

func newAutopilotHealth(e *env) *cobra.Command {
	o := &autopilotOptions{env: e}
	c := e.verb("health [options]", "Show how healthy the servers are", "Show how healthy the servers are. The exit code is 1 when the cluster is not healthy.", `
muster operator autopilot health
muster operator autopilot health -json`, 0, 0, o.health)
	o.form.flags(c)
	return c
}

func (o *autopilotOptions) health(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	a.accept = http.StatusTooManyRequests // an unhealthy cluster is answered with this status and the same body
	var h wire.OperatorHealthReply
	if _, err := a.get(ctx, "/v1/operator/autopilot/health", nil, &h); err != nil {
		return err
	}
	bad := error(nil)
	if !h.Healthy {
		bad = exitCode(exitError)
	}
	if done, err := o.form.done(o.env, &h); done || err != nil {
		return errors.Join(err, bad)
	}
	o.kv([][2]string{{"Healthy", strconv.FormatBool(h.Healthy)}, {"FailureTolerance", strconv.Itoa(h.FailureTolerance)}, {"Leader", h.Leader}, {"Voters", strings.Join(h.Voters, ",")}})
	o.println()
	rows := [][]string{}
	for _, s := range h.Servers {
		rows = append(rows, []string{s.Name, s.Address, s.SerfStatus, s.Version, orNone(s.Formats), strconv.FormatBool(s.Leader), time.Duration(s.LastContact).String(), fmt.Sprint(s.LastTerm), fmt.Sprint(s.LastIndex), strconv.FormatBool(s.Voter), strconv.FormatBool(s.Healthy), o.age(s.StableSince, false)})
	}
	o.table("Name|Address|Gossip|Version|Formats|Leader|Last Contact|Last Term|Last Index|Voter|Healthy|Stable", rows)
	for _, s := range h.Servers {
		if s.Problem != "" {
			o.printf("\n%s: %s\n", s.Name, s.Problem)
		}
	}
	return bad
}
