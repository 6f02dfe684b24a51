package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// What a command gets that asks for nothing.
const (
	runCPU       = 100 // MHz
	runMemoryMiB = 300
	// Work with GPUs gets this part of what its share of the node's GPUs would get of the node, so that small work next to it
	// still fits.
	gpuShareOfNode = 0.9
	// gpuShareOfDisk is the same for the disk, whose free space only the agent's start measures: others write to it, and so
	// do ended allocations until they are collected. A start whose disk is not free any more fails.
	gpuShareOfDisk = 0.5
	// runGPUMemoryMiB is the memory for each GPU where the nodes cannot be read.
	runGPUMemoryMiB = 8192
	// runGPUDiskMiB is the disk for each GPU there. Without GPUs a command has what any group has that asks for none.
	runGPUDiskMiB = 10240
)

// suit fills in what the caller left to the cluster: the driver, and memory, processor and disk in proportion to the GPUs. It
// looks at the nodes; a caller who may not read them gets fixed values.
func (o *adhoc) suit(ctx context.Context, a *api, words []string) error {
	var nodes []*wire.NodeListStub
	if a != nil {
		var denied *apiError
		if _, err := a.get(ctx, "/v1/nodes", url.Values{"resources": {"true"}}, &nodes); err != nil {
			nodes = nil
			o.blind = errors.As(err, &denied) && denied.Status == http.StatusForbidden
		}
	}
	pool := o.pool
	if pool == "" {
		pool = string(structs.NodePoolDefault)
	}
	nodes = slices.DeleteFunc(nodes, func(n *wire.NodeListStub) bool {
		return n.Status != "ready" || n.NodePool != pool && pool != string(structs.NodePoolAll)
	})
	o.nodesSeen = len(nodes)
	if o.gpu.count > 0 { // those that could hold it, if there are any
		fit := slices.DeleteFunc(slices.Clone(nodes), func(n *wire.NodeListStub) bool { return gpusOf(n, o.gpu.model) < o.gpu.count })
		if len(fit) > 0 {
			nodes = fit
		}
	}
	if err := o.pickDriver(nodes, words); err != nil {
		return err
	}
	o.proportion(nodes)
	if o.driver == "raw_exec" && o.mem != "" {
		o.hint("The driver is raw_exec: -mem is reserved for the command, and not enforced. A node with the driver exec stops what takes more.")
	}
	return nil
}

// gpusOf counts the GPUs of a node that are of a model, "" for any.
func gpusOf(n *wire.NodeListStub, model string) (count int) {
	if n.NodeResources == nil {
		return 0
	}
	for _, d := range n.NodeResources.Devices {
		if d.Type == "gpu" && (model == "" || structs.IsModel(d.Name, model)) {
			count += len(d.Instances)
		}
	}
	return count
}

// wholeGPUs counts the GPUs of a node. An instance of MIG is as many sevenths of one as its profile begins with: 3g.40gb.
func wholeGPUs(n *wire.NodeListStub) (count float64) {
	if n.NodeResources == nil {
		return 0
	}
	for _, d := range n.NodeResources.Devices {
		if d.Type != "gpu" {
			continue
		}
		each := 1.0
		if profile := d.Attributes["mig_profile"]; profile != nil && profile.StringVal != nil {
			g, _, _ := strings.Cut(*profile.StringVal, "g.")
			if sevenths, err := strconv.ParseFloat(g, 64); err == nil {
				each = sevenths / 7
			}
		}
		count += each * float64(len(d.Instances))
	}
	return count
}

// pickDriver chooses exec where a node has it, because it isolates, and else raw_exec. Tasks of exec have a /tmp of their
// own, so that a command below the caller's needs raw_exec.
func (o *adhoc) pickDriver(nodes []*wire.NodeListStub, words []string) error {
	has := func(name string) bool { return haveDriver(nodes, name) }
	temp := ""
	if o.image == "" {
		temp = o.inTemp(words)
	}
	switch {
	case o.driver == "exec" && temp != "":
		return fmt.Errorf("%s is below /tmp, of which tasks of the driver exec have one of their own: move it elsewhere, or use -driver raw_exec", temp)
	case o.driver != "":
	case o.image != "":
		o.driver = structs.DockerDriver
	case temp != "" && len(nodes) > 0 && !has("raw_exec"):
		return fmt.Errorf("%s is below /tmp, of which every task here has one of its own: move it elsewhere (no node has the driver raw_exec)", temp)
	case temp != "":
		o.driver = "raw_exec"
		o.hint("The driver is raw_exec, without isolation: %s is below /tmp, of which tasks of exec have one of their own", temp)
	case len(nodes) > 0 && !has("exec") && has("raw_exec"): // the agents do not run as root
		o.driver = "raw_exec"
	default:
		o.driver = "exec"
	}
	return nil
}

// haveDriver reports whether one of the nodes can use a driver.
func haveDriver(nodes []*wire.NodeListStub, name string) bool {
	return slices.ContainsFunc(nodes, func(n *wire.NodeListStub) bool { d := n.Drivers[name]; return d != nil && d.Healthy })
}

// proportion sets what the caller did not. Work with GPUs gets memory, processor and disk as its part of the GPUs, on the
// node where that is least; everything else the small defaults.
func (o *adhoc) proportion(nodes []*wire.NodeListStub) {
	cpu, cores, memory, disk := runCPU, 0, runMemoryMiB, 0
	if o.gpu.count > 0 {
		memory, disk = o.gpu.count*runGPUMemoryMiB, o.gpu.count*runGPUDiskMiB
		least := struct{ mhz, cores, memory, disk float64 }{math.Inf(1), math.Inf(1), math.Inf(1), math.Inf(1)}
		for _, n := range nodes {
			all := wholeGPUs(n)
			if all == 0 {
				continue
			}
			gpus := min(1, float64(o.gpu.count)/all)
			part := gpuShareOfNode * gpus
			r, reserved := n.NodeResources, n.ReservedResources
			mhz, mib, room := r.Cpu.CpuShares, r.Memory.MemoryMB, r.Disk.DiskMB
			if reserved != nil {
				mhz, mib, room = mhz-int64(reserved.Cpu.CpuShares), mib-int64(reserved.Memory.MemoryMB), room-int64(reserved.Disk.DiskMB)
			}
			least.mhz = min(least.mhz, part*float64(mhz))
			least.cores = min(least.cores, part*float64(len(r.Cpu.ReservableCpuCores)))
			least.memory = min(least.memory, part*float64(mib))
			least.disk = min(least.disk, gpuShareOfDisk*gpus*float64(room))
		}
		if !math.IsInf(least.memory, 1) {
			cpu, cores, memory, disk = max(int(least.mhz), 1), int(least.cores), max(int(least.memory), 1), int(least.disk)
		}
	}
	tell := o.gpu.count > 0 && len(nodes) > 0 && o.memory == 0 && o.cpu == 0 && o.cores == 0
	if o.memory == 0 {
		o.memory = memory
	}
	if o.diskMiB == 0 && disk > wire.DiskDefaultMiB {
		o.diskMiB = disk
	}
	if o.cpu == 0 && o.cores == 0 {
		o.cpu, o.cores = cpu, cores
	}
	if tell {
		amount := plural(int64(o.cores), "core")
		if o.cores == 0 {
			amount = fmt.Sprintf("%d MHz", o.cpu)
		}
		o.hint("With the GPUs: %s of memory, %s and %s of disk on each node (-mem, -cpu, -cores and -disk say otherwise)", mib(int64(o.memory)), amount,
			mib(int64(cmp.Or(o.diskMiB, wire.DiskDefaultMiB))))
	}
}

// commandFlags returns the options in use that only a command after "--" has.
func commandFlags(cmd *cobra.Command) (names []string) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if strings.HasPrefix(f.Usage, "with a command:") {
			names = append(names, "-"+f.Name)
		}
	})
	return names
}

// possible asks for a dry run, and refuses a command that no cluster of these nodes, empty, could ever run.
func (o *adhoc) possible(ctx context.Context, a *api, job *wire.Job) error {
	if o.nodesSeen == 0 && !o.blind { // nodes may still be joining
		return nil
	}
	var plan nomadlike.Plan
	if _, err := a.put(ctx, jobPath(*job.ID, "/plan"), ns(val(job.Namespace)), wire.JobPlanRequest{Job: job}, &plan); err != nil || plan.NeverFits == "" {
		return nil //nolint:nilerr // the submission fails for the same reason, and says it
	}
	alone := false // one machine, as under agent -dev
	for _, m := range plan.FailedTGAllocs {
		if m.NodesInPool == 0 { // nodes may still be joining
			return nil
		}
		alone = alone || m.NodesInPool == 1
	}
	text := "this can never run here: " + strings.TrimPrefix(plan.NeverFits, `group "run": `)
	for i, s := range plan.Suggestions {
		or := "it could with: "
		if i > 0 {
			or = "or: "
		}
		text += "\n  " + or + s
	}
	other := slices.ContainsFunc(plan.Suggestions, func(s string) bool { return strings.HasPrefix(s, "any model of GPU") }) // then there are GPUs
	if alone && !other && strings.Contains(plan.NeverFits, "device nvidia/gpu") {
		text += "\n  to try things, restart the agent with made-up GPUs: " + madeUpGPUs
	}
	return errors.New(text)
}
