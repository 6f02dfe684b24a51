package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/internal/fakegpu"
)

// Adapter is a made-up RDMA adapter of a FleetNode, below the same PCIe switch as some of its GPUs.
type Adapter struct {
	Name string // as the kernel calls it: "mlx5_0"
	GPUs []int  // by index
}

// adaptersScript starts "$@" in a mount namespace whose /sys and /dev have the adapters below the directory $0.
const adaptersScript = `set -e
mount -t overlay overlay -o lowerdir="$0/class:/sys/class" /sys/class
mount --bind "$0/pci" /sys/bus/pci/devices
mount --rbind /dev "$0/kept"
mount -t overlay overlay -o lowerdir="$0/dev:/dev" /dev
for d in pts shm; do mount --rbind "$0/kept/$d" "/dev/$d"; done
exec "$@"`

// withAdapters shows an agent the PCIe tree of a machine in which adapters and GPUs share switches, in the files that the
// kernel has for it: /sys/class/infiniband, /sys/bus/pci/devices and /dev/infiniband. It returns what the command line
// of the agent begins with.
func withAdapters(t testing.TB, dir, gpus string, adapters []Adapter) []string {
	t.Helper()
	machine, err := fakegpu.New(gpus, "")
	if err != nil {
		t.Fatal(err)
	}
	mkdir := func(parts ...string) string {
		path := filepath.Join(append([]string{dir}, parts...)...)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pci, dev := mkdir("pci"), mkdir("dev", "infiniband")
	mkdir("kept")
	below := map[int]string{} // the switch above a GPU
	for i, a := range adapters {
		port := fmt.Sprintf("devices/pci0000:00/0000:00:%02x.0/0000:%02x:00.0", i+1, 0x80+i)
		for _, g := range a.GPUs {
			below[g] = port
		}
		at := mkdir(port, fmt.Sprintf("0000:%02x:00.0", 0xa0+i))
		uverbs := filepath.Join(dev, fmt.Sprintf("uverbs%d", i))
		err := errors.Join(os.Symlink(at, filepath.Join(mkdir("class", "infiniband", a.Name), "device")),
			unix.Mknod(uverbs, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), os.Chmod(uverbs, 0o666)) // whose driver is that of /dev/null
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range machine.GPUs {
		port := below[i]
		if port == "" {
			port = fmt.Sprintf("devices/pci0000:00/0000:00:%02x.0", 0x10+i)
		}
		bus := machine.GPUs[i].Bus + ".0"
		if err := os.Symlink(mkdir(port, bus), filepath.Join(pci, bus)); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"unshare", "-m", "sh", "-c", adaptersScript, dir, Bin(t)}
}
