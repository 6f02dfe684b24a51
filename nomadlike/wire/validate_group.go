package wire

import (
	"fmt"
	"net/netip"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-version"

	"github.com/muster-sched/muster/internal/driverconf"
	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/structs"
)

// constraints checks a list of constraints; the distinct ones are valid for jobs and groups only.
func (v *validator) constraints(where string, in []*Constraint, distinct bool) {
	v.count(prefix(where, "constraint"), len(in))
	for i, c := range in {
		if c == nil {
			continue
		}
		w := prefix(where, fmt.Sprintf("constraint %d", i+1))
		switch c.Operand {
		case structs.OperandDistinctHosts:
			if !distinct {
				v.errorf(w, "distinct_hosts concerns whole allocations; put it into the job or the group")
			}
			if c.RTarget != "" && !parsesAsBool(c.RTarget) {
				v.errorf(w, "distinct_hosts wants true or false, got %.64q", c.RTarget)
			}
			continue
		case structs.OperandDistinctProperty:
			if !distinct {
				v.errorf(w, "distinct_property concerns whole allocations; put it into the job or the group")
			}
			if c.LTarget == "" {
				v.errorf(w, "distinct_property needs an attribute such as \"${meta.rack}\"")
			}
			if n, err := strconv.ParseUint(c.RTarget, 10, 31); c.RTarget != "" && (err != nil || n == 0) {
				v.errorf(w, "the value of distinct_property is how many allocations may share one value: want a number of at least 1, got %.64q", c.RTarget)
			}
			continue
		}
		v.condition(w, c.LTarget, c.Operand, c.RTarget)
	}
}

// condition checks one comparison.
func (v *validator) condition(w, left, op, right string) {
	if operands := structs.Enums["Affinity.Operand"]; !slices.Contains(operands, op) {
		all := slices.Concat(structs.Enums["Constraint.Operand"], operands)
		v.errorf(w, "the operator %.64q is not known: want one of %s%s", op, strings.Join(all, " "), suggest.DidYouMean(op, all))
		return
	}
	if left == "" {
		v.errorf(w, "needs an attribute such as \"${attr.kernel.name}\"")
	}
	if strings.Contains(right, "${") {
		return // known on the node only
	}
	switch op {
	case structs.OperandIsSet, structs.OperandIsNotSet:
	case structs.OperandRegexp:
		if _, err := regexp.Compile(right); err != nil {
			v.errorf(w, "%.64q is not a regular expression: %v", right, err)
		}
	case structs.OperandVersion:
		if _, err := version.NewConstraint(right); err != nil {
			v.errorf(w, "%.64q is not a version constraint: want something like \">= 1.2, < 2.0\"", right)
		}
	case structs.OperandSemver:
		for part := range strings.SplitSeq(right, ",") {
			if _, err := version.NewSemver(strings.TrimLeft(strings.TrimSpace(part), "=!<>~ ")); err != nil {
				v.errorf(w, "%.64q is not a semantic version constraint: want something like \">= 1.2.0\"", right)
				break
			}
		}
	case structs.OperandSetContains, structs.OperandSetContainsAll, structs.OperandSetContainsAny:
		if right == "" {
			v.errorf(w, "%s needs a value: a list divided by commas", op)
		}
	default:
		if right == "" {
			v.errorf(w, "the operator %s needs a value; to ask whether an attribute exists use is_set or is_not_set", op)
		}
	}
}

func (v *validator) affinities(where string, in []*Affinity, everyNode bool) {
	v.count(prefix(where, "affinity"), len(in))
	if len(in) > 0 && everyNode {
		v.errorf(prefix(where, "affinity"), "a %s job runs on every node, so it has no wishes; remove the block", v.typ)
		return
	}
	for i, a := range in {
		if a == nil {
			continue
		}
		w := prefix(where, fmt.Sprintf("affinity %d", i+1))
		v.condition(w, a.LTarget, a.Operand, a.RTarget)
		if n := int(val(a.Weight)); n == 0 || n < -100 || n > 100 {
			v.errorf(w+".weight", "%d is out of range: want -100 to 100 and not 0", n)
		}
	}
}

func (v *validator) group(i int, g *TaskGroup) {
	w := fmt.Sprintf("group %q", val(g.Name))
	if val(g.Name) == "" {
		w = fmt.Sprintf("group %d", i+1)
	}
	v.name(w, "a group", val(g.Name))
	switch n := val(g.Count); {
	case n < 0:
		v.errorf(w+", count", "%d is negative; want 0 or more", n)
	case n > structs.GroupCountMax:
		v.errorf(w+", count", "%d; want at most %d", n, structs.GroupCountMax)
	case n > 1 && v.everyNode():
		v.errorf(w+", count", "%d; a %s job runs once on every node, so want 1 (or 0)", n, v.typ)
	}
	v.meta(w, g.Meta)
	v.files(w, g)
	v.constraints(w, g.Constraints, true)
	v.affinities(w, g.Affinities, v.everyNode())
	v.nodeConditions(w, g.Constraints, g.Affinities, groupAsksDevices(g))
	v.spreads(w, g.Spreads)
	v.restart(w+", restart", g.RestartPolicy)
	v.reschedule(w+", reschedule", g.ReschedulePolicy)
	if !reflect.DeepEqual(g.Update, v.job.Update) { // it is the job's that the group inherits: said there
		v.update(w+", update", g.Update)
	}
	v.migrate(w+", migrate", g.Migrate)
	v.duration(w+", shutdown_delay", g.ShutdownDelay)
	if v.duration(w+", max_run_duration", g.MaxRunDuration) && g.MaxRunDuration != nil && *g.MaxRunDuration == 0 {
		v.errorf(w+", max_run_duration", "0s would stop the allocation at once; leave it out for no limit")
	}
	v.disconnect(w, g)
	if d := g.EphemeralDisk; d != nil {
		v.amount(w+", ephemeral_disk.size", d.SizeMB, 0)
	}
	if s := g.Scaling; s != nil {
		v.scaling(w+", scaling", s, val(g.Count))
	}
	v.networks(w, g)
	v.groupOwn(w, g)
	if len(g.Tasks) == 0 {
		v.errorf(w, "needs at least one task")
	}
	v.tasks += len(g.Tasks)
	if len(g.Tasks) > structs.TasksMax {
		return
	}
	seen := map[string]bool{}
	leaders, mains := 0, 0
	for k, t := range g.Tasks {
		if t == nil {
			v.errorf(fmt.Sprintf("%s, task %d", w, k+1), "is null; want an object")
			continue
		}
		tw := fmt.Sprintf("%s, task %q", w, t.Name)
		if t.Name == "" {
			tw = fmt.Sprintf("%s, task %d", w, k+1)
		}
		if seen[t.Name] {
			v.errorf(tw, "there are two tasks with this name in the group; names must differ")
		}
		seen[t.Name] = true
		if t.Leader {
			leaders++
		}
		if t.Lifecycle == nil {
			mains++
		}
		v.task(tw, g, t)
	}
	if leaders > 1 {
		v.errorf(w, "%d tasks are leaders; only one may be", leaders)
	}
	if mains == 0 && len(g.Tasks) > 0 {
		v.errorf(w, "every task has a lifecycle block; at least one must be a main task, without it")
	}
	v.services(w, g, "", g.Services)
	v.servicesOfGroup(w, g)
}

func (v *validator) disconnect(w string, g *TaskGroup) {
	ok := v.duration(w+", max_client_disconnect", g.MaxClientDisconnect)
	ok = v.stopOnClient(w+", stop_after_client_disconnect", g.StopAfterClientDisconnect) && ok
	if ok && g.MaxClientDisconnect != nil && g.StopAfterClientDisconnect != nil {
		v.errorf(w, "max_client_disconnect and stop_after_client_disconnect contradict each other; use one, or better the disconnect block")
	}
	d := g.Disconnect
	if d == nil {
		return
	}
	dw := w + ", disconnect"
	if g.MaxClientDisconnect != nil || g.StopAfterClientDisconnect != nil {
		v.errorf(dw, "the block replaces max_client_disconnect and stop_after_client_disconnect; use only the block")
	}
	v.duration(dw+".lost_after", d.LostAfter)
	v.stopOnClient(dw+".stop_on_client_after", d.StopOnClientAfter)
	v.oneOf(dw+".reconcile", val(d.Reconcile), "Disconnect.Reconcile")
	if d.StopOnClientAfter != nil && val(d.LostAfter) > 0 && *d.StopOnClientAfter > *d.LostAfter {
		v.errorf(dw, "stop_on_client_after (%s) must not be longer than lost_after (%s), or two of it may run at once", *d.StopOnClientAfter, *d.LostAfter)
	}
}

// stopOnClient checks how long tasks may run on a node without contact.
func (v *validator) stopOnClient(where string, d *Duration) bool {
	if !v.duration(where, d) {
		return false
	}
	if d != nil && d.D() < structs.StopOnClientMin {
		v.errorf(where, "%s is too short: agents send heartbeats once a second at most, and the tasks would end when one is late; want at least %s", *d, structs.StopOnClientMin)
		return false
	}
	return true
}

func (v *validator) scaling(w string, s *ScalingPolicy, count int) {
	v.oneOf(w+".type", s.Type, "Scaling.Type")
	if s.Max == nil {
		v.errorf(w, "needs max")
		return
	}
	least, most := val(s.Min), *s.Max
	switch {
	case least < 0:
		v.errorf(w+".min", "%d is negative", least)
	case most > structs.GroupCountMax:
		v.errorf(w+".max", "%d; want at most %d", most, structs.GroupCountMax)
	case least > most:
		v.errorf(w, "min (%d) is more than max (%d)", least, most)
	case int64(count) < least || int64(count) > most:
		v.errorf(w, "the group's count (%d) is outside of min (%d) and max (%d)", count, least, most)
	}
}

func (v *validator) networks(w string, g *TaskGroup) {
	if len(g.Networks) > 1 {
		v.errorf(w+", network", "%d blocks; want at most one", len(g.Networks))
	}
	seen, static := map[string]bool{}, map[string]string{}
	for _, n := range g.Networks {
		if n == nil {
			continue
		}
		v.count(w+", network, port", len(n.ReservedPorts)+len(n.DynamicPorts))
		v.ownNetwork(w+", network", g, n)
		if n.Mode == "none" && len(n.ReservedPorts)+len(n.DynamicPorts) > 0 {
			v.errorf(w+", network", "mode \"none\" has no network, so it cannot have ports")
		}
		for k, p := range slices.Concat(n.ReservedPorts, n.DynamicPorts) {
			pw := fmt.Sprintf("%s, network, port %q", w, p.Label)
			v.name(pw, "a port", p.Label)
			if seen[p.Label] {
				v.errorf(pw, "there are two ports with this label; labels must differ")
			}
			seen[p.Label] = true
			if p.Value < 0 || p.Value > 65535 {
				v.errorf(pw, "static = %d is not a port: want 1 to 65535", p.Value)
			} else if k < len(n.ReservedPorts) && p.Value == 0 {
				v.errorf(pw, "a reserved port needs a value from 1 to 65535")
			}
			if p.To < -1 || p.To > 65535 {
				v.errorf(pw, "to = %d is not a port: want 1 to 65535, or -1 for the same as the host port", p.To)
			}
			if p.Value > 0 && !p.IgnoreCollision {
				key := fmt.Sprintf("%s %d", p.HostNetwork, p.Value)
				if other, ok := static[key]; ok {
					v.errorf(pw, "static port %d is also asked for by %q; they cannot both have it", p.Value, other)
				}
				static[key] = p.Label
			}
		}
	}
}

// ownNetwork checks the settings of a network block other than ports.
func (v *validator) ownNetwork(w string, g *TaskGroup, n *NetworkResource) {
	if n.Mode == structs.NetworkBridge || n.Mode == structs.NetworkNone {
		if g.Gang != nil || g.Launch != nil {
			v.errorf(w+".mode", "%q: the members of a gang and the ranks of a launch meet at addresses of their nodes; use mode \"host\"", n.Mode)
		}
	}
	if n.Mode == structs.NetworkBridge {
		for _, t := range g.Tasks {
			if t == nil || t.Driver == "" || structs.JoinsNetwork(t.Driver) {
				continue
			}
			if t.Driver == structs.DockerDriver {
				v.errorf(w+".mode", "task %q: containers cannot join the network of their allocation; leave the mode out, and set network_mode = \"bridge\" and ports in the task's config", t.Name)
			} else {
				v.errorf(w+".mode", "task %q: tasks of driver %q cannot join the network of their allocation; exec and raw_exec can", t.Name, t.Driver)
			}
		}
	}
	if n.Hostname != "" {
		if n.Mode != structs.NetworkBridge {
			v.errorf(w+".hostname", "only a network of mode \"bridge\" has a hostname")
		} else if !interpolated(n.Hostname) {
			if err := structs.CheckHostname(n.Hostname); err != nil {
				v.errorf(w+".hostname", "%v", err)
			}
		}
	}
	if d := n.DNS; d != nil {
		v.count(w+", dns", len(d.Servers)+len(d.Searches)+len(d.Options))
		for _, s := range d.Servers {
			if _, err := netip.ParseAddr(s); err != nil {
				v.errorf(w+", dns.servers", "%.64q is not an IP address", s)
			}
		}
		for _, s := range slices.Concat(d.Searches, d.Options) {
			if s == "" || len(s) > 255 || strings.ContainsAny(s, " \t") || hasControl(s) {
				v.errorf(w+", dns", "%.64q: searches and options are single words", s)
			}
		}
	}
}

// signals are the names that kill_signal may have, with or without SIG.
var signals = strings.Fields("ABRT ALRM BUS CHLD CONT FPE HUP ILL INT IO IOT KILL PIPE PROF QUIT SEGV STOP SYS TERM TRAP TSTP TTIN TTOU URG USR1 USR2 WINCH XCPU XFSZ")

// driverConfig checks a task's driver and its config block, which a node would refuse only when the task starts there.
func (v *validator) driverConfig(w string, t *Task) {
	problems, ok := driverconf.Check(t.Driver, t.Config)
	if !ok {
		v.errorf(w+", driver", "%s", driverconf.Unknown(t.Driver))
	}
	for _, p := range problems {
		where := w + ", config"
		if p.Key != "" {
			where += "." + p.Key
		}
		v.errorf(where, "%s: %s", t.Driver, p.Text)
	}
}

func (v *validator) task(w string, g *TaskGroup, t *Task) {
	if err := structs.CheckTaskName(t.Name); err != nil {
		v.errorf(w, "%v", err)
	}
	if t.Driver == "" {
		v.errorf(w+", driver", "a task needs a driver such as \"exec\"")
	} else if hasControl(t.Driver) || len(t.Driver) > nameMax {
		v.errorf(w+", driver", "%.64q is not a driver", t.Driver)
	} else {
		v.driverConfig(w, t)
	}
	if hasControl(t.User) {
		v.errorf(w+", user", "%q holds a control character", t.User)
	}
	v.person(w, t)
	v.meta(w, t.Meta)
	v.count(w+", env", len(t.Env))
	for _, k := range sortedKeys(t.Env) {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			v.errorf(w+", env", "%q cannot be the name of a variable", k)
		} else if strings.ContainsRune(t.Env[k], 0) {
			v.errorf(w+", env", "the value of %q holds a zero byte", k)
		}
	}
	v.constraints(w, t.Constraints, false)
	v.affinities(w, t.Affinities, v.everyNode())
	v.nodeConditions(w, t.Constraints, t.Affinities, asksDevices(t))
	v.restart(w+", restart", t.RestartPolicy)
	v.duration(w+", kill_timeout", t.KillTimeout)
	v.duration(w+", shutdown_delay", &t.ShutdownDelay)
	if s := strings.TrimPrefix(strings.ToUpper(t.KillSignal), "SIG"); t.KillSignal != "" && !slices.Contains(signals, s) {
		v.errorf(w+", kill_signal", "%.64q is not a signal%s", t.KillSignal, suggest.DidYouMean(s, signals))
	}
	if l := t.Lifecycle; l != nil {
		v.oneOf(w+", lifecycle.hook", l.Hook, "Lifecycle.Hook")
		if l.Sidecar && l.Hook == "poststop" {
			v.errorf(w+", lifecycle", "a poststop task cannot be a sidecar, because no task runs next to it")
		}
	}
	if l := t.LogConfig; l != nil && !val(l.Disabled) {
		v.amount(w+", logs.max_files", l.MaxFiles, 1)
		v.amount(w+", logs.max_file_size", l.MaxFileSizeMB, 1)
		if d := g.EphemeralDisk; d != nil && val(l.MaxFiles) > 0 && val(l.MaxFileSizeMB) > 0 && val(d.SizeMB) > 0 {
			if size := val(l.MaxFiles) * val(l.MaxFileSizeMB); size > val(d.SizeMB) {
				v.errorf(w+", logs", "%d files of %d MB do not fit on an ephemeral_disk of %d MB", *l.MaxFiles, *l.MaxFileSizeMB, *d.SizeMB)
			}
		}
	}
	if r := t.Resources; r != nil {
		v.resources(w+", resources", r)
	}
	if d := t.DispatchPayload; d != nil {
		dw := w + ", dispatch_payload"
		if v.job.ParameterizedJob == nil && !v.job.Dispatched {
			v.errorf(dw, "only a parameterized job receives a payload; add a parameterized block to the job")
		}
		if clean := path.Clean("/" + d.File); d.File == "" || clean == "/" || strings.Contains(d.File, "..") {
			v.errorf(dw+".file", "%.64q is not a file below the task's local directory", d.File)
		}
	}
	seen := map[string]bool{}
	for _, a := range t.Actions {
		if a == nil {
			continue
		}
		aw := fmt.Sprintf("%s, action %q", w, a.Name)
		v.name(aw, "an action", a.Name)
		if a.Command == "" {
			v.errorf(aw, "needs a command")
		}
		if seen[a.Name] {
			v.errorf(aw, "there are two actions with this name; names must differ")
		}
		seen[a.Name] = true
	}
	v.services(w, g, t.Name, t.Services)
}

func (v *validator) resources(w string, r *Resources) {
	cores := val(r.Cores)
	if cores < 0 {
		v.errorf(w+".cores", "%d is negative", cores)
	}
	if cores > 0 && val(r.CPU) > 0 {
		v.errorf(w, "cpu = %d and cores = %d contradict each other: ask for a share in MHz or for whole cores", *r.CPU, cores)
	}
	if cores > 1<<16 {
		v.errorf(w+".cores", "%d; want at most %d", cores, 1<<16)
	}
	if cores == 0 {
		v.amount(w+".cpu", r.CPU, 1)
	} else {
		v.amount(w+".cpu", r.CPU, 0)
	}
	v.amount(w+".memory", r.MemoryMB, 10)
	if m := val(r.MemoryMaxMB); m < -1 || m > 0 && m < val(r.MemoryMB) || m > amountMax {
		v.errorf(w+".memory_max", "%d; want 0 (no more than memory), -1 (no limit), or at least memory (%d)", m, val(r.MemoryMB))
	}
	v.amount(w+".disk", r.DiskMB, 0)
	v.amount(w+".shm", r.ShmMB, 0)
	if val(r.ShmMB) > max(0, val(r.MemoryMB)) {
		v.errorf(w+".shm", "%d is more than memory = %d; pages of /dev/shm count against the task's memory", *r.ShmMB, val(r.MemoryMB))
	}
	v.count(w+", device", len(r.Devices))
	for _, k := range sortedKeys(r.Ulimits) {
		if _, _, err := structs.ParseUlimit(k, r.Ulimits[k]); err != nil {
			v.errorf(w+".ulimits", "%s: %v", k, err)
		}
	}
	if n := r.NUMA; n != nil {
		v.oneOf(w+", numa.affinity", n.Affinity, "NUMA.Affinity")
		if n.Affinity != structs.NUMANone && cores == 0 {
			v.errorf(w+", numa.affinity", "%s, but the task reserves no cores; set cores", n.Affinity)
		}
		for i, d := range n.Devices {
			asked := r.GPU != nil && structs.SameDevice(d, "nvidia/gpu") || slices.ContainsFunc(r.Devices, func(x *RequestedDevice) bool { return x != nil && structs.SameDevice(d, x.Name) })
			if !asked {
				v.errorf(w+", numa.devices", "the task asks for no device %q", d)
			}
			if slices.Contains(n.Devices[:i], d) {
				v.errorf(w+", numa.devices", "%q is there twice", d)
			}
		}
	}
	if r.GPU != nil {
		v.gpu(w+", gpu", r.GPU)
	}
	for _, d := range r.Devices {
		if d == nil {
			continue
		}
		dw := fmt.Sprintf("%s, device %q", w, d.Name)
		parts := strings.SplitN(d.Name, "/", 3)
		if slices.Contains(parts, "") || hasControl(d.Name) || len(d.Name) > 2*nameMax {
			v.errorf(dw, "want a type (\"gpu\"), vendor/type (\"nvidia/gpu\") or vendor/type/model")
		}
		if n := val(d.Count); n < 1 || n > 4096 {
			v.errorf(dw+".count", "%d; want 1 to 4096", n)
		}
		v.constraints(dw, d.Constraints, false)
		v.affinities(dw, d.Affinities, false)
		v.deviceConditions(dw, d.Constraints, d.Affinities)
	}
}
