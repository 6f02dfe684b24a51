package sim

import (
	"bytes"
	"context"
	"encoding/xml"
	"io"
	"strings"
	"testing"
)

// The report holds all that it shows: no script, nothing fetched; and names of policies and files cannot break out of it.
func TestReport(t *testing.T) {
	rs, err := Run(context.Background(), &Options{Trace: randomTrace(t, 3, 200), Nodes: "2x8", Policies: []string{"fcfs+greedy", "fcfs+greedy+fgd"}})
	if err != nil {
		t.Fatal(err)
	}
	rs[1].Policy = `<script>alert("x")</script>`
	var b bytes.Buffer
	if err := WriteHTML(&b, `a"><b`, rs); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, bad := range []string{"<script", "http://", "https://", "src=", `a"><b`, "NaN", "Inf"} {
		if strings.Contains(text, bad) {
			t.Errorf("the report contains %q", bad)
		}
	}
	if n := strings.Count(text, "<polyline"); n < 10 {
		t.Errorf("%d curves, want five charts of two policies", n)
	}
	svgs := 0
	for rest := text; ; svgs++ {
		i := strings.Index(rest, "<svg")
		if i < 0 {
			break
		}
		end := strings.Index(rest[i:], "</svg>") + 6
		d := xml.NewDecoder(strings.NewReader(rest[i : i+end]))
		for {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("a chart is not well-formed: %v", err)
			}
		}
		rest = rest[i+end:]
	}
	if svgs != 5 {
		t.Errorf("%d charts", svgs)
	}
}
