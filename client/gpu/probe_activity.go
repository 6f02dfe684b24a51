//go:build linux && cgo

package gpu

import (
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// active are the functions that measure how busy the parts of a GPU are; drivers have them for Hopper and newer.
var active = []string{
	"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet", "nvmlGpmSampleFree", "nvmlGpmMetricsGet",
}

// activityEvery is the minimum distance of two samples for a meaningful difference.
const activityEvery = 100 * time.Millisecond

// sampling is the state between two measurements of a GPU or a MIG instance.
type sampling struct {
	sample nvml.GpmSample
	at     time.Time
	last   *Activity
}

// canReport reports whether a GPU can report its activity; it is queried once.
func (p *probe) canReport(d *view) bool {
	tells, known := p.tells[d.uuid]
	if !known {
		v, ok := ask(p, d, []string{"nvmlGpmQueryDeviceSupport"}, d.GpmQueryDeviceSupport)
		tells = ok && v.IsSupportedDevice != 0
		for _, f := range active {
			tells = tells && p.has(f)
		}
		p.tells[d.uuid] = tells
	}
	return tells
}

// activity measures a GPU, and its MIG instances, since the previous measurement; nothing at the first one.
func (p *probe) activity(d *view, s *Sample) {
	if d.lost || !p.canReport(d) {
		return
	}
	s.Active = p.since(d, s.UUID, "nvmlGpmSampleGet", func(to nvml.GpmSample) nvml.Return { return to.Get(d.Device) })
	if s.MIGMode != "Enabled" {
		return
	}
	for _, m := range p.handles(d) {
		uuid, ok := ask(p, m, []string{"nvmlDeviceGetUUID"}, m.GetUUID)
		if !ok {
			continue
		}
		gi, ok := ask(p, m, []string{"nvmlDeviceGetGpuInstanceId"}, m.GetGpuInstanceId)
		if !ok {
			continue
		}
		if a := p.since(d, uuid, "nvmlGpmMigSampleGet", func(to nvml.GpmSample) nvml.Return { return to.MigGet(d.Device, gi) }); a != nil {
			x := *a
			x.UUID = uuid
			s.Parts = append(s.Parts, x)
		}
	}
}

// since takes a sample and returns the activity between it and the previous one.
func (p *probe) since(d *view, id, symbol string, get func(nvml.GpmSample) nvml.Return) *Activity {
	before := p.samples[id]
	if before != nil && time.Since(before.at) < activityEvery {
		return before.last
	}
	forget := func(x nvml.GpmSample) {
		_, _ = ask(p, d, []string{"nvmlGpmSampleFree"}, func() (struct{}, nvml.Return) { return struct{}{}, x.Free() })
	}
	drop := func() {
		if before != nil {
			forget(before.sample)
			delete(p.samples, id)
		}
	}
	sample, ok := ask(p, d, []string{"nvmlGpmSampleAlloc"}, p.lib.GpmSampleAlloc)
	if !ok {
		drop()
		return nil
	}
	if _, ok = ask(p, d, []string{symbol}, func() (struct{}, nvml.Return) { return struct{}{}, get(sample) }); !ok {
		forget(sample)
		drop()
		return nil
	}
	now := &sampling{sample: sample, at: time.Now()}
	if before != nil {
		now.last = p.between(d, before.sample, sample)
		forget(before.sample)
	}
	p.samples[id] = now
	return now.last
}

// between reads the activity of a GPU between two samples.
func (p *probe) between(d *view, from, to nvml.GpmSample) *Activity {
	out := &Activity{SM: -1, Occupancy: -1, Tensor: -1, DRAM: -1, Engine: -1}
	metrics := []struct {
		id nvml.GpmMetricId
		at *int64
	}{
		{nvml.GPM_METRIC_SM_UTIL, &out.SM}, {nvml.GPM_METRIC_SM_OCCUPANCY, &out.Occupancy}, {nvml.GPM_METRIC_ANY_TENSOR_UTIL, &out.Tensor},
		{nvml.GPM_METRIC_DRAM_BW_UTIL, &out.DRAM}, {nvml.GPM_METRIC_GRAPHICS_UTIL, &out.Engine},
	}
	q := &nvml.GpmMetricsGetType{NumMetrics: uint32(len(metrics)), Sample1: from, Sample2: to}
	for i, m := range metrics {
		q.Metrics[i].MetricId = uint32(m.id)
	}
	if _, ok := ask(p, d, []string{"nvmlGpmMetricsGet"}, func() (struct{}, nvml.Return) { return struct{}{}, p.lib.GpmMetricsGet(q) }); !ok {
		return nil
	}
	for i, m := range metrics {
		if v := q.Metrics[i].Value; nvml.Return(q.Metrics[i].NvmlReturn) == nvml.SUCCESS && v >= 0 && !math.IsNaN(v) {
			*m.at = int64(math.Round(min(v, 100) * 10))
		}
	}
	return out
}
