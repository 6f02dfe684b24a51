package fingerprint

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/structs"
)

// Where the kernel lists RDMA adapters, and where their device files are.
const (
	rdmaClass      = "/sys/class/infiniband"
	rdmaDirDefault = "/dev/infiniband"
)

// rdma lists the RDMA adapters by name: those that the kernel lists, else the existing device files. A node without
// device files has none, even if the kernel lists some.
func (o Options) rdma(_ context.Context, f *Facts) error {
	files, err := RDMAFiles(o.RDMADir)
	if err != nil {
		return err
	}
	var verbs []string
	for _, x := range files {
		if name := filepath.Base(x.Path); strings.HasPrefix(name, "uverbs") {
			verbs = append(verbs, name)
		}
	}
	if len(verbs) == 0 {
		return nil
	}
	if o.RDMADir == "" || o.RDMADir == rdmaDirDefault {
		if entries, err := os.ReadDir(rdmaClass); err == nil && len(entries) > 0 {
			verbs = verbs[:0]
			for _, e := range entries { // sorted by name
				verbs = append(verbs, e.Name())
			}
		}
	}
	f.Attributes[structs.RDMAAttribute] = strings.Join(verbs, ",")
	return nil
}

// RDMAFiles returns the device files that a program needs to use RDMA: the adapters (uverbs*) and the connection
// manager, but not those that manage the fabric itself (umad*, issm*). dir "" is /dev/infiniband; having none is not an
// error.
func RDMAFiles(dir string) ([]driver.DeviceFile, error) {
	if dir == "" {
		dir = rdmaDirDefault
	}
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("RDMA devices: %w", err)
	}
	var out []driver.DeviceFile
	for _, e := range entries {
		if e.Name() != "rdma_cm" && !strings.HasPrefix(e.Name(), "uverbs") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		out = append(out, driver.DeviceFile{Path: path, DeviceNode: driver.DeviceNode{Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev))}})
	}
	return out, nil
}

// nearAdapters notes for each GPU the RDMA adapters that are below the same port of its root complex: between them are
// PCIe switches alone, and not the processor. NCCL calls these distances PIX and PXB.
func (o Options) nearAdapters(groups []structs.DeviceGroup) {
	if files, err := RDMAFiles(o.RDMADir); err != nil || len(files) == 0 {
		return // no task could use them
	}
	class, pci := cmp.Or(o.SysRDMA, rdmaClass), cmp.Or(o.SysPCI, "/sys/bus/pci/devices")
	entries, err := os.ReadDir(class)
	if err != nil {
		return
	}
	type adapter struct {
		name string
		path []string // of bridges, from the root complex
	}
	var adapters []adapter
	for _, e := range entries { // sorted by name
		if path := bridges(filepath.Join(class, e.Name(), "device")); len(path) > 0 {
			adapters = append(adapters, adapter{e.Name(), path})
		}
	}
	for i := range groups {
		if groups[i].Type != "gpu" {
			continue
		}
		for j := range groups[i].Instances {
			in := &groups[i].Instances[j]
			own := bridges(filepath.Join(pci, sysBus(in.PCIBusID)))
			shared := map[string]int{}
			var near []string
			for _, a := range adapters {
				n := 0
				for n < min(len(own), len(a.path)) && own[n] == a.path[n] {
					n++
				}
				if n >= 2 { // the root complex, and a port of it
					shared[a.name] = n
					near = append(near, a.name)
				}
			}
			slices.SortStableFunc(near, func(a, b string) int { return cmp.Compare(shared[b], shared[a]) })
			in.Adapters = strings.Join(near, ",")
		}
	}
}

// bridges lists the root complex and the bridges above a PCI device, given by a link to it; nil if there is no such
// device.
func bridges(link string) []string {
	path, err := filepath.EvalSymlinks(link)
	if err != nil {
		return nil
	}
	parts := strings.Split(filepath.Dir(path), string(filepath.Separator))
	from := slices.IndexFunc(parts, func(s string) bool { return strings.HasPrefix(s, "pci") && strings.Contains(s, ":") })
	if from < 0 {
		return nil
	}
	return parts[from:]
}

// sysBus returns the address of a PCI device as the kernel writes it, "0000:18:00.0", from the driver's
// "00000000:18:00.0".
func sysBus(bus string) string {
	bus = strings.ToLower(bus)
	if domain, rest, ok := strings.Cut(bus, ":"); ok && len(domain) > 4 && strings.Trim(domain[:len(domain)-4], "0") == "" {
		return domain[len(domain)-4:] + ":" + rest
	}
	return bus
}
