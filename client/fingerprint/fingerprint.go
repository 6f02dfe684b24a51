// Package fingerprint determines the properties of a machine: each Fingerprinter examines one thing and writes its
// findings into a Facts. List returns all of them in the order in which they run; later ones may read the findings of
// earlier ones.
package fingerprint

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	psdisk "github.com/shirou/gopsutil/v4/disk"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/structs"
)

// Facts are the known properties of a machine.
type Facts struct {
	Attributes map[string]string
	Resources  structs.NodeResources
	Drivers    map[string]*structs.DriverInfo
	BootID     string
}

// NewFacts makes an empty Facts.
func NewFacts() *Facts {
	return &Facts{Attributes: map[string]string{}, Drivers: map[string]*structs.DriverInfo{}}
}

// Fingerprinter examines one thing.
type Fingerprinter struct {
	Name string
	// Period is the interval of repetitions; 0 is once at the start.
	Period time.Duration
	// Wake triggers an immediate run whenever something is received from it; nil: never.
	Wake <-chan struct{}
	// Look writes its findings into f. What it does not write counts as absent. After an error the previous findings
	// are kept.
	Look func(ctx context.Context, f *Facts) error
}

// DeviceFingerprinter finds devices that tasks may be granted.
type DeviceFingerprinter interface {
	// Name is used in messages: "nvidia".
	Name() string
	// Devices returns the current devices. It must not block longer than ctx allows.
	Devices(ctx context.Context) ([]structs.DeviceGroup, error)
}

// Options configure the fingerprinters.
type Options struct {
	DataDir  string // its disk is measured
	Version  string // of this program
	Iface    string // network interface, "" for the default route's
	CPUMHz   int64  // total; overrides the detected one; 0: detected
	MemoryMB int64  // overrides the detected one; 0: detected
	DiskMB   int64  // overrides the detected one; 0: detected
	SpeedMB  int64  // of the network in Mbit/s; overrides the detected one; 0: detected
	Drivers  driver.Set
	Devices  []DeviceFingerprinter
	Changed  <-chan struct{} // receives when the result of Devices has changed; nil: never
	RDMADir  string          // directory of the RDMA adapters' device files; "" is /dev/infiniband
	SysPCI   string          // directory in which the kernel lists PCI devices; "" is /sys/bus/pci/devices
	SysRDMA  string          // directory in which the kernel lists RDMA adapters; "" is /sys/class/infiniband
	SysNodes string          // directory in which the kernel describes NUMA nodes; "" is /sys/devices/system/node
	NoCpuset bool            // tasks cannot be pinned to cores, so none are offered
	TwoNUMA  bool            // shows a machine with one NUMA node as two halves: simulated GPUs are on two
	Networks Networks        // nil: allocations have the node's network only
	Env      []string        // names of environment variables shown as attributes env.<name>
}

// List returns every fingerprinter, in order.
func List(o Options) []Fingerprinter {
	return []Fingerprinter{
		{Name: "version", Look: o.version},
		{Name: "arch", Look: arch},
		{Name: "host", Look: host},
		{Name: "cpu", Look: o.cpu},
		{Name: "memory", Look: o.memory, Period: time.Minute},
		{Name: "storage", Look: (&storage{Options: o, usage: psdisk.UsageWithContext, most: -1}).look, Period: time.Minute},
		{Name: "cgroup", Look: cgroup},
		{Name: "network", Look: o.network, Period: time.Minute},
		{Name: "networks of allocations", Look: o.networks, Period: time.Minute},
		{Name: "rdma", Look: o.rdma, Period: time.Minute},
		{Name: "env", Look: o.env},
		{Name: "drivers", Look: o.drivers, Period: 15 * time.Second},
		{Name: "devices", Look: o.devices, Period: 15 * time.Second, Wake: o.Changed},
	}
}

func (o Options) version(_ context.Context, f *Facts) error {
	f.Attributes["muster.version"] = o.Version
	f.Attributes["nomad.version"] = NomadVersion
	f.Attributes[structs.BundlesAttribute] = "1"
	return nil
}

// NomadVersion is the version of Nomad whose job language and API the agent supports; job files constrain on it.
const NomadVersion = "2.0.6"

// Drivers runs the fingerprinter "drivers", for simulated machines.
func Drivers(ctx context.Context, o Options, f *Facts) error { return o.drivers(ctx, f) }

func (o Options) drivers(ctx context.Context, f *Facts) error {
	names := make([]string, 0, len(o.Drivers))
	for n := range o.Drivers {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		fp := o.Drivers[n].Fingerprint(ctx)
		info := &structs.DriverInfo{
			Detected:   fp.Detected,
			Healthy:    fp.Detected && fp.Health == driver.Healthy,
			HealthDesc: fp.Detail,
			Attributes: fp.Attributes,
		}
		f.Drivers[n] = info
		if info.Healthy {
			f.Attributes["driver."+n] = "1"
		}
		if info.Detected {
			for k, v := range fp.Attributes {
				f.Attributes[k] = v
			}
		}
	}
	return nil
}

func (o Options) devices(ctx context.Context, f *Facts) error {
	var all []structs.DeviceGroup
	for _, d := range o.Devices {
		groups, err := d.Devices(ctx)
		if err != nil {
			return fmt.Errorf("devices of %s: %w", d.Name(), err)
		}
		all = append(all, groups...)
		if g, ok := d.(interface{ Geometry() []structs.MIGGeometry }); ok {
			f.Resources.MIG = append(f.Resources.MIG, g.Geometry()...)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].ID() < all[j].ID() })
	o.nearAdapters(all)
	f.Resources.Devices = all
	var enforce []string
	for i := range all {
		if a := all[i].Attributes[structs.GPUEnforceAttribute].Str; all[i].Type == "gpu" && a != "" {
			for b := range strings.SplitSeq(a, ",") {
				if !slices.Contains(enforce, b) {
					enforce = append(enforce, b)
				}
			}
		}
	}
	if len(enforce) > 0 {
		f.Attributes["gpu.enforce"] = strings.Join(enforce, ",")
	}
	if domain := nvlinkDomain(all); domain != "" {
		f.Attributes[structs.NVLinkDomainAttribute] = domain
	}
	return nil
}

// nvlinkDomain returns the NVLink domain over several nodes that all GPUs of this one are in; "" for none.
func nvlinkDomain(groups []structs.DeviceGroup) string {
	domain := ""
	for i := range groups {
		if groups[i].Type != "gpu" {
			continue
		}
		for _, in := range groups[i].Instances {
			own, ok := strings.CutPrefix(in.Island, structs.FabricIslandPrefix)
			if !ok || domain != "" && own != domain {
				return ""
			}
			domain = own
		}
	}
	return domain
}

// StaticDevices is a DeviceFingerprinter with a constant result.
type StaticDevices []structs.DeviceGroup

// Name implements DeviceFingerprinter.
func (StaticDevices) Name() string { return "static" }

// Devices implements DeviceFingerprinter.
func (s StaticDevices) Devices(context.Context) ([]structs.DeviceGroup, error) { return s, nil }
