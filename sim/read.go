package sim

import (
	"bufio"
	"bytes"
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

// file is an open trace with how much of it has been read.
type file struct {
	name string
	f    *os.File
	in   *bufio.Reader // decompressed
	size int64         // compressed
	read int64         // compressed bytes
}

// openTrace opens a file; gzip is detected and decompressed.
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
	if mark, _ := t.in.Peek(len(byteOrderMark)); string(mark) == byteOrderMark {
		_, _ = t.in.Discard(len(byteOrderMark))
	}
	return t, nil
}

const byteOrderMark = "\ufeff"

// first returns the first line that is neither empty nor a comment of a CSV file.
func (t *file) first() string {
	head, _ := t.in.Peek(1 << 15)
	for len(head) > 0 {
		line, rest, _ := bytes.Cut(head, []byte("\n"))
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return string(line)
		}
		head = rest
	}
	return ""
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

// newTable reads the header. Names are compared in lower case with spaces and - as _; aliases maps other names to the
// usual ones.
func newTable(name string, in io.Reader, aliases map[string]string) (*table, error) {
	r := csv.NewReader(in)
	r.ReuseRecord, r.TrimLeadingSpace, r.Comment = true, true, '#'
	head, err := r.Read()
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s is empty: want a line with the names of the columns first", name)
		}
		return nil, lineError(name, err)
	}
	t := &table{name: name, r: r, cols: map[string]int{}}
	t.line, _ = r.FieldPos(0)
	for i, h := range head {
		key := strings.NewReplacer(" ", "_", "-", "_").Replace(strings.ToLower(strings.TrimSpace(h)))
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

// need returns an error if a column is missing.
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
		return lineError(t.name, err)
	}
	t.row = row
	t.line, _ = t.r.FieldPos(0)
	return nil
}

// lineError adds the file and line to an error of the CSV reader.
func lineError(name string, err error) error {
	var at *csv.ParseError
	switch {
	case !errors.As(err, &at):
		return fmt.Errorf("%s: %w", name, err)
	case errors.Is(err, csv.ErrFieldCount):
		return fmt.Errorf("%s:%d: not as many fields as there are columns", name, at.Line)
	}
	return fmt.Errorf("%s:%d: %w", name, at.Line, at.Err)
}

// text returns a field, or "" if the column or the field is missing.
func (t *table) text(col string) string {
	i, ok := t.cols[col]
	if !ok || i >= len(t.row) {
		return ""
	}
	return strings.TrimSpace(t.row[i])
}

// wrong returns an error about a field of the current row.
func (t *table) wrong(col, why string) error {
	return fmt.Errorf("%s:%d: column %s: %q %s", t.name, t.line, col, t.text(col), why)
}

// float reads a number >= 0; an empty field is the argument empty.
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

// must returns an error if a required field is empty.
func (t *table) must(cols ...string) error {
	for _, c := range cols {
		if t.text(c) == "" {
			return fmt.Errorf("%s:%d: column %s is empty", t.name, t.line, c)
		}
	}
	return nil
}

// whole reads an integer >= 0; an empty field is the argument empty.
func (t *table) whole(col string, empty int64) (int64, error) {
	v, err := t.float(col, float64(empty))
	if err == nil && v != float64(int64(v)) {
		return 0, t.wrong(col, "is not a whole number")
	}
	return int64(v), err
}

// span reads seconds, or a duration such as 1h30m; an empty field is 0.
func (t *table) span(col string) (time.Duration, error) {
	s := t.text(col)
	if s == "" {
		return 0, nil
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

// seconds converts seconds to a duration with microsecond precision.
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

// guess detects the format of a trace by its first line.
func guess(name string) (string, error) {
	f, err := openTrace(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	first := f.first()
	has := func(words ...string) bool {
		for _, w := range words {
			if !strings.Contains(","+first+",", ","+w+",") {
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
