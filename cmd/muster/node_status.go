package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type nodeStatusOptions struct {
	*env
	form                                    format
	self, stats, short, verbose, allocs, os bool
	filter                                  string
	perPage                                 int
	pageToken                               string
}

func newNodeStatus(e *env) *cobra.Command {
	o := &nodeStatusOptions{env: e}
	c := e.verb("status [options] [NODE]", "List nodes, or show one", "List nodes, or show one: its state, devices, what is booked and used, and what runs there.", `
muster node status
muster node status -allocs -os
muster node status -o wide
muster node status 46f1c6c4
muster node status -self -stats`, 0, 1, o.run)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	f := c.Flags()
	f.BoolVar(&o.self, "self", false, "the agent's own node")
	f.BoolVar(&o.stats, "stats", false, "what the node uses, in detail")
	f.BoolVar(&o.short, "short", false, "only the essentials")
	f.BoolVar(&o.verbose, "verbose", false, "long ids, exact times, attributes")
	f.BoolVar(&o.allocs, "allocs", false, "in the list: how many allocations run on each")
	f.BoolVar(&o.os, "os", false, "in the list: the operating system")
	f.StringVar(&o.filter, "filter", "", "only nodes for which an expression holds")
	f.IntVar(&o.perPage, "per-page", 0, "at most so many")
	f.StringVar(&o.pageToken, "page-token", "", "where the page begins")
	ofList(c, "out", "allocs", "os", "filter", "per-page", "page-token")
	ofOne(c, "stats", "short")
	return c
}

func (o *nodeStatusOptions) run(ctx context.Context, args []string) error {
	if o.short && o.stats {
		return errors.New("-short leaves out what -stats shows: choose one")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	if len(args) == 0 && !o.self {
		return o.list(ctx, a)
	}
	arg, err := oneOrSelf(args, o.self)
	if err != nil {
		return err
	}
	n, err := a.node(ctx, arg, o.self)
	if err != nil {
		return err
	}
	if done, err := o.form.done(o.env, n); done || err != nil {
		return err
	}
	if o.form.quiet {
		o.println(n.ID)
		return nil
	}
	return o.show(ctx, a, n)
}

func (o *nodeStatusOptions) list(ctx context.Context, a *api) error {
	q := url.Values{}
	queryFlag(q, "os", o.os)
	queryFlag(q, "resources", o.form.wide)
	if o.filter != "" {
		q.Set("filter", o.filter)
	}
	if o.perPage > 0 {
		q.Set("per_page", strconv.Itoa(o.perPage))
	}
	if o.pageToken != "" {
		q.Set("next_token", o.pageToken)
	}
	var list []*wire.NodeListStub
	m, err := a.get(ctx, "/v1/nodes", q, &list)
	if err != nil {
		return err
	}
	if done, err := listed(&o.form, o.env, list, "", func(n *wire.NodeListStub) string { return n.ID }); done || err != nil {
		return err
	}
	if len(list) == 0 {
		o.println("No nodes registered")
		o.hint("An agent becomes a node with client { enabled = true }; muster agent -dev is server and node in one.")
		return nil
	}
	running := map[string]int{}
	if o.allocs {
		var all []*wire.AllocationListStub
		aq := url.Values{"namespace": {"*"}, "task_states": {"false"}}
		if _, err := a.get(ctx, "/v1/allocations", aq, &all); err != nil {
			return err
		}
		for _, s := range all {
			if s.ClientStatus == "running" {
				running[s.NodeID]++
			}
		}
	}
	head := "ID|Node Pool|DC|Name|Class"
	if o.os {
		head += "|OS"
	}
	if o.verbose {
		head += "|Address|Version"
	}
	head += "|Drain|Eligibility|Status"
	if o.allocs {
		head += "|Running Allocs"
	}
	if o.form.wide {
		head += nodeWideHead
	}
	rows := [][]string{}
	for _, n := range list {
		r := []string{shortID(n.ID, o.verbose), n.NodePool, n.Datacenter, n.Name, orNone(n.NodeClass)}
		if o.os {
			r = append(r, n.Attributes["os.name"])
		}
		if o.verbose {
			r = append(r, n.Address, n.Version)
		}
		r = append(r, strconv.FormatBool(n.Drain), n.SchedulingEligibility, n.Status)
		if o.allocs {
			r = append(r, strconv.Itoa(running[n.ID]))
		}
		if o.form.wide {
			r = append(r, nodeWide(n)...)
		}
		rows = append(rows, r)
	}
	o.table(head, rows)
	for _, n := range list {
		if n.Status == "initializing" && n.StatusDescription != "" {
			o.printf("\n%s (%s) is %s: %s\n", n.Name, shortID(n.ID, o.verbose), n.Status, n.StatusDescription)
		}
	}
	if m.NextToken != "" {
		o.hint("\nThere are more. The next page:  muster node status -page-token %s", m.NextToken)
	}
	return nil
}

// nodeWideHead and nodeWide are the further columns of nodes with -o wide.
const nodeWideHead = "|Address|Cores|Memory|GPUs|Drivers"

func nodeWide(n *wire.NodeListStub) []string {
	return append(append([]string{n.Address}, nodeSize(n.NodeResources)...), strings.Join(healthyDrivers(n.Drivers), ","))
}

func (o *nodeStatusOptions) show(ctx context.Context, a *api, n *wire.Node) error {
	var names []string
	for _, d := range sortedKeys(n.Drivers) {
		if n.Drivers[d].Detected && n.Drivers[d].Healthy {
			names = append(names, d)
		} else if n.Drivers[d].Detected {
			names = append(names, d+" (unhealthy)")
		}
	}
	rows := [][2]string{{"ID", n.ID}, {"Name", n.Name}, {"Node Pool", n.NodePool}, {"Class", n.NodeClass}, {"DC", n.Datacenter}, {"Drain", strconv.FormatBool(n.Drain)},
		{"Eligibility", n.SchedulingEligibility}, {"Status", n.Status}}
	if n.StatusDescription != "" {
		rows = append(rows, [2]string{"Status Description", n.StatusDescription})
	}
	if n.Topology != "" {
		rows = append(rows, [2]string{"Topology", n.Topology})
	}
	if r := n.Reliability; r != nil && (r.ReadyTime > 0 || r.Lost+r.GPUFaults > 0) {
		text := reliability(r)
		if r.Lost+r.GPUFaults > 0 {
			text += "; other nodes on which work fits as well come first"
		}
		rows = append(rows, [2]string{"Reliability", text})
	}
	rows = append(rows, [2]string{"Driver Status", strings.Join(names, ",")})
	for _, t := range n.Taints {
		rows = append(rows, [2]string{"Taint", t.Key + "=" + t.Value + ":" + t.Effect})
	}
	if d := n.DrainStrategy; d != nil {
		deadline := "none"
		if !d.ForceDeadline.IsZero() && d.ForceDeadline.UnixNano() > 0 {
			deadline = date(d.ForceDeadline)
		}
		rows = append(rows, [2]string{"Drain Deadline", deadline}, [2]string{"Drain Ignores System Jobs", strconv.FormatBool(d.IgnoreSystemJobs)})
	}
	var host *wire.HostStats
	if n.Status == "ready" {
		var s wire.HostStats
		sctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := a.get(sctx, "/v1/client/stats", url.Values{"node_id": {n.ID}}, &s)
		cancel()
		if err == nil {
			host = &s
			rows = append(rows, [2]string{"Uptime", span(time.Duration(s.Uptime) * time.Second)})
		} else if o.stats {
			o.hint("What the node uses is not known: %v", err)
		}
	}
	o.kv(rows)
	if o.verbose && len(n.Drivers) > 0 {
		o.heading("Drivers")
		rows := [][]string{}
		for _, d := range sortedKeys(n.Drivers) {
			x := n.Drivers[d]
			rows = append(rows, []string{d, strconv.FormatBool(x.Detected), strconv.FormatBool(x.Healthy), orNone(x.HealthDescription), date(x.UpdateTime)})
		}
		o.table("Driver|Detected|Healthy|Message|Time", rows)
	}
	if len(n.HostVolumes) > 0 {
		o.heading("Host Volumes")
		rows := [][]string{}
		for _, v := range sortedKeys(n.HostVolumes) {
			rows = append(rows, []string{v, strconv.FormatBool(n.HostVolumes[v].ReadOnly), n.HostVolumes[v].Path})
		}
		o.table("Name|ReadOnly|Source", rows)
	}
	var allocs []*wire.Allocation
	if _, err := a.get(ctx, "/v1/node/"+n.ID+"/allocations", nil, &allocs); err != nil {
		return err
	}
	if o.short {
		o.heading("Allocations")
		o.nodeAllocs(allocs)
		return nil
	}
	o.events(n)
	o.resources(n, allocs, host)
	o.devices(n, allocs)
	if host != nil && o.stats {
		o.hostStats(host)
	}
	o.heading("Allocations")
	o.nodeAllocs(allocs)
	if o.verbose {
		o.heading("Attributes")
		o.stringMap(n.Attributes)
		o.heading("Meta")
		o.stringMap(n.Meta)
	}
	return nil
}

// reliability says how often a node was lost or a GPU of it failed, and what follows from it.
func reliability(r *wire.NodeReliability) string {
	lost := "not lost"
	if r.Lost > 0 {
		lost = "lost " + plural(r.Lost, "time")
	}
	if r.GPUFaults > 0 {
		lost += ", " + plural(r.GPUFaults, "GPU fault")
	}
	ready := span(time.Duration(r.ReadyTime)) // of a node that has just joined
	if d := time.Duration(r.ReadyTime); d >= 24*time.Hour {
		ready = fmt.Sprintf("%.3g", d.Hours()/24)
	}
	text := fmt.Sprintf("ready for %s of the last 30 days, %s", ready, lost)
	if r.ExpectedLoss > 0 {
		text += "; one loss is expected every " + span(time.Duration(r.ExpectedLoss))
		if r.TypicalLoss > 0 {
			text += fmt.Sprintf(" (cluster: every %s)", span(time.Duration(r.TypicalLoss)))
		}
	}
	return text
}

func (e *env) stringMap(m map[string]string) {
	if len(m) == 0 {
		e.println("None")
		return
	}
	rows := [][2]string{}
	for _, k := range sortedKeys(m) {
		rows = append(rows, [2]string{k, m[k]})
	}
	e.kv(rows)
}

func (o *nodeStatusOptions) events(n *wire.Node) {
	if len(n.Events) == 0 {
		return
	}
	o.heading("Node Events")
	rows := [][]string{}
	for _, e := range slices.Backward(n.Events) {
		rows = append(rows, []string{date(e.Timestamp), e.Subsystem, e.Message})
	}
	o.table("Time|Subsystem|Message", rows)
}

func liveAlloc(status string) bool { return status == "running" || status == "pending" }

func (o *nodeStatusOptions) resources(n *wire.Node, allocs []*wire.Allocation, host *wire.HostStats) {
	if n.NodeResources == nil {
		return
	}
	var cpu, mem, disk int64
	for _, al := range allocs {
		if !liveAlloc(al.ClientStatus) || al.AllocatedResources == nil {
			continue
		}
		disk += al.AllocatedResources.Shared.DiskMB
		for _, t := range al.AllocatedResources.Tasks {
			cpu += t.Cpu.CpuShares
			mem += t.Memory.MemoryMB
		}
	}
	total := n.NodeResources
	c, m, d := total.Cpu.CpuShares, total.Memory.MemoryMB, total.Disk.DiskMB
	if r := n.ReservedResources; r != nil {
		c, m, d = c-int64(r.Cpu.CpuShares), m-int64(r.Memory.MemoryMB), d-int64(r.Disk.DiskMB)
	}
	o.heading("Allocated Resources")
	o.table("CPU|Memory|Disk", [][]string{{fmt.Sprintf("%d/%d MHz", cpu, c), mib(mem) + "/" + mib(m), mib(disk) + "/" + mib(d)}})
	if host != nil && host.Memory != nil {
		o.heading("Host Resource Utilization")
		r := []string{fmt.Sprintf("%.0f/%d MHz", host.CPUTicksConsumed, total.Cpu.CpuShares), bytesText(host.Memory.Used) + "/" + bytesText(host.Memory.Total), "-"}
		if s := host.AllocDirStats; s != nil {
			r[2] = bytesText(s.Used) + "/" + bytesText(s.Size)
		}
		o.table("CPU|Memory|Disk", [][]string{r})
	}
}

// devices lists the node's devices and which allocations hold them.
func (o *nodeStatusOptions) devices(n *wire.Node, allocs []*wire.Allocation) {
	if n.NodeResources == nil || len(n.NodeResources.Devices) == 0 {
		return
	}
	owner, taken, whole := map[string][]string{}, map[string]int64{}, map[string]bool{}
	for _, al := range allocs {
		if !liveAlloc(al.ClientStatus) || al.AllocatedResources == nil {
			continue
		}
		for _, name := range sortedKeys(al.AllocatedResources.Tasks) {
			for _, d := range al.AllocatedResources.Tasks[name].Devices {
				shares := map[string]wire.DeviceShare{}
				for _, s := range d.Shares {
					shares[s.DeviceID] = s
					taken[s.DeviceID] += s.MemoryMB
				}
				for _, id := range d.DeviceIDs {
					who := al.JobID + " (" + shortID(al.ID, o.verbose) + ")"
					if s, ok := shares[id]; ok {
						who += " " + shareText(s)
					} else {
						whole[id] = true
					}
					owner[id] = append(owner[id], who)
				}
			}
		}
	}
	o.heading("Devices")
	rows := [][]string{}
	for _, g := range n.NodeResources.Devices {
		for _, in := range g.Instances {
			health := "healthy"
			if in.Healthy && in.HealthDescription != "" {
				health = in.HealthDescription // "degraded: why"
			}
			if !in.Healthy {
				health = "unhealthy"
				if in.HealthDescription != "" {
					health += ": " + in.HealthDescription
				}
			}
			memory, free := "-", "-"
			if in.MemoryMB > 0 {
				memory, free = mib(in.MemoryMB), mib(max(0, in.MemoryMB-in.ReserveMB-taken[in.ID]))
				if whole[in.ID] {
					free = mib(0)
				}
			}
			rows = append(rows, []string{strings.Trim(g.Vendor+"/"+g.Type+"/"+g.Name, "/"), in.ID, memory, free, health, orNone(strings.Join(owner[in.ID], ", "))})
		}
	}
	o.table("Device|ID|Memory|Free|Health|Held By", rows)
	o.mig(n.NodeResources)
}

// mig shows how the GPUs in MIG mode are divided, and how they could be.
func (o *nodeStatusOptions) mig(r *wire.NodeResources) {
	if len(r.MIG) == 0 {
		return
	}
	o.heading("MIG")
	rows := [][]string{}
	for _, g := range r.MIG {
		for _, p := range g.Profiles {
			var at []string
			for _, d := range r.Devices {
				for _, in := range d.Instances {
					if in.MIG != nil && in.MIG.GPU == g.GPU && strings.HasSuffix(d.Name, " MIG "+p.Name) {
						at = append(at, migSlots(in.MIG))
					}
				}
			}
			var starts []string
			for _, s := range p.Starts {
				starts = append(starts, strconv.FormatInt(s, 10))
			}
			rows = append(rows, []string{g.GPU, p.Name, fmt.Sprintf("%d of 8", p.Size), strconv.FormatInt(p.Max, 10), strings.Join(starts, ","), orNone(strings.Join(at, " "))})
		}
	}
	o.table("GPU|Profile|Slots|At Most|May Begin At|Instances At", rows)
}

// migSlots returns the memory slots of a MIG instance, "2" or "4-7".
func migSlots(m *wire.NodeDeviceMIG) string {
	if m.Size == 1 {
		return strconv.FormatInt(m.Start, 10)
	}
	return fmt.Sprintf("%d-%d", m.Start, m.Start+m.Size-1)
}

func (o *nodeStatusOptions) hostStats(s *wire.HostStats) {
	if len(s.CPU) > 0 {
		o.heading("CPU Stats")
		rows := [][]string{}
		for _, c := range s.CPU {
			rows = append(rows, []string{c.CPU, fmt.Sprintf("%.2f%%", c.User), fmt.Sprintf("%.2f%%", c.System), fmt.Sprintf("%.2f%%", c.Idle)})
		}
		o.table("CPU|User|System|Idle", rows)
	}
	if m := s.Memory; m != nil {
		o.heading("Memory Stats")
		o.table("Total|Available|Used|Free", [][]string{{bytesText(m.Total), bytesText(m.Available), bytesText(m.Used), bytesText(m.Free)}})
	}
	if len(s.DiskStats) > 0 {
		o.heading("Disk Stats")
		rows := [][]string{}
		for _, d := range s.DiskStats {
			rows = append(rows, []string{d.Device, d.Mountpoint, bytesText(d.Size), bytesText(d.Used), bytesText(d.Available), fmt.Sprintf("%.2f%%", d.UsedPercent), fmt.Sprintf("%.2f%%", d.InodesUsedPercent)})
		}
		o.table("Device|Mount Point|Size|Used|Available|Used Percent|Inodes Percent", rows)
	}
	o.deviceStats(s.DeviceStats, o.verbose)
}

func (o *nodeStatusOptions) nodeAllocs(list []*wire.Allocation) {
	if len(list) == 0 {
		o.println("No allocations placed")
		return
	}
	slices.SortStableFunc(list, func(x, y *wire.Allocation) int { return int(int64(y.CreateIndex) - int64(x.CreateIndex)) })
	all := make([]string, 0, len(list))
	for _, al := range list {
		all = append(all, al.ID)
	}
	cut := abbreviate(o.verbose, all)
	rows := [][]string{}
	for _, al := range list {
		rows = append(rows, []string{cut(al.ID), al.JobID, al.TaskGroup, strconv.FormatUint(al.JobVersion, 10), al.DesiredStatus, allocState(al.ClientStatus, al.Suspension), o.ageNanos(al.CreateTime, o.verbose), o.ageNanos(al.ModifyTime, o.verbose)})
	}
	o.table("ID|Job ID|Task Group|Version|Desired|Status|Created|Modified", rows)
}

// nodeSize returns a node's cores, memory and GPUs, for a list.
func nodeSize(r *wire.NodeResources) []string {
	if r == nil {
		return []string{"-", "-", "-"}
	}
	var gpus []string
	for _, d := range r.Devices {
		if d.Type == "gpu" {
			gpus = append(gpus, fmt.Sprintf("%dx%s", len(d.Instances), d.Name))
		}
	}
	return []string{strconv.Itoa(int(r.Cpu.TotalCpuCores)), mib(r.Memory.MemoryMB), orDash(strings.Join(gpus, ","))}
}

func healthyDrivers(m map[string]*wire.DriverInfo) (out []string) {
	for _, name := range sortedKeys(m) {
		if d := m[name]; d != nil && d.Healthy {
			out = append(out, name)
		}
	}
	return out
}
