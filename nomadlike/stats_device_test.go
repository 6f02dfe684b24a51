package nomadlike

import (
	"testing"

	"github.com/muster-sched/muster/internal/methods"
)

func TestDeviceStats(t *testing.T) {
	out := devicesOf([]methods.DeviceStats{
		{Group: "nvidia/gpu/H100", ID: "a", UsedBytes: 3 << 20, TotalBytes: 80 << 30, Utilization: 40, MemoryUtil: -1, TemperatureC: 50, PowerMW: 300_500, EnergyMJ: -1},
		{Group: "nvidia/gpu/T4", ID: "b", PowerMW: -1}, {Group: "nvidia/gpu/H100", ID: "c"},
	})
	if len(out) != 2 || out[0].Vendor != "nvidia" || out[0].Type != "gpu" || out[0].Name != "H100" || len(out[0].InstanceStats) != 2 || out[1].Name != "T4" {
		t.Fatalf(`%+v; want len(out) = 2, out[0].Vendor = "nvidia", out[0].Type = "gpu", out[0].Name = "H100", len(out[0].InstanceStats) = 2, out[1].Name = "T4"`, out)
	}
	a := out[0].InstanceStats["a"]
	if *a.Summary.IntNumeratorVal != 3 || *a.Summary.IntDenominatorVal != 80<<10 || a.Summary.Unit != "MiB" || *a.Stats.Attributes["Power usage"].IntNumeratorVal != 300 {
		t.Errorf("%+v", a)
	}
	for _, k := range []string{"Memory utilization", "Energy"} {
		if a.Stats.Attributes[k] != nil {
			t.Errorf("%s is not known, yet shown", k)
		}
	}
	if out[1].InstanceStats["b"].Stats.Attributes["Power usage"] != nil {
		t.Error("power is not known, yet shown")
	}
}
