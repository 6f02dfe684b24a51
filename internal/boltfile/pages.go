// Package boltfile checks a bbolt file before bbolt opens it. bbolt trusts its pages: a branch page that leads back to
// itself makes it loop and allocate until memory runs out, which no recover catches.
package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"syscall"
	"time"

	berrors "go.etcd.io/bbolt/errors"
)

// The format is bbolt's, version 2 (its internal/common/page.go, meta.go, bucket.go). Numbers are in the machine's byte
// order, which is little-endian wherever Muster runs.
//
//	page            id u64, flags u16, count u16, overflow u32; then its elements. It takes 1+overflow pages of the file.
//	meta            page 0 and page 1: magic u32, version u32, page size u32, flags u32, root page u64, sequence u64,
//	                freelist page u64, high-water mark u64 (pages from here on were never used), transaction u64,
//	                checksum u64 (FNV-1a of the bytes before it). Of two valid ones the later transaction counts.
//	branch element  pos u32, ksize u32, page u64; the key is pos bytes after the element's own beginning
//	leaf element    flags u32, pos u32, ksize u32, vsize u32; the value follows the key
//	bucket          the value of a leaf element with flag 1: root page u64, sequence u64; with root page 0 a small leaf
//	                page follows in the value
//	freelist        ids u64 of free pages, ascending; with count 0xffff the true count is the first of them
const (
	pageHead   = 16
	elemSize   = 16 // of a branch and of a leaf
	bucketHead = 16
	metaSize   = 64 // up to the checksum, and that
	sumAt      = 56

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreelist = 0x10
	flagBucket   = 0x01 // of a leaf element

	magic      = 0xED0CDAED
	version    = 2
	noFreelist = 1<<64 - 1
	manyFree   = 0xffff
)

// Limits of page sizes, and how long OpenFile waits for a file that another process has locked.
const (
	minPage  = 1 << 10
	maxPage  = 1 << 24
	lockWait = time.Second
)

var le = binary.LittleEndian

// OpenFile opens a file for bbolt (Options.OpenFile), locks it as bbolt does, and returns an error if its pages are
// damaged. If another process still holds the lock after a second, the error is bbolt's errors.ErrTimeout.
func OpenFile(path string, flag int, mode os.FileMode) (f *os.File, err error) {
	if f, err = os.OpenFile(path, flag, mode); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	// The lock belongs to the open file, so bbolt's own attempt to take it succeeds.
	for begin := time.Now(); ; time.Sleep(lockWait / 20) {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if time.Since(begin) > lockWait {
			return nil, berrors.ErrTimeout
		}
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return f, Check(f, st.Size())
}

// Check walks all pages that a bbolt file of this size uses, each once, and returns an error if one is damaged: out of
// range, used twice, neither used nor free, of the wrong kind, or with content beyond its bounds. An empty file is good:
// bbolt initialises it. Keys must be in order, and between those that the branches above give for their page: otherwise
// bbolt would not find them, or its own check, in a goroutine that outlives a failed open, would end the process.
func Check(r io.ReaderAt, size int64) error {
	if size == 0 {
		return nil
	}
	w := &walk{file: r}
	m, err := w.meta(size)
	if err != nil {
		return err
	}
	w.pages = min(m.mark, uint64(size)/w.pageSize)
	w.seen = make([]uint64, w.pages/64+1)
	w.seen[0] = 3 // the meta pages
	if err := w.freelist(m); err != nil {
		return err
	}
	w.todo = []span{{page: m.root}}
	for len(w.todo) > 0 {
		s := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		if err := w.page(s); err != nil {
			return damaged(s.page, err)
		}
	}
	if m.freelist == noFreelist {
		return nil
	}
	for id := range w.pages { // a wrong page number may lead to an old page that is still whole
		if w.mark(id) {
			return damaged(id, errors.New("it is neither used nor free"))
		}
	}
	return nil
}

func damaged(id uint64, why error) error { return fmt.Errorf("page %d is damaged: %w", id, why) }

// walk is the state of one check of a file.
type walk struct {
	file     io.ReaderAt
	pageSize uint64
	pages    uint64   // whole pages that the file has and may use
	seen     []uint64 // bits: used or free
	todo     []span   // pages that were found and not looked at
	buf      []byte
}

// span is a page and the keys that belong below it.
type span struct {
	page  uint64
	first []byte // the smallest key; nil: any
	end   []byte // larger than all keys; nil: any
}

// meta is the content of the meta page in use.
type meta struct {
	pageSize, root, freelist, mark, txid uint64
}

// meta finds the meta page that bbolt would use, and the page size.
func (w *walk) meta(size int64) (meta, error) {
	first, ok := w.metaAt(0)
	if ok {
		w.pageSize = first.pageSize
	} else {
		// The second meta page follows the first, at a distance of one page, whose size is not known yet.
		for at := int64(minPage); at <= maxPage && at < size && w.pageSize == 0; at *= 2 {
			if m, ok := w.metaAt(at); ok {
				w.pageSize = m.pageSize
			}
		}
	}
	if w.pageSize == 0 {
		return meta{}, errors.New("neither meta page is valid")
	}
	if n := w.pageSize; n < minPage || n > maxPage || n&(n-1) != 0 {
		return meta{}, fmt.Errorf("the meta page says that pages have %d bytes", n)
	}
	second, ok2 := w.metaAt(int64(w.pageSize))
	switch {
	case ok2 && (!ok || second.txid > first.txid):
		return second, nil
	case ok:
		return first, nil
	}
	return meta{}, errors.New("neither meta page is valid")
}

func (w *walk) metaAt(at int64) (meta, bool) {
	b := make([]byte, pageHead+metaSize)
	if _, err := w.file.ReadAt(b, at); err != nil {
		return meta{}, false
	}
	b = b[pageHead:]
	sum := fnv.New64a()
	sum.Write(b[:sumAt])
	if le.Uint32(b) != magic || le.Uint32(b[4:]) != version || le.Uint64(b[sumAt:]) != sum.Sum64() {
		return meta{}, false
	}
	return meta{
		pageSize: uint64(le.Uint32(b[8:])), root: le.Uint64(b[16:]), freelist: le.Uint64(b[32:]),
		mark: le.Uint64(b[40:]), txid: le.Uint64(b[48:]),
	}, true
}

// read returns the bytes of a page with its overflow and marks it used. The slice is valid until the next call.
func (w *walk) read(id uint64) ([]byte, error) {
	if id < 2 {
		return nil, errors.New("a meta page is used for data")
	}
	if id >= w.pages {
		return nil, errors.New("it is beyond the end of the file")
	}
	var head [pageHead]byte
	if _, err := w.file.ReadAt(head[:], int64(id*w.pageSize)); err != nil {
		return nil, err
	}
	n := 1 + uint64(le.Uint32(head[12:])) // its pages
	switch {
	case le.Uint64(head[:]) != id:
		return nil, fmt.Errorf("it says that it is page %d", le.Uint64(head[:]))
	case n > w.pages-id:
		return nil, fmt.Errorf("it says that it takes %d pages, and the file ends before that", n)
	}
	for i := id; i < id+n; i++ {
		if !w.mark(i) {
			return nil, fmt.Errorf("page %d is used twice, or used and free", i)
		}
	}
	if need := n * w.pageSize; uint64(cap(w.buf)) < need {
		w.buf = make([]byte, need)
	}
	b := w.buf[:n*w.pageSize]
	_, err := w.file.ReadAt(b, int64(id*w.pageSize))
	return b, err
}

// mark marks a page as used; false if it was already.
func (w *walk) mark(id uint64) bool {
	bit := uint64(1) << (id % 64)
	old := w.seen[id/64]
	w.seen[id/64] |= bit
	return old&bit == 0
}

// freelist checks the list of free pages. A damaged one could make bbolt allocate without bound, or overwrite pages in
// use.
func (w *walk) freelist(m meta) error {
	if m.freelist == noFreelist {
		return nil
	}
	b, err := w.read(m.freelist)
	if err != nil {
		return damaged(m.freelist, err)
	}
	if flags := le.Uint16(b[8:]); flags != flagFreelist {
		return damaged(m.freelist, fmt.Errorf("it should be the list of free pages, and has flags %#x", flags))
	}
	ids, count := b[pageHead:], uint64(le.Uint16(b[10:]))
	if count == manyFree {
		count, ids = le.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids)/8) {
		return damaged(m.freelist, fmt.Errorf("it has no room for the %d free pages that it says it has", count))
	}
	for i, last := uint64(0), uint64(1); i < count; i++ {
		id := le.Uint64(ids[8*i:])
		switch {
		case id <= last || id >= m.mark:
			return damaged(m.freelist, fmt.Errorf("it has page %d after page %d as free, of %d pages", id, last, m.mark))
		case id < w.pages && !w.mark(id):
			return damaged(m.freelist, fmt.Errorf("it is in its own list of free pages, as page %d", id))
		}
		last = id
	}
	return nil
}

// page checks a branch or leaf page and queues the pages below it.
func (w *walk) page(s span) error {
	b, err := w.read(s.page)
	if err != nil {
		return err
	}
	switch flags := le.Uint16(b[8:]); flags {
	case flagLeaf:
		return w.elements(b, s, true, false)
	case flagBranch:
		if le.Uint16(b[10:]) == 0 {
			return errors.New("it leads to no page")
		}
		return w.elements(b, s, false, false)
	default:
		return fmt.Errorf("it should be a branch or a leaf, and has flags %#x", flags)
	}
}

// elements checks the elements of a page: bbolt writes their keys and values in key order without gaps, and zeros after
// the header of an empty page. A wrong number of elements breaks that rule, so none is lost silently. An inline page is
// stored in the value of its bucket; it holds no buckets.
func (w *walk) elements(b []byte, within span, leaf, inline bool) error {
	count := uint64(le.Uint16(b[10:]))
	end := pageHead + count*elemSize // offset of the next key
	if end > uint64(len(b)) {
		return fmt.Errorf("it has no room for the %d elements that it says it has", count)
	}
	if count == 0 && len(bytes.Trim(b[pageHead:], "\x00")) > 0 {
		return errors.New("it says that it is empty, and is not")
	}
	var last []byte
	for i := range count {
		at := pageHead + i*elemSize
		e := b[at:]
		var flags, pos, klen, vlen uint64
		if leaf {
			flags, pos, klen, vlen = uint64(le.Uint32(e)), uint64(le.Uint32(e[4:])), uint64(le.Uint32(e[8:])), uint64(le.Uint32(e[12:]))
		} else {
			pos, klen = uint64(le.Uint32(e)), uint64(le.Uint32(e[4:]))
		}
		from := at + pos
		if from != end || from+klen+vlen > uint64(len(b)) {
			return fmt.Errorf("element %d is out of its bounds", i)
		}
		end = from + klen + vlen
		key, value := b[from:from+klen], b[from+klen:end]
		switch {
		case bytes.Compare(key, last) <= 0: // also refuses an empty key
			return fmt.Errorf("the key of element %d is empty or out of order", i)
		case bytes.Compare(key, within.first) < 0 || within.end != nil && bytes.Compare(key, within.end) >= 0:
			return fmt.Errorf("the key of element %d does not belong below the branch that leads here", i)
		}
		last = key
		if !leaf {
			key = bytes.Clone(key) // the buffer is used for the next page
			if i > 0 {
				w.todo[len(w.todo)-1].end = key
			}
			w.todo = append(w.todo, span{page: le.Uint64(e[8:]), first: key, end: within.end})
			continue
		}
		switch {
		case flags == flagBucket && !inline:
			if err := w.bucket(value); err != nil {
				return fmt.Errorf("bucket %.40q: %w", key, err)
			}
		case flags != 0:
			return fmt.Errorf("element %d has flags %#x", i, flags)
		}
	}
	return nil
}

// bucket checks a value that is a bucket.
func (w *walk) bucket(v []byte) error {
	if len(v) < bucketHead {
		return errors.New("it is cut short")
	}
	if root := le.Uint64(v); root != 0 {
		w.todo = append(w.todo, span{page: root})
		return nil
	}
	page := v[bucketHead:]
	if len(page) < pageHead {
		return errors.New("it is cut short")
	}
	// bbolt addresses the inline page as page 0, to which a branch could lead.
	if flags := le.Uint16(page[8:]); flags != flagLeaf {
		return fmt.Errorf("its inline page should be a leaf, and has flags %#x", flags)
	}
	return w.elements(page, span{}, true, true)
}
