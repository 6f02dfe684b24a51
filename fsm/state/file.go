package state

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/structs"
)

// A snapshot file is
//
//	magic, format version (4 bytes, big endian)
//	header, packed, after its length
//	per table: name and number of rows, packed, after their length; the rows, packed, each after its length
//	an empty length, then the SHA-256 of everything before it
//
// Lengths are unsigned varints. A table or a field that the reader does not know is an error, because skipping it would
// silently lose data; so is a wrong number of rows. The tables and their rows are those of the format in force when the
// file was written, so that a server of an older release can read it until the upgrade is finished.
const (
	fileMagic   = "MUSTER-SNAPSHOT\n"
	fileVersion = 1
	rowBytesMax = 16 << 20 // of one row
)

// fileHeader describes the state in the file.
type fileHeader struct {
	Format         structs.Format // in force
	By             string         // ClusterMeta.FormatBy
	Index          structs.Index
	Time           structs.LogTime
	BootstrapIndex structs.Index
	Changed        map[string]structs.Index // TableIndex of every table
	Hash           []byte                   // Snapshot.Hash
}

type tableHeader struct {
	Name string
	Rows uint64
}

// Info describes a snapshot file and its content.
type Info struct {
	Version uint32 // of the layout of the file
	Format  structs.Format
	Index   structs.Index
	Time    structs.LogTime
	Bytes   int64
	Tables  []TableInfo
}

// TableInfo is the size of one table in a snapshot file.
type TableInfo struct {
	Name  string
	Rows  uint64
	Bytes int64
}

// Write writes the snapshot. It only reads, so that it may run concurrently for as long as it takes.
func (s *Snapshot) Write(w io.Writer) error {
	sum := sha256.New()
	out := bufio.NewWriterSize(io.MultiWriter(w, sum), 64<<10)
	length := make([]byte, 0, binary.MaxVarintLen64)
	put := func(raw []byte) error {
		if _, err := out.Write(binary.AppendUvarint(length[:0], uint64(len(raw)))); err != nil {
			return err
		}
		_, err := out.Write(raw)
		return err
	}
	if _, err := out.Write(binary.BigEndian.AppendUint32([]byte(fileMagic), fileVersion)); err != nil {
		return err
	}
	h, format := s.Hash(), s.Format()
	head := fileHeader{Format: format, Index: s.index, Time: s.time, BootstrapIndex: s.bootstrap, Changed: map[string]structs.Index{}, Hash: h[:]}
	if m := Meta.Get(s, ""); m != nil {
		head.By = m.FormatBy
	}
	for i, t := range tables {
		if t.format() <= format {
			head.Changed[t.Name()] = s.changed[i]
		} else if n := t.count(s); n > 0 {
			return fmt.Errorf("table %s has %d rows, but needs format %d and the cluster is at format %d", t.Name(), n, t.format(), format)
		}
	}
	if err := put(pack.Append(nil, &head)); err != nil {
		return err
	}
	for _, t := range tables {
		if t.format() > format {
			continue
		}
		if err := put(pack.Append(nil, &tableHeader{Name: t.Name(), Rows: uint64(t.count(s))})); err != nil {
			return err
		}
		if err := t.packed(s, put); err != nil {
			return err
		}
	}
	if _, err := out.Write([]byte{0}); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err := w.Write(sum.Sum(nil))
	return err
}

// fileReader reads lengths and rows, and feeds everything to the checksum.
type fileReader struct {
	in  *bufio.Reader
	sum hash.Hash
	buf []byte
	one [1]byte
	n   int64
}

func (r *fileReader) ReadByte() (byte, error) {
	b, err := r.in.ReadByte()
	if err == nil {
		r.one[0] = b
		r.sum.Write(r.one[:])
		r.n++
	}
	return b, err
}

func (r *fileReader) full(n uint64) ([]byte, error) {
	if n > rowBytesMax {
		return nil, fmt.Errorf("a row of %d bytes at offset %d; the largest has %d", n, r.n, rowBytesMax)
	}
	if uint64(cap(r.buf)) < n {
		r.buf = make([]byte, n)
	}
	b := r.buf[:n]
	if _, err := io.ReadFull(r.in, b); err != nil {
		return nil, r.short(err)
	}
	r.sum.Write(b)
	r.n += int64(n)
	return b, nil
}

func (r *fileReader) short(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file ends at offset %d, in the middle: it is cut short", r.n)
	}
	return err
}

// next reads a length; zero ends the tables.
func (r *fileReader) next() (uint64, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return 0, r.short(err)
	}
	return n, nil
}

func (r *fileReader) value(v any) error {
	n, err := r.next()
	if err != nil {
		return err
	}
	at := r.n
	b, err := r.full(n)
	if err != nil {
		return err
	}
	if err := pack.Decode(b, v); err != nil {
		return fmt.Errorf("at offset %d: %w", at, err)
	}
	return nil
}

// scan reads a file from end to end. It calls table for each table, and row for each of its rows (nil: the rows are
// skipped).
func scan(in io.Reader, head func(*fileHeader) error, table func(tableHeader) (row func([]byte) error, err error)) (*Info, error) {
	r := &fileReader{in: bufio.NewReaderSize(in, 64<<10), sum: sha256.New()}
	magic, err := r.full(uint64(len(fileMagic) + 4))
	if err != nil {
		return nil, err
	}
	if string(magic[:len(fileMagic)]) != fileMagic {
		return nil, fmt.Errorf("this is not a muster snapshot: it begins with %q", magic[:len(fileMagic)])
	}
	info := &Info{Version: binary.BigEndian.Uint32(magic[len(fileMagic):])}
	if info.Version != fileVersion {
		return nil, fmt.Errorf("snapshot format %d; this version of muster reads %d", info.Version, fileVersion)
	}
	var h fileHeader
	if err := r.value(&h); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if err := feature.Check("the snapshot", h.Format, h.By); err != nil {
		return nil, err
	}
	if err := head(&h); err != nil {
		return nil, err
	}
	info.Format, info.Index, info.Time = h.Format, h.Index, h.Time
	for {
		n, err := r.next()
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		b, err := r.full(n)
		if err != nil {
			return nil, err
		}
		var th tableHeader
		if err := pack.Decode(b, &th); err != nil {
			return nil, fmt.Errorf("table header at offset %d: %w", r.n, err)
		}
		row, err := table(th)
		if err != nil {
			return nil, err
		}
		from := r.n
		for i := range th.Rows {
			n, err := r.next()
			if err != nil {
				return nil, fmt.Errorf("table %s, row %d of %d: %w", th.Name, i+1, th.Rows, err)
			}
			b, err := r.full(n)
			if err == nil && row != nil {
				err = row(b)
			}
			if err != nil {
				return nil, fmt.Errorf("table %s, row %d of %d: %w", th.Name, i+1, th.Rows, err)
			}
		}
		info.Tables = append(info.Tables, TableInfo{th.Name, th.Rows, r.n - from})
	}
	want := r.sum.Sum(nil)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r.in, got); err != nil {
		return nil, r.short(err)
	}
	if string(got) != string(want) {
		return nil, fmt.Errorf("the checksum is wrong: the file is damaged")
	}
	info.Bytes = r.n + int64(len(got))
	return info, nil
}

// Inspect reads a snapshot file to its checksum and describes its content.
func Inspect(in io.Reader) (*Info, error) {
	return scan(in, func(*fileHeader) error { return nil }, func(tableHeader) (func([]byte) error, error) { return nil, nil })
}

// Read builds a store from a snapshot file of any format that this build reads; the format of the file is then in force.
// It refuses a file that is damaged, cut short, of another format (feature.UnreadableError), or whose rows do not have the
// state hash in its header.
func Read(in io.Reader, opts Options) (*Store, error) {
	s := New(opts)
	s.loading = true
	var head fileHeader
	seen := map[string]bool{}
	_, err := scan(in, func(h *fileHeader) error {
		head = *h
		return nil
	}, func(th tableHeader) (func([]byte) error, error) {
		i := slices.IndexFunc(tables, func(t AnyTable) bool { return t.Name() == th.Name })
		if i < 0 || tables[i].format() > head.Format || seen[th.Name] {
			return nil, fmt.Errorf("table %q is unknown to this version of muster, or in the file twice", th.Name)
		}
		seen[th.Name] = true
		return s.rows[i].load, nil
	})
	if err != nil {
		return nil, err
	}
	for _, t := range tables {
		if t.format() <= head.Format && !seen[t.Name()] {
			return nil, fmt.Errorf("table %s is missing", t.Name())
		}
	}
	s.loading = false
	clear(s.moved) // the file has the usage rows
	if s.Counting() {
		for a := range Allocs.All(s) {
			s.chargeOne(a, 1)
		}
	}
	clear(s.useMoves) // and those of queues
	for i, t := range tables {
		s.changed[i] = head.Changed[t.Name()]
	}
	s.time, s.bootstrap, s.bootstrapWas = head.Time, head.BootstrapIndex, head.BootstrapIndex
	snap, _ := s.Publish(head.Index)
	if h := snap.Hash(); string(h[:]) != string(head.Hash) {
		return nil, fmt.Errorf("the rows have state hash %x, the header says %x: the file was written by a server with a fault", h[:8], head.Hash)
	}
	if why := snap.CheckUse(); why != "" {
		return nil, fmt.Errorf("%s: the file was written by a server with a fault", why)
	}
	if Usages.Len(snap) != len(s.held) {
		return nil, fmt.Errorf("%d usage rows, but the allocations make %d: the file was written by a server with a fault", Usages.Len(snap), len(s.held))
	}
	for u := range snap.Usages() {
		held := s.held[usageKey{u.Kind, u.Name}]
		if held == nil || *held != *u {
			return nil, fmt.Errorf("the usage of %s %q does not follow from the allocations: the file was written by a server with a fault", u.Kind, u.Name)
		}
	}
	s.forgetEntry()
	s.Publish(head.Index)
	return s, nil
}

// forgetEntry commits without recording a delta.
func (s *Store) forgetEntry() {
	for _, r := range s.rows {
		r.commitEntry(&s.delta)
	}
	s.delta = structs.Delta{}
}

// loadAlloc writes an allocation of a snapshot file.
func (s *Store) loadAlloc(a *structs.Allocation) {
	s.ShareStrings(a)
	s.PutAlloc(a)
}
