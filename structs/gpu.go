package structs

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// GPURequest asks for GPUs for one task: whole ones, or a share of each. A task has a list of alternatives in order of
// preference ("1 H200, or else 2 H100"); the first that is available is taken.
type GPURequest struct {
	Count       int64  // number of distinct GPUs; 0 means 1
	MemoryMiB   int64  // of each GPU, including CUDA contexts; 0 with Share 0: whole GPUs, exclusively
	Share       int64  // percent of the schedulable memory of each GPU, when MemoryMiB is 0; 0: not requested in percent
	Compute     int64  // percent of each GPU's multiprocessors, 1 to 100; 0: no compute share. Only with MemoryMiB or Share
	Model       string // a word of the model's name ("H100" matches "NVIDIA H100 80GB HBM3"), or several ("H100|H200"); "" for any
	Constraints []Constraint
	Affinities  []Affinity
	MIG         string       // MIG profile ("1g.18gb"): Count instances that the node has; excludes memory, share and compute; "" for none
	RDMA        string       // RDMAPreferred, RDMARequired: near an RDMA adapter (DeviceInstance.Adapters); "" and "none": anywhere
	Enforce     string       // how the share is enforced on the node: "auto", "none", ...; "" means auto
	PowerLimitW int64        // power limit of each GPU while the task has it, watts; 0: unchanged. Only with whole GPUs
	Pressure    *GPUPressure // what happens when a share runs full; nil: only an event, at the node's thresholds
}

// GPUPressure says what happens when a task's share of a GPU's memory runs full. At most one of Signal, Command and URL
// is set; with none, only an event is recorded.
type GPUPressure struct {
	At      []int64  // thresholds in percent of the share, ascending; empty: those of the node
	Signal  string   // sent to the task
	Command []string // run in the task
	URL     string   // POSTed by the node
}

// GPUPressureMax is the maximum number of thresholds.
const GPUPressureMax = 8

// Shared reports whether the request leaves room for others on its GPUs.
func (r *GPURequest) Shared() bool { return r.MemoryMiB > 0 || r.Share > 0 }

// GPURequestOf returns the request that these GPU grants of a task fulfil, or nil.
func GPURequestOf(rs []GPURequest, grants []Grant) *GPURequest {
	for i := range rs {
		r := &rs[i]
		if len(grants) == 0 || int64(len(grants)) != max(r.Count, 1) || r.Shared() != (grants[0].MemoryMiB > 0) || !IsModel(DeviceModel(grants[0].Device), r.Model) {
			continue
		}
		if r.Shared() || (r.MIG != "") == (grants[0].Backend == BackendMIG) {
			return r
		}
	}
	return nil
}

// MemoryOn returns how much of a GPU's schedulable memory the request takes; 0 for a whole GPU. A share is rounded
// down, so that four quarters fit, but is at least 1 MiB.
func (r *GPURequest) MemoryOn(capacityMiB int64) int64 {
	if r.MemoryMiB > 0 || r.Share == 0 {
		return r.MemoryMiB
	}
	return max(1, capacityMiB*r.Share/100)
}

// GPUComputeMax is all compute of a GPU, in percent.
const GPUComputeMax = 100

// GPUReserveAttribute is the attribute of a node, or the key of its meta, with the MiB of every GPU that shares cannot
// use. Without it they can use all.
const GPUReserveAttribute = "gpu.reserve_mib"

// GPUPowerW returns how many watts a GPU of a group may draw: the limit in force or, if the GPUs of the group differ or
// are divided, the highest limit that one could get. It returns unknown if the driver reports neither.
func GPUPowerW(g *DeviceGroup, unknown int64) int64 {
	for _, name := range [...]string{"power", "power_max"} {
		if a := g.Attributes[name]; a.Kind == "int" && a.Int > 0 && a.Unit == "W" {
			return a.Int
		}
	}
	return unknown
}

// GPUReserveMiB returns how much memory of each GPU of a node shares cannot use.
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

// IsModel reports whether one of the words, separated by |, is in the model's name as a whole word, ignoring case. ""
// matches every model.
func IsModel(name, words string) bool {
	for word := range strings.SplitSeq(words, "|") {
		if isModel(name, word) {
			return true
		}
	}
	return false
}

// A request for whole GPUs of a model is a device request with a condition on ${device.model} (ModelTarget): a pattern
// that matches what IsModel matches.
const (
	ModelTarget = "${device.model}"
	modelBefore = `(?i)(^|[^A-Za-z0-9])`
	modelAfter  = `($|[^A-Za-z0-9])`
)

// DeviceIDs is the name of the IDs of devices in conditions, "${device.ids}": they say which devices a task may have.
const DeviceIDs = "device.ids"

// DeviceAdapters is the name of the RDMA adapters near a device in conditions, "${device.rdma}": DeviceInstance.Adapters.
// It is not set for a device without any.
const DeviceAdapters = "device.rdma"

// How near a GPU must be to an RDMA adapter (GPURequest.RDMA).
const (
	RDMAPreferred = "preferred" // GPUs near an adapter come first
	RDMARequired  = "required"  // no others
)

// ModelPattern returns the pattern for the words of a model, separated by |.
func ModelPattern(words string) string {
	p := regexp.QuoteMeta(words)
	if strings.Contains(p, `\|`) {
		p = "(" + strings.ReplaceAll(p, `\|`, "|") + ")"
	}
	return modelBefore + p + modelAfter
}

// ModelWords returns the words of a ModelPattern; "" for any other pattern.
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

// Which of the GPUs of a node with enough room gives a share: the values of SchedulerConfig.GPUFit.
const (
	GPUFitBest  = "best"  // the one with the least left over; the default
	GPUFitFirst = "first" // the first one on the node
	GPUFitNext  = "next"  // the one shared last and those after it, then from the first
	GPUFitWorst = "worst" // the one with the most left over
)

// GPUFits lists the values of SchedulerConfig.GPUFit.
var GPUFits = []string{GPUFitBest, GPUFitFirst, GPUFitNext, GPUFitWorst}

// Backends that enforce a share of a GPU on the node, the strongest first. The attribute GPUEnforceAttribute of a
// device group lists those of its node, separated by commas.
const (
	BackendMIG   = "mig"   // the hardware
	BackendDmem  = "dmem"  // the kernel driver, by control group
	BackendShim  = "shim"  // a library in the task
	BackendWatch = "watch" // the agent measures, and stops a task that uses more
	BackendNone  = "none"  // no enforcement: the share is only reserved
)

// GPUEnforceAttribute is the attribute of a device group that lists the backends of its node.
const GPUEnforceAttribute = "enforce"

// gpuBackends are the backends that each value of GPURequest.Enforce accepts, the best one first. MIG is only used if
// named, because its sizes are fixed.
var gpuBackends = map[string][]string{
	"":           {BackendDmem, BackendShim, BackendWatch, BackendNone},
	"auto":       {BackendDmem, BackendShim, BackendWatch, BackendNone},
	"hard":       {BackendDmem, BackendMIG},
	"driver":     {BackendDmem, BackendMIG},
	"soft":       {BackendDmem, BackendMIG, BackendShim, BackendWatch},
	BackendMIG:   {BackendMIG},
	BackendDmem:  {BackendDmem},
	BackendShim:  {BackendShim},
	BackendWatch: {BackendWatch},
	BackendNone:  {BackendNone},
}

// GPUEnforces lists the values of GPURequest.Enforce.
var GPUEnforces = []string{"auto", "hard", "driver", "soft", BackendMIG, BackendDmem, BackendShim, BackendWatch, BackendNone}

// GPUBackend returns the strongest backend that a request accepts and a node has; ok is false if there is none. have is
// the group's attribute: backends separated by commas. BackendNone is always available.
func GPUBackend(enforce, have string) (backend string, ok bool) {
	for _, b := range gpuBackends[enforce] {
		if b == BackendNone || slices.Contains(strings.Split(have, ","), b) {
			return b, true
		}
	}
	return "", false
}

// AsksEither reports whether any one of several GPU requests would do.
func (t *Task) AsksEither() bool { return len(t.Resources.GPU) > 1 }
