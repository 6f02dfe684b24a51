package sim

import (
	"cmp"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
)

// palette are colours that colour-blind readers can distinguish (Okabe and Ito), each with its dash pattern.
var palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#767676", "#000000"}

var dashes = []string{"", "7 3", "2 3", "9 3 2 3", "", "7 3", "2 3", "9 3 2 3"}

// curve is one line of a chart.
type curve struct {
	name string
	pts  []Point
}

// chart is a drawing in SVG.
type chart struct {
	title, x, y string
	curves      []curve
	logX        bool
	top         float64 // upper limit of y; 0: from the data
}

const (
	chartW, chartH = 640.0, 280.0
	padL, padR     = 64.0, 12.0
	padT, padB     = 12.0, 40.0
)

// svg draws the chart. All text in it is escaped.
func (c *chart) svg() template.HTML {
	var b strings.Builder
	loX, hiX, hiY := math.Inf(1), math.Inf(-1), c.top
	for _, cv := range c.curves {
		for _, p := range cv.pts {
			x := c.scaleX(p.X)
			loX, hiX = min(loX, x), max(hiX, x)
			if c.top == 0 {
				hiY = max(hiY, p.Y)
			}
		}
	}
	if hiX <= loX {
		hiX = loX + 1
	}
	if hiY <= 0 || math.IsInf(loX, 0) {
		hiY = 1
	}
	if c.top == 0 {
		hiY = niceTop(hiY)
	}
	px := func(x float64) float64 { return padL + (x-loX)/(hiX-loX)*(chartW-padL-padR) }
	py := func(y float64) float64 { return chartH - padB - min(y, hiY)/hiY*(chartH-padT-padB) }
	fmt.Fprintf(&b, `<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">`, chartW, chartH, template.HTMLEscapeString(c.title))
	for i := range 5 {
		y := hiY * float64(i) / 4
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/><text class="tick" x="%.1f" y="%.1f" text-anchor="end">%s</text>`,
			padL, chartW-padR, py(y), py(y), padL-6, py(y)+4, short(y))
	}
	for i := range 5 {
		x := loX + (hiX-loX)*float64(i)/4
		v := x
		if c.logX {
			v = math.Pow(10, x)
		}
		anchor := [...]string{"start", "middle", "middle", "middle", "end"}[i]
		fmt.Fprintf(&b, `<text class="tick" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, px(x), chartH-padB+16, anchor, short(v))
	}
	fmt.Fprintf(&b, `<text class="axis" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, padL+(chartW-padL-padR)/2, chartH-6, template.HTMLEscapeString(c.x))
	fmt.Fprintf(&b, `<text class="axis" transform="rotate(-90)" x="%.1f" y="14" text-anchor="middle">%s</text>`, -(padT + (chartH-padT-padB)/2), template.HTMLEscapeString(c.y))
	for i, cv := range c.curves {
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="1.8" stroke-dasharray="%s" points="`, palette[i%len(palette)], dashes[i%len(dashes)])
		for _, p := range cv.pts {
			fmt.Fprintf(&b, "%.1f,%.1f ", px(c.scaleX(p.X)), py(p.Y))
		}
		fmt.Fprintf(&b, `"><title>%s</title></polyline>`, template.HTMLEscapeString(cv.name))
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

func (c *chart) scaleX(x float64) float64 {
	if c.logX {
		return math.Log10(max(x, 1))
	}
	return x
}

// niceTop rounds up to 1, 2, 2.5 or 5 times a power of ten.
func niceTop(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5, 10} {
		if v <= m*p {
			return m * p
		}
	}
	return v
}

// short formats a number in few characters.
func short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e6:
		return fmt.Sprintf("%.3gM", v/1e6)
	case a >= 1e4:
		return fmt.Sprintf("%.3gk", v/1e3)
	case a >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

// bars are one metric of every policy, side by side.
type bars struct {
	Title string
	Rows  []bar
}

type bar struct {
	Name, Text, Colour string
	Percent            float64 // of the longest bar
}

// WriteHTML writes a self-contained report: metrics, and charts that compare the policies side by side.
func WriteHTML(w io.Writer, trace string, results []*Result) error {
	page := struct {
		Trace   string
		Legend  []bar
		Head    []string
		Rows    [][]string
		Bars    []bars
		Charts  []drawn
		Notes   []string
		Classes []classRow
	}{Trace: trace}
	seen := map[string]bool{}
	var names []string
	for i, r := range results {
		page.Legend = append(page.Legend, bar{Name: r.Policy, Colour: palette[i%len(palette)]})
		page.Head = append(page.Head, r.Policy)
		page.Notes = append(page.Notes, r.Notes...)
		for _, f := range r.Figures {
			if !seen[f.Name] {
				seen[f.Name] = true
				names = append(names, f.Name)
			}
		}
	}
	for _, n := range names {
		row := []string{Title(n)}
		for _, r := range results {
			row = append(row, shown(r.Figures, n))
		}
		page.Rows = append(page.Rows, row)
	}
	for _, n := range []string{"mean_wait", "p99_wait", "avg_jct", "avebsld", "utilisation", "makespan", "alloc_100", "alloc_130"} {
		if b := barsOf(Title(n), n, results, func(r *Result) []Figure { return r.Figures }); b != nil {
			page.Bars = append(page.Bars, *b)
		}
	}
	for _, c := range Classes {
		if b := barsOf("Wait p95, size "+c.Name, c.Name, results, func(r *Result) []Figure { return r.Classes }); b != nil {
			page.Bars = append(page.Bars, *b)
		}
	}
	page.Charts = chartsOf(results)
	return reportPage.Execute(w, page)
}

type classRow struct{ Name string }

type drawn struct {
	Title string
	SVG   template.HTML
}

func shown(fs []Figure, name string) string {
	for _, f := range fs {
		if f.Name == name {
			return Show(f)
		}
	}
	return ""
}

// barsOf returns the bars of a metric, or nil when no policy has it.
func barsOf(title, name string, results []*Result, of func(*Result) []Figure) *bars {
	b := &bars{Title: title}
	most := 0.0
	for _, r := range results {
		for _, f := range of(r) {
			if f.Name == name {
				most = max(most, f.Value)
			}
		}
	}
	for i, r := range results {
		for _, f := range of(r) {
			if f.Name == name {
				p := 0.0
				if most > 0 {
					p = 100 * f.Value / most
				}
				b.Rows = append(b.Rows, bar{Name: r.Policy, Text: Show(f), Colour: palette[i%len(palette)], Percent: p})
			}
		}
	}
	if len(b.Rows) == 0 {
		return nil
	}
	return b
}

func chartsOf(results []*Result) []drawn {
	var out []drawn
	add := func(c chart) {
		if len(c.curves) > 0 {
			out = append(out, drawn{c.title, c.svg()})
		}
	}
	over := func(title, y string, top, times float64, of func(*Result) *Series) {
		c := chart{title: title, x: "days", y: y, top: top}
		for _, r := range results {
			s := of(r)
			if s == nil || len(s.Points()) == 0 {
				continue
			}
			cv := curve{name: r.Policy}
			for i, v := range s.Points() {
				cv.pts = append(cv.pts, Point{(float64(i) + 0.5) * s.Span / 86400, v * times})
			}
			c.curves = append(c.curves, cv)
		}
		add(c)
	}
	over("Capacity in use", "%", 100, 100, func(r *Result) *Series { return r.Busy })
	over("Jobs that wait", "jobs", 0, 1, func(r *Result) *Series { return r.Waiting })
	over("Nodes in use that are held in part", "%", 100, 100, func(r *Result) *Series { return r.Split })
	spread := func(title, x string, of func(*Result) *Dist) {
		c := chart{title: title, x: x, y: "% of jobs", top: 100, logX: true}
		for _, r := range results {
			d := of(r)
			if d == nil || d.N == 0 {
				continue
			}
			cv := curve{name: r.Policy}
			const n = 200
			for i, v := range d.Points(n) {
				cv.pts = append(cv.pts, Point{v, 100 * float64(i) / n})
			}
			c.curves = append(c.curves, cv)
		}
		add(c)
	}
	spread("How long jobs waited", "seconds (log), at most", func(r *Result) *Dist { return r.Wait })
	spread("Completion times", "seconds (log), at most", func(r *Result) *Dist { return r.JCT })
	c := chart{title: "Allocated over arrived", x: "% of the GPUs asked for", y: "% of the GPUs allocated", top: 100}
	for _, r := range results {
		if len(r.Curve) > 0 {
			c.curves = append(c.curves, curve{name: r.Policy, pts: r.Curve})
		}
	}
	add(c)
	return out
}

var reportPage = template.Must(template.New("report").Funcs(template.FuncMap{"or1": func(s string) string { return cmp.Or(s, "-") }}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>muster sim: {{.Trace}}</title>
<style>
:root { color-scheme: light dark; --line: light-dark(#d8d8d8, #444); --soft: light-dark(#f4f4f4, #222); --text: light-dark(#1a1a1a, #e8e8e8); --dim: light-dark(#555, #aaa) }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--text); margin: 2rem auto; max-width: 84rem; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.05rem; margin: 0 0 .5rem }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1.5rem; margin: 1.5rem 0 }
section { border: 1px solid var(--line); border-radius: 6px; padding: 1rem }
.legend span { display: inline-flex; align-items: center; margin-right: 1.2rem } .legend i { width: 1rem; height: .7rem; margin-right: .4rem; border-radius: 2px }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100% }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap } th:first-child, td:first-child { text-align: left }
thead th { background: var(--soft) }
.bar { display: grid; grid-template-columns: 9rem 1fr 6.5rem; align-items: center; gap: .6rem; font-variant-numeric: tabular-nums } .bar b { font-weight: 400; overflow: hidden; text-overflow: ellipsis }
.bar div { background: var(--soft); height: 1rem } .bar div i { display: block; height: 100% } .bar em { font-style: normal; text-align: right }
svg { width: 100%; height: auto } .grid { stroke: var(--line) } .tick, .axis { fill: var(--dim); font-size: 11px }
.scroll { overflow-x: auto } .notes { color: var(--dim) }
</style></head><body>
<h1>{{.Trace}}</h1>
<p class="legend">{{range .Legend}}<span><i style="background:{{.Colour}}"></i>{{.Name}}</span>{{end}}</p>
{{range .Notes}}<p class="notes">{{.}}</p>{{end}}
<div class="grid2">{{range .Charts}}<section><h2>{{.Title}}</h2>{{.SVG}}</section>{{end}}</div>
<div class="grid2">{{range .Bars}}<section><h2>{{.Title}}</h2>{{range .Rows}}<div class="bar"><b title="{{.Name}}">{{.Name}}</b><div><i style="width:{{printf "%.1f" .Percent}}%;background:{{.Colour}}"></i></div><em>{{.Text}}</em></div>{{end}}</section>{{end}}</div>
<section class="scroll"><h2>All figures</h2><table><thead><tr><th>Figure</th>{{range .Head}}<th>{{.}}</th>{{end}}</tr></thead>
<tbody>{{range .Rows}}<tr>{{range .}}<td>{{or1 .}}</td>{{end}}</tr>{{end}}</tbody></table></section>
</body></html>
`))
