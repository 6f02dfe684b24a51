package structs

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestEveryDimensionHasNameAndText(t *testing.T) {
	names, texts := map[string]Dimension{}, map[string]Dimension{}
	for d := DimensionNone + 1; d < dimensionCount; d++ {
		full := Obstacle{Dimension: d, Holder: Holder{Kind: HolderQueue, Name: "q"}, Subject: "s", Detail: "d", Count: 3, Of: 4}
		if d == DimensionCores || d == DimensionDevices || d == DimensionGPU { // their text is their subject
			full.Subject = "some " + d.Name()
		}
		name, text := d.Name(), full.Text()
		if other, taken := names[name]; taken || name == "" || strings.ContainsAny(name, " _A") {
			t.Errorf("dimension %d is called %q, which is empty, not lower case, or the name of %d", d, name, other)
		}
		if other, taken := texts[text]; taken || text == "" || strings.ContainsAny(strings.ReplaceAll(text, `gpu { mig = "d" }`, ""), "{}") {
			t.Errorf("the text of %s is %q, which is empty, has a field left, or is the text of %s", name, text, other.Name())
		}
		names[name], texts[text] = d, d
		var back Dimension
		b, err := json.Marshal(d)
		if err != nil || json.Unmarshal(b, &back) != nil || back != d {
			t.Errorf("%s came back from JSON as %q", b, back.Name())
		}
	}
	for k := HolderNone; k < holderKinds; k++ {
		var back HolderKind
		b, err := json.Marshal(k)
		if err != nil || json.Unmarshal(b, &back) != nil || back != k {
			t.Errorf("%s came back from JSON as %q", b, back)
		}
	}
}

// TestObstacleText has the sentences that no script of the scheduler shows.
func TestObstacleText(t *testing.T) {
	for _, c := range []struct {
		name, want string
		o          Obstacle
	}{
		{"resource", "GPU memory", Obstacle{Dimension: DimensionGPUMemory}},
		{"of a user", "queue a/b, user eve: running jobs", Obstacle{Dimension: DimensionRunningJobs, Holder: Holder{HolderQueue, "a/b"}, Subject: "eve"}},
		{"reserved for a job", "nvidia/gpu in one island reserved for train", Obstacle{Dimension: DimensionGPU, Subject: "nvidia/gpu", Detail: "island", Holder: Holder{HolderJob, "train"}}},
		{"closed node", "reservation show", Obstacle{Holder: Holder{HolderReservation, "show"}}},
		{"reserved amount", "reservation show: cpu", Obstacle{Dimension: DimensionCPU, Holder: Holder{HolderReservation, "show"}}},
		{"words in braces", "${attr.x} = {subject}", Obstacle{Dimension: DimensionConstraint, Subject: "${attr.x} = {subject}"}},
		{"no MIG instance", "missing device MIG 1g.10gb; nodes have instances of 2g.20gb; GPUs in MIG mode can be divided so (2)", Obstacle{Dimension: DimensionMissingMIG, Subject: "1g.10gb", Detail: "2g.20gb", Count: 2}},
		{"members in a rack", "1 of 2 members found in one rack (r1)", Obstacle{Dimension: DimensionMembers, Count: 1, Of: 2, Detail: "rack", Subject: "r1"}},
		{"power limit", "power_limit = 900: nvidia/gpu/H100 can be set to 200 to 700 W", Obstacle{Dimension: DimensionPowerLimit, Subject: "nvidia/gpu/H100", Count: 900, Detail: "200 to 700"}},
		{"unknown dimension", "", Obstacle{Dimension: 255}},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			if got := c.o.Text(); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
