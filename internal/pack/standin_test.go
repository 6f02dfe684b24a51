package pack

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

type short struct{ joined string }

func (s short) Expand() []string {
	if s.joined == "" {
		return nil
	}
	return strings.Split(s.joined, ",")
}

func (s *short) Compact(list []string) { s.joined = strings.Join(list, ",") }

type rare struct {
	B int64
	D *string
}

type compactRow struct {
	A    string
	C    short
	Rare *rare `codec:",inline"`
	E    int64
}

type plainRow struct {
	A string
	B int64
	C []string
	D *string
	E int64
}

// TestStandIn wants the bytes of rows with stand-ins and inline structs to be those of rows without.
func TestStandIn(t *testing.T) {
	text := "d"
	for _, c := range []struct {
		row   compactRow
		plain plainRow
	}{
		{compactRow{}, plainRow{}},
		{compactRow{A: "a", E: 5}, plainRow{A: "a", E: 5}},
		{compactRow{C: short{"x,y"}, Rare: &rare{B: 2, D: &text}}, plainRow{C: []string{"x", "y"}, B: 2, D: &text}},
		{compactRow{Rare: &rare{D: &text}, E: 1}, plainRow{D: &text, E: 1}},
	} {
		b := Append(nil, &c.row)
		if want := Append(nil, &c.plain); !bytes.Equal(b, want) {
			t.Errorf("%+v gives %q, want %q", c.row, b, want)
		}
		back := compactRow{A: "old", Rare: &rare{B: 9}}
		if err := Decode(b, &back); err != nil || !reflect.DeepEqual(back, c.row) {
			t.Errorf("%+v came back as %+v, %v", c.row, back, err)
		}
		if w, ok := Wire.Append(nil, &c.row); !ok || !bytes.Equal(w, b) {
			t.Errorf("the wire has %q, the state %q", w, b)
		}
	}
	if b := Append(nil, &compactRow{Rare: &rare{}}); !bytes.Equal(b, Append(nil, &plainRow{})) {
		t.Errorf("an empty inline struct gives %q", b)
	}
}
