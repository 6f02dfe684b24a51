package sim

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// SWFJob is a row of the Standard Workload Format.
type SWFJob struct {
	Line   int
	ID     int64
	Submit time.Duration
	Run    time.Duration
	Procs  int64
	Req    time.Duration // the user's limit; 0: none
	MemMiB int64         // of each processor; 0: unknown
	User   string
	Queue  string
}

// SWFReader reads plain SWF files (18 columns separated by spaces, comments after ;) and CSV files with the columns
// job, submit, run, procs, req and user. In both -1 means unknown, as the format defines: a job with unknown
// submission, run time or number of processors cannot be replayed and is left out; one with an unknown limit has none.
type SWFReader struct {
	f       *file
	csv     *table
	lines   *bufio.Scanner
	line    int
	leftOut int64
}

// OpenSWF opens a trace of either kind.
func OpenSWF(name string) (*SWFReader, error) {
	f, err := openTrace(name)
	if err != nil {
		return nil, err
	}
	r := &SWFReader{f: f}
	if first := f.first(); strings.Contains(first, ",") && !strings.HasPrefix(first, ";") {
		if r.csv, err = newTable(name, f.in, map[string]string{"runtime": "run", "id": "job", "requested": "req"}); err == nil {
			err = r.csv.need("submit", "run", "procs")
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		return r, nil
	}
	r.lines = bufio.NewScanner(f.in)
	r.lines.Buffer(make([]byte, 0, 1<<16), 1<<20)
	return r, nil
}

// Close closes the file.
func (r *SWFReader) Close() error { return r.f.Close() }

func (r *SWFReader) skipped() int64 { return r.leftOut }

// Next returns the next job that can be replayed, in the order of the file; io.EOF at the end.
func (r *SWFReader) Next() (SWFJob, error) {
	for {
		f, err := r.row()
		if err != nil {
			return SWFJob{}, err
		}
		if j, ok := f.job(); ok {
			return j, nil
		}
		r.leftOut++
	}
}

// swfRow is the part of a row that is used; -1 is unknown.
type swfRow struct {
	SWFJob
	submit, run, req, mem float64 // seconds, KiB
	procs, allocated      float64
}

func (f *swfRow) job() (SWFJob, bool) {
	j := f.SWFJob
	if f.procs <= 0 { // some logs lack the requested number
		f.procs = f.allocated
	}
	if f.submit < 0 || f.run < 0 || f.procs < 1 {
		return j, false
	}
	j.Submit, j.Run, j.Procs = seconds(f.submit), seconds(f.run), int64(f.procs)
	if f.req > 0 {
		j.Req = seconds(f.req)
	}
	if f.mem > 0 {
		j.MemMiB = int64(f.mem / 1024)
	}
	return j, true
}

func (r *SWFReader) row() (*swfRow, error) {
	if r.csv != nil {
		return r.rowCSV()
	}
	for r.lines.Scan() {
		r.line++
		if text := strings.TrimSpace(r.lines.Text()); text != "" && text[0] != ';' {
			return r.parse(strings.Fields(text))
		}
	}
	if err := r.lines.Err(); err != nil {
		return nil, fmt.Errorf("%s:%d: %w", r.f.name, r.line+1, err)
	}
	return nil, io.EOF
}

var swfColumns = [...]string{"job number", "submit time", "wait time", "run time", "allocated processors", "average CPU time", "used memory",
	"requested processors", "requested time", "requested memory", "status", "user", "group", "executable", "queue", "partition", "preceding job", "think time"}

// Limits: about 285 years, and more than any real amount.
const (
	swfTimeMax   = 9e9
	swfNumberMax = 1 << 40
)

func (r *SWFReader) parse(f []string) (*swfRow, error) {
	if len(f) != len(swfColumns) {
		return nil, fmt.Errorf("%s:%d: %d columns, want the 18 of the Standard Workload Format", r.f.name, r.line, len(f))
	}
	var v [len(swfColumns)]float64
	for i := range f {
		var err error
		if v[i], err = strconv.ParseFloat(f[i], 64); err != nil || v[i] != v[i] {
			return nil, fmt.Errorf("%s:%d: column %d (%s): %q is not a number", r.f.name, r.line, i+1, swfColumns[i], f[i])
		}
		most := float64(swfNumberMax)
		if i == 1 || i == 3 || i == 8 {
			most = swfTimeMax
		}
		if v[i] > most && i != 5 && i != 6 {
			return nil, fmt.Errorf("%s:%d: column %d (%s): %s is too large", r.f.name, r.line, i+1, swfColumns[i], f[i])
		}
	}
	return &swfRow{SWFJob: SWFJob{Line: r.line, ID: int64(v[0]), User: f[11], Queue: f[14]},
		submit: v[1], run: v[3], req: v[8], mem: v[9], procs: v[7], allocated: v[4]}, nil
}

func (r *SWFReader) rowCSV() (*swfRow, error) {
	t := r.csv
	if err := t.next(); err != nil {
		return nil, err
	}
	f := &swfRow{SWFJob: SWFJob{Line: t.line, ID: int64(t.line), User: t.text("user"), Queue: t.text("queue")}, allocated: -1}
	id := float64(t.line)
	for _, c := range []struct {
		name  string
		to    *float64
		empty float64
		most  float64
	}{{"job", &id, id, swfNumberMax}, {"submit", &f.submit, -1, swfTimeMax}, {"run", &f.run, -1, swfTimeMax}, {"procs", &f.procs, -1, swfNumberMax}, {"req", &f.req, -1, swfTimeMax}} {
		s := t.text(c.name)
		if s == "" {
			*c.to = c.empty
			continue
		}
		v, err := strconv.ParseFloat(s, 64)
		switch {
		case err != nil || v != v:
			return nil, t.wrong(c.name, "is not a number")
		case v > c.most:
			return nil, t.wrong(c.name, "is too large")
		}
		*c.to = v
	}
	f.ID = int64(id)
	return f, nil
}
