package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// Figure is one metric of a result.
type Figure struct {
	Name  string
	Value float64
	Unit  string // "s", "%", or "" for a plain number; selects how tables show it
}

// Result is the outcome of one policy: metrics in display order, and curves.
type Result struct {
	Policy  string
	Format  string
	Figures []Figure
	Notes   []string // remarks for the reader of the result
	Busy    *Series  // nil: not measured
	Waiting *Series
	Split   *Series
	Wait    *Dist // nil: not measured
	JCT     *Dist
	Classes []Figure // wait p95 by size class
	Curve   []Point  // allocated over arrived, of openb
}

// Point is one point of a curve.
type Point struct{ X, Y float64 }

// Set adds a metric, or changes it.
func (r *Result) Set(name string, v float64, unit string) {
	for i := range r.Figures {
		if r.Figures[i].Name == name {
			r.Figures[i] = Figure{name, v, unit}
			return
		}
	}
	r.Figures = append(r.Figures, Figure{name, v, unit})
}

// Get returns a metric's value and whether it exists.
func (r *Result) Get(name string) (float64, bool) {
	for _, f := range r.Figures {
		if f.Name == name {
			return f.Value, true
		}
	}
	return 0, false
}

// MarshalJSON writes one flat object: policy, format and the metrics by name.
func (r *Result) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	name, err := json.Marshal(r.Policy)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(&b, `{"policy":%s,"format":%q`, name, r.Format)
	for _, f := range r.Figures {
		fmt.Fprintf(&b, `,%q:%s`, f.Name, strconv.FormatFloat(f.Value, 'f', -1, 64))
	}
	for _, c := range r.Classes {
		fmt.Fprintf(&b, `,%q:%s`, "wait_p95_"+c.Name, strconv.FormatFloat(c.Value, 'f', -1, 64))
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// NewResult makes a result with the metrics that all formats have.
func NewResult(format, policy string, s *Stats) *Result {
	r := &Result{Policy: policy, Format: format, Busy: &s.Busy, Waiting: &s.Waiting, Split: &s.Split, Wait: &s.Wait, JCT: &s.JCT}
	r.Set("jobs", float64(s.Jobs), "")
	r.Set("done", float64(s.Done), "")
	if s.Dropped > 0 {
		r.Set("dropped", float64(s.Dropped), "")
	}
	if s.Left > 0 {
		r.Set("left", float64(s.Left), "")
		r.Notes = append(r.Notes, fmt.Sprintf("%s: %d of the jobs never started or ended: there was no room for them, or nothing more could happen", policy, s.Left))
	}
	r.Set("mean_wait", s.Wait.Mean(), "s")
	r.Set("p50_wait", s.Wait.Quantile(0.5), "s")
	r.Set("p95_wait", s.Wait.Quantile(0.95), "s")
	r.Set("p99_wait", s.Wait.Quantile(0.99), "s")
	r.Set("max_wait", s.Wait.Max, "s")
	r.Set("avg_jct", s.JCT.Mean(), "s")
	r.Set("p50_jct", s.JCT.Quantile(0.5), "s")
	r.Set("p95_jct", s.JCT.Quantile(0.95), "s")
	r.Set("p99_jct", s.JCT.Quantile(0.99), "s")
	r.Set("avebsld", s.Slowdown.Mean(), "")
	r.Set("p50_bsld", s.Slowdown.Quantile(0.5), "")
	r.Set("p95_bsld", s.Slowdown.Quantile(0.95), "")
	r.Set("p99_bsld", s.Slowdown.Quantile(0.99), "")
	r.Set("makespan", s.Makespan(), "s")
	r.Set("utilisation", 100*s.Utilisation(), "%")
	r.Set("fragmentation", 100*s.Fragmentation(), "%")
	r.Set("jain", s.Jain(), "")
	r.Set("preemptions", float64(s.Preemptions), "")
	r.Set("lost_work", s.LostWork, "s")
	if s.Resizes > 0 {
		r.Set("resizes", float64(s.Resizes), "")
		r.Set("resize_lost", s.ResizeLost, "s")
	}
	if s.NodeFailures > 0 {
		r.Set("node_failures", float64(s.NodeFailures), "")
		r.Set("lost_allocs", float64(s.Lost), "")
	}
	if s.Drained > 0 {
		r.Set("drains", float64(s.Drained), "")
		r.Set("moved_allocs", float64(s.Moved), "")
	}
	if s.Deadlines > 0 {
		r.Set("deadlines", float64(s.Deadlines), "")
		r.Set("deadline_misses", float64(s.Missed), "")
	}
	r.Set("passes", float64(s.Passes), "")
	r.Set("refused", float64(s.Refused), "")
	r.Set("overhead", 100*s.Overhead(), "%")
	r.Set("wall_s", s.Wall.Seconds(), "s")
	for i := range Classes {
		if s.ClassWait[i].N > 0 {
			r.Classes = append(r.Classes, Figure{Classes[i].Name, s.ClassWait[i].Quantile(0.95), "s"})
		}
	}
	if s.Refused > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%s: Verify refused %d parts, the first: %s", policy, s.Refused, s.FirstRefusal))
	}
	return r
}
