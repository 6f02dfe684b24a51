package sim

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	goldenfile "github.com/muster-sched/muster/internal/golden"
)

var update = flag.Bool("update", false, "draw the pictures of docs/images again")

// TestPictures draws the pictures of docs/scheduling.md from the charts of a report (muster sim -html), so that they stay what the
// scheduler does.
func TestPictures(t *testing.T) {
	for _, p := range []struct{ file, title, policies string }{
		{"day-waiting.svg", "Jobs that wait", "fcfs+none,fcfs+easy,default"},
		{"day-waits.svg", "How long jobs waited", "fcfs+none,fcfs+easy,default"},
		{"day-split.svg", "Nodes in use that are held in part", "fcfs+easy+spread,fcfs+easy+strand"},
	} {
		rs, err := Run(context.Background(), &Options{Trace: "testdata/traces/day.csv", Nodes: "4x8", Policies: strings.Split(p.policies, ",")})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range chartsOf(rs) {
			if c.Title == p.title {
				goldenfile.Compare(t, filepath.Join("../docs/images", p.file), []byte(alone(string(c.SVG), strings.Split(p.policies, ","))), *update)
			}
		}
	}
}

// alone is a chart as a file: with the style that a report has once, a background and a legend.
func alone(svg string, policies []string) string {
	head := `<svg xmlns="http://www.w3.org/2000/svg"`
	svg = strings.Replace(strings.Replace(svg, "<svg", head, 1), `"0 0 640 280"`, `"0 -20 640 300"`, 1)
	i := strings.Index(svg, ">") + 1
	legend := ""
	for k, p := range policies {
		x := padL + 10 + 160*float64(k)
		legend += fmt.Sprintf(`<line x1="%.0f" x2="%.0f" y1="-8" y2="-8" stroke="%s" stroke-width="2.5" stroke-dasharray="%s"/><text x="%.0f" y="-4">%s</text>`, x, x+28, palette[k], dashes[k], x+34, p)
	}
	return svg[:i] + `<style>text { font-family: system-ui, sans-serif; fill: #555; font-size: 11px } .grid { stroke: #d8d8d8 }</style><rect y="-20" width="640" height="300" fill="#fff"/>` +
		strings.TrimSuffix(svg[i:], "</svg>") + legend + "</svg>\n"
}
