package sim

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// file is an open trace with how far it has been read.
type file struct {
	name string
	f    *os.File
	in   *bufio.Reader // unpacked
	size int64         // packed
	read int64         // packed bytes
}

// openTrace opens a file; one that begins as gzip does is unpacked.
func openTrace(name string) (*file, error) {
	if name == "" {
		return nil, errors.New("no trace is given: name a file with -trace")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	t := &file{name: name, f: f}
	if st, err := f.Stat(); err == nil {
		t.size = st.Size()
		if st.IsDir() {
			f.Close()
			return nil, fmt.Errorf("%s is a folder, not a trace", name)
		}
	}
	raw := bufio.NewReaderSize(&counted{f, &t.read}, 1<<16)
	t.in = raw
	if magic, _ := raw.Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(raw)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		t.in = bufio.NewReaderSize(z, 1<<16)
	}
	return t, nil
}

func (t *file) Close() error { return t.f.Close() }

type counted struct {
	r io.Reader
	n *int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	*c.n += int64(n)
	return n, err
}

// table reads a CSV file with a header, row by row.
type table struct {
	name string
	r    *csv.Reader
	cols map[string]int
	line int
	row  []string
}

// newTable reads the header. Names are compared in lower case with spaces and - as _; aliases give other names their
// usual one.
func newTable(name string, in io.Reader, aliases map[string]string) (*table, error) {
	r := csv.NewReader(in)
	r.ReuseRecord, r.FieldsPerRecord, r.TrimLeadingSpace, r.Comment = true, -1, true, '#'
	head, err := r.Read()
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s is empty: want a line with the names of the columns first", name)
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	t := &table{name: name, r: r, cols: map[string]int{}}
	t.line, _ = r.FieldPos(0)
	for i, h := range head {
		key := strings.NewReplacer(" ", "_", "-", "_").Replace(strings.ToLower(strings.TrimSpace(strings.TrimPrefix(h, "\ufeff"))))
		if a, ok := aliases[key]; ok {
			key = a
		}
		if _, twice := t.cols[key]; twice {
			return nil, fmt.Errorf("%s:%d: column %q is there twice", name, t.line, h)
		}
		t.cols[key] = i
	}
	return t, nil
}

// need reports the columns that are missing.
func (t *table) need(names ...string) error {
	for _, n := range names {
		if !t.has(n) {
			return fmt.Errorf("%s:%d: there is no column %q", t.name, t.line, n)
		}
	}
	return nil
}

func (t *table) has(name string) bool {
	_, ok := t.cols[name]
	return ok
}

// next reads a row; io.EOF at the end.
func (t *table) next() error {
	row, err := t.r.Read()
	if err != nil {
		if errors.Is(err, io.EOF) {
			return io.EOF
		}
		return fmt.Errorf("%s: %w", t.name, err)
	}
	t.row = row
	t.line, _ = t.r.FieldPos(0)
	return nil
}

// text is a field, "" where the column or the field is missing.
func (t *table) text(col string) string {
	i, ok := t.cols[col]
	if !ok || i >= len(t.row) {
		return ""
	}
	return strings.TrimSpace(t.row[i])
}

// wrong is an error about a field of the present row.
func (t *table) wrong(col, why string) error {
	return fmt.Errorf("%s:%d: column %s: %q %s", t.name, t.line, col, t.text(col), why)
}

// float reads a number >= 0; an empty field is what is given.
func (t *table) float(col string, empty float64) (float64, error) {
	s := t.text(col)
	if s == "" {
		return empty, nil
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || v != v || v > 1e15 {
		return 0, t.wrong(col, "is not a number")
	}
	if v < 0 {
		return 0, t.wrong(col, "is below zero")
	}
	return v, nil
}

// whole reads a whole number >= 0.
func (t *table) whole(col string, empty int64) (int64, error) {
	v, err := t.float(col, float64(empty))
	if err == nil && v != float64(int64(v)) {
		return 0, t.wrong(col, "is not a whole number")
	}
	return int64(v), err
}

// span reads seconds, or a duration such as 1h30m.
func (t *table) span(col string, empty time.Duration) (time.Duration, error) {
	s := t.text(col)
	if s == "" {
		return empty, nil
	}
	if last := s[len(s)-1]; last >= 'a' && last <= 'z' {
		d, err := time.ParseDuration(s)
		if err != nil {
			return 0, t.wrong(col, "is neither seconds nor a duration such as 1h30m")
		}
		if d < 0 {
			return 0, t.wrong(col, "is below zero")
		}
		return d, nil
	}
	v, err := t.float(col, 0)
	if err == nil && v > 9e9 {
		return 0, t.wrong(col, "is more than 285 years")
	}
	return seconds(v), err
}

// seconds are kept to the microsecond.
func seconds(v float64) time.Duration { return time.Duration(v*1e6+0.5) * time.Microsecond }

// amount reads an amount of memory in MiB.
func (t *table) amount(col string, empty int64) (int64, error) {
	s := t.text(col)
	if s == "" {
		return empty, nil
	}
	v, err := parseMiB(s)
	if err != nil {
		return 0, t.wrong(col, "is not an amount of memory: want MiB, or a number with GiB")
	}
	return v, nil
}

// guess tells the format of a trace by its first line.
func guess(name string) (string, error) {
	f, err := openTrace(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head, _ := f.in.Peek(4096)
	first, _, _ := strings.Cut(string(head), "\n")
	has := func(words ...string) bool {
		for _, w := range words {
			if !strings.Contains(","+strings.TrimSpace(first)+",", ","+w+",") {
				return false
			}
		}
		return true
	}
	switch {
	case strings.HasPrefix(first, ";"), has("job", "submit", "run", "procs", "req"):
		return "swf", nil
	case has("num_gpu", "gpu_milli"):
		return "openb", nil
	case has("iterations", "iter_s"):
		return "muri", nil
	case strings.HasPrefix(first, "{"), strings.HasPrefix(first, "["):
		return "acct", nil
	case !strings.Contains(first, ",") && len(strings.Fields(first)) == 18:
		return "swf", nil
	}
	return "csv", nil
}

// SWFJob is a row of the Standard Workload Format.
type SWFJob struct {
	Line   int
	ID     int64
	Submit time.Duration
	Run    time.Duration // -1 s: unknown
	Procs  int64
	Req    time.Duration // the user's limit; 0: none
	MemMiB int64         // of each processor; 0: unknown
	User   string
	Queue  string
}

// SWFReader reads plain SWF files (18 columns divided by spaces, comments after ;) and CSV files with the columns job,
// submit, run, procs, req and user.
type SWFReader struct {
	f     *file
	csv   *table
	lines *bufio.Scanner
	line  int
}

// OpenSWF opens a trace of either kind.
func OpenSWF(name string) (*SWFReader, error) {
	f, err := openTrace(name)
	if err != nil {
		return nil, err
	}
	r := &SWFReader{f: f}
	head, _ := f.in.Peek(4096)
	first, _, _ := strings.Cut(string(head), "\n")
	if strings.Contains(first, ",") && !strings.HasPrefix(first, ";") {
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

// Next gives the next job, in the order of the file; io.EOF at the end. Jobs that never ran are left out.
func (r *SWFReader) Next() (SWFJob, error) {
	if r.csv != nil {
		return r.nextCSV()
	}
	for r.lines.Scan() {
		r.line++
		text := strings.TrimSpace(r.lines.Text())
		if text == "" || text[0] == ';' {
			continue
		}
		j, skip, err := r.parse(strings.Fields(text))
		if err != nil {
			return j, err
		}
		if !skip {
			return j, nil
		}
	}
	if err := r.lines.Err(); err != nil {
		return SWFJob{}, fmt.Errorf("%s:%d: %w", r.f.name, r.line+1, err)
	}
	return SWFJob{}, io.EOF
}

var swfColumns = [...]string{"job number", "submit time", "wait time", "run time", "allocated processors", "average CPU time", "used memory",
	"requested processors", "requested time", "requested memory", "status", "user", "group", "executable", "queue", "partition", "preceding job", "think time"}

func (r *SWFReader) parse(f []string) (j SWFJob, skip bool, err error) {
	if len(f) != 18 {
		return j, false, fmt.Errorf("%s:%d: %d columns, want the 18 of the Standard Workload Format", r.f.name, r.line, len(f))
	}
	var v [18]float64
	for i := range f {
		if v[i], err = strconv.ParseFloat(f[i], 64); err != nil {
			return j, false, fmt.Errorf("%s:%d: column %d (%s): %q is not a number", r.f.name, r.line, i+1, swfColumns[i], f[i])
		}
	}
	j = SWFJob{Line: r.line, ID: int64(v[0]), Submit: seconds(max(v[1], 0)), Run: seconds(max(v[3], 0)), Procs: int64(v[7]), User: f[11], Queue: f[14]}
	if j.Procs <= 0 { // what was asked for is not in every log
		j.Procs = int64(v[4])
	}
	if v[8] > 0 {
		j.Req = seconds(v[8])
	}
	if v[9] > 0 {
		j.MemMiB = int64(v[9] / 1024)
	}
	return j, v[3] < 0 || j.Procs <= 0, nil
}

func (r *SWFReader) nextCSV() (j SWFJob, err error) {
	t := r.csv
	if err = t.next(); err != nil {
		return j, err
	}
	j.Line, j.User, j.Queue = t.line, t.text("user"), t.text("queue")
	var e [5]error
	j.ID, e[0] = t.whole("job", int64(t.line))
	j.Submit, e[1] = t.span("submit", 0)
	j.Run, e[2] = t.span("run", 0)
	j.Procs, e[3] = t.whole("procs", 1)
	j.Req, e[4] = t.span("req", 0)
	return j, errors.Join(e[:]...)
}
