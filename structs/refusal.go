package structs

import (
	"slices"
	"strings"
)

// Refusal is one reason why work waits: on how many nodes, and by how much the nearest of them falls short. It is a
// value that code compares; Text formats it for people, and no code parses the text.
type Refusal struct {
	Code ReasonCode
	Obstacle
	Nodes   int64 // how many nodes refused for this reason; 0 if no node was asked
	Short   int64 // the smallest shortfall of any of them, in Unit
	Unit    Unit
	Largest int64 // of GPU memory or compute: the largest free amount on one GPU, in Unit
	CuredBy EventKind
}

// Obstacle is what prevents work from starting. Each dimension documents its use of Subject, Detail, Count and Of.
type Obstacle struct {
	Dimension Dimension
	Holder    Holder
	Subject   string
	Detail    string
	Count, Of int64
}

// Holder is the owner of a limit or of reserved resources: a queue or quota whose limit binds, or the reservation or
// job that they are reserved for. The zero value is none.
type Holder struct {
	Kind HolderKind
	Name string // a queue's path, a quota's or reservation's name, a job's ID
}

// HolderKind is the kind of a holder.
type HolderKind uint8

// The kinds of holders. The numbers are stored: append new ones.
const (
	HolderNone HolderKind = iota
	HolderQueue
	HolderQuota
	HolderReservation // of an operator
	HolderJob         // the scheduler has reserved it for this job
	holderKinds
)

var holderNames = [holderKinds]string{"", "queue", "quota", "reservation", "job"}

func (k HolderKind) String() string {
	if k < holderKinds {
		return holderNames[k]
	}
	return ""
}

// MarshalText returns the API's name of k.
func (k HolderKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads the API's name; an unknown one becomes HolderNone.
func (k *HolderKind) UnmarshalText(b []byte) error {
	*k = HolderKind(max(0, slices.Index(holderNames[:], string(b))))
	return nil
}

func (h Holder) String() string {
	if h.Kind == HolderNone {
		return ""
	}
	return h.Kind.String() + " " + h.Name
}

// Unit is the unit of an amount in a refusal.
type Unit string

// The units.
const (
	UnitNone        Unit = ""
	UnitMiB         Unit = "MiB"
	UnitMHz         Unit = "MHz"
	UnitWatt        Unit = "W"
	UnitPercent     Unit = "%"
	UnitCores       Unit = "cores"
	UnitPorts       Unit = "ports"
	UnitDevices     Unit = "devices"
	UnitGPUs        Unit = "GPUs"
	UnitMilliGPUs   Unit = "GPU/1000"
	UnitAllocations Unit = "allocations"
	UnitMembers     Unit = "members" // of a gang
	UnitStandbys    Unit = "standbys"
	UnitJobs        Unit = "jobs"
	UnitMinutes     Unit = "minutes"
	UnitSeconds     Unit = "seconds"
	UnitGPUSeconds  Unit = "GPU seconds"
	UnitGPUHours    Unit = "GPU hours"
	UnitPerHour     Unit = "an hour"
)

// Dimension is a missing resource, an unmet condition, or something that has to happen first.
type Dimension uint8

// The dimensions. The numbers are stored: append new ones. Those below NodeDimensions are the resources of a node, in
// the order in which they are checked.
const (
	DimensionNone Dimension = iota // of a reservation: it closes the node
	DimensionCPU
	DimensionCores // Detail: where they must be; "" for anywhere
	DimensionMemory
	DimensionDisk
	DimensionPorts
	DimensionDevices // Subject: the request; Detail: as for cores; Count: cores that must be there, too
	DimensionGPUMemory
	DimensionGPUCompute
	DimensionClaim // the allocation to wait for is claimed by another, or waits itself

	DimensionGPU            // as DimensionDevices, where GPUs are asked for
	DimensionEmptyGPUMemory // not even an unused GPU has as much
	DimensionPort           // Count: its number
	DimensionDynamicPorts

	DimensionMissingDriver      // Subject: its name
	DimensionUnhealthyDriver    // Subject: its name
	DimensionMissingDevice      // Subject: the request; Detail: the profiles of MIG instances, where all GPUs are divided so
	DimensionMissingMIG         // Subject: the profile; Detail: profiles that exist; Count: GPUs that can be divided so
	DimensionPowerLimit         // Subject: the GPU; Count: watts asked for; Detail: the range in W, "" when the driver reports none
	DimensionMissingVolume      // Subject: its name
	DimensionVolumeType         // Subject: its name
	DimensionMissingHostNetwork // Subject: its name
	DimensionMissingNetwork     // Subject: the mode; Detail: why the node has none, "" when unknown
	DimensionConstraint         // Subject: the constraint
	DimensionTaint              // Subject: its key; Detail: its value
	DimensionNear               // Subject: the jobs to be near to; Detail: the topology level
	DimensionAway               // Subject: the jobs to keep away from; Detail: the topology level
	DimensionKeptAway           // Subject: the job that keeps away; Detail: the topology level
	DimensionNodeState          // Subject: the node's status
	DimensionFailedNode         // the gang failed there before
	DimensionNoNode             // Subject: the node pool

	DimensionPower        // Subject: the node pool whose budget is used up
	DimensionPowerUnknown // Subject: the node pool with a budget
	DimensionRunningJobs  // of a queue; Subject: the user whose jobs are counted, "" for all
	DimensionGPUMinutes   // as DimensionRunningJobs

	DimensionAllAtOnce
	DimensionMembers         // of a gang. Count: found; Of: needed; Detail: the level that has to hold all of them; Subject: where there is most room
	DimensionMembersStandbys // as DimensionMembers, standbys included
	DimensionEndingMembers   // of the previous start
	DimensionGrowth          // of a group that has its minimum; Detail: not before this time, because it was resized or the room became free recently; "": as soon as there is room. Where its restart loses too much: Count: what it loses; Of: what it gains; Detail: the unit of both
	DimensionStandbys        // of a gang that runs
	DimensionOwnReservation  // Subject: when the job's own reservation begins

	DimensionQueueOrder    // Subject: the job that no other may pass
	DimensionBackfillMax   // Subject: the job at the head; Count: how many may be tried behind it
	DimensionPreemptDelay  // of a queue: its preempt_after
	DimensionPreemptCost   // Subject: the jobs, with why they save nothing first; Count: what they would lose; Of: what is gained; Detail: the unit of both
	DimensionPreemptRate   // of a queue
	DimensionPreemptedWork // Subject: the jobs that have to end first

	DimensionBegin // Subject: the time
	DimensionHold
	DimensionSuspended
	DimensionDependency // Subject: the job waited for; Detail: the sentence

	DimensionPreemptYoung // Subject: the jobs that began too recently to be preempted; Detail: until when
	DimensionGPUHours     // of a queue's budget; Subject: as DimensionRunningJobs; Count: used; Of: the budget; Detail: when a new period begins
	DimensionGPUModel     // GPUs of a model, of a limit; Subject: as DimensionRunningJobs; Detail: the model
	DimensionMembersGPU   // GPUs that have room, and a share of another member of the gang
	DimensionPreemptSlow  // Subject: the job whose work would not end in time for a deadline; Detail: how long it takes
	dimensionCount
)

// NodeDimensions is the number of dimensions that are plain resources of a node.
const NodeDimensions = DimensionClaim + 1

// dimensions has each dimension's name in the API and its text. The words in braces are fields of the obstacle;
// {holder} is the holder's kind and name.
var dimensions = [dimensionCount]struct{ name, text string }{
	DimensionNone: {"", ""}, DimensionCPU: {"cpu", "cpu"}, DimensionMemory: {"memory", "memory"}, DimensionDisk: {"disk", "disk"},
	DimensionCores:   {"cores", "cores"},
	DimensionPorts:   {"ports", "ports"},
	DimensionDevices: {"devices", "devices"}, DimensionGPU: {"gpu", "gpu"},
	DimensionGPUMemory: {"gpu-memory", "GPU memory"}, DimensionGPUCompute: {"gpu-compute", "GPU compute"},
	DimensionEmptyGPUMemory: {"gpu-memory-of-empty-gpu", "GPU memory of an empty GPU"},
	DimensionClaim:          {"claim", "claim"},
	DimensionPort:           {"port", "port {count}"}, DimensionDynamicPorts: {"dynamic-ports", "dynamic ports"},

	DimensionMissingDriver:      {"missing-driver", "missing driver {subject}"},
	DimensionUnhealthyDriver:    {"unhealthy-driver", "unhealthy driver {subject}"},
	DimensionMissingDevice:      {"missing-device", "missing device {subject}"},
	DimensionMissingMIG:         {"missing-mig-instance", "missing device MIG {subject}"},
	DimensionPowerLimit:         {"power-limit", "power_limit = {count}: "},
	DimensionMissingVolume:      {"missing-host-volume", "missing host volume {subject}"},
	DimensionVolumeType:         {"volume-type", "volume {subject} is not a host volume"},
	DimensionMissingHostNetwork: {"missing-host-network", "missing host network {subject}"},
	DimensionMissingNetwork:     {"missing-network", "missing network of mode {subject}"},
	DimensionConstraint:         {"constraint", "{subject}"},
	DimensionTaint:              {"taint", "taint {subject}={detail}"},
	DimensionNear:               {"near", "near {subject} ({detail})"},
	DimensionAway:               {"away", "away from {subject} ({detail})"},
	DimensionKeptAway:           {"kept-away", "job {subject} keeps away from it ({detail})"},
	DimensionNodeState:          {"node-state", "node {subject}"},
	DimensionFailedNode:         {"failed-node", "node failed the gang before"},
	DimensionNoNode:             {"no-node", "no node in pool {subject} and the job's datacenters"},

	DimensionPower:        {"power", "power in node pool {subject}"},
	DimensionPowerUnknown: {"power-unknown", "GPUs that do not tell their power limit, in node pool {subject}, which has a budget"},
	DimensionRunningJobs:  {"running-jobs", "running jobs"},
	DimensionGPUMinutes:   {"gpu-minutes", "GPU-minutes"},

	DimensionAllAtOnce:       {"all-at-once", "all_at_once: nothing starts until group {subject} fits, too"},
	DimensionMembers:         {"members", "{count} of {of} members found"},
	DimensionMembersStandbys: {"members-and-standbys", "{count} of {of} members and standbys found"},
	DimensionEndingMembers:   {"ending-members", "members of the last start that have yet to end"},
	DimensionGrowth:          {"growth", "growth"},
	DimensionStandbys:        {"standbys", "standbys"},
	DimensionOwnReservation:  {"own-reservation", "room from {subject} on"},

	DimensionQueueOrder:    {"queue-order", "nobody passes {subject} in {holder}"},
	DimensionBackfillMax:   {"backfill-max", "not tried in this pass: beyond backfill_max_jobs = {count} behind job {subject} in {holder}"},
	DimensionPreemptDelay:  {"preempt-delay", "its wait before others make room (preempt_after of {holder})"},
	DimensionPreemptCost:   {"preempt-cost", "preempting {subject} is too costly: {count} {detail} would be lost, and {of} gained"},
	DimensionPreemptRate:   {"preempt-rate", "preemptions of {holder}"},
	DimensionPreemptedWork: {"preempted-work", "work of {subject} has yet to make room"},

	DimensionBegin:      {"begin", "begins at {subject}"},
	DimensionHold:       {"hold", "on hold until it is released"},
	DimensionSuspended:  {"suspended", "suspended until it is resumed"},
	DimensionDependency: {"dependency", "{detail}"},

	DimensionPreemptYoung: {"preempt-young", "{subject} may not be preempted before {detail} (preempt_min_runtime)"},
	DimensionGPUHours:     {"gpu-hours", "GPU hours"},
	DimensionGPUModel:     {"gpu-model", "GPUs of model {detail}"},
	DimensionPreemptSlow:  {"preempt-slow", "{subject} would not end in time for the deadline: it may take {detail}, saving its state included"},
	DimensionMembersGPU:   {"members-gpu", "GPUs without another member of the gang, which may not share one"},
}

// String returns the text of a dimension without subject: "GPU memory".
func (d Dimension) String() string { return Obstacle{Dimension: d}.Text() }

// Name returns the API's name of a dimension: "gpu-memory".
func (d Dimension) Name() string {
	if d < dimensionCount {
		return dimensions[d].name
	}
	return ""
}

// MarshalText writes the name of a dimension.
func (d Dimension) MarshalText() ([]byte, error) { return []byte(d.Name()), nil }

// UnmarshalText reads a name; an unknown one becomes DimensionNone.
func (d *Dimension) UnmarshalText(b []byte) error {
	for *d = dimensionCount - 1; *d > DimensionNone && dimensions[*d].name != string(b); *d-- {
	}
	return nil
}

// Missing reports whether a node lacks a kind of thing, not an amount, and which.
func (o Obstacle) Missing() (string, bool) {
	switch o.Dimension {
	case DimensionMissingDriver, DimensionMissingDevice, DimensionMissingMIG, DimensionMissingVolume, DimensionMissingHostNetwork, DimensionMissingNetwork:
		return o.expand(dimensions[o.Dimension].text[len("missing "):]), true
	}
	return "", false
}

// Plain reports whether a resource of a whole node is short, and not something limited, reserved or requested by name.
func (o Obstacle) Plain() bool {
	return o.Dimension < NodeDimensions && o == (Obstacle{Dimension: o.Dimension})
}

// GPUsShort returns thousandths of GPUs in the unit that suits them.
func GPUsShort(milli int64) (int64, Unit) {
	if milli%1000 == 0 {
		return milli / 1000, UnitGPUs
	}
	return milli, UnitMilliGPUs
}

// Of returns the unit for n: "GPU" for 1.
func (u Unit) Of(n int64) string {
	if n == 1 {
		return strings.TrimSuffix(string(u), "s")
	}
	return string(u)
}
