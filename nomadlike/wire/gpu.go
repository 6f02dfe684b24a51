package wire

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/structs"
)

// GPU asks for GPUs: whole ones, or with memory (or share) a part of each. Whole ones without alternatives become an
// equivalent device request.
type GPU struct {
	Count       *int          `hcl:"count"`
	Model       string        `hcl:"model"`
	Memory      string        `hcl:"memory"` // of each GPU: "20GiB", "20480MiB", or a number of MiB
	Share       *int          `hcl:"share"`  // of each GPU's memory, percent
	Compute     *int          `hcl:"compute"`
	Enforce     string        `hcl:"enforce"`
	Constraints []*Constraint `hcl:"constraint"`
	Affinities  []*Affinity   `hcl:"affinity"`
	Or          []*GPUOr      `hcl:"or"`          // tried in order when no node can provide this
	MIG         string        `hcl:"mig"`         // profile of an instance: "1g.10gb"
	RDMA        string        `hcl:"rdma"`        // none, preferred, required
	PowerLimit  *int          `hcl:"power_limit"` // of each GPU, watts
	Pressure    *GPUPressure  `hcl:"pressure"`
}

// GPUPressure says what happens when a share's memory runs full.
type GPUPressure struct {
	At      []int    `hcl:"at"` // percent
	Signal  string   `hcl:"signal"`
	Command []string `hcl:"command"`
	URL     string   `hcl:"url"`
}

// GPUOr is an alternative to the GPUs that a GPU block asks for.
type GPUOr struct {
	Count       *int          `hcl:"count"`
	Model       string        `hcl:"model"`
	Memory      string        `hcl:"memory"`
	Share       *int          `hcl:"share"`
	Compute     *int          `hcl:"compute"`
	Enforce     string        `hcl:"enforce"`
	Constraints []*Constraint `hcl:"constraint"`
	Affinities  []*Affinity   `hcl:"affinity"`
	MIG         string        `hcl:"mig"`
	RDMA        string        `hcl:"rdma"`
	PowerLimit  *int          `hcl:"power_limit"`
	Pressure    *GPUPressure  `hcl:"pressure"`
}

func (o *GPUOr) gpu() *GPU {
	return &GPU{Count: o.Count, Model: o.Model, Memory: o.Memory, Share: o.Share, Compute: o.Compute, Enforce: o.Enforce, Constraints: o.Constraints, Affinities: o.Affinities, MIG: o.MIG, RDMA: o.RDMA, PowerLimit: o.PowerLimit, Pressure: o.Pressure}
}

// gpuOrMax limits the alternatives of a request.
const gpuOrMax = 16

// gpuMeta are the extensions of a task's meta that ask for GPUs, as unmodified clients spell them: "muster.gpu.memory".
var gpuMeta = []string{"compute", "count", "enforce", "memory", "mig", "model", "rdma", "share"}

// gpuFromMeta reads a task's meta. It returns nil if the meta asks for no GPUs.
func gpuFromMeta(meta map[string]string) (*GPU, error) {
	var g GPU
	found := false
	for _, k := range sortedKeys(meta) {
		name, ok := extensionKey(k)
		if !ok {
			continue
		}
		field, ok := strings.CutPrefix(name, "gpu_")
		if !ok {
			continue
		}
		found = true
		number := func(to **int) error {
			n, err := strconv.Atoi(strings.TrimSpace(meta[k]))
			if err != nil {
				return fmt.Errorf("%s = %.64q; want a whole number", k, meta[k])
			}
			*to = &n
			return nil
		}
		var err error
		switch field {
		case "compute":
			err = number(&g.Compute)
		case "count":
			err = number(&g.Count)
		case "share":
			err = number(&g.Share)
		case "enforce":
			g.Enforce = meta[k]
		case "memory":
			g.Memory = meta[k]
		case "mig":
			g.MIG = meta[k]
		case "model":
			g.Model = meta[k]
		case "rdma":
			g.RDMA = meta[k]
		default:
			err = fmt.Errorf("%s is not known; want muster.gpu and one of %s%s", k, strings.Join(gpuMeta, ", "), suggest.DidYouMean(field, gpuMeta))
		}
		if err != nil {
			return nil, err
		}
	}
	if !found {
		return nil, nil
	}
	return &g, nil
}

// metaGPU copies the GPU request in the task's meta to its resources, unless that was done before: a job that was read
// from a server has it in both places. Validation reports errors in the meta.
func (t *Task) metaGPU() {
	g, err := gpuFromMeta(t.Meta)
	if err != nil || g == nil || t.Resources.GPU != nil {
		return
	}
	g.canonicalize()
	if g.plain() && slices.ContainsFunc(t.Resources.Devices, func(d *RequestedDevice) bool {
		c := g.device()
		canonConstraints(c.Constraints)
		return d != nil && d.Name == c.Name && val(d.Count) == *c.Count && reflect.DeepEqual(d.Constraints, c.Constraints)
	}) {
		return
	}
	t.Resources.GPU = g
}

func (g *GPU) canonicalize() {
	def(&g.Count, 1)
	canonConstraints(g.Constraints)
	canonAffinities(g.Affinities)
	for _, o := range g.Or {
		if o != nil {
			def(&o.Count, 1)
			canonConstraints(o.Constraints)
			canonAffinities(o.Affinities)
		}
	}
}

// plain reports whether a request for whole devices is equivalent.
func (g *GPU) plain() bool {
	return g.MIG == "" && g.Memory == "" && g.Share == nil && g.Compute == nil && g.PowerLimit == nil && g.Pressure == nil && len(g.Or) == 0 && (g.Enforce == "" || g.Enforce == "none" || g.Enforce == "auto") &&
		(g.RDMA == "" || g.RDMA == "none") && (g.Count == nil || *g.Count >= 0)
}

// device returns the request in Nomad's terms. A model matches as a word of the name that the driver reports, so that
// "H100" matches "NVIDIA H100 80GB HBM3"; "H100|H200" matches either.
func (g *GPU) device() *RequestedDevice {
	d := &RequestedDevice{Name: "nvidia/gpu", Count: ptr(uint64(1)), Affinities: g.Affinities}
	if g.Count != nil {
		*d.Count = uint64(*g.Count)
	}
	if g.Model != "" {
		d.Constraints = []*Constraint{{LTarget: structs.ModelTarget, Operand: structs.OperandRegexp, RTarget: structs.ModelPattern(g.Model)}}
	}
	d.Constraints = append(d.Constraints, g.Constraints...)
	return d
}

// migRE matches a profile name: slices, memory, and suffixes such as "+me".
var migRE = regexp.MustCompile(`^[1-9][0-9]*(c\.[1-9][0-9]*)?g\.[1-9][0-9]*gb(\+[a-z.]+)?$`)

// parseMiB reads an amount of memory: "20GiB", "20480MiB", "1TiB", or a plain number of MiB.
func parseMiB(s string) (int64, error) {
	text := strings.TrimSpace(s)
	unit := int64(1)
	for _, u := range []struct {
		suffix string
		mib    int64
	}{{"TiB", 1 << 20}, {"GiB", 1 << 10}, {"MiB", 1}} {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			text, unit = strings.TrimSpace(rest), u.mib
			break
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 || n > amountMax/unit {
		like := "20GiB"
		if mib, known := LikelyMiB(s); known {
			if like = strconv.FormatInt(mib, 10) + "MiB"; mib%1024 == 0 {
				like = strconv.FormatInt(mib/1024, 10) + "GiB"
			}
		}
		return 0, fmt.Errorf("%.64q is not an amount of memory: want a whole number with MiB, GiB or TiB, as %q", s, like)
	}
	return n * unit, nil
}

// amountRE matches an amount of memory with any unit that people write: "2GB", "1.5 g", "512Mi".
var amountRE = regexp.MustCompile(`^\s*([0-9]+(?:\.[0-9]+)?)\s*([mMgGtT])(?:i?[bB]|i)?\s*$`)

// LikelyMiB returns the MiB that a text with a unit is likely to mean, for an error that suggests them: those of "2GB" are 2048.
func LikelyMiB(s string) (mib int64, known bool) {
	m := amountRE.FindStringSubmatch(s)
	if m == nil {
		return 0, false
	}
	x, err := strconv.ParseFloat(m[1], 64)
	x *= map[string]float64{"M": 1, "G": 1 << 10, "T": 1 << 20}[strings.ToUpper(m[2])]
	return int64(math.Ceil(x)), err == nil && x > 0 && x <= amountMax
}

// gpuWattsMax is more than any GPU draws.
const gpuWattsMax = 100_000

// whole reports whether whole GPUs are asked for.
func (g *GPU) whole() bool {
	return g.Memory == "" && g.Share == nil && g.MIG == ""
}

func (v *validator) pressure(w string, g *GPU, p *GPUPressure) {
	if g.Memory == "" && g.Share == nil {
		v.errorf(w, "pressure without a share: say how much memory the share has, as memory = \"20GiB\" or share = 25")
	}
	if len(p.At) > structs.GPUPressureMax {
		v.errorf(w+".at", "%d thresholds; want at most %d", len(p.At), structs.GPUPressureMax)
	}
	for i, at := range p.At {
		if at < 1 || at > 100 {
			v.errorf(w+".at", "%d; want 1 to 100 percent of the share", at)
		} else if i > 0 && at <= p.At[i-1] {
			v.errorf(w+".at", "%d comes after %d; want them ascending", at, p.At[i-1])
		}
	}
	if s := strings.TrimPrefix(strings.ToUpper(p.Signal), "SIG"); p.Signal != "" && !slices.Contains(signals, s) {
		v.errorf(w+".signal", "%.64q is not a signal%s", p.Signal, suggest.DidYouMean(s, signals))
	}
	v.count(w+".command", len(p.Command))
	if p.URL != "" && !strings.HasPrefix(p.URL, "http://") && !strings.HasPrefix(p.URL, "https://") {
		v.errorf(w+".url", "%.64q: want an address that begins with http:// or https://", p.URL)
	}
	ways := 0
	for _, is := range []bool{p.Signal != "", len(p.Command) > 0, p.URL != ""} {
		if is {
			ways++
		}
	}
	if ways > 1 {
		v.errorf(w, "signal, command and url exclude each other: choose one way to notify the task")
	}
}

// gpu checks one request and its alternatives.
func (v *validator) gpu(w string, g *GPU) {
	if n := val(g.Count); n < 1 || n > 4096 {
		v.errorf(w+".count", "%d; want 1 to 4096", n)
	}
	if len(g.Model) > nameMax || hasControl(g.Model) || g.Model != "" && slices.ContainsFunc(strings.Split(g.Model, "|"), func(s string) bool { return strings.TrimSpace(s) == "" }) {
		v.errorf(w+".model", "%.64q; want a word of the model's name, as \"H100\", or several, as \"H100|H200\"", g.Model)
	}
	if g.Memory != "" {
		if _, err := parseMiB(g.Memory); err != nil {
			v.errorf(w+".memory", "%v", err)
		}
		if g.Share != nil {
			v.errorf(w, "memory = %q and share = %d contradict each other: ask for an amount or for a percentage of the memory", g.Memory, *g.Share)
		}
	}
	if g.Share != nil && (*g.Share < 1 || *g.Share > 100) {
		v.errorf(w+".share", "%d; want 1 to 100 percent of the GPU's memory", *g.Share)
	}
	if g.Compute != nil {
		if *g.Compute < 1 || *g.Compute > structs.GPUComputeMax {
			v.errorf(w+".compute", "%d; want 1 to %d percent", *g.Compute, structs.GPUComputeMax)
		}
		if g.Memory == "" && g.Share == nil {
			v.errorf(w, "compute = %d without memory: say how much memory the share has, as memory = \"20GiB\" or share = 25", *g.Compute)
		}
	}
	if g.PowerLimit != nil {
		if *g.PowerLimit < 1 || *g.PowerLimit > gpuWattsMax {
			v.errorf(w+".power_limit", "%d; want 1 to %d watts", *g.PowerLimit, gpuWattsMax)
		}
		if !g.whole() {
			v.errorf(w, "power_limit = %d of a part of a GPU: a limit is of the whole GPU, which others use too; ask for whole GPUs, without memory, share and mig", *g.PowerLimit)
		}
	}
	if p := g.Pressure; p != nil {
		v.pressure(w+".pressure", g, p)
	}
	v.oneOfOrNone(w+".rdma", g.RDMA, "GPURequest.RDMA")
	if g.MIG != "" {
		if !migRE.MatchString(g.MIG) {
			v.errorf(w+".mig", "%.64q is not the profile of a MIG instance: want something like \"1g.10gb\"", g.MIG)
		}
		if g.Memory != "" || g.Share != nil || g.Compute != nil {
			v.errorf(w, "mig = %q and a share of a GPU contradict each other: an instance has its own memory and compute", g.MIG)
		}
	}
	if g.Enforce != "mps" { // refused by supportTable, which says what to write instead
		v.oneOfOrNone(w+".enforce", g.Enforce, "GPURequest.Enforce")
	}
	v.constraints(w, g.Constraints, false)
	v.affinities(w, g.Affinities, false)
	v.deviceConditions(w, g.Constraints, g.Affinities)
	if len(g.Or) > gpuOrMax {
		v.errorf(w+".or", "%d alternatives; want at most %d", len(g.Or), gpuOrMax)
	}
	for i, o := range g.Or {
		if o != nil {
			v.gpu(fmt.Sprintf("%s, or[%d]", w, i), o.gpu())
		}
	}
}

// gpusTo converts a request with its alternatives.
func gpusTo(g *GPU) []structs.GPURequest {
	mem, _ := parseMiB(g.Memory) // "" gives 0; anything else was validated
	out := []structs.GPURequest{{Count: int64(val(g.Count)), MemoryMiB: mem, Share: int64(val(g.Share)), Compute: int64(val(g.Compute)), Model: g.Model,
		Constraints: constraintsTo(g.Constraints), Affinities: affinitiesTo(g.Affinities), Enforce: g.Enforce, MIG: g.MIG, RDMA: g.RDMA, PowerLimitW: int64(val(g.PowerLimit)), Pressure: pressureTo(g.Pressure)}}
	for _, o := range g.Or {
		if o != nil {
			out = append(out, gpusTo(o.gpu())...)
		}
	}
	return out
}

func pressureTo(p *GPUPressure) *structs.GPUPressure {
	if p == nil {
		return nil
	}
	return &structs.GPUPressure{At: numbers[int64](p.At), Signal: p.Signal, Command: slices.Clone(p.Command), URL: p.URL}
}

// numbers converts a list; nil stays nil.
func numbers[To, From int | int64](list []From) []To {
	var out []To
	for _, n := range list {
		out = append(out, To(n))
	}
	return out
}

// gpuFrom converts back.
func gpuFrom(rs []structs.GPURequest) *GPU {
	if len(rs) == 0 {
		return nil
	}
	one := func(r *structs.GPURequest) *GPUOr {
		o := &GPUOr{Count: ptr(int(r.Count)), Model: r.Model, Enforce: r.Enforce, MIG: r.MIG, RDMA: r.RDMA, Constraints: constraintsFrom(r.Constraints), Affinities: affinitiesFrom(r.Affinities)}
		if r.MemoryMiB > 0 {
			o.Memory = fmt.Sprintf("%dMiB", r.MemoryMiB)
		}
		if r.Share > 0 {
			o.Share = ptr(int(r.Share))
		}
		if r.Compute > 0 {
			o.Compute = ptr(int(r.Compute))
		}
		if r.PowerLimitW > 0 {
			o.PowerLimit = ptr(int(r.PowerLimitW))
		}
		if p := r.Pressure; p != nil {
			o.Pressure = &GPUPressure{At: numbers[int](p.At), Signal: p.Signal, Command: slices.Clone(p.Command), URL: p.URL}
		}
		return o
	}
	g := one(&rs[0]).gpu()
	for i := range rs[1:] {
		g.Or = append(g.Or, one(&rs[i+1]))
	}
	return g
}
