//go:build linux && cgo

package gpu

import (
	"errors"
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// busy measures each process's use of the multiprocessors since the last call: the mean of the driver's samples.
func (p *probe) busy(d *view, s *Sample) {
	list, ok := ask(p, d, []string{"nvmlDeviceGetProcessUtilization"}, func() ([]nvml.ProcessUtilizationSample, nvml.Return) {
		v, r := d.GetProcessUtilization(p.until[d.uuid])
		if r == nvml.ERROR_NOT_FOUND { // no process computed
			return nil, nvml.SUCCESS
		}
		return v, r
	})
	if !ok {
		return
	}
	sum, n := map[int]int64{}, map[int]int64{}
	for _, v := range list {
		if v.TimeStamp > p.until[d.uuid] {
			p.until[d.uuid] = v.TimeStamp
		}
		sum[int(v.Pid)] += int64(v.SmUtil)
		n[int(v.Pid)]++
	}
	for i := range s.Processes {
		pid := s.Processes[i].PID
		s.Processes[i].SM = sum[pid] / max(n[pid], 1)
	}
}

// limits reports whether the driver limits the memory of control groups: besides the functions, the kernel must support
// it.
func (p *probe) limits(d *view) bool {
	if !p.has("nvmlDeviceSetMemoryLimits_v1") || !p.has("nvmlDeviceGetMemoryLimits_v1") {
		return false
	}
	root := "/sys/fs/cgroup/unified" // where it is mounted next to version 1
	if _, err := os.Stat(root); err != nil {
		root = "/sys/fs/cgroup"
	}
	code := nvml.ERROR_UNKNOWN
	ask(p, d, []string{"nvmlDeviceGetMemoryLimits_v1"}, func() (struct{}, nvml.Return) {
		_, code = d.GetMemoryLimits_v1(root)
		return struct{}{}, code
	})
	return code != nvml.ERROR_NOT_SUPPORTED && code != nvml.ERROR_FUNCTION_NOT_FOUND
}

// limit sets or reads a control group's limit on a GPU.
func (p *probe) limit(r request) (*MemoryLimit, error) {
	if !p.has("nvmlDeviceSetMemoryLimits_v1") || !p.has("nvmlDeviceGetMemoryLimits_v1") {
		return nil, errors.New("the driver cannot limit the memory of a control group")
	}
	d := &view{uuid: r.UUID}
	h, ok := ask(p, d, []string{"nvmlDeviceGetHandleByUUID"}, func() (nvml.Device, nvml.Return) { return p.lib.DeviceGetHandleByUUID(r.UUID) })
	if !ok {
		return nil, fmt.Errorf("GPU %s cannot be opened", r.UUID)
	}
	d.Device = h
	var code nvml.Return
	if r.Op == "limit" {
		soft, hard := uint64(0), ^uint64(0)
		if r.Bytes >= 0 { // equal to the limit: memory within the share is not reclaimed
			soft, hard = uint64(r.Bytes), uint64(r.Bytes)
		}
		if _, ok := ask(p, d, []string{"nvmlDeviceSetMemoryLimits_v1"}, func() (struct{}, nvml.Return) {
			code = d.SetMemoryLimits_v1(r.Group, soft, hard)
			return struct{}{}, code
		}); !ok {
			return nil, fmt.Errorf("limit the memory of GPU %s for %s: %s", r.UUID, r.Group, text(code))
		}
	}
	v, ok := ask(p, d, []string{"nvmlDeviceGetMemoryLimits_v1"}, func() (nvml.MemoryLimits_v1, nvml.Return) {
		v, c := d.GetMemoryLimits_v1(r.Group)
		code = c
		return v, c
	})
	if !ok {
		return nil, fmt.Errorf("ask for the limit of GPU %s for %s: %s", r.UUID, r.Group, text(code))
	}
	m := &MemoryLimit{Bytes: int64(v.HardLimit), UsedBytes: int64(v.CurrentUsed)}
	if r.Op == "limit" && m.Bytes != r.Bytes {
		return nil, fmt.Errorf("the driver has set %d bytes for %s on GPU %s instead of %d", m.Bytes, r.Group, r.UUID, r.Bytes)
	}
	return m, nil
}

// power reads the power limit, and sets a new one.
func (p *probe) power(r request) (int64, error) {
	d := &view{uuid: r.UUID}
	h, ok := ask(p, d, []string{"nvmlDeviceGetHandleByUUID"}, func() (nvml.Device, nvml.Return) { return p.lib.DeviceGetHandleByUUID(r.UUID) })
	if !ok {
		return 0, fmt.Errorf("GPU %s cannot be opened", r.UUID)
	}
	d.Device = h
	if r.MW > 0 {
		if v, ok := ask(p, d, []string{"nvmlDeviceGetPowerManagementLimitConstraints"}, func() (v [2]uint32, r nvml.Return) {
			v[0], v[1], r = d.GetPowerManagementLimitConstraints()
			return v, r
		}); ok && (r.MW < int64(v[0]) || r.MW > int64(v[1])) {
			return 0, fmt.Errorf("a limit of %d W is not possible on GPU %s: it takes %d to %d W", r.MW/1000, r.UUID, v[0]/1000, v[1]/1000)
		}
		code := nvml.ERROR_FUNCTION_NOT_FOUND
		if _, ok := ask(p, d, []string{"nvmlDeviceSetPowerManagementLimit"}, func() (struct{}, nvml.Return) {
			code = d.SetPowerManagementLimit(uint32(r.MW))
			return struct{}{}, code
		}); !ok {
			return 0, fmt.Errorf("set the power limit of GPU %s to %d W: %s", r.UUID, r.MW/1000, text(code))
		}
	}
	v, ok := ask(p, d, []string{"nvmlDeviceGetPowerManagementLimit"}, d.GetPowerManagementLimit)
	if !ok {
		return 0, fmt.Errorf("the driver does not report the power limit of GPU %s", r.UUID)
	}
	if r.MW > 0 && int64(v) != r.MW {
		return 0, fmt.Errorf("the driver has set %d W on GPU %s instead of %d", v/1000, r.UUID, r.MW/1000)
	}
	return int64(v), nil
}
