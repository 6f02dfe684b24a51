package wire

import (
	"encoding/json"
	"testing"
)

// TestUserPriorities: the priorities of submitters pass through both directions, with their names as they are.
func TestUserPriorities(t *testing.T) {
	const text = `{"Path":"q","Guarantee":null,"Limit":null,"SoftLimit":null,"UserPriorityMax":{"Alice_B":90,"bob":30},"UserPriorityDefault":{"Alice_B":70},"CreateIndex":0,"ModifyIndex":0}`
	var q Queue
	if err := json.Unmarshal([]byte(text), &q); err != nil {
		t.Fatal(err)
	}
	s, err := q.ToStructs()
	if err != nil || s.Check() != nil || s.PriorityMaxOf("Alice_B") != 90 || s.PriorityMaxOf("bob") != 30 || s.PriorityMaxOf("carol") != 0 || s.PriorityDefaultOf("Alice_B") != 70 {
		t.Errorf("read as %+v, %v, %v", s, err, s.Check())
	}
	if back, err := json.Marshal(QueueFromStructs(s)); err != nil || string(back) != text {
		t.Errorf("comes back as %s, %v", back, err)
	}
}

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
