package structs

import (
	"slices"
	"strings"
)

// Refusal says why work waits: one reason, on how many nodes, and by how much the nearest of them falls short. It is a
// value that code compares; Text makes the sentence for people, and nothing reads a sentence back.
type Refusal struct {
	Code ReasonCode
	Obstacle
	Nodes   int64 // how many nodes were refused so; 0 when no node was asked
	Short   int64 // the least that is missing on any of them, in Unit
	Unit    Unit
	Largest int64 // of GPU memory or compute: the largest amount free on one GPU that was looked at, in Unit
	CuredBy EventKind
}

// Obstacle is what stands in the way of work. What Subject, Detail, Count and Of hold depends on the dimension, and is
// said there.
type Obstacle struct {
	Dimension Dimension
	Holder    Holder
	Subject   string
	Detail    string
	Count, Of int64
}

// Holder is who limits or holds what is missing: the queue or quota whose limit binds, the reservation or job that it is
// reserved for. The zero value is nobody.
type Holder struct {
	Kind HolderKind
	Name string // a queue's path, a quota's or reservation's name, a job's ID
}

// HolderKind is the kind of a holder.
type HolderKind uint8

// The kinds of holders. The numbers are stored: new ones go to the end.
const (
	HolderNone HolderKind = iota
	HolderQueue
	HolderQuota
	HolderReservation // of an operator
	HolderJob         // for which the scheduler has reserved it
	holderKinds
)

var holderNames = [holderKinds]string{"", "queue", "quota", "reservation", "job"}

func (k HolderKind) String() string {
	if k < holderKinds {
		return holderNames[k]
	}
	return ""
}

// MarshalText writes the name that the API has for k.
func (k HolderKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads what MarshalText writes; a name that is not known becomes HolderNone.
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
	UnitSpares      Unit = "spares"
	UnitJobs        Unit = "jobs"
	UnitMinutes     Unit = "minutes"
	UnitSeconds     Unit = "seconds"
	UnitGPUSeconds  Unit = "GPU seconds"
	UnitPerHour     Unit = "an hour"
)

// Dimension is the resource that is missing, the condition that does not hold, or what has to happen first.
type Dimension uint8

// The dimensions. The numbers are stored: new ones go to the end. Those below NodeDimensions are the resources of a
// node, in the order in which they are checked.
const (
	DimensionNone Dimension = iota // of a reservation: it closes the node
	DimensionCPU
	DimensionCores // Detail: they must lie in one of these; "" for anywhere
	DimensionMemory
	DimensionDisk
	DimensionPorts
	DimensionDevices // Subject: the request; Detail: as with cores; Count: cores that must lie there, too
	DimensionGPUMemory
	DimensionGPUCompute
	DimensionClaim // the allocation to wait for is claimed by another, or waits itself

	DimensionGPU            // as DimensionDevices, where GPUs are asked for
	DimensionEmptyGPUMemory // not even an unused GPU has as much
	DimensionPort           // Count: its number
	DimensionDynamicPorts

	DimensionMissingDriver      // Subject: its name
	DimensionUnhealthyDriver    // Subject: its name
	DimensionMissingDevice      // Subject: the request
	DimensionMissingMIG         // Subject: the profile; Detail: profiles that there are; Count: GPUs that can be divided so
	DimensionPowerLimit         // Subject: the GPU; Count: watts asked for; Detail: the range in W, "" when the driver reports none
	DimensionMissingVolume      // Subject: its name
	DimensionVolumeType         // Subject: its name
	DimensionMissingHostNetwork // Subject: its name
	DimensionMissingNetwork     // Subject: the mode; Detail: why the node has none, "" when not known
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
	DimensionMembers        // of a gang. Count: found; Of: needed; Detail: the level that has to hold all of them; Subject: where there is most room
	DimensionMembersSpares  // as DimensionMembers, spares included
	DimensionEndingMembers  // of the last start
	DimensionGrowth         // of a group that has its minimum
	DimensionSpares         // of a gang that runs
	DimensionOwnReservation // Subject: when what is reserved for the job itself begins

	DimensionQueueOrder   // Subject: the job that nobody passes
	DimensionBackfillMax  // Subject: the job at the head; Count: how many may be tried behind it
	DimensionPreemptDelay // of a queue: its preempt_after
	DimensionPreemptCost
	DimensionPreemptRate   // of a queue
	DimensionPreemptedWork // Subject: the jobs that have to end first

	DimensionBegin // Subject: the time
	DimensionHold
	DimensionSuspended
	DimensionDependency // Subject: the job waited for; Detail: the sentence
	dimensionCount
)

// NodeDimensions is how many dimensions are plain resources of a node.
const NodeDimensions = DimensionClaim + 1

// dimensions has each dimension's name in the API and its sentence. The words in braces are the fields of the obstacle;
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

	DimensionAllAtOnce:      {"all-at-once", "all_at_once: the rest of the job does not fit"},
	DimensionMembers:        {"members", "{count} of {of} members found"},
	DimensionMembersSpares:  {"members-and-spares", "{count} of {of} members and spares found"},
	DimensionEndingMembers:  {"ending-members", "members of the last start that have yet to end"},
	DimensionGrowth:         {"growth", "growth"},
	DimensionSpares:         {"spares", "spares"},
	DimensionOwnReservation: {"own-reservation", "room from {subject} on"},

	DimensionQueueOrder:    {"queue-order", "nobody passes {subject} in {holder}"},
	DimensionBackfillMax:   {"backfill-max", "not tried in this pass: beyond backfill_max_jobs = {count} behind job {subject} in {holder}"},
	DimensionPreemptDelay:  {"preempt-delay", "its wait before others make room (preempt_after of {holder})"},
	DimensionPreemptCost:   {"preempt-cost", "preemption would cost more than it brings"},
	DimensionPreemptRate:   {"preempt-rate", "preemptions of {holder}"},
	DimensionPreemptedWork: {"preempted-work", "work of {subject} has yet to make room"},

	DimensionBegin:      {"begin", "begins at {subject}"},
	DimensionHold:       {"hold", "on hold until it is released"},
	DimensionSuspended:  {"suspended", "suspended until it is resumed"},
	DimensionDependency: {"dependency", "{detail}"},
}

// String is the sentence of a dimension without subject: "GPU memory".
func (d Dimension) String() string { return Obstacle{Dimension: d}.Text() }

// Name is what the API calls a dimension: "gpu-memory".
func (d Dimension) Name() string {
	if d < dimensionCount {
		return dimensions[d].name
	}
	return ""
}

// MarshalText writes the name of a dimension.
func (d Dimension) MarshalText() ([]byte, error) { return []byte(d.Name()), nil }

// UnmarshalText reads a name; one that is not known becomes DimensionNone.
func (d *Dimension) UnmarshalText(b []byte) error {
	for *d = dimensionCount - 1; *d > DimensionNone && dimensions[*d].name != string(b); *d-- {
	}
	return nil
}

// Missing reports whether a node lacks something by its kind, not by its amount, and what.
func (o Obstacle) Missing() (string, bool) {
	switch o.Dimension {
	case DimensionMissingDriver, DimensionMissingDevice, DimensionMissingMIG, DimensionMissingVolume, DimensionMissingHostNetwork, DimensionMissingNetwork:
		return o.expand(dimensions[o.Dimension].text[len("missing "):]), true
	}
	return "", false
}

// Plain reports whether a resource of a node as a whole is short, and not what is limited, reserved or asked for by name.
func (o Obstacle) Plain() bool {
	return o.Dimension < NodeDimensions && o == (Obstacle{Dimension: o.Dimension})
}

// Of is the unit of n: "GPU" of 1.
func (u Unit) Of(n int64) string {
	if n == 1 {
		return strings.TrimSuffix(string(u), "s")
	}
	return string(u)
}
