//go:build linux && cgo

package gpu

import (
	"encoding/binary"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// wired are the functions that a query of a GPU's links needs.
var wired = []string{
	"nvmlDeviceGetNvLinkState", "nvmlDeviceGetFieldValues", "nvmlDeviceGetNvLinkErrorCounter", "nvmlDeviceGetPcieThroughput", "nvmlDeviceGetPcieReplayCounter",
}

// allLinks is the scope of fields that are sums over a GPU's links.
const allLinks = math.MaxUint32

// field is one value to read; link allLinks is the sum.
type field struct{ id, link uint32 }

// fields reads values. Those that the driver does not report are not in the result.
func (p *probe) fields(d *view, want []field) map[field]int64 {
	list := make([]nvml.FieldValue, len(want))
	for i, f := range want {
		list[i].FieldId, list[i].ScopeId = f.id, f.link
	}
	out := map[field]int64{}
	if _, ok := ask(p, d, []string{"nvmlDeviceGetFieldValues"}, func() (struct{}, nvml.Return) { return struct{}{}, d.GetFieldValues(list) }); !ok {
		return out
	}
	for i := range list {
		if nvml.Return(list[i].NvmlReturn) == nvml.SUCCESS {
			if v, ok := fieldValue(&list[i]); ok {
				out[want[i]] = v
			}
		}
	}
	return out
}

// fieldValue reads a value according to its type.
func fieldValue(f *nvml.FieldValue) (int64, bool) {
	raw := binary.NativeEndian.Uint64(f.Value[:])
	v := int64(raw)
	switch nvml.ValueType(f.ValueType) {
	case nvml.VALUE_TYPE_DOUBLE:
		x := math.Float64frombits(raw)
		if math.IsNaN(x) || x < 0 || x >= math.MaxInt64 {
			return 0, false
		}
		v = int64(x)
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		v = int64(binary.NativeEndian.Uint32(f.Value[:]))
	case nvml.VALUE_TYPE_SIGNED_INT:
		v = int64(int32(binary.NativeEndian.Uint32(f.Value[:])))
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		v = int64(binary.NativeEndian.Uint16(f.Value[:]))
	}
	return v, v >= 0
}

// errorCounters are the places of NVLink errors: on old GPUs a sum, on newer ones a value per link, and a separate
// function.
var errorCounters = []struct {
	sum, link, link2 uint32
	counter          nvml.NvLinkErrorCounter
	at               func(*Wires) *int64
}{
	{nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_ERROR_DL_CRC, 0, nvml.NVLINK_ERROR_DL_CRC_FLIT, func(w *Wires) *int64 { return &w.CRCFlit }},
	{nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, 0, 0, nvml.NVLINK_ERROR_DL_CRC_DATA, func(w *Wires) *int64 { return &w.CRCData }},
	{nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY, 0, nvml.NVLINK_ERROR_DL_REPLAY, func(w *Wires) *int64 { return &w.Replays }},
	{nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY, nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, nvml.NVLINK_ERROR_DL_RECOVERY, func(w *Wires) *int64 { return &w.Recoveries }},
}

// wires reads the state of a GPU's links.
func (p *probe) wires(d *view) *Wires {
	w := &Wires{PCIeTxKBs: -1, PCIeRxKBs: -1, PCIeReplays: -1, NVLinkKiB: -1, CRCFlit: -1, CRCData: -1, Replays: -1, Recoveries: -1}
	for l := range linksMax {
		up, ok := ask(p, d, []string{"nvmlDeviceGetNvLinkState"}, func() (nvml.EnableState, nvml.Return) { return d.GetNvLinkState(l) })
		if !ok {
			break
		}
		if up == nvml.FEATURE_ENABLED {
			w.Up = append(w.Up, l)
		} else {
			w.Down = append(w.Down, l)
		}
	}
	const replay, tx, rx, sent, got = nvml.FI_DEV_PCIE_REPLAY_COUNTER, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES
	want := []field{{replay, 0}}
	if len(w.Up) > 0 {
		want = append(want, field{tx, allLinks}, field{rx, allLinks})
		for _, e := range errorCounters {
			want = append(want, field{e.sum, 0})
		}
		for _, l := range w.Up {
			want = append(want, field{sent, uint32(l)}, field{got, uint32(l)})
			for _, e := range errorCounters {
				for _, id := range []uint32{e.link, e.link2} {
					if id != 0 {
						want = append(want, field{id, uint32(l)})
					}
				}
			}
		}
	}
	have := p.fields(d, want)
	sum := func(id uint32) (int64, bool) {
		n, known := int64(0), false
		for _, l := range w.Up {
			if v, ok := have[field{id, uint32(l)}]; ok && id != 0 {
				n, known = n+v, true
			}
		}
		return n, known
	}
	if v, ok := have[field{replay, 0}]; ok {
		w.PCIeReplays = v
	} else if v, ok := ask(p, d, []string{"nvmlDeviceGetPcieReplayCounter"}, d.GetPcieReplayCounter); ok {
		w.PCIeReplays = int64(v)
	}
	if a, ok := have[field{tx, allLinks}]; ok {
		w.NVLinkKiB = a + have[field{rx, allLinks}]
	} else if a, ok := sum(sent); ok {
		b, _ := sum(got)
		w.NVLinkKiB = (a + b) >> 10
	}
	for _, e := range errorCounters {
		at := e.at(w)
		if v, ok := have[field{e.sum, 0}]; ok && len(w.Up) > 0 {
			*at = v
		} else if v, ok := sum(e.link); ok {
			*at = v
		} else if v, ok := sum(e.link2); ok {
			*at = v
		} else {
			for _, l := range w.Up {
				v, ok := ask(p, d, []string{"nvmlDeviceGetNvLinkErrorCounter"}, func() (uint64, nvml.Return) { return d.GetNvLinkErrorCounter(l, e.counter) })
				if !ok {
					break
				}
				*at = max(*at, 0) + int64(v)
			}
		}
	}
	for counter, at := range map[nvml.PcieUtilCounter]*int64{nvml.PCIE_UTIL_TX_BYTES: &w.PCIeTxKBs, nvml.PCIE_UTIL_RX_BYTES: &w.PCIeRxKBs} {
		if v, ok := ask(p, d, []string{"nvmlDeviceGetPcieThroughput"}, func() (uint32, nvml.Return) { return d.GetPcieThroughput(counter) }); ok {
			*at = int64(v)
		}
	}
	return w
}
