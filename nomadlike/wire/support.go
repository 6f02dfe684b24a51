package wire

import (
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"
	"sync"
)

// Support says how this build treats a field of a job.
type Support string

// The kinds of support.
const (
	Supported Support = "supported" // acted on, or kept and shown if that is its purpose
	Ignored   Support = "ignored"   // accepted with a warning; has no effect
	Refused   Support = "refused"   // an error, because the job would not do what it says
	ByServer  Support = "server"    // set by servers; what a client sends is replaced or dropped silently
)

// note describes a field that is not fully supported: why, and for which values.
type note struct {
	why   string
	only  func(v reflect.Value) bool // nil: whenever the field is set. v is not a pointer.
	value string                     // describes only, in the documentation
}

// typeSupport has the rows of one block. A field that is in none of the lists fails a test.
type typeSupport struct {
	typ       reflect.Type
	block     string // in the job language, with the blocks around it
	supported string // names of Go fields, separated by blanks
	server    string
	ignored   map[string]note
	refused   map[string]note
	all       Support // when the surrounding block decides for every field
}

const (
	noCanary   = "without effect: there are no canaries in this build"
	noConsul   = "without effect: there is no Consul integration"
	noWarnings = "without effect: a check passes or fails; there are no warnings in this build"
	noPlugins  = "storage plugins are not supported"
	noVault    = "not supported: there is no Vault or Consul integration; keep secrets in variables (muster var put), which templates of the task read"
)

// ignoredWarnings is of on_update.
var ignoredWarnings = note{why: noWarnings + ", so it is as require_healthy", only: func(v reflect.Value) bool { return v.String() == "ignore_warnings" }, value: `"ignore_warnings"`}

func not(values ...any) func(reflect.Value) bool {
	return func(v reflect.Value) bool {
		for _, x := range values {
			if reflect.DeepEqual(v.Interface(), x) {
				return false
			}
		}
		return true
	}
}

var supportTable = []typeSupport{
	{typ: reflect.TypeFor[Job](), block: "job",
		supported: "Region Namespace ID Name Type Priority AllAtOnce Datacenters NodePool Constraints Affinities TaskGroups Update Spreads Periodic " +
			"ParameterizedJob Reschedule Migrate Meta UI Queue Placement Preemptible Runtime Deadline Begin Hold Requeue DependsOn Tolerations Array Near Away Datasets Weights Stop ParentID Dispatched DispatchIdempotencyToken Payload",
		server: "ConsulNamespace VaultNamespace NomadTokenID Status StatusDescription Stable Version SubmitTime CreateIndex ModifyIndex " +
			"JobModifyIndex VersionTag Submitter ConsulToken VaultToken",
		refused: map[string]note{
			"Multiregion": {why: "not supported: register the job in each region"},
		}},
	{typ: reflect.TypeFor[UpdateStrategy](), block: "update", supported: "MaxParallel Stagger MinHealthyTime HealthCheck HealthyDeadline ProgressDeadline AutoRevert",
		ignored: map[string]note{
			"HealthCheck": {why: "without effect: health is not set by hand in this build; the new allocations count as with task_states", only: func(v reflect.Value) bool { return v.String() == "manual" }, value: `"manual"`},
		},
		refused: map[string]note{
			"Canary":      {why: "canaries are not supported yet by this build; leave it 0"},
			"AutoPromote": {why: "canaries are not supported yet by this build; leave it false"},
		}},
	{typ: reflect.TypeFor[Multiregion](), block: "multiregion", all: Refused},
	{typ: reflect.TypeFor[MultiregionStrategy](), block: "multiregion > strategy", all: Refused},
	{typ: reflect.TypeFor[MultiregionRegion](), block: "multiregion > region", all: Refused},
	{typ: reflect.TypeFor[PeriodicConfig](), block: "periodic", supported: "Enabled Spec Specs SpecType ProhibitOverlap TimeZone"},
	{typ: reflect.TypeFor[Parameterized](), block: "parameterized", supported: "Payload MetaRequired MetaOptional"},
	{typ: reflect.TypeFor[JobUI](), block: "ui", supported: "Description Links"},
	{typ: reflect.TypeFor[JobUILink](), block: "ui > link", supported: "Label URL"},
	{typ: reflect.TypeFor[JobVersionTag](), block: "(version tag)", all: ByServer},
	{typ: reflect.TypeFor[Submitter](), block: "(submitter)", all: ByServer},
	{typ: reflect.TypeFor[Constraint](), block: "constraint", supported: "LTarget RTarget Operand"},
	{typ: reflect.TypeFor[Affinity](), block: "affinity", supported: "LTarget RTarget Operand Weight"},
	{typ: reflect.TypeFor[Spread](), block: "spread", supported: "Attribute Weight SpreadTarget"},
	{typ: reflect.TypeFor[SpreadTarget](), block: "spread > target", supported: "Value Percent"},
	{typ: reflect.TypeFor[ReschedulePolicy](), block: "reschedule", supported: "Attempts Interval Delay DelayFunction MaxDelay Unlimited"},
	{typ: reflect.TypeFor[MigrateStrategy](), block: "migrate", supported: "MaxParallel HealthCheck MinHealthyTime HealthyDeadline"},
	{typ: reflect.TypeFor[Runtime](), block: "runtime", supported: "Expected Limit"},
	{typ: reflect.TypeFor[Requeue](), block: "requeue", supported: "On Max AvoidFailedNodes"},
	{typ: reflect.TypeFor[DependsOn](), block: "depends_on", supported: "Name Job Namespace When Timeout OnTimeout Group AtLeast"},
	{typ: reflect.TypeFor[Toleration](), block: "toleration", supported: "Key Value Effect For"},
	{typ: reflect.TypeFor[Peer](), block: "near, away", supported: "Job Label Level Mode Weight"},
	{typ: reflect.TypeFor[ScoreWeights](), block: "score_weights", supported: "Fit Affinity Load Spread Locality Cost Reliability"},
	{typ: reflect.TypeFor[Array](), block: "array", supported: "Count Concurrency Params"},

	{typ: reflect.TypeFor[TaskGroup](), block: "group",
		supported: "Name Count Constraints Affinities Tasks Spreads RestartPolicy Disconnect ReschedulePolicy EphemeralDisk Update Migrate Networks Meta " +
			"ShutdownDelay MaxRunDuration StopAfterClientDisconnect MaxClientDisconnect PreventRescheduleOnLost Scaling Gang Elastic Topology Launch Checkpoint Near Away Volumes Services",
		refused: map[string]note{"Consul": {why: noVault}}},
	{typ: reflect.TypeFor[Gang](), block: "group > gang", supported: "Min Timeout OnFailure Standby"},
	{typ: reflect.TypeFor[Elastic](), block: "group > elastic", supported: "Min Max"},
	{typ: reflect.TypeFor[Topology](), block: "group > topology", supported: "Inside Across Mode"},
	{typ: reflect.TypeFor[Launch](), block: "group > launch", supported: "Mode Ranks Compat Port GPUs"},
	{typ: reflect.TypeFor[Checkpoint](), block: "group > checkpoint", supported: "Signal Command URL To On Before Grace Dir Storage Cost Path Poll Interval Members"},
	{typ: reflect.TypeFor[VolumeRequest](), block: "group > volume", supported: "Name Source ReadOnly",
		refused: map[string]note{
			"Type":       {why: `only "host" is supported: there are no storage plugins`, only: not("", "host"), value: `other than "host"`},
			"Sticky":     {why: "host volumes belong to their node, and so does who uses them; constrain the job instead"},
			"AccessMode": {why: noPlugins}, "AttachmentMode": {why: noPlugins}, "MountOptions": {why: noPlugins},
			"PerAlloc": {why: "not supported: name one volume for the whole group"},
		}},
	{typ: reflect.TypeFor[CSIMountOptions](), block: "group > volume > mount_options", all: Refused},
	{typ: reflect.TypeFor[RestartPolicy](), block: "restart", supported: "Interval Attempts Delay Mode",
		ignored: map[string]note{"RenderTemplates": {why: "without effect: templates are rendered at each start"}}},
	{typ: reflect.TypeFor[DisconnectStrategy](), block: "group > disconnect", supported: "LostAfter StopOnClientAfter Replace Reconcile"},
	{typ: reflect.TypeFor[EphemeralDisk](), block: "group > ephemeral_disk", supported: "SizeMB Sticky",
		ignored: map[string]note{
			"Migrate": {why: "without effect: data is kept for a replacement on the same node (sticky), not copied to another, in this build"},
		}},
	{typ: reflect.TypeFor[ScalingPolicy](), block: "scaling", supported: "Min Max Policy Enabled Type", server: "ID Namespace Target CreateIndex ModifyIndex"},
	{typ: reflect.TypeFor[Consul](), block: "consul", all: Refused},
	{typ: reflect.TypeFor[NetworkResource](), block: "network", supported: "ReservedPorts DynamicPorts DNS Hostname", server: "Device CIDR IP",
		ignored: map[string]note{
			"MBits": {why: "without effect: bandwidth is not limited"},
		},
		refused: map[string]note{
			"Mode": {why: `only "bridge", "host" and "none" are supported: there are no CNI plugins`, only: not("", "bridge", "host", "none"), value: `other than "bridge", "host" and "none"`},
			"CNI":  {why: "not supported: there are no CNI plugins"},
		}},
	{typ: reflect.TypeFor[CNIConfig](), block: "network > cni", all: Refused},
	{typ: reflect.TypeFor[DNSConfig](), block: "network > dns", supported: "Servers Searches Options"},
	{typ: reflect.TypeFor[Port](), block: "network > port", supported: "Label Value To HostNetwork IgnoreCollision",
		refused: map[string]note{
			"HostNetwork": {why: `nodes have one network, named "default", in this build; leave it out, and choose nodes by a constraint`, only: not("", "default"), value: `other than "default"`},
		}},

	{typ: reflect.TypeFor[Task](), block: "task",
		supported: "Name Driver User Lifecycle Config Constraints Affinities Env Resources RestartPolicy Meta KillTimeout LogConfig DispatchPayload Leader " +
			"ShutdownDelay KillSignal VolumeMounts Artifacts Templates Identity Identities WorkDir Umask LogPath LogErrorPath Services",
		ignored: map[string]note{
			"Actions":         {why: "kept and listed, but actions are not run in this build; run the command with alloc exec"},
			"ScalingPolicies": {why: "kept and shown, but nothing scales the resources of a task"},
		},
		refused: map[string]note{
			"Vault":  {why: noVault},
			"Consul": {why: noVault}, "Secrets": {why: noVault}, "CSIPluginConfig": {why: "storage plugins are not supported"},
			"Kind": {why: "service mesh tasks are not supported"}, "Schedule": {why: "time windows are not supported yet by this build; use periodic"},
		}},
	{typ: reflect.TypeFor[TaskLifecycle](), block: "task > lifecycle", supported: "Hook Sidecar"},
	{typ: reflect.TypeFor[LogConfig](), block: "task > logs", supported: "MaxFiles MaxFileSizeMB Enabled Disabled"},
	{typ: reflect.TypeFor[DispatchPayload](), block: "task > dispatch_payload", supported: "File"},
	{typ: reflect.TypeFor[Action](), block: "task > action", supported: "Name Command Args"},
	{typ: reflect.TypeFor[VolumeMount](), block: "task > volume_mount", supported: "Volume Destination ReadOnly PropagationMode",
		ignored: map[string]note{"SELinuxLabel": {why: "without effect: labels are the system's"}}},
	{typ: reflect.TypeFor[TaskArtifact](), block: "task > artifact", supported: "GetterSource GetterOptions GetterHeaders GetterMode RelativeDest",
		ignored: map[string]note{"Chown": {why: "without effect: artifacts always belong to the task's user"}},
		refused: map[string]note{"GetterInsecure": {why: "certificates of servers are always checked; name the authority in the agent's SSL_CERT_FILE"}}},
	{typ: reflect.TypeFor[Template](), block: "task > template",
		supported: "SourcePath DestPath EmbeddedTmpl ChangeMode ChangeScript ChangeSignal Once Splay Perms Uid Gid LeftDelim RightDelim Envvars ErrMissingKey",
		ignored: map[string]note{
			"VaultGrace": {why: "without effect, as in Nomad"}, "Wait": {why: "without effect: what a template looks at is looked at every few seconds"},
		}},
	{typ: reflect.TypeFor[ChangeScript](), block: "task > template > change_script", supported: "Command Args Timeout FailOnError",
		refused: map[string]note{"RunOnFirstRender": {why: "the script runs in the task, which reads the file when it starts", only: func(v reflect.Value) bool { return v.Bool() }, value: "true"}}},
	{typ: reflect.TypeFor[WaitConfig](), block: "task > template > wait", all: Refused},
	{typ: reflect.TypeFor[Vault](), block: "vault", all: Refused},
	{typ: reflect.TypeFor[Secret](), block: "secret", all: Refused},
	{typ: reflect.TypeFor[TaskCSIPluginConfig](), block: "task > csi_plugin", all: Refused},
	{typ: reflect.TypeFor[WorkloadIdentity](), block: "task > identity", supported: "Name Audience ChangeMode ChangeSignal Env File Filepath TTL",
		ignored: map[string]note{"ServiceName": {why: "without effect: there is no Consul integration"}},
		refused: map[string]note{"ExtraClaims": {why: "tokens have Nomad's claims and no others"}}},
	{typ: reflect.TypeFor[TaskSchedule](), block: "task > schedule", all: Refused},
	{typ: reflect.TypeFor[TaskScheduleCron](), block: "task > schedule > cron", all: Refused},
	{typ: reflect.TypeFor[Resources](), block: "task > resources", supported: "CPU Cores MemoryMB MemoryMaxMB DiskMB Devices NUMA SecretsMB ShmMB GPU RDMA Ulimits",
		ignored: map[string]note{
			"IOPS":     {why: "without effect, as in Nomad"},
			"Networks": {why: "ports of the deprecated network block in resources are added to the group's"},
		}},
	{typ: reflect.TypeFor[GPU](), block: "task > resources > gpu", supported: "Count Model Memory Share Compute Constraints Affinities Or Enforce MIG RDMA PowerLimit Pressure",
		refused: map[string]note{
			"Enforce": {why: `no node shares GPUs through NVIDIA's MPS server in this build; write "soft", which the library in the task meets, or leave it out`, only: func(v reflect.Value) bool { return v.String() == "mps" }, value: `"mps"`},
		},
	},
	{typ: reflect.TypeFor[GPUOr](), block: "task > resources > gpu > or", supported: "Count Model Memory Share Compute Constraints Affinities Enforce MIG RDMA PowerLimit Pressure",
		refused: map[string]note{
			"Enforce": {why: `no node shares GPUs through NVIDIA's MPS server in this build; write "soft", which the library in the task meets, or leave it out`, only: func(v reflect.Value) bool { return v.String() == "mps" }, value: `"mps"`},
		},
	},
	{typ: reflect.TypeFor[GPUPressure](), block: "task > resources > gpu > pressure", supported: "At Signal Command URL"},
	{typ: reflect.TypeFor[NUMAResource](), block: "task > resources > numa", supported: "Affinity Devices"},
	{typ: reflect.TypeFor[RequestedDevice](), block: "task > resources > device", supported: "Name Count Constraints Affinities"},
	{typ: reflect.TypeFor[Service](), block: "service", supported: "Name Tags PortLabel Address Checks CheckRestart Meta TaskName",
		ignored: map[string]note{
			"OnUpdate":   ignoredWarnings,
			"Provider":   {why: `there is no Consul integration: this service is not registered and its checks do not run; write provider = "nomad"`, only: func(v reflect.Value) bool { return v.String() == "consul" }, value: `"consul"`},
			"CanaryTags": {why: noCanary}, "CanaryMeta": {why: noCanary},
			"EnableTagOverride": {why: noConsul}, "TaggedAddresses": {why: noConsul}, "Weights": {why: noConsul}, "Kind": {why: noConsul},
			"Identity": {why: noConsul}, "Cluster": {why: noConsul, only: not("default"), value: `other than "default"`},
		},
		refused: map[string]note{
			"Connect":     {why: "service mesh is not supported"},
			"AddressMode": {why: "addresses that a driver gives are not registered in this build; tasks are reached at their node's address (auto, host, alloc)", only: func(v reflect.Value) bool { return v.String() == "driver" }, value: `"driver"`},
		}},
	{typ: reflect.TypeFor[ServiceWeights](), block: "service > weights", all: Ignored},
	{typ: reflect.TypeFor[CheckRestart](), block: "service > check_restart", supported: "Limit Grace",
		ignored: map[string]note{"IgnoreWarnings": {why: noWarnings}}},
	{typ: reflect.TypeFor[ServiceCheck](), block: "service > check",
		supported: "Name Type Path Protocol PortLabel AddressMode Interval Timeout Notes TLSServerName TLSSkipVerify Header Method CheckRestart TaskName Body Command Args",
		ignored: map[string]note{
			"OnUpdate":      ignoredWarnings,
			"InitialStatus": {why: "without effect: a check that has not run is pending, or passing if it says so", only: func(v reflect.Value) bool { return v.String() == "warning" || v.String() == "critical" }, value: `"warning" and "critical"`},
			"Expose":        {why: noConsul}, "Advertise": {why: noConsul}, "GRPCService": {why: noConsul}, "GRPCUseTLS": {why: noConsul},
			"SuccessBeforePassing": {why: noConsul}, "FailuresBeforeCritical": {why: noConsul}, "FailuresBeforeWarning": {why: noConsul},
		}},
}

var supportByType = func() map[reflect.Type]*typeSupport {
	m := map[reflect.Type]*typeSupport{}
	for i := range supportTable {
		m[supportTable[i].typ] = &supportTable[i]
	}
	return m
}()

// rows returns the support of a field: the statuses it may have, with their notes. An empty result means that the field
// is missing in the table.
func (t *typeSupport) rows(field string) map[Support]note {
	out := map[Support]note{}
	if n, ok := t.refused[field]; ok {
		out[Refused] = n
	}
	if n, ok := t.ignored[field]; ok {
		out[Ignored] = n
	}
	if len(out) > 0 {
		return out
	}
	for _, f := range strings.Fields(t.supported) {
		if f == field {
			out[Supported] = note{}
		}
	}
	for _, f := range strings.Fields(t.server) {
		if f == field {
			out[ByServer] = note{}
		}
	}
	if len(out) == 0 && t.all != "" {
		out[t.all] = note{}
	}
	return out
}

// checkSupport reports every field of a job that this build refuses or ignores. It sees the job as it was submitted,
// before defaults, so that it never warns about a default.
func checkSupport(j *Job, p *Problems) {
	w := supportWalk{p: p, ignored: map[string][]string{}}
	w.walk("", reflect.ValueOf(j).Elem())
	keys := sortedKeys(w.ignored)
	sort.SliceStable(keys, func(a, b int) bool { return w.order[keys[a]] < w.order[keys[b]] })
	for _, k := range keys {
		where, why, _ := strings.Cut(k, "\x00")
		p.Warnings = append(p.Warnings, fmt.Sprintf("%s: %s", prefix(where, strings.Join(w.ignored[k], ", ")), why))
	}
}

type supportWalk struct {
	p       *Problems
	ignored map[string][]string // field names by place and reason
	order   map[string]int
}

func prefix(where, field string) string {
	if where == "" {
		return field
	}
	return where + ", " + field
}

// fieldSupport is the table's entry for one field of a struct.
type fieldSupport struct {
	hcl   string
	label bool
	rows  map[Support]note
}

var fieldSupportOf sync.Map // reflect.Type -> []fieldSupport

// fieldsOf returns the support of each field of a struct, in order. t is the table's entry for the type, or nil.
func fieldsOf(t *typeSupport, typ reflect.Type) []fieldSupport {
	if l, ok := fieldSupportOf.Load(typ); ok {
		return l.([]fieldSupport)
	}
	out := make([]fieldSupport, typ.NumField())
	for i := range out {
		f := typ.Field(i)
		hcl, opt, _ := strings.Cut(f.Tag.Get("hcl"), ",")
		if hcl == "" {
			hcl = f.Name
		}
		out[i] = fieldSupport{hcl: hcl, label: opt == "label"}
		if t != nil {
			out[i].rows = t.rows(f.Name)
		}
	}
	fieldSupportOf.Store(typ, out)
	return out
}

func (w *supportWalk) walk(where string, v reflect.Value) {
	t := supportByType[v.Type()]
	if t == nil {
		return
	}
	for i, f := range fieldsOf(t, v.Type()) {
		fv := v.Field(i)
		if !isSet(fv) {
			continue
		}
		hcl, rows := f.hcl, f.rows
		flat := fv
		for flat.Kind() == reflect.Pointer {
			flat = flat.Elem()
		}
		if n, ok := rows[Refused]; ok && t.all != Refused && (n.only == nil || n.only(flat)) {
			w.p.errorf(prefix(where, hcl), "%s", n.why)
			continue
		}
		if n, ok := rows[Ignored]; ok && t.all != Ignored && (n.only == nil || n.only(flat)) {
			k := where + "\x00" + n.why
			if w.order == nil {
				w.order = map[string]int{}
			}
			if _, ok := w.order[k]; !ok {
				w.order[k] = len(w.order)
			}
			w.ignored[k] = append(w.ignored[k], hcl)
		}
		w.descend(where, hcl, flat)
	}
}

// descend walks the blocks below a field, naming each by its label.
func (w *supportWalk) descend(where, hcl string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		label := ""
		for i, f := range fieldsOf(supportByType[v.Type()], v.Type()) {
			if f.label {
				lv := reflect.Indirect(v.Field(i))
				if lv.IsValid() && lv.Kind() == reflect.String {
					label = fmt.Sprintf(" %q", lv.String())
				}
			}
		}
		w.walk(prefix(where, hcl+label), v)
	case reflect.Slice:
		for i := range v.Len() {
			e := v.Index(i)
			for e.Kind() == reflect.Pointer && !e.IsNil() {
				e = e.Elem()
			}
			if e.Kind() == reflect.Struct {
				w.descend(where, hcl, e)
			}
		}
	case reflect.Map: // of blocks by name
		of := v.Type().Elem()
		for of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if v.Type().Key().Kind() != reflect.String || of.Kind() != reflect.Struct {
			return
		}
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, k := range keys {
			e := v.MapIndex(k)
			for e.Kind() == reflect.Pointer && !e.IsNil() {
				e = e.Elem()
			}
			if e.Kind() == reflect.Struct {
				w.walk(prefix(where, fmt.Sprintf("%s %q", hcl, k.String())), e)
			}
		}
	}
}

// isSet reports whether the job sets a field: the block is present, or the value is not zero.
func isSet(v reflect.Value) bool {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return false
		}
		return v.Elem().Kind() == reflect.Struct || !v.Elem().IsZero()
	}
	if v.Kind() == reflect.Slice || v.Kind() == reflect.Map {
		return v.Len() > 0
	}
	return !v.IsZero()
}

// SupportPage returns the documentation of the table, in Markdown.
func SupportPage() string {
	var b strings.Builder
	b.WriteString("# What a job may say\n\n")
	b.WriteString("Generated from nomadlike/wire/support.go by `go generate ./nomadlike/wire`; do not edit.\n\n")
	b.WriteString("`supported`: acted on. `ignored`: accepted with a warning, without effect. `refused`: an error. `server`: set by\nservers; what a client sends is replaced. Fields that a job file cannot write show a dash.\n")
	for i := range supportTable {
		t := &supportTable[i]
		if t.all == ByServer {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n", t.block)
		if t.all != "" && len(t.refused)+len(t.ignored) == 0 {
			fmt.Fprintf(&b, "The whole block is %s.\n\n", t.all)
		}
		b.WriteString("| in a job file | in JSON | support | note |\n|---|---|---|---|\n")
		for f := range t.typ.Fields() {
			hcl, opt, _ := strings.Cut(f.Tag.Get("hcl"), ",")
			switch {
			case hcl == "":
				hcl = "-"
			case opt == "label":
				hcl = "(label)"
			default:
				hcl = "`" + hcl + "`"
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" {
				name = f.Name
			}
			rows := t.rows(f.Name)
			for _, s := range []Support{Supported, Ignored, Refused, ByServer} {
				n, ok := rows[s]
				if !ok {
					continue
				}
				why := n.why
				if n.value != "" {
					why = "for values " + strings.TrimPrefix(n.value, "for values ") + ": " + why
				}
				fmt.Fprintf(&b, "| %s | `%s` | %s | %s |\n", hcl, name, s, why)
			}
		}
	}
	return b.String()
}
