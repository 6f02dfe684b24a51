package gpu

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/muster-sched/muster/internal/telemetry"
)

// promtool finds nothing in the metrics of GPUs, except that NVIDIA's exporter spells the label modelName.
func TestMetricNames(t *testing.T) {
	r := deviceReading{gpu: &Device{ReservedBytes: 1 << 20, ECC: "Enabled"}, healthy: true, limitMW: 1, sample: &Sample{
		TotalBytes: 2 << 20, UsedBytes: 1 << 20, FreeBytes: 1 << 20, PCIeGeneration: 5, PCIeWidth: 16, Wires: &Wires{Up: []int{0}},
	}}
	var set telemetry.Set
	set.Read(func(out *telemetry.Samples) {
		ExporterMetrics.Give(out, &r, "node", "0", "GPU-1", "0000:01:00.0", "nvidia0", "H100", "580", "", "")
		ActivityMetrics.Give(out, &Activity{}, "node", "0", "GPU-1", "0000:01:00.0", "nvidia0", "H100", "580", "", "")
		ActivityMetrics.Give(out, &Activity{}, "node", "0", "GPU-1", "0000:01:00.0", "nvidia0", "H100", "580", "1g.10gb", "7")
		HealthMetrics.Give(out, &r, "node", "0", "GPU-1", "H100")
		UseMetrics.Give(out, &TaskUsage{KnownMillis: 2, ActiveMillis: 1}, "alloc", "task", "GPU-1", "shim")
	}, ExporterMetrics, ActivityMetrics, HealthMetrics, UseMetrics)
	tel, err := telemetry.New(telemetry.Sinks{})
	if err != nil {
		t.Fatal(err)
	}
	if err := tel.Add(&set); err != nil {
		t.Fatal(err)
	}
	_, page, err := tel.Metrics("prometheus")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range set.Descs() {
		if !strings.Contains(string(page), "\n"+d.Name+"{") {
			t.Errorf("the scrape lacks %s", d.Name)
		}
	}
	problems, err := promlint.New(strings.NewReader(string(page))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if !strings.HasPrefix(p.Metric, "DCGM_") || p.Text != "label names should be written in 'snake_case' not 'camelCase'" {
			t.Errorf(`%s: %s; want p.Metric to begin with "DCGM_", p.Text = "label names should be written in 'snake_case' not 'camelCase'"`, p.Metric, p.Text)
		}
	}
}
