package structs

import "testing"

// TestAmountText: the same amount has the same text wherever it is shown.
func TestAmountText(t *testing.T) {
	for n, want := range map[int64]string{0: "0 MiB", 1023: "1023 MiB", 1024: "1 GiB", 1536: "1.5 GiB", 8172: "7.98 GiB", 10239: "9.999 GiB", 81559: "79.65 GiB", 975896: "953 GiB", 1 << 20: "1 TiB", 975896000: "930.7 TiB"} {
		if got := MiBText(n); got != want {
			t.Errorf("%d MiB is %q, want %q", n, got, want)
		}
	}
	for want, r := range map[string]Refusal{"1 GPU": {Obstacle: Obstacle{Dimension: DimensionGPU}, Short: 1, Unit: UnitDevices}, "2 devices": {Obstacle: Obstacle{Dimension: DimensionDevices}, Short: 2, Unit: UnitDevices},
		"50%": {Short: 50, Unit: UnitPercent}, "2 GiB": {Short: 2048, Unit: UnitMiB}, "3": {Short: 3}} {
		if got := r.ShortText(); got != want {
			t.Errorf("%+v is short by %q, want %q", r, got, want)
		}
	}
}
