package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

func newGPU(e *env) *cobra.Command {
	return e.group("gpu", "Look at the cluster's GPUs", "", "muster gpu list\nmuster gpu release -for 30m gpu-01", newGPUList, newGPURelease)
}

type gpuListOptions struct {
	*env
	form format
}

// gpuModel is one line of the list, and its JSON form.
type gpuModel struct {
	Model          string
	MemoryMiB      int64 // of one device; 0 when unknown
	Nodes          int   // nodes with such devices
	Total          int   // devices, healthy or not
	Free           int   // healthy, on a node that accepts work, and unused
	Unhealthy      int
	Shared         int    // in shared use
	FreeMemoryMiB  int64  // available to shares, on healthy GPUs of nodes that accept work
	LargestSlotMiB int64  // the most of it on one GPU: the largest share that can start now
	Fragmentation  int    // percent of the free memory that is on GPUs in shared use, so that whole-GPU requests cannot use it
	Largest        int    // free devices on one node: the largest gang that can start there now
	OnNode         string // name of that node
	Used           int    // percent of the devices' memory that is in use; of the devices, if they have no known size
	WaitingJobs    int    // jobs that ask for this model, or for any
	WaitingGPUs    int64
	takenMiB       int64
}

func newGPUList(e *env) *cobra.Command {
	o := &gpuListOptions{env: e}
	c := e.verb("list [options]", "List GPU models: how many, how many free, the largest gang now", "List GPU models with how many there are, how many are free, and how many of the free ones are together on one node. MEM FREE is the memory that shares may still have, LARGEST SLOT the most of it on one GPU; FRAGMENTED is how much of it lies on GPUs that are shared already, where no whole GPU can be had. USED is how much of the memory of all of them is given out, WAITING what asks for the model and waits, with -namespace in that namespace only.", `
muster gpu list
muster gpu list -json`, 0, 0, o.run)
	o.form.listFlags(c)
	return c
}

func (o *gpuListOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var nodes []*wire.NodeListStub
	if _, err := a.get(ctx, "/v1/nodes", url.Values{"resources": {"true"}}, &nodes); err != nil {
		return err
	}
	var allocs []*wire.AllocationListStub
	if _, err := a.get(ctx, "/v1/allocations", url.Values{"namespace": {"*"}, "resources": {"true"}, "task_states": {"false"}}, &allocs); err != nil {
		return err
	}
	list := gpuModels(nodes, allocs)
	if err := a.inNoNamespace(ctx, 0); err != nil {
		return err
	}
	if waiting, err := pages[nomadlike.QueueItem](ctx, a, "/v1/queue", ns(a.anyNamespace())); err == nil { // otherwise the user may not see the queue
		countWaiting(list, waiting)
	}
	if done, err := listed(&o.form, o.env, list, "", func(m *gpuModel) string { return m.Model }); done || err != nil {
		return err
	}
	if len(list) == 0 {
		o.println("No GPUs")
		o.hint("Made-up ones to try things:  " + madeUpGPUs)
		return nil
	}
	rows := [][]string{}
	for _, m := range list {
		mem, largest := "-", "0"
		if m.MemoryMiB > 0 {
			mem = mib(m.MemoryMiB)
		}
		if m.Largest > 0 {
			largest = fmt.Sprintf("%d (%s), %d any", m.Largest, m.OnNode, m.Free)
		}
		waits := "-"
		if m.WaitingJobs > 0 {
			waits = fmt.Sprintf("%s / %s", plural(int64(m.WaitingJobs), "job"), plural(m.WaitingGPUs, "GPU"))
		}
		rows = append(rows, []string{m.Model, mem, strconv.Itoa(m.Nodes), strconv.Itoa(m.Total), strconv.Itoa(m.Free), strconv.Itoa(m.Shared), strconv.Itoa(m.Unhealthy),
			mib(m.FreeMemoryMiB), mib(m.LargestSlotMiB), strconv.Itoa(m.Fragmentation) + "%", largest, strconv.Itoa(m.Used) + "%", waits})
	}
	defer o.instances(nodes)
	o.table("MODEL|MEM|NODES|TOTAL|FREE|SHARED|UNHEALTHY|MEM FREE|LARGEST SLOT|FRAGMENTED|LARGEST GANG NOW|USED|WAITING", rows)
	return nil
}

// madeUpGPUs starts an agent with GPUs that do not exist.
const madeUpGPUs = "muster agent -dev -dev-gpus=8xH100"

// instances lists the MIG instances with their position on their GPU.
func (o *gpuListOptions) instances(nodes []*wire.NodeListStub) {
	rows := [][]string{}
	for _, n := range nodes {
		if n.NodeResources == nil {
			continue
		}
		for _, g := range n.NodeResources.Devices {
			for _, in := range g.Instances {
				if in.MIG != nil {
					_, profile, _ := strings.Cut(g.Name, " MIG ")
					rows = append(rows, []string{n.Name, in.MIG.GPU, profile, migSlots(in.MIG), in.ID})
				}
			}
		}
	}
	if len(rows) > 0 {
		o.heading("MIG Instances")
		o.table("NODE|GPU|PROFILE|SLOTS|INSTANCE", rows)
	}
}

// gpuModels counts devices of type gpu by model, sorted by model. A device is used while a live allocation holds it.
func gpuModels(nodes []*wire.NodeListStub, allocs []*wire.AllocationListStub) []*gpuModel {
	whole, part := map[string]bool{}, map[string]int64{} // part: MiB taken by shares
	for _, al := range allocs {
		if !liveAlloc(al.ClientStatus) || al.AllocatedResources == nil {
			continue
		}
		for _, t := range al.AllocatedResources.Tasks {
			for _, d := range t.Devices {
				shared := map[string]bool{}
				for _, s := range d.Shares {
					if s.Backend == structs.BackendMIG {
						continue // an instance is held whole
					}
					shared[s.DeviceID] = true
					part[al.NodeID+s.DeviceID] += s.MemoryMB
				}
				for _, id := range d.DeviceIDs {
					if !shared[id] {
						whole[al.NodeID+id] = true
					}
				}
			}
		}
	}
	models := map[string]*gpuModel{}
	pieces := map[string]int64{} // free memory on GPUs in shared use, by model
	for _, n := range nodes {
		if n.NodeResources == nil {
			continue
		}
		ready := n.Status == "ready" && n.SchedulingEligibility == "eligible" && !n.Drain
		here := map[string]int{}
		for _, g := range n.NodeResources.Devices {
			if g.Type != "gpu" {
				continue
			}
			m := models[g.Name]
			if m == nil {
				m = &gpuModel{Model: g.Name}
				models[g.Name] = m
			}
			m.Nodes++
			for _, in := range g.Instances {
				m.Total++
				m.MemoryMiB = max(m.MemoryMiB, in.MemoryMB)
				switch k := n.ID + in.ID; {
				case !in.Healthy:
					m.Unhealthy++
				case whole[k]:
					m.takenMiB += max(in.MemoryMB, 1)
				default:
					taken := part[k]
					m.takenMiB += taken
					switch {
					case taken > 0:
						m.Shared++
					case ready:
						m.Free++
						here[g.Name]++
					}
					if free := in.MemoryMB - in.ReserveMB - taken; ready && free > 0 {
						m.FreeMemoryMiB += free
						m.LargestSlotMiB = max(m.LargestSlotMiB, free)
						if taken > 0 {
							pieces[g.Name] += free
						}
					}
				}
			}
			if here[g.Name] > m.Largest {
				m.Largest, m.OnNode = here[g.Name], n.Name
			}
		}
	}
	out := []*gpuModel{}
	for _, k := range sortedKeys(models) {
		m := models[k]
		if m.FreeMemoryMiB > 0 {
			m.Fragmentation = int(pieces[k] * 100 / m.FreeMemoryMiB)
		}
		if size := max(m.MemoryMiB, 1) * int64(m.Total); size > 0 {
			m.Used = int(min(m.takenMiB*100/size, 100))
		}
		out = append(out, m)
	}
	return out
}

// countWaiting adds the waiting jobs of each model; a job that takes any model counts for all of them.
func countWaiting(list []*gpuModel, waiting []nomadlike.QueueItem) {
	for _, it := range waiting {
		for _, m := range list {
			if it.GPUs > 0 && structs.IsModel(m.Model, it.Model) {
				m.WaitingJobs++
				m.WaitingGPUs += it.GPUs
			}
		}
	}
}
