package wire

import (
	"encoding/json"
	"testing"
)

// TestOrderLists: an order is written as a name, as names with commas, or as a list.
func TestOrderLists(t *testing.T) {
	for text, want := range map[string]string{
		`{"Path":"q","Order":"fair"}`: "fair", `{"Path":"q","Order":["priority","fair"]}`: "priority,fair", `{"Path":"q","Order":"priority, fair"}`: "priority,fair", `{"Path":"q"}`: "",
	} {
		var q Queue
		if err := json.Unmarshal([]byte(text), &q); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		s, err := q.ToStructs()
		if err != nil || string(s.Order) != want || s.Check() != nil {
			t.Errorf("%s: order %q, %v, %v", text, s.Order, err, s.Check())
		}
		if back := QueueFromStructs(s); string(back.Order) != want {
			t.Errorf("%s comes back as %q", text, back.Order)
		}
	}
	if err := json.Unmarshal([]byte(`{"Order":3}`), &Queue{}); err == nil {
		t.Error("an order of 3 is taken")
	}
}
