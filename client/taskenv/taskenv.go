// Package taskenv builds the environment of a task and replaces ${...} in its job.
//
// Every variable exists twice: under Nomad's name (NOMAD_ALLOC_ID) and under Muster's (MUSTER_ALLOC_ID).
package taskenv

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// Input is what an environment is built from.
type Input struct {
	Node   *structs.Node
	Region string
	Alloc  *structs.Allocation // its Job is set
	Task   *structs.Task

	AllocDir, TaskDir, SecretsDir string // absolute, as the task sees them; "" leaves the variable out

	Fabric map[string]string // variables of the node; the job's settings override them

	Network *Network // of the allocation's own network, nil if it uses its node's

	Gang *Gang // nil for a task outside gangs and launches

	TaskRestarts      int64  // restarts of the task within its allocation
	TaskRestartReason string // reason of the last one

	Saved    *structs.Saved // the checkpoint to resume from, or nil
	OwnSaved bool           // it was written by this allocation

	Inherit []string // names of variables that tasks inherit from the agent's environment; nil for InheritDefault
}

// Network is the allocation's address in its own network.
type Network struct {
	IP        string
	Interface string
}

// InheritDefault are the variables that tasks inherit from the agent's environment.
var InheritDefault = []string{"PATH", "LANG", "TZ", "TERM", "HOME"}

// Env is the environment of one task. It is not safe for concurrent use.
type Env struct {
	made map[string]string // see vars; nil before the first look at a variable
	in   Input             // further names for ${...}: node.*, attr.*, meta.*
}

// New returns the environment of a task. What in points to must not change any more. Values are interpolated once: the
// text of a replacement is not replaced again.
func New(in Input) *Env { return &Env{in: in} }

// varsUsual is about the number of variables of a task with directories and ports, for the size of the map.
const varsUsual = 56

// vars returns what the task sees. It is made at the first look, because many configurations refer to no variable, and not
// every driver has a use for them.
func (e *Env) vars() map[string]string {
	if e.made == nil {
		e.made = make(map[string]string, varsUsual)
		e.build(&e.in)
	}
	return e.made
}

// build sets the variables.
func (e *Env) build(in *Input) {
	inherit := in.Inherit
	if inherit == nil {
		inherit = InheritDefault
	}
	for _, k := range inherit {
		if v, ok := os.LookupEnv(k); ok {
			e.made[k] = v
		}
	}
	maps.Copy(e.made, in.Fabric)
	e.identity(in)
	e.resources(in)
	e.network(in)
	e.devices(in)
	e.meta(in)
	e.work(in)
	if in.Gang != nil {
		e.gang(in.Gang, in)
	}
	// The job's own variables come last and override others, except those that identify the task.
	for _, k := range sorted(in.Task.Env) {
		name := e.Replace(k)
		if reserved(name) {
			continue
		}
		e.made[cleanName(name)] = e.Replace(in.Task.Env[k])
	}
	if in.Gang != nil && in.Gang.Launch != nil && slices.Contains(in.Gang.Launch.Compat, "mpi") {
		e.reach(in.Gang.Muster)
	}
}

// reserved reports whether only the agent may set a variable.
func reserved(name string) bool {
	return strings.HasPrefix(name, "NOMAD_ALLOC_") || strings.HasPrefix(name, "MUSTER_ALLOC_") ||
		name == "NOMAD_SECRETS_DIR" || name == "MUSTER_SECRETS_DIR"
}

// Vars returns a copy of the variables.
func (e *Env) Vars() map[string]string { return maps.Clone(e.vars()) }

// Set sets a variable, unless it is reserved for the agent.
func (e *Env) Set(name, value string) bool {
	if reserved(name) {
		return false
	}
	e.vars()[cleanName(name)] = value
	return true
}

// Person sets HOME, USER and LOGNAME, where the job does not set them itself.
func (e *Env) Person(name, home string) {
	said := make(map[string]bool, len(e.in.Task.Env))
	for k := range e.in.Task.Env {
		said[cleanName(e.Replace(k))] = true
	}
	for k, v := range map[string]string{"HOME": home, "USER": name, "LOGNAME": name} {
		if !said[k] {
			e.vars()[k] = v
		}
	}
}

// Get returns one variable.
func (e *Env) Get(name string) string { return e.vars()[name] }

// both sets a variable under both names.
func (e *Env) both(name, value string) {
	e.made["NOMAD_"+name] = value
	e.made["MUSTER_"+name] = value
}

func (e *Env) identity(in *Input) {
	a, j := in.Alloc, in.Alloc.Job
	e.both("ALLOC_ID", a.ID.String())
	e.both("SHORT_ALLOC_ID", a.ID.Short())
	e.both("ALLOC_INDEX", strconv.Itoa(a.NameIndex))
	e.both("ALLOC_NAME", a.Name())
	e.both("GROUP_NAME", string(a.Group))
	e.both("TASK_NAME", in.Task.Name)
	e.both("JOB_ID", a.JobID)
	e.both("JOB_NAME", orElse(j.Name, a.JobID))
	if j.ParentID != "" {
		e.both("JOB_PARENT_ID", j.ParentID)
	}
	e.both("NAMESPACE", a.Namespace)
	e.both("REGION", orElse(in.Region, j.Region))
	e.both("DC", in.Node.Datacenter)
	e.both("NODE_ID", in.Node.ID.String())
	e.both("NODE_NAME", in.Node.Name)
	for _, d := range [...][2]string{{"ALLOC_DIR", in.AllocDir}, {"TASK_DIR", in.TaskDir}, {"SECRETS_DIR", in.SecretsDir}} {
		if d[1] != "" {
			e.both(d[0], d[1])
		}
	}
	if in.SecretsDir != "" {
		e.both("UNIX_ADDR", "unix://"+in.SecretsDir+"/api.sock")
	}
}

func orElse(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func (e *Env) resources(in *Input) {
	r := in.Task.Resources
	cpu := r.CPU
	if r.Cores > 0 && in.Node.Resources.MHzPerCore > 0 {
		cpu = r.Cores * in.Node.Resources.MHzPerCore
	}
	e.both("CPU_LIMIT", strconv.FormatInt(cpu, 10))
	if r.Cores > 0 && len(in.Alloc.Cores) > 0 {
		e.both("CPU_CORES", CPUSet(in.Alloc.TaskCores(in.Task.Name)))
	}
	e.both("MEMORY_LIMIT", strconv.FormatInt(r.MemoryMiB, 10))
	if r.MemoryMaxMiB > 0 {
		e.both("MEMORY_MAX_LIMIT", strconv.FormatInt(r.MemoryMaxMiB, 10))
	}
}

// CPUSet formats core numbers like the kernel: "0-3,8".
func CPUSet(cores []int64) string {
	c := append([]int64(nil), cores...)
	sort.Slice(c, func(i, j int) bool { return c[i] < c[j] })
	var b strings.Builder
	for i := 0; i < len(c); {
		k := i
		for k+1 < len(c) && c[k+1] == c[k]+1 {
			k++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%d", c[i])
		if k > i {
			fmt.Fprintf(&b, "-%d", c[k])
		}
		i = k + 1
	}
	return b.String()
}

// network sets IP_, PORT_, ADDR_, HOST_IP_, HOST_PORT_, HOST_ADDR_ and ALLOC_PORT_ of each port, and ALLOC_IP_,
// ALLOC_ADDR_ and ALLOC_INTERFACE_ in the allocation's own network. PORT_ is the port to bind; IP_ and ADDR_ are where
// others reach it.
func (e *Env) network(in *Input) {
	ip := ""
	if n := in.Node.Resources.Networks; len(n) > 0 {
		ip = n[0].IP
	}
	for _, p := range in.Alloc.Ports {
		label := cleanName(p.Label)
		host := orElse(p.HostIP, ip)
		inside := p.Value
		if p.To > 0 {
			inside = p.To
		}
		e.both("IP_"+label, host)
		e.both("HOST_IP_"+label, host)
		e.both("PORT_"+label, strconv.Itoa(inside))
		e.both("ALLOC_PORT_"+label, strconv.Itoa(inside))
		e.both("HOST_PORT_"+label, strconv.Itoa(p.Value))
		e.both("ADDR_"+label, joinHostPort(host, p.Value))
		e.both("HOST_ADDR_"+label, joinHostPort(host, p.Value))
		if n := in.Network; n != nil {
			e.both("ALLOC_IP_"+label, n.IP)
			e.both("ALLOC_ADDR_"+label, joinHostPort(n.IP, inside))
			e.both("ALLOC_INTERFACE_"+label, n.Interface)
		}
	}
}

func joinHostPort(host string, port int) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(port)
}

// devices sets the variables with the task's GPUs, by UUID. A task without a grant sees none: the empty list hides GPUs
// from CUDA and "void" from NVIDIA's container runtime. For a task that shares GPUs it also sets memory in MiB and
// compute in percent, one number per GPU in the same order, 0 for all of it.
func (e *Env) devices(in *Input) {
	var gpus, memory, compute []string
	var shared, parts bool
	for _, g := range in.Alloc.Grants {
		if g.Task != in.Task.Name {
			continue
		}
		if !g.IsGPU() {
			continue
		}
		gpus = append(gpus, g.Instance)
		memory, compute = append(memory, strconv.FormatInt(g.MemoryMiB, 10)), append(compute, strconv.FormatInt(g.Compute, 10))
		shared = shared || g.MemoryMiB > 0
		parts = parts || g.Compute > 0
	}
	if shared {
		e.made["MUSTER_GPU_MEMORY_MIB"] = strings.Join(memory, ",")
	}
	if parts {
		e.made["MUSTER_GPU_COMPUTE"] = strings.Join(compute, ",")
	}
	if len(gpus) > 0 {
		list := strings.Join(gpus, ",")
		e.made["CUDA_VISIBLE_DEVICES"] = list
		e.made["NVIDIA_VISIBLE_DEVICES"] = list
		e.made["MUSTER_GPU_COUNT"] = strconv.Itoa(len(gpus))
		return
	}
	for _, d := range in.Node.Resources.Devices {
		if d.Type == "gpu" {
			e.made["CUDA_VISIBLE_DEVICES"] = ""
			e.made["NVIDIA_VISIBLE_DEVICES"] = "void"
			return
		}
	}
}

// meta sets META_<key>; the task's meta overrides the group's and the group's the job's.
func (e *Env) meta(in *Input) {
	for _, m := range metas(in) {
		for _, k := range sorted(m) {
			v := e.Replace(m[k])
			e.both("META_"+cleanName(k), v)
			e.both("META_"+strings.ToUpper(cleanName(k)), v)
		}
	}
}

func metas(in *Input) []map[string]string {
	out := []map[string]string{in.Alloc.Job.Meta}
	if g := in.Alloc.Job.Group(in.Alloc.Group); g != nil {
		out = append(out, g.Meta)
	}
	return append(out, in.Task.Meta)
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// cleanName replaces characters that a shell variable cannot have by underscores.
func cleanName(s string) string {
	ok := func(i int, c byte) bool {
		return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' && i > 0
	}
	for i := 0; i < len(s); i++ {
		if !ok(i, s[i]) {
			b := []byte(s)
			for k := i; k < len(b); k++ {
				if !ok(k, b[k]) && !(b[k] >= '0' && b[k] <= '9' && k > 0) {
					b[k] = '_'
				}
			}
			return string(b)
		}
	}
	return s
}

// Verbatim escapes text so that Replace returns it unchanged.
func Verbatim(text string) string { return strings.ReplaceAll(text, "${", `${"$"}{`) }

// Replace replaces ${NOMAD_...}, ${MUSTER_...}, ${env["X"]}, ${node.*}, ${attr.*} and ${meta.*}, and ${"$"} by a dollar
// sign. Unknown references are kept, because they may be meant for a shell.
func (e *Env) Replace(s string) string {
	if !strings.Contains(s, "${") {
		return s
	}
	var b strings.Builder
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			b.WriteString(s)
			return b.String()
		}
		end := strings.IndexByte(s[i:], '}')
		if end < 0 {
			b.WriteString(s)
			return b.String()
		}
		b.WriteString(s[:i])
		name := s[i+2 : i+end]
		if v, ok := e.lookup(strings.TrimSpace(name)); ok {
			b.WriteString(v)
		} else {
			b.WriteString(s[i : i+end+1])
		}
		s = s[i+end+1:]
	}
}

func (e *Env) lookup(name string) (string, bool) {
	if inner, ok := strings.CutPrefix(name, "env["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		inner = strings.Trim(inner, `"'`)
		if !ok {
			return "", false
		}
		v, ok := e.vars()[inner]
		return v, ok
	}
	if inner, ok := strings.CutPrefix(name, "env."); ok {
		v, ok := e.vars()[inner]
		return v, ok
	}
	n := e.in.Node
	switch name {
	case `"$"`:
		return "$", true
	case "node.unique.id":
		return n.ID.String(), true
	case "node.unique.name":
		return n.Name, true
	case "node.datacenter":
		return n.Datacenter, true
	case "node.region":
		return e.in.Region, true
	case "node.class":
		return n.Class, true
	case "node.pool":
		return string(n.Pool), true
	}
	if key, ok := strings.CutPrefix(name, "attr."); ok {
		v, ok := n.Attributes[key]
		return v, ok
	}
	if key, ok := strings.CutPrefix(name, "meta."); ok {
		v, ok := n.Meta[key]
		return v, ok
	}
	v, ok := e.vars()[name]
	return v, ok
}

// Config decodes a driver's block and replaces inside every string of it.
func (e *Env) Config(raw structs.RawConfig) (map[string]any, error) {
	if len(raw) == 0 {
		return map[string]any{}, nil
	}
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("the task's config block is not an object: %w", err)
	}
	for k, v := range m {
		m[k] = e.replaceAny(v)
	}
	return m, nil
}

// replaceAny walks a decoded block; encoding/json has limited its depth.
func (e *Env) replaceAny(v any) any {
	switch x := v.(type) {
	case string:
		return e.Replace(x)
	case []any:
		for i := range x {
			x[i] = e.replaceAny(x[i])
		}
	case map[string]any:
		out := make(map[string]any, len(x))
		for k, w := range x {
			out[e.Replace(k)] = e.replaceAny(w)
		}
		return out
	}
	return v
}
