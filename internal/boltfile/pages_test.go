package boltfile

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// build makes a file with branches, leaves, buckets in buckets, inline buckets, values over several pages and free pages.
func build(t testing.TB, options *bolt.Options) (path string, b []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "db")
	db, err := bolt.Open(path, 0o600, options)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	for round := range 6 {
		err = db.Update(func(tx *bolt.Tx) error {
			for _, name := range []string{"big", "other"} {
				top, err := tx.CreateBucketIfNotExists([]byte(name))
				if err != nil {
					return err
				}
				for i := range 600 {
					k := fmt.Appendf(nil, "key %04d", i)
					if round > 0 && rnd.IntN(4) == 0 {
						err = top.Delete(k)
					} else if rnd.IntN(3) > 0 {
						err = top.Put(k, make([]byte, rnd.IntN(300)))
					}
					if err != nil {
						return err
					}
				}
				if err := top.Put([]byte("long"), make([]byte, 50_000+round)); err != nil {
					return err
				}
				for i := range 8 {
					in, err := top.CreateBucketIfNotExists(fmt.Appendf(nil, "bucket %d", i))
					if err != nil {
						return err
					}
					for k := range i * 20 { // none, some inline, some with pages of their own
						if err := in.Put(fmt.Appendf(nil, "%d", k), make([]byte, 30)); err != nil {
							return err
						}
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if b, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	return path, b
}

func TestGoodFiles(t *testing.T) {
	for _, o := range []*bolt.Options{nil, {PageSize: 1024}, {PageSize: 16384}, {NoFreelistSync: true}, {FreelistType: bolt.FreelistMapType}} {
		path, b := build(t, o)
		if err := Check(bytes.NewReader(b), int64(len(b))); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
		// What a crash leaves: the later meta page is torn, and the tree of the earlier one is whole.
		for page := range 2 {
			torn := bytes.Clone(b)
			size := os.Getpagesize()
			if o != nil && o.PageSize != 0 {
				size = o.PageSize
			}
			clear(torn[page*size+20 : page*size+60])
			if err := Check(bytes.NewReader(torn), int64(len(torn))); err != nil {
				t.Errorf("%+v, without meta page %d: %v", o, page, err)
			}
		}
		db, err := bolt.Open(path, 0o600, &bolt.Options{OpenFile: OpenFile})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		begin := time.Now()
		if f, err := OpenFile(path, os.O_RDWR, 0o600); !errors.Is(err, berrors.ErrTimeout) {
			t.Errorf("a file in use was opened: %v, %v", f, err)
		}
		if o == nil {
			t.Logf("%d bytes; the lock was waited for %v", len(b), time.Since(begin))
		}
	}
	db, err := bolt.Open(filepath.Join(t.TempDir(), "new"), 0o600, &bolt.Options{OpenFile: OpenFile})
	if err != nil {
		t.Fatal(err)
	}
	db.Close()
}

// tree is what a test knows of a good file.
type tree struct {
	b      []byte
	size   int
	meta   meta
	branch int // a branch page
	leaf   int // a leaf below it
	other  int // a leaf of another bucket
	inline int // where an inline page begins in the file
}

func (x *tree) page(id int) []byte { return x.b[id*x.size:] }

// look finds the pages that the cases below damage.
func look(t *testing.T, b []byte) *tree {
	t.Helper()
	w := &walk{file: bytes.NewReader(b)}
	m, err := w.meta(int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	x := &tree{b: bytes.Clone(b), size: int(w.pageSize), meta: m}
	root := x.page(int(m.root))
	var tops []int
	for i := range int(le.Uint16(root[10:])) {
		e := root[pageHead+i*elemSize:]
		at := le.Uint32(e[4:]) + le.Uint32(e[8:])
		tops = append(tops, int(le.Uint64(e[at:])))
	}
	if len(tops) != 2 {
		t.Fatalf("%d buckets", len(tops))
	}
	first := func(branch int) int { return int(le.Uint64(x.page(branch)[pageHead+8:])) }
	x.branch, x.leaf, x.other = tops[0], first(tops[0]), first(tops[1])
	for _, id := range []int{x.branch, tops[1]} {
		if le.Uint16(x.page(id)[8:]) != flagBranch {
			t.Fatalf("page %d is no branch", id)
		}
	}
	leaf := x.page(x.leaf)
	for i := range int(le.Uint16(leaf[10:])) {
		e := leaf[pageHead+i*elemSize:]
		v := int(le.Uint32(e[4:]) + le.Uint32(e[8:]))
		if le.Uint32(e) == flagBucket && le.Uint64(e[v:]) == 0 && x.inline == 0 {
			x.inline = x.leaf*x.size + pageHead + i*elemSize + v + bucketHead
		}
	}
	if x.inline == 0 || le.Uint16(leaf[8:]) != flagLeaf {
		t.Fatal("there is no inline bucket in the first leaf")
	}
	return x
}

func TestDamagedPages(t *testing.T) {
	_, good := build(t, nil)
	to := func(page int, x *tree) { le.PutUint64(x.page(x.branch)[pageHead+8:], uint64(page)) }
	cases := []struct {
		name, want string
		do         func(x *tree)
	}{
		{"itself", "used twice", func(x *tree) { to(x.branch, x) }},
		{"the root", "used twice", func(x *tree) { to(int(x.meta.root), x) }},
		{"parent", "does not belong", func(x *tree) { // the leaf becomes a branch that leads to its parent
			p := x.page(x.leaf)
			le.PutUint16(p[8:], flagBranch)
			le.PutUint16(p[10:], 1)
			le.PutUint32(p[pageHead:], elemSize)
			le.PutUint32(p[pageHead+4:], 1)
			le.PutUint64(p[pageHead+8:], uint64(x.branch))
			p[pageHead+elemSize] = 'a'
		}},
		{"page 0", "meta page", func(x *tree) { to(0, x) }},
		{"page 1", "meta page", func(x *tree) { to(1, x) }},
		{"the freelist", "used twice", func(x *tree) { to(int(x.meta.freelist), x) }},
		{"a leaf of another bucket", "used twice", func(x *tree) { to(x.other, x) }},
		{"beyond the end", "beyond the end", func(x *tree) { to(1<<40, x) }},
		{"another kind", "flags 0x10", func(x *tree) { le.PutUint16(x.page(x.leaf)[8:], flagFreelist) }},
		{"two kinds", "flags 0x3", func(x *tree) { le.PutUint16(x.page(x.leaf)[8:], flagLeaf|flagBranch) }},
		{"another number", "says that it is page", func(x *tree) { le.PutUint64(x.page(x.leaf), 77777) }},
		{"count of a leaf", "no room", func(x *tree) { le.PutUint16(x.page(x.leaf)[10:], 60000) }},
		{"count of a branch", "no room", func(x *tree) { le.PutUint16(x.page(x.branch)[10:], 60000) }},
		{"no element in a branch", "leads to no page", func(x *tree) { le.PutUint16(x.page(x.branch)[10:], 0) }},
		{"overflow", "file ends before", func(x *tree) { le.PutUint32(x.page(x.leaf)[12:], 1<<31) }},
		{"overflow over a neighbour", "used twice", func(x *tree) { le.PutUint32(x.page(x.leaf)[12:], uint32(len(x.b)/x.size-x.leaf-1)/2) }},
		{"position", "out of its bounds", func(x *tree) { le.PutUint32(x.page(x.leaf)[pageHead+4:], 1<<31) }},
		{"position in the head", "out of its bounds", func(x *tree) { le.PutUint32(x.page(x.leaf)[pageHead+4:], 0) }},
		{"length of a value", "out of its bounds", func(x *tree) { le.PutUint32(x.page(x.leaf)[pageHead+12:], 1<<32-1) }},
		{"length of a key", "out of its bounds", func(x *tree) { le.PutUint32(x.page(x.branch)[pageHead+4:], 1<<32-1) }},
		{"empty key", "empty or out of order", func(x *tree) { le.PutUint32(x.page(x.branch)[pageHead+4:], 0) }},
		{"key of a branch", "does not belong", func(x *tree) { // its page begins with a smaller one
			e := x.page(x.branch)[pageHead+elemSize:]
			e[le.Uint32(e)+le.Uint32(e[4:])-1]++
		}},
		{"bucket's root one level too deep", "neither used nor free", func(x *tree) {
			root := x.page(int(x.meta.root))
			e := root[pageHead:]
			le.PutUint64(e[le.Uint32(e[4:])+le.Uint32(e[8:]):], uint64(x.leaf))
		}},
		{"inline page a branch", "inline page", func(x *tree) { le.PutUint16(x.b[x.inline+8:], flagBranch) }},
		{"count of an inline page", "no room", func(x *tree) { le.PutUint16(x.b[x.inline+10:], 60000) }},
		{"bucket's root", "beyond the end", func(x *tree) { le.PutUint64(x.b[x.inline-bucketHead:], 1<<50) }},
		{"count of the freelist", "no room", func(x *tree) { le.PutUint16(x.page(int(x.meta.freelist))[10:], 60000) }},
		{"true count of the freelist", "no room", func(x *tree) {
			p := x.page(int(x.meta.freelist))
			le.PutUint16(p[10:], manyFree)
			le.PutUint64(p[pageHead:], 1<<60)
		}},
		{"page in use as free", "used", func(x *tree) {
			p := x.page(int(x.meta.freelist))
			le.PutUint16(p[10:], 1)
			le.PutUint64(p[pageHead:], uint64(x.leaf))
		}},
		{"meta page as free", "as free", func(x *tree) {
			p := x.page(int(x.meta.freelist))
			le.PutUint16(p[10:], 1)
			le.PutUint64(p[pageHead:], 1)
		}},
		{"freelist of another kind", "list of free pages", func(x *tree) { le.PutUint16(x.page(int(x.meta.freelist))[8:], flagLeaf) }},
		{"cut short", "page", func(x *tree) { x.b = x.b[:4*x.size+100] }},
		{"both meta pages", "neither meta page", func(x *tree) { clear(x.b[:2*x.size]) }},
		{"a few bytes", "neither meta page", func(x *tree) { x.b = x.b[:50] }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			x := look(t, good)
			c.do(x)
			err := Check(bytes.NewReader(x.b), int64(len(x.b)))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v; want an error, %q in it", c.name, err, c.want)
				return
			}
			path := filepath.Join(t.TempDir(), "db")
			if err := os.WriteFile(path, x.b, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := bolt.Open(path, 0o600, &bolt.Options{OpenFile: OpenFile}); err == nil {
				t.Errorf("%s: bbolt opened it", c.name)
			}
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	_, file := build(b, nil)
	b.SetBytes(int64(len(file)))
	for b.Loop() {
		if err := Check(bytes.NewReader(file), int64(len(file))); err != nil {
			b.Fatal(err)
		}
	}
}
