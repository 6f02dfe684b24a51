package structs

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// GPURequest asks for GPUs of one task: whole ones, or a share of each. A task has a list of them: the first one that
// can be had is taken, those after it are alternatives in order of preference ("1 H200, or else 2 H100").
type GPURequest struct {
	Count       int64  // how many GPUs, each another one; 0 means 1
	MemoryMiB   int64  // of each GPU, contexts of programs included; 0 with Share 0: whole GPUs, exclusively
	Share       int64  // percent of the schedulable memory of each GPU, when MemoryMiB is 0; 0: not asked for in percent
	Compute     int64  // percent of each GPU's multiprocessors, 1 to 100; 0: no share of its own. Only with MemoryMiB or Share
	Model       string // a word of the model's name ("H100" finds "NVIDIA H100 80GB HBM3"), or several ("H100|H200"); "" for any
	Constraints []Constraint
	Affinities  []Affinity
	MIG         string       // MIG profile ("1g.18gb"): Count instances of it that the node has; excludes memory, share and compute; "" for none
	RDMA        string       // "preferred": near a network card that reads and writes GPU memory; "" and "none": anywhere
	Enforce     string       // how the share is enforced on the node: "auto", "none", ...; "" means auto
	PowerLimitW int64        // what each GPU may draw while the task has it, watts; 0: as it is. Only of whole GPUs
	Pressure    *GPUPressure // who is told when a share runs full; nil: an event alone, at the node's thresholds
}

// GPUPressure says what happens when a task's share of a GPU's memory runs full. One of Signal, Command and URL, or none: an
// event alone.
type GPUPressure struct {
	At      []int64  // thresholds in percent of the share, ascending; empty: those of the node
	Signal  string   // sent to the task
	Command []string // run in the task
	URL     string   // POSTed by the node
}

// GPUPressureMax is how many thresholds there may be.
const GPUPressureMax = 8

// Shared reports whether the request leaves room for others on its GPUs.
func (r *GPURequest) Shared() bool { return r.MemoryMiB > 0 || r.Share > 0 }

// GPURequestOf is the one of a task's requests that these grants of it, all of them GPUs, fulfil; nil when there is none.
func GPURequestOf(rs []GPURequest, grants []Grant) *GPURequest {
	for i := range rs {
		r := &rs[i]
		if len(grants) == 0 || int64(len(grants)) != max(r.Count, 1) || r.Shared() != (grants[0].MemoryMiB > 0) || !IsModel(deviceModel(grants[0].Device), r.Model) {
			continue
		}
		if r.Shared() || (r.MIG != "") == (grants[0].Backend == BackendMIG) {
			return r
		}
	}
	return nil
}

// MemoryOn is what the request takes of a GPU with that much schedulable memory; 0 for a whole GPU. A share is rounded
// down, so that four quarters fit, but is at least 1 MiB.
func (r *GPURequest) MemoryOn(capacityMiB int64) int64 {
	if r.MemoryMiB > 0 || r.Share == 0 {
		return r.MemoryMiB
	}
	return max(1, capacityMiB*r.Share/100)
}

// GPUComputeMax is all of a GPU's compute, in percent.
const GPUComputeMax = 100

// GPUReserveAttribute is the attribute of a node, or the key of its meta, that says how many MiB of every GPU are kept
// back from shares. Without it nothing is.
const GPUReserveAttribute = "gpu.reserve_mib"

// GPUPowerW is what a GPU of a group may draw, in watts: the limit in force, or where the GPUs of the group differ or are
// divided the most that one could be set to; unknown where the driver tells neither.
func GPUPowerW(g *DeviceGroup, unknown int64) int64 {
	for _, name := range [...]string{"power", "power_max"} {
		if a := g.Attributes[name]; a.Kind == "int" && a.Int > 0 && a.Unit == "W" {
			return a.Int
		}
	}
	return unknown
}

// GPUReserveMiB is how much memory of each GPU of a node is kept back from shares.
func (n *Node) GPUReserveMiB() int64 {
	s, ok := n.Attributes[GPUReserveAttribute]
	if !ok {
		if s, ok = n.Meta[GPUReserveAttribute]; !ok {
			return 0
		}
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < 0 {
		return 0
	}
	return v
}

// IsModel reports whether one of the words, divided by |, names the model: it stands in the name as a whole word, in any
// case. "" names every model.
func IsModel(name, words string) bool {
	for word := range strings.SplitSeq(words, "|") {
		if isModel(name, word) {
			return true
		}
	}
	return false
}

// A request for whole GPUs of a model is one for devices with a condition on ${device.model} (ModelTarget): a pattern that
// finds what IsModel finds.
const (
	ModelTarget = "${device.model}"
	modelBefore = `(?i)(^|[^A-Za-z0-9])`
	modelAfter  = `($|[^A-Za-z0-9])`
)

// ModelPattern is the pattern for the words of a model, divided by |.
func ModelPattern(words string) string {
	p := regexp.QuoteMeta(words)
	if strings.Contains(p, `\|`) {
		p = "(" + strings.ReplaceAll(p, `\|`, "|") + ")"
	}
	return modelBefore + p + modelAfter
}

// ModelWords gives the words that a ModelPattern was made of; "" for any other pattern.
func ModelWords(pattern string) string {
	p, before := strings.CutPrefix(pattern, modelBefore)
	p, after := strings.CutSuffix(p, modelAfter)
	if !before || !after {
		return ""
	}
	if words, ok := strings.CutPrefix(p, "("); ok {
		p = strings.TrimSuffix(words, ")")
	}
	return strings.ReplaceAll(p, `\`, "")
}

func isModel(name, word string) bool {
	fold := func(s string) []string {
		return strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	}
	have, want := fold(name), fold(word)
	if len(want) == 0 {
		return word == ""
	}
	for i := 0; i+len(want) <= len(have); i++ {
		if slices.Equal(have[i:i+len(want)], want) {
			return true
		}
	}
	return false
}

// Within a GPU: which of the GPUs of a node, that have room, gives a share. The values of SchedulerConfig.GPUFit.
const (
	GPUFitBest  = "best"  // the one with the least left over; the default
	GPUFitFirst = "first" // the first one on the node
	GPUFitNext  = "next"  // the last one in shared use and those after it, then from the first
	GPUFitWorst = "worst" // the one with the most left over
)

// GPUFits lists the values of SchedulerConfig.GPUFit.
var GPUFits = []string{GPUFitBest, GPUFitFirst, GPUFitNext, GPUFitWorst}

// Backends that hold a share of a GPU to its size on the node, the strongest first. A device group
// tells in its attribute GPUEnforceAttribute which ones its node has, divided by commas.
const (
	BackendMIG   = "mig"   // the hardware
	BackendDmem  = "dmem"  // the kernel driver, by control group
	BackendMPS   = "mps"   // the MPS server
	BackendShim  = "shim"  // a library in the task
	BackendWatch = "watch" // the agent looks, and stops who takes more
	BackendNone  = "none"  // nobody: the share is only booked
)

// GPUEnforceAttribute is the attribute of a device group that lists the backends of its node.
const GPUEnforceAttribute = "enforce"

// gpuBackends are the backends that each value of GPURequest.Enforce accepts, the best one first. MIG is only for those
// who name it, because its sizes are fixed.
var gpuBackends = map[string][]string{
	"":           {BackendDmem, BackendMPS, BackendShim, BackendWatch, BackendNone},
	"auto":       {BackendDmem, BackendMPS, BackendShim, BackendWatch, BackendNone},
	"hard":       {BackendDmem, BackendMIG},
	"driver":     {BackendDmem, BackendMIG, BackendMPS},
	"soft":       {BackendDmem, BackendMIG, BackendMPS, BackendShim, BackendWatch},
	BackendMIG:   {BackendMIG},
	BackendDmem:  {BackendDmem},
	BackendMPS:   {BackendMPS},
	BackendShim:  {BackendShim},
	BackendWatch: {BackendWatch},
	BackendNone:  {BackendNone},
}

// GPUEnforces lists the values of GPURequest.Enforce.
var GPUEnforces = []string{"auto", "hard", "driver", "soft", BackendMIG, BackendDmem, BackendMPS, BackendShim, BackendWatch, BackendNone}

// GPUBackend chooses the strongest backend that a request accepts and a node has; ok is false when there is none. have
// is the group's attribute: backends divided by commas. That nobody enforces is always to be had.
func GPUBackend(enforce, have string) (backend string, ok bool) {
	for _, b := range gpuBackends[enforce] {
		if b == BackendNone || slices.Contains(strings.Split(have, ","), b) {
			return b, true
		}
	}
	return "", false
}
