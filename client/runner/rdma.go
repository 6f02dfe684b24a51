package runner

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// rdmaWish returns whether a task gets the node's RDMA adapters, and whether it cannot do without: it says so for all of
// itself, or for the alternative of its GPUs that was granted.
func rdmaWish(t *structs.Task, grants []structs.Grant) (wants, must bool) {
	near := nearness(t, grants)
	must = t.Resources.RDMA || near == structs.RDMARequired
	return must || near == structs.RDMAPreferred, must
}

// nearness returns how near to an RDMA adapter a task wants the GPUs that it was given.
func nearness(t *structs.Task, grants []structs.Grant) string {
	var mine []structs.Grant
	for i := range grants {
		if grants[i].Task == t.Name && grants[i].IsGPU() {
			mine = append(mine, grants[i])
		}
	}
	if r := structs.GPURequestOf(t.Resources.GPU, mine); r != nil {
		return r.RDMA
	}
	return ""
}

// withoutAdapter says that a task prefers GPUs near an RDMA adapter and was given others; "" if neither.
func withoutAdapter(n *structs.Node, t *structs.Task, grants []structs.Grant) string {
	if nearness(t, grants) != structs.RDMAPreferred {
		return ""
	}
	all, far := 0, 0
	for i := range grants {
		if grants[i].Task == t.Name && grants[i].IsGPU() {
			if all++; len(adaptersNear(n, grants[i:i+1], t.Name)) == 0 {
				far++
			}
		}
	}
	if far == 0 {
		return ""
	}
	return fmt.Sprintf("The task prefers GPUs near an RDMA adapter and was given %d of %d that are not", far, all)
}

// adaptersNear lists the RDMA adapters near the GPUs of a task, in the order of the GPUs.
func adaptersNear(n *structs.Node, grants []structs.Grant, task string) (out []string) {
	for i := range grants {
		x := &grants[i]
		if x.Task != task || !x.IsGPU() || n == nil {
			continue
		}
		for k := range n.Resources.Devices {
			for _, in := range n.Resources.Devices[k].Instances {
				if in.ID != x.Instance || in.Adapters == "" {
					continue
				}
				for name := range strings.SplitSeq(in.Adapters, ",") {
					if !slices.Contains(out, name) {
						out = append(out, name)
					}
				}
			}
		}
	}
	return out
}

// nearFabric returns the variables of the fabric for a task with adapters near its GPUs: those of the adapters that the
// operator lists, if there are any among them, else all of them. A leading "=" makes NCCL match names exactly.
func nearFabric(vars map[string]string, near []string) map[string]string {
	if len(near) == 0 {
		return vars
	}
	list := near
	if configured := strings.TrimPrefix(vars[ncclHCA], "="); configured != "" {
		list = slices.DeleteFunc(strings.Split(configured, ","), func(s string) bool {
			name, _, _ := strings.Cut(s, ":")
			return !slices.Contains(near, name)
		})
		if len(list) == 0 {
			return vars // the operator leaves these to others
		}
	}
	out := maps.Clone(vars)
	if out == nil {
		out = map[string]string{}
	}
	out[ncclHCA] = "=" + strings.Join(list, ",")
	if out[ucxDevices] == "" {
		ports := make([]string, len(list))
		for i, s := range list {
			if ports[i] = s; !strings.Contains(s, ":") {
				ports[i] += ":1"
			}
		}
		out[ucxDevices] = strings.Join(ports, ",")
	}
	return out
}

// Variables with the adapters that NCCL and UCX use.
const (
	ncclHCA    = "NCCL_IB_HCA"
	ucxDevices = "UCX_NET_DEVICES"
)
