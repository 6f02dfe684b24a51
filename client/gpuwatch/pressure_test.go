package gpuwatch

import "testing"

// Use that oscillates around a threshold is reported once; passing a higher threshold, or rising again from well below,
// is reported again.
func TestPressureThresholds(t *testing.T) {
	was := 0
	for i, c := range []struct{ percent, want int }{
		{79, 0}, {80, 80}, {78, 80}, {81, 80}, {95, 95}, {91, 95}, {90, 80}, {96, 95}, {76, 80}, {75, 0}, {81, 80}, {40, 0}, {100, 95},
	} {
		if was = threshold([]int{80, 95}, 5, was, c.percent); was != c.want {
			t.Errorf("step %d: at %d %% the threshold is %d, want %d", i, c.percent, was, c.want)
			was = c.want
		}
	}
	if threshold(nil, 5, 0, 100) != 0 {
		t.Error("without thresholds there is one")
	}
}
