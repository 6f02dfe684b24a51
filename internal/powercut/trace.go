// Package powercut records what a program does to its files, and makes from it the files that a kill of the process or a
// power cut at any instant may leave behind. Tests restart from each of them.
//
// The record is that of the system calls, so it covers every library, and the program knows nothing of it. What a crash
// leaves follows the guarantees of file systems, and no more:
//
//	killed   everything that was done is there; the write in progress may be there in part
//	power    the content of a file is that of its last sync, with any part of later writes, torn at sectors
//	         the names in a directory are those of its last sync, or any later ones
package powercut

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

type opKind uint8

const (
	opCreate opKind = iota
	opMkdir
	opUnlink
	opRename
	opWrite
	opTruncate // to the size at
	opSync     // of a file or directory
	opAck
	opOther
)

var opNames = [...]string{"create", "mkdir", "unlink", "rename", "write", "truncate", "sync", "ack", "other"}

// op is one operation. Paths are relative to the recorded directory, which is ".".
type op struct {
	kind     opKind
	path, to string
	at       int64
	data     []byte
}

func (o op) String() string {
	switch o.kind {
	case opRename:
		return "rename " + o.path + " to " + o.to
	case opWrite:
		return fmt.Sprintf("write %d bytes at %d of %s", len(o.data), o.at, o.path)
	case opTruncate:
		return fmt.Sprintf("set the size of %s to %d", o.path, o.at)
	}
	return opNames[o.kind] + " " + o.path
}

// Trace is what a process did.
type Trace struct {
	start Image
	ops   []op
}

// Image is what a directory holds: files by path. A path that ends with a slash is a directory.
type Image map[string][]byte

// Point is one instant of a trace, with everything that a crash may leave then.
type Point struct {
	Before string   // the operation that was not done, or "the end"
	Acked  []string // lines that were acknowledged until then
	Images []Left
}

// Left is what one kind of crash leaves.
type Left struct {
	How  string
	Data Image
}

// Points returns the instants before each operation and at the end. Each has the images that no earlier one with the same
// acknowledgements has. seed chooses what else of unsynced operations survives, in some images.
func (t *Trace) Points(seed uint64) []Point {
	var points []Point
	seen := map[[32]byte]bool{}
	var acked []byte
	d, sums := t.replay(0), contentSums{}
	for k := range len(t.ops) + 1 {
		if k > 0 {
			d.do(&t.ops[k-1])
		}
		p := Point{Before: "the end"}
		var next *op
		if k < len(t.ops) {
			next = &t.ops[k]
			if next.kind == opAck {
				acked = append(acked, next.data...)
				clear(seen)
				continue
			}
			p.Before = next.String()
		}
		p.Acked = slices.Collect(strings.Lines(string(acked)))
		add := func(how string, i Image) {
			if sum := i.sum(sums); !seen[sum] {
				seen[sum] = true
				p.Images = append(p.Images, Left{how, i})
			}
		}
		add("killed", d.image(nil, true, true))
		add("power cut, nothing unsynced is left", d.image(nil, false, false))
		add("power cut, names are left", d.image(nil, false, true))
		add("power cut, contents are left", d.image(nil, true, false))
		rnd := rand.New(rand.NewPCG(seed, uint64(k)))
		add("power cut, parts are left", d.image(rnd, false, false))
		if next != nil && next.kind == opWrite && len(next.data) > 1 {
			n := d.find(next.path)
			whole := n.data
			torn := op{kind: opWrite, at: next.at, data: next.data[:len(next.data)/2]}
			n.data = torn.apply(whole)
			add("killed, with half of the write", d.image(nil, true, true))
			n.data = whole
		}
		points = append(points, p)
	}
	return points
}

// contentSums remembers the digests of contents, which never change in place.
type contentSums map[*byte]map[int][32]byte

func (c contentSums) of(b []byte) [32]byte {
	if len(b) == 0 {
		return [32]byte{}
	}
	if s, ok := c[&b[0]][len(b)]; ok {
		return s
	}
	if c[&b[0]] == nil {
		c[&b[0]] = map[int][32]byte{}
	}
	s := sha256.Sum256(b)
	c[&b[0]][len(b)] = s
	return s
}

func (i Image) sum(c contentSums) (s [32]byte) {
	h := sha256.New()
	for _, path := range i.paths() {
		fmt.Fprintf(h, "%q %d %x ", path, len(i[path]), c.of(i[path]))
	}
	h.Sum(s[:0])
	return s
}

func (i Image) paths() []string {
	paths := make([]string, 0, len(i))
	for p := range i {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	return paths
}

// Write makes the files in an empty directory.
func (i Image) Write(dir string) error {
	for _, path := range i.paths() { // directories come before what they hold
		to := filepath.Join(dir, path)
		if strings.HasSuffix(path, "/") {
			if err := os.MkdirAll(to, 0o700); err != nil {
				return err
			}
			continue
		}
		if err := os.WriteFile(to, i[path], 0o600); err != nil {
			return err
		}
	}
	return nil
}

// readTree reads a directory.
func readTree(dir string) (Image, error) {
	i := Image{}
	return i, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, path)
		if err != nil || rel == "." {
			return err
		}
		if e.IsDir() {
			i[rel+"/"] = nil
			return nil
		}
		if !e.Type().IsRegular() {
			return nil
		}
		i[rel], err = os.ReadFile(path)
		return err
	})
}

// differ says where two images differ.
func differ(a, b Image) string {
	var s strings.Builder
	for _, p := range slices.Compact(slices.Sorted(slices.Values(append(a.paths(), b.paths()...)))) {
		x, inA := a[p]
		y, inB := b[p]
		if inA != inB || !bytes.Equal(x, y) {
			fmt.Fprintf(&s, "%s: recorded %t with %d bytes, there %t with %d\n", p, inA, len(x), inB, len(y))
		}
	}
	return s.String()
}

// disk is a model of a directory: what processes see, and what is synced.
type disk struct{ root *node }

// node is a file or a directory.
type node struct {
	dir     bool
	now     map[string]*node // of a directory
	synced  map[string]*node
	data    []byte // of a file
	durable []byte
	writes  []op // since the last sync
}

func (t *Trace) replay(k int) *disk {
	d := &disk{&node{dir: true, now: map[string]*node{}}}
	for _, path := range t.start.paths() {
		name := strings.TrimSuffix(path, "/")
		parent, base := d.parent(name)
		n := &node{data: t.start[path], durable: t.start[path]}
		if name != path {
			n = &node{dir: true, now: map[string]*node{}}
		}
		parent.now[base] = n
	}
	d.root.syncAll()
	for i := range t.ops[:k] {
		d.do(&t.ops[i])
	}
	return d
}

func (n *node) syncAll() {
	n.sync()
	for _, c := range n.now {
		c.syncAll()
	}
}

func (n *node) sync() {
	if n.dir {
		n.synced = make(map[string]*node, len(n.now))
		for name, c := range n.now {
			n.synced[name] = c
		}
		return
	}
	n.durable, n.writes = n.data, nil // contents never change in place
}

func (d *disk) find(path string) *node {
	n := d.root
	if path == "." {
		return n
	}
	for _, name := range strings.Split(path, "/") {
		if n = n.now[name]; n == nil {
			return nil
		}
	}
	return n
}

func (d *disk) parent(path string) (*node, string) {
	return d.find(filepath.Dir(path)), filepath.Base(path)
}

func (d *disk) do(o *op) {
	switch o.kind {
	case opCreate, opMkdir:
		p, name := d.parent(o.path)
		p.now[name] = &node{dir: o.kind == opMkdir, now: map[string]*node{}, synced: map[string]*node{}}
	case opUnlink:
		p, name := d.parent(o.path)
		delete(p.now, name)
	case opRename:
		p, name := d.parent(o.path)
		q, to := d.parent(o.to)
		n := p.now[name]
		delete(p.now, name)
		q.now[to] = n
	case opWrite, opTruncate:
		n := d.find(o.path)
		if n == nil {
			panic("powercut: no file for: " + o.String())
		}
		n.data = o.apply(n.data)
		n.writes = append(n.writes, *o)
	case opSync:
		d.find(o.path).sync()
	}
}

// apply returns new content; it does not change b.
func (o *op) apply(b []byte) []byte { return o.applyTo(bytes.Clone(b)) }

// applyTo is apply in place, where the size allows it.
func (o *op) applyTo(b []byte) []byte {
	if o.kind == opTruncate {
		if o.at <= int64(len(b)) {
			return b[:o.at:o.at]
		}
		return append(b, make([]byte, o.at-int64(len(b)))...)
	}
	if end := o.at + int64(len(o.data)); end > int64(len(b)) {
		b = append(b, make([]byte, end-int64(len(b)))...)
	}
	copy(b[o.at:], o.data)
	return b
}

const sector = 512

// image returns what is left: with contents and names as processes saw them, or as they were synced. With rnd, part of what
// was not synced is left, in any order.
func (d *disk) image(rnd *rand.Rand, contents, names bool) Image {
	i := Image{}
	d.root.collect("", i, rnd, contents, names)
	return i
}

func (n *node) collect(path string, i Image, rnd *rand.Rand, contents, names bool) {
	if !n.dir {
		i[path] = n.left(rnd, contents)
		return
	}
	if path != "" {
		i[path+"/"] = nil
		path += "/"
	}
	entries := n.synced
	if names || rnd != nil && rnd.IntN(2) == 0 {
		entries = n.now
	}
	list := make([]string, 0, len(entries))
	for name := range entries {
		list = append(list, name)
	}
	slices.SortFunc(list, cmp.Compare[string])
	for _, name := range list {
		entries[name].collect(path+name, i, rnd, contents, names)
	}
}

// left returns the content of a file after a crash.
func (n *node) left(rnd *rand.Rand, all bool) []byte {
	if all {
		return n.data
	}
	if rnd == nil {
		return n.durable
	}
	b := bytes.Clone(n.durable)
	for _, w := range n.writes {
		switch rnd.IntN(3) {
		case 0: // lost
		case 1:
			b = w.applyTo(b)
		default: // torn: some of its sectors are left
			for at := 0; at < len(w.data); {
				end := min(len(w.data), at+sector-int((w.at+int64(at))%sector))
				if rnd.IntN(2) == 0 {
					part := op{kind: opWrite, at: w.at + int64(at), data: w.data[at:end]}
					b = part.applyTo(b)
				}
				at = end
			}
		}
	}
	return b
}

// Restart calls restart with what each crash leaves, in a new directory. restart returns an error unless everything
// that was acknowledged is there. Restart logs how many instants it looked at, and the seed; MUSTER_SEED repeats a run.
func (t *Trace) Restart(tb testing.TB, restart func(dir string, acked []string) error) {
	tb.Helper()
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("MUSTER_SEED"), 10, 64); err == nil {
		seed = s
	}
	points := t.Points(seed)
	images, failed := 0, 0
	for _, p := range points {
		for _, l := range p.Images {
			images++
			if err := restartFrom(l.Data, p.Acked, restart); err != nil && failed < failuresMax {
				failed++
				tb.Errorf("before %q, %s: %v", p.Before, l.How, err)
			}
		}
	}
	tb.Logf("%d crash points, %d different remains, seed %d", len(points), images, seed)
	if images < pointsMin {
		tb.Errorf("%d remains: the recorded process does too little", images)
	}
}

const (
	failuresMax = 10 // that are reported
	pointsMin   = 5
)

func restartFrom(i Image, acked []string, restart func(dir string, acked []string) error) (err error) {
	dir, err := os.MkdirTemp("/dev/shm", "powercut")
	if err != nil {
		if dir, err = os.MkdirTemp("", "powercut"); err != nil {
			return err
		}
	}
	defer os.RemoveAll(dir)
	if err := i.Write(dir); err != nil {
		return err
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return restart(dir, acked)
}
