package structs

import (
	"regexp"
	"slices"
)

// LevelDatacenter is the level of the topology that is a node's datacenter, not a key of its meta.
const LevelDatacenter = "datacenter"

// NVLinkDomainAttribute is the attribute of a node that names the NVLink domain of its GPUs where NVLink connects several
// nodes: the fabric's cluster and the clique in it, as the driver reports them. It is absent where NVLink ends at the node, and where the
// GPUs of a node are in several domains.
const NVLinkDomainAttribute = "nvlink.domain"

// FabricIslandPrefix begins the name of an island (DeviceInstance.Island) that is part of such a domain; the rest is the
// domain.
const FabricIslandPrefix = "fabric-"

// TopologyLevelsKnown lists the levels that a cluster has by default, from near to far, as far as its nodes have them.
var TopologyLevelsKnown = []string{NVLinkDomainAttribute, "rack", "leaf", "pod", LevelDatacenter}

// TopologyNone as the only level (SchedulerConfig.TopologyLevels) declares that the cluster has none.
const TopologyNone = "none"

// TopologyLevelsMax limits the declared levels.
const TopologyLevelsMax = 8

var levelRE = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

// CheckTopologyLevels checks declared levels.
func CheckTopologyLevels(levels []string) error {
	if len(levels) > TopologyLevelsMax {
		return Errorf(CodeInvalid, "TopologyLevels has %d levels; at most %d are allowed", len(levels), TopologyLevelsMax)
	}
	for i, l := range levels {
		switch {
		case l == TopologyNone && len(levels) == 1:
		case l == "node" || l == TopologyNone || l == TopologyAny || len(l) > 7 && l[:7] == "unique.":
			return Errorf(CodeInvalid, "TopologyLevels: %q is not a level that several nodes share; want keys of the nodes' meta or attributes from near to far, such as rack, leaf, pod", l)
		case !levelRE.MatchString(l):
			return Errorf(CodeInvalid, "TopologyLevels: %.64q is not a key of the nodes' meta or attributes; want keys from near to far, such as rack, leaf, pod", l)
		case slices.Contains(levels[:i], l):
			return Errorf(CodeInvalid, "TopologyLevels names %s twice", l)
		}
	}
	return nil
}
