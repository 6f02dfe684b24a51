package wire

import (
	"slices"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// QuotaSpec is a quota of namespaces, in the shape of Nomad's API. Numbers have Nomad's meaning: 0 is no limit, a
// negative number allows nothing.
type QuotaSpec struct {
	Name        string
	Description string
	Limits      []*QuotaLimit
	CreateIndex uint64
	ModifyIndex uint64
}

// QuotaLimit is the limit in one region.
type QuotaLimit struct {
	Region         string
	RegionLimit    *QuotaResources
	Soft           *QuotaResources `json:",omitempty"` // Muster's own: beyond it work is served after all other work
	VariablesLimit *int            `json:",omitempty"`
	SecretsMB      *int            `json:",omitempty"`
	Hash           []byte
}

// QuotaResources are the resources that a quota limits.
type QuotaResources struct {
	CPU         *int
	Cores       *int `json:",omitempty"`
	MemoryMB    *int
	MemoryMaxMB *int `json:",omitempty"`
	GPUMemoryMB *int `json:",omitempty"` // Muster's own; a whole GPU counts with all its memory
	Devices     []*QuotaDevice
	Storage     map[string]any   `json:",omitempty"`
	NodePools   []map[string]any `json:",omitempty"`
	NUMA        map[string]any   `json:",omitempty"`
	SecretsMB   *int             `json:",omitempty"`
}

// QuotaDevice limits the number of devices of a kind: GPUs, in this build.
type QuotaDevice struct {
	Name  string
	Count *uint64
}

// QuotaUsage is what the namespaces of a quota hold.
type QuotaUsage struct {
	Name        string
	Used        map[string]*QuotaLimit
	Namespaces  []string `json:",omitempty"` // Muster's own
	CreateIndex uint64
	ModifyIndex uint64
}

// quotaGPU is the device name under which GPUs are shown.
const quotaGPU = "nvidia/gpu"

// QuotaFromStructs converts a quota.
func QuotaFromStructs(q *structs.QuotaSpec) *QuotaSpec {
	out := &QuotaSpec{Name: q.Name, Description: q.Description, Limits: []*QuotaLimit{}, CreateIndex: uint64(q.CreateIndex), ModifyIndex: uint64(q.ModifyIndex)}
	for i := range q.Limits {
		l := &q.Limits[i]
		w := &QuotaLimit{Region: l.Region, RegionLimit: quotaResources(l.Hard, false).withModels(l.HardModels)}
		if l.Soft != nil {
			w.Soft = quotaResources(*l.Soft, false).withModels(l.SoftModels)
		}
		out.Limits = append(out.Limits, w)
	}
	return out
}

// withModels adds GPUs by model as devices.
func (r *QuotaResources) withModels(models []structs.ModelAmount) *QuotaResources {
	for _, m := range models {
		r.Devices = append(r.Devices, &QuotaDevice{Name: quotaGPU + "/" + m.Model, Count: ptr(uint64((m.Milli + 999) / 1000))})
	}
	return r
}

// QuotaUsageOf returns what a quota's namespaces hold in a region: of GPUs of models, by the words of the limits.
func QuotaUsageOf(q *structs.QuotaSpec, region string, held structs.Amount, models []structs.ModelAmount, namespaces []string) *QuotaUsage {
	var used []structs.ModelAmount
	if l := q.Limit(region); l != nil {
		for _, lim := range slices.Concat(l.HardModels, l.SoftModels) {
			if !slices.ContainsFunc(used, func(m structs.ModelAmount) bool { return m.Model == lim.Model }) {
				used = append(used, structs.ModelAmount{Model: lim.Model, Milli: structs.MilliOf(models, lim.Model)})
			}
		}
	}
	return &QuotaUsage{Name: q.Name, Namespaces: namespaces, CreateIndex: uint64(q.CreateIndex), ModifyIndex: uint64(q.ModifyIndex),
		Used: map[string]*QuotaLimit{region: {Region: region, RegionLimit: quotaResources(held, true).withModels(used)}}}
}

func quotaResources(a structs.Amount, used bool) *QuotaResources {
	num := func(v int64) *int {
		switch {
		case used:
		case v == structs.AmountNoLimit:
			v = 0
		case v == 0:
			v = -1
		}
		return ptr(int(v))
	}
	out := &QuotaResources{CPU: num(a.CPU), MemoryMB: num(a.MemoryMiB), Devices: []*QuotaDevice{}}
	if used || a.GPUMemoryMiB != structs.AmountNoLimit {
		out.GPUMemoryMB = num(a.GPUMemoryMiB)
	}
	if used || a.GPUMilli != structs.AmountNoLimit {
		out.Devices = append(out.Devices, &QuotaDevice{Name: quotaGPU, Count: ptr(uint64((a.GPUMilli + 999) / 1000))})
	}
	return out
}

// ToStructs converts a quota. A limit that this build does not enforce is an error, so that no user relies on it.
func (q *QuotaSpec) ToStructs() (*structs.QuotaSpec, error) {
	out := &structs.QuotaSpec{Name: q.Name, Description: q.Description}
	for _, l := range q.Limits {
		if l == nil {
			continue
		}
		if l.VariablesLimit != nil && *l.VariablesLimit != 0 || l.SecretsMB != nil && *l.SecretsMB != 0 {
			return nil, unsupportedQuota(q.Name, "variables_limit and secrets")
		}
		to := structs.QuotaLimit{Region: l.Region, Hard: structs.Unlimited}
		if l.RegionLimit != nil {
			var err error
			if to.Hard, to.HardModels, err = l.RegionLimit.amount(q.Name); err != nil {
				return nil, err
			}
		}
		if l.Soft != nil {
			a, models, err := l.Soft.amount(q.Name)
			if err != nil {
				return nil, err
			}
			to.Soft, to.SoftModels = &a, models
		}
		out.Limits = append(out.Limits, to)
	}
	return out, nil
}

func unsupportedQuota(name, what string) error {
	return structs.Errorf(structs.CodeUnsupported, "quota %q: a limit of %s is not supported by this build; remove it", name, what)
}

func (r *QuotaResources) amount(quota string) (out structs.Amount, models []structs.ModelAmount, err error) {
	out = structs.Unlimited
	for _, c := range []struct {
		name string
		v    *int
		to   *int64
	}{{"cores", r.Cores, nil}, {"memory_max", r.MemoryMaxMB, nil}, {"secrets", r.SecretsMB, nil},
		{"cpu", r.CPU, &out.CPU}, {"memory", r.MemoryMB, &out.MemoryMiB}, {"GPU memory", r.GPUMemoryMB, &out.GPUMemoryMiB}} {
		switch {
		case c.v == nil || *c.v == 0: // no limit
		case c.to == nil:
			return out, nil, unsupportedQuota(quota, c.name)
		default:
			*c.to = max(int64(*c.v), 0)
		}
	}
	switch {
	case len(r.Storage) > 0:
		return out, nil, unsupportedQuota(quota, "storage")
	case len(r.NodePools) > 0:
		return out, nil, unsupportedQuota(quota, "node pools")
	case len(r.NUMA) > 0:
		return out, nil, unsupportedQuota(quota, "NUMA")
	}
	for _, d := range r.Devices {
		if d == nil || d.Count == nil {
			continue
		}
		if !structs.IsGPUDevice(d.Name) {
			return out, nil, structs.Errorf(structs.CodeUnsupported, "quota %q: a limit of device %q is not supported by this build; give %q for all GPUs, or %q for those of a model", quota, d.Name, quotaGPU, quotaGPU+"/H100")
		}
		milli := 1000 * int64(min(*d.Count, 1<<30))
		if model := structs.DeviceModel(d.Name); model != "" {
			models = append(models, structs.ModelAmount{Model: model, Milli: milli})
		} else {
			out.GPUMilli = milli
		}
	}
	slices.SortStableFunc(models, func(a, b structs.ModelAmount) int { return strings.Compare(a.Model, b.Model) })
	return out, models, nil
}
