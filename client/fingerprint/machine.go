package fingerprint

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	pscpu "github.com/shirou/gopsutil/v4/cpu"
	psdisk "github.com/shirou/gopsutil/v4/disk"
	pshost "github.com/shirou/gopsutil/v4/host"
	psmem "github.com/shirou/gopsutil/v4/mem"
	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/structs"
)

func arch(_ context.Context, f *Facts) error {
	f.Attributes["cpu.arch"] = runtime.GOARCH
	f.Attributes["arch"] = runtime.GOARCH
	return nil
}

func host(ctx context.Context, f *Facts) error {
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	f.Attributes["unique.hostname"] = name
	f.Attributes["kernel.name"] = runtime.GOOS
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		f.Attributes["kernel.version"] = unix.ByteSliceToString(u.Release[:])
		f.Attributes["kernel.arch"] = unix.ByteSliceToString(u.Machine[:])
	}
	platform, _, version, err := pshost.PlatformInformationWithContext(ctx)
	if err == nil && platform != "" {
		f.Attributes["os.name"] = platform
		f.Attributes["os.version"] = version
	} else {
		f.Attributes["os.name"] = runtime.GOOS
	}
	f.Attributes["os.signals"] = "SIGABRT,SIGALRM,SIGCONT,SIGHUP,SIGINT,SIGKILL,SIGQUIT,SIGSTOP,SIGTERM,SIGTSTP,SIGUSR1,SIGUSR2"
	if b, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		f.BootID = strings.TrimSpace(string(b))
	}
	return nil
}

// cpu counts the processors that the agent may use and determines their speed.
func (o Options) cpu(ctx context.Context, f *Facts) error {
	var set unix.CPUSet
	cores := int64(runtime.NumCPU())
	usable := []int64(nil)
	if err := unix.SchedGetaffinity(0, &set); err == nil && set.Count() > 0 {
		cores = int64(set.Count())
		for i := 0; i < 1024 && len(usable) < int(cores); i++ {
			if set.IsSet(i) {
				usable = append(usable, int64(i))
			}
		}
	}
	mhz := int64(0)
	infos, err := pscpu.InfoWithContext(ctx)
	if err == nil && len(infos) > 0 {
		f.Attributes["cpu.modelname"] = infos[0].ModelName
		for _, i := range infos {
			mhz = max(mhz, int64(i.Mhz+0.5))
		}
	}
	if mhz <= 0 {
		mhz = 1000 // unknown; a round number keeps shares meaningful
	}
	total := mhz * cores
	if o.CPUMHz > 0 {
		total = o.CPUMHz
		mhz = max(1, total/cores)
	}
	f.Attributes["cpu.frequency"] = strconv.FormatInt(mhz, 10)
	f.Attributes["cpu.numcores"] = strconv.FormatInt(cores, 10)
	f.Attributes["cpu.totalcompute"] = strconv.FormatInt(total, 10)
	f.Attributes["cpu.usablecompute"] = strconv.FormatInt(total, 10)
	f.Attributes[structs.NUMACountAttribute] = strconv.Itoa(o.numaNodes(f, usable))
	f.Resources.CPU = total
	f.Resources.MHzPerCore = mhz
	if !o.NoCpuset {
		f.Resources.Cores, f.Resources.ReservableCPUs = cores, usable
	}
	f.Attributes["cpu.reservablecores"] = strconv.FormatInt(f.Resources.Cores, 10)
	return nil
}

// numaNodes lists the NUMA nodes' cores as attributes and counts them; a machine that reports none has one.
func (o Options) numaNodes(f *Facts, usable []int64) int {
	dirs, _ := filepath.Glob(filepath.Join(cmp.Or(o.SysNodes, "/sys/devices/system/node"), "node[0-9]*"))
	if half := len(usable) / 2; o.TwoNUMA && len(dirs) < 2 && half > 0 {
		for i, cores := range [][]int64{usable[:half], usable[half:]} {
			words := make([]string, len(cores))
			for k, c := range cores {
				words[k] = strconv.FormatInt(c, 10)
			}
			f.Attributes[structs.NUMACoresAttribute(i)] = strings.Join(words, ",")
		}
		return 2
	}
	for _, d := range dirs {
		id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(d), "node"))
		if err != nil {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(d, "cpulist")); err == nil {
			f.Attributes[structs.NUMACoresAttribute(id)] = strings.TrimSpace(string(b))
		}
	}
	return max(1, len(dirs))
}

func (o Options) memory(ctx context.Context, f *Facts) error {
	total := o.MemoryMB << 20
	if total == 0 {
		m, err := psmem.VirtualMemoryWithContext(ctx)
		if err != nil {
			return fmt.Errorf("memory: %w", err)
		}
		total = int64(m.Total)
	}
	f.Attributes["memory.totalbytes"] = strconv.FormatInt(total, 10)
	f.Resources.MemoryMiB = total >> 20
	return nil
}

// storage measures the disk of the data directory. The capacity is the most that was free in any measurement since the
// agent's start: what allocations write does not count twice, and a disk that was full at the start does not count as
// full for ever.
type storage struct {
	Options
	usage func(ctx context.Context, dir string) (*psdisk.UsageStat, error)
	most  int64 // bytes; -1 before the first measurement
}

func (o *storage) look(ctx context.Context, f *Facts) error {
	u, err := o.usage(ctx, o.DataDir)
	if err != nil {
		return fmt.Errorf("disk of %s: %w", o.DataDir, err)
	}
	// Smaller changes are not reported to the servers.
	if free := int64(u.Free); o.most < 0 || free > o.most+int64(u.Total/64) {
		o.most = free
	}
	free := o.most
	if o.DiskMB > 0 {
		free = o.DiskMB << 20
	}
	volume := o.DataDir
	if parts, err := psdisk.PartitionsWithContext(ctx, true); err == nil {
		best := ""
		for _, p := range parts {
			if within(p.Mountpoint, o.DataDir) && len(p.Mountpoint) > len(best) {
				best, volume = p.Mountpoint, p.Device
			}
		}
	}
	f.Attributes["unique.storage.volume"] = volume
	f.Attributes["unique.storage.bytestotal"] = strconv.FormatUint(u.Total, 10)
	f.Attributes["unique.storage.bytesfree"] = strconv.FormatInt(free, 10)
	f.Resources.DiskMiB = free >> 20
	return nil
}

func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// cgroup records which hierarchy limits tasks.
func cgroup(_ context.Context, f *Facts) error {
	const mount = "/sys/fs/cgroup"
	var st unix.Statfs_t
	if err := unix.Statfs(mount, &st); err != nil {
		return nil // none
	}
	f.Attributes["unique.cgroup.mountpoint"] = mount
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		f.Attributes["os.cgroups.version"] = "2"
		f.Attributes["unique.cgroup.version"] = "v2"
		return nil
	}
	if _, err := os.Stat(filepath.Join(mount, "memory")); err == nil {
		f.Attributes["os.cgroups.version"] = "1"
		f.Attributes["unique.cgroup.version"] = "v1"
	}
	return nil
}

// envMax limits a value shown as an attribute.
const envMax = 1024

func (o Options) env(_ context.Context, f *Facts) error {
	for _, name := range o.Env {
		if v, ok := os.LookupEnv(name); ok && len(v) <= envMax {
			f.Attributes["env."+name] = v
		}
	}
	return nil
}
