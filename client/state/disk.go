package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sort"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/muster-sched/muster/internal/boltfile"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Names inside the file. They are for ever.
var (
	bucketAllocs = []byte("allocs") // one bucket per allocation id
	bucketAgent  = []byte("agent")
	keyAlloc     = []byte("alloc")
	keyFinal     = []byte("final")
	keyFormat    = []byte("format")
	keyHistory   = []byte("history")
	keyMeta      = []byte("meta")
	keySwept     = []byte("swept")
	keyGPUUses   = []byte("gpu-uses")
	taskPrefix   = "task/"
	formatV1     = []byte("1")
)

// Limits of the writer: how many changes one commit takes and how many may wait. A writer that finds the queue full
// waits.
const (
	batchMax = 512
	queueMax = 4096
)

// pauses say how long after the beginning of a commit the next one begins, by how many changes it had at least. Commits
// cost the same whether they have few changes or many, so that the more there is to write, the longer it pays to wait.
var pauses = []struct {
	changes int
	pause   time.Duration
}{{48, 40 * time.Millisecond}, {12, 25 * time.Millisecond}, {6, 10 * time.Millisecond}}

func pauseAfter(changes int) time.Duration {
	for _, p := range pauses {
		if changes >= p.changes {
			return p.pause
		}
	}
	return 0
}

// FileName is the name of the file in the agent's data directory.
const FileName = "client.db"

// Disk is a Store in a file.
type Disk struct {
	path  string
	db    *bolt.DB
	queue chan change
	done  chan struct{}

	mu     sync.RWMutex // held for reading while sending on queue
	closed bool

	commits, changes uint64 // by the writer only; read after Close
}

// change is one write; done is told by the writer how it went, and must not block.
type change struct {
	fn   func(*bolt.Tx) error
	done func(error)
}

// ErrInUse means that another process holds the file.
var ErrInUse = errors.New("another agent uses this data directory")

// Open opens the store in dir, making it when absent. A file that cannot be read is moved aside, moved tells where to,
// and an empty store is opened in its place: what still runs is then found through the drivers.
func Open(dir string) (s *Disk, moved string, err error) {
	path := filepath.Join(dir, FileName)
	s, err = open(path)
	if err == nil || errors.Is(err, ErrInUse) {
		return s, "", err
	}
	if _, serr := os.Stat(path); serr != nil {
		return nil, "", err // it is not the content
	}
	moved, merr := moveAside(path)
	if merr != nil {
		return nil, "", fmt.Errorf("%w; moving it aside failed too: %w", err, merr)
	}
	s, oerr := open(path)
	if oerr != nil {
		return nil, moved, fmt.Errorf("%w (the unreadable file is now %s)", oerr, moved)
	}
	return s, moved, nil
}

func moveAside(path string) (string, error) {
	for i := range 1000 {
		to := fmt.Sprintf("%s.corrupt-%d-%d", path, time.Now().Unix(), i)
		if _, err := os.Lstat(to); err == nil {
			continue
		}
		return to, os.Rename(path, to)
	}
	return "", fmt.Errorf("no free name beside %s", path)
}

func open(path string) (s *Disk, err error) {
	defer faults()()
	defer guard("open "+path, &err) // bbolt panics on some broken files
	// The list of free pages is kept in the file: without it bbolt looks for them in a goroutine of its own, and what
	// that finds broken ends the process. What else could end it is found before bbolt reads the file.
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType, OpenFile: boltfile.OpenFile})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fmt.Errorf("%s: %w", path, ErrInUse)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	d := &Disk{path: path, db: db, queue: make(chan change, queueMax), done: make(chan struct{})}
	if err := d.prepare(); err != nil {
		closeQuietly(db)
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	go d.write()
	return d, nil
}

// prepare makes the buckets and reads everything once, so that a broken file shows itself now.
func (d *Disk) prepare() (err error) {
	defer guard("read", &err)
	err = d.db.Update(func(tx *bolt.Tx) error {
		if _, err := tx.CreateBucketIfNotExists(bucketAllocs); err != nil {
			return err
		}
		b, err := tx.CreateBucketIfNotExists(bucketAgent)
		if err != nil {
			return err
		}
		switch f := b.Get(keyFormat); {
		case f == nil:
			return b.Put(keyFormat, formatV1)
		case string(f) != string(formatV1):
			return fmt.Errorf("format %.20q is unknown to this version", f)
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = d.Load()
	return err
}

// faults makes reading beyond the end of a mapped file that is too short a panic, which can be recovered from, instead
// of the end of the process. The result undoes it.
func faults() (undo func()) {
	old := debug.SetPanicOnFault(true)
	return func() { debug.SetPanicOnFault(old) }
}

// guard turns a panic about a broken file into an error.
func guard(what string, err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%s: the file is broken: %v", what, p)
	}
}

// closeQuietly closes a database whose file may be broken.
func closeQuietly(db *bolt.DB) {
	var err error
	defer guard("close", &err)
	db.Close()
}

// Load implements Store.
func (d *Disk) Load() (out *Saved, err error) {
	defer faults()()
	defer guard("load "+d.path, &err)
	out = &Saved{}
	err = d.db.View(func(tx *bolt.Tx) error {
		agent := tx.Bucket(bucketAgent)
		if err := decode(agent.Get(keyHistory), &out.History, "history"); err != nil {
			return err
		}
		if err := decode(agent.Get(keyMeta), &out.Meta, "meta"); err != nil {
			return err
		}
		out.Swept = agent.Get(keySwept) != nil
		if b := agent.Get(keyGPUUses); b != nil {
			out.GPU = new(GPUUses)
			if err := decode(b, out.GPU, "use of GPUs"); err != nil {
				return err
			}
		}
		all := tx.Bucket(bucketAllocs)
		return all.ForEachBucket(func(name []byte) error {
			r, err := loadAlloc(all.Bucket(name), string(name))
			if err == nil && r != nil {
				out.Allocs = append(out.Allocs, r)
			}
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	sort.Slice(out.Allocs, func(i, j int) bool {
		return string(out.Allocs[i].Alloc.ID[:]) < string(out.Allocs[j].Alloc.ID[:])
	})
	return out, nil
}

// storedAlloc is an allocation on disk; its own Job field is never encoded.
type storedAlloc struct {
	Alloc *structs.Allocation
	Job   *structs.Job
}

func loadAlloc(b *bolt.Bucket, id string) (*AllocRecord, error) {
	r := &AllocRecord{Tasks: map[string]*TaskRecord{}}
	err := b.ForEach(func(k, v []byte) error {
		switch key := string(k); {
		case key == string(keyAlloc):
			var st storedAlloc
			if err := decode(v, &st, "allocation "+id); err != nil {
				return err
			}
			if st.Alloc == nil || st.Job == nil || st.Alloc.ID.String() != id {
				return fmt.Errorf("allocation %s: the record is not of this allocation", id)
			}
			st.Alloc.Job = st.Job
			r.Alloc = st.Alloc
		case key == string(keyFinal):
			r.Final = new(Final)
			return decode(v, r.Final, "end of allocation "+id)
		case len(key) > len(taskPrefix) && key[:len(taskPrefix)] == taskPrefix:
			t := new(TaskRecord)
			r.Tasks[key[len(taskPrefix):]] = t
			return decode(v, t, "task "+key+" of allocation "+id)
		}
		return nil
	})
	if err != nil || r.Alloc == nil {
		return nil, err // tasks without their allocation are left over from a deletion
	}
	return r, nil
}

func decode(b []byte, v any, what string) error {
	if b == nil {
		return nil
	}
	// The bytes belong to the mapped file; the decoder may keep slices of what it reads.
	if err := rpc.Decode(append([]byte(nil), b...), v); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// PutAlloc implements Store.
func (d *Disk) PutAlloc(list ...*structs.Allocation) error {
	put := make([]func(*bolt.Tx) error, len(list))
	for i, a := range list {
		v, err := rpc.Encode(&storedAlloc{Alloc: a, Job: a.Job})
		if err != nil {
			return err
		}
		put[i] = putter(a.ID, keyAlloc, v, true)
	}
	return d.do(func(tx *bolt.Tx) error {
		for _, fn := range put {
			if err := fn(tx); err != nil {
				return err
			}
		}
		return nil
	})
}

// PutTask implements Store. It fails for an allocation that is not stored.
func (d *Disk) PutTask(id structs.AllocID, task string, r *TaskRecord) error {
	v, err := rpc.Encode(r)
	if err != nil {
		return err
	}
	return d.do(putter(id, []byte(taskPrefix+task), v, false))
}

// PutTaskSoon implements Store.
func (d *Disk) PutTaskSoon(id structs.AllocID, task string, r *TaskRecord, failed func(error)) {
	v, err := rpc.Encode(r)
	if err == nil {
		err = d.enqueue(change{fn: putter(id, []byte(taskPrefix+task), v, false), done: func(err error) {
			if err != nil {
				failed(err)
			}
		}})
	}
	if err != nil {
		failed(err)
	}
}

// PutFinal implements Store. It fails for an allocation that is not stored.
func (d *Disk) PutFinal(id structs.AllocID, f *Final) error {
	v, err := rpc.Encode(f)
	if err != nil {
		return err
	}
	return d.do(putter(id, keyFinal, v, false))
}

// putter writes a value of an allocation.
func putter(id structs.AllocID, key, v []byte, create bool) func(*bolt.Tx) error {
	name := []byte(id.String())
	return func(tx *bolt.Tx) error {
		all := tx.Bucket(bucketAllocs)
		b := all.Bucket(name)
		if b == nil {
			if !create {
				return fmt.Errorf("allocation %s is not stored", name)
			}
			var err error
			if b, err = all.CreateBucket(name); err != nil {
				return err
			}
		}
		return b.Put(key, v)
	}
}

// DeleteAlloc implements Store.
func (d *Disk) DeleteAlloc(id structs.AllocID) error {
	name := []byte(id.String())
	return d.do(func(tx *bolt.Tx) error {
		err := tx.Bucket(bucketAllocs).DeleteBucket(name)
		if errors.Is(err, berrors.ErrBucketNotFound) {
			return nil
		}
		return err
	})
}

// PutHistory implements Store.
func (d *Disk) PutHistory(h History) error { return d.putAgent(keyHistory, &h) }

// PutMeta implements Store.
func (d *Disk) PutMeta(meta map[string]*string) error { return d.putAgent(keyMeta, meta) }

// PutGPUUses implements Store.
func (d *Disk) PutGPUUses(u *GPUUses) error { return d.putAgent(keyGPUUses, u) }

// PutSwept implements Store.
func (d *Disk) PutSwept() error { return d.putAgent(keySwept, true) }

func (d *Disk) putAgent(key []byte, v any) error {
	b, err := rpc.Encode(v)
	if err != nil {
		return err
	}
	return d.do(func(tx *bolt.Tx) error { return tx.Bucket(bucketAgent).Put(key, b) })
}

// ErrClosed answers writes after Close.
var ErrClosed = errors.New("the agent's state store is closed")

func (d *Disk) do(fn func(*bolt.Tx) error) error {
	res := make(chan error, 1)
	if err := d.enqueue(change{fn: fn, done: func(err error) { res <- err }}); err != nil {
		return err
	}
	return <-res
}

func (d *Disk) enqueue(c change) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return ErrClosed
	}
	d.queue <- c
	return nil
}

// write is the one writer: whatever has queued up while a commit ran goes into the next one. A commit costs as much for
// a hundred changes as for one, so when many come it waits a little for more.
func (d *Disk) write() {
	defer close(d.done)
	defer faults()()
	batch := make([]change, 0, batchMax)
	var last time.Time
	for c := range d.queue {
		time.Sleep(pauseAfter(len(batch)) - time.Since(last))
		last = time.Now()
		batch = append(batch[:0], c)
	more:
		for len(batch) < batchMax {
			select {
			case c, ok := <-d.queue:
				if !ok {
					break more
				}
				batch = append(batch, c)
			default:
				break more
			}
		}
		d.commit(batch)
	}
}

// commit applies a batch in one transaction. If a change fails the others are tried again without it.
func (d *Disk) commit(batch []change) {
	for len(batch) > 0 {
		failed := -1
		err := d.transact(func(tx *bolt.Tx) error {
			for i, c := range batch {
				if err := c.fn(tx); err != nil {
					failed = i
					return err
				}
			}
			return nil
		})
		if err != nil {
			err = fmt.Errorf("write %s: %w", d.path, err)
		}
		if err != nil && failed >= 0 {
			batch[failed].done(err)
			rest := append([]change(nil), batch[:failed]...)
			batch = append(rest, batch[failed+1:]...)
			continue
		}
		d.commits++
		d.changes += uint64(len(batch))
		for _, c := range batch {
			c.done(err)
		}
		return
	}
}

func (d *Disk) transact(fn func(*bolt.Tx) error) (err error) {
	defer guard("write", &err)
	return d.db.Update(fn)
}

// Close implements Store.
func (d *Disk) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	close(d.queue)
	d.mu.Unlock()
	<-d.done
	return d.db.Close()
}
