package fingerprint

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
