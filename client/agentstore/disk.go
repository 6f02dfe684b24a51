package agentstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sort"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/internal/boltfile"
	"github.com/muster-sched/muster/internal/fsync"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Names inside the file. They never change.
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
	keyLog       = []byte("log") // the generation of the log; absent without a log
	taskPrefix   = "task/"
	formatNow    = []byte("1")
)

// Limits of the writer: changes in one commit, and changes that may wait. A caller that finds the queue full blocks.
const (
	batchMax = 512
	queueMax = 4096
)

// pauses is the time from the beginning of one commit to the next, by the number of changes in it. The cost of a commit
// hardly depends on its changes, so the more there is to write, the longer it pays to wait.
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

// FileName is the name of the database in the agent's data directory.
const FileName = "client.db"

// Disk is a Store in a database file with a log.
type Disk struct {
	path  string
	db    *bolt.DB
	log   *logFile
	queue chan change
	done  chan struct{}

	// OnFailedSync is called by the writer when a sync has failed; no change succeeds after that. It is set before the first
	// change; nil: only the changes report it.
	OnFailedSync func(error)

	mu     sync.RWMutex // held for reading while sending to queue
	closed bool

	// Used by the writer only, after open.
	pending pending
	stored  map[string]struct{} // the allocations that are stored
	damage  string              // what was wrong with the log, "" for nothing
	broken  error               // of a failed sync: what the disk holds is unknown
	doubt   bool                // a checkpoint failed: until one succeeds it is unknown which log belongs to the database

	commits, changes, checkpoints uint64 // used by the writer only; read after Close
}

// change is one write. The writer calls done with the outcome; done must not block. A change without operations asks
// for a checkpoint.
type change struct {
	ops  []op
	done func(error)
}

// ErrInUse means that another process holds the file.
var ErrInUse = errors.New("another agent uses this data directory")

// Open opens the store in dir and creates it if absent. damage is a sentence about what was unreadable, "" for nothing.
// An unreadable database is moved aside and replaced by an empty one: running tasks are then found through the drivers.
// Of a log that is damaged in the middle, the records before the damage count. A file that cannot be written for lack
// of disk space is kept, and read.
func Open(dir string) (s *Disk, damage string, err error) {
	path := filepath.Join(dir, FileName)
	s, err = open(path)
	if err == nil {
		return s, s.damage, nil
	}
	if errors.Is(err, ErrInUse) || passing(err) {
		return nil, "", err
	}
	if _, serr := os.Stat(path); serr != nil {
		return nil, "", err // the error is not about the content
	}
	moved, merr := moveAside(path)
	if _, serr := os.Lstat(logPath(path)); merr == nil && serr == nil {
		_, merr = moveAside(logPath(path)) // kept for inspection
	}
	if merr != nil {
		return nil, "", fmt.Errorf("%w; moving it aside failed too: %w", err, merr)
	}
	damage = fmt.Sprintf("%v; the file is now %s, and running tasks are asked of the drivers", err, moved)
	s, oerr := open(path)
	if oerr != nil {
		return nil, damage, fmt.Errorf("%w (the unreadable file is now %s)", oerr, moved)
	}
	return s, damage, nil
}

// noRoom reports whether an error means that the disk is full.
func noRoom(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// passing reports whether an error is about the machine's current condition, not the files.
func passing(err error) bool {
	for _, e := range []error{unix.EROFS, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return noRoom(err)
}

func logPath(path string) string { return filepath.Join(filepath.Dir(path), LogName) }

func moveAside(path string) (string, error) {
	to, err := corruptName(path)
	if err != nil {
		return "", err
	}
	return to, os.Rename(path, to)
}

// corruptName returns an unused name for what was unreadable in the file at path.
func corruptName(path string) (string, error) {
	for i := range 1000 {
		to := fmt.Sprintf("%s.corrupt-%d-%d", path, time.Now().Unix(), i)
		if _, err := os.Lstat(to); err != nil {
			return to, nil
		}
	}
	return "", fmt.Errorf("no free name next to %s", path)
}

func open(path string) (s *Disk, err error) {
	defer faults()()
	defer guard("open "+path, &err) // bbolt panics on some broken files
	// The free list is stored in the file. Without it bbolt scans for free pages in a goroutine, and a broken page
	// found there ends the process. OpenFile checks for other damage that would end the process.
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType, OpenFile: boltfile.OpenFile})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fmt.Errorf("%s: %w", path, ErrInUse)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	d := &Disk{path: path, db: db, queue: make(chan change, queueMax), done: make(chan struct{}), pending: newPending(), stored: map[string]struct{}{}}
	if err := d.prepare(); err != nil {
		closeQuietly(db)
		if d.log != nil {
			d.log.file.Close()
		}
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	go d.write()
	return d, nil
}

// prepare creates the buckets, applies the log to the database and reads everything once, so that a broken file is
// detected now.
func (d *Disk) prepare() (err error) {
	defer guard("read", &err)
	generation := rand.Uint64()
	err = d.db.Update(func(tx *bolt.Tx) error {
		all, err := tx.CreateBucketIfNotExists(bucketAllocs)
		if err != nil {
			return err
		}
		agent, err := tx.CreateBucketIfNotExists(bucketAgent)
		if err != nil {
			return err
		}
		if err := d.recover(tx, agent); err != nil {
			return err
		}
		if err := begin(tx, generation); err != nil {
			return err
		}
		return d.count(all)
	})
	switch {
	case noRoom(err) && d.log != nil:
		// The log's content is valid. It stays in the log until the database has room.
		d.doubt = true
		err = d.db.View(func(tx *bolt.Tx) error {
			all := tx.Bucket(bucketAllocs)
			if all == nil || tx.Bucket(bucketAgent) == nil {
				return err // nothing is stored yet
			}
			if err := d.count(all); err != nil {
				return err
			}
			d.pending.count(d.stored)
			return nil
		})
	case err == nil:
		d.pending = newPending()
	}
	if err != nil {
		return err
	}
	d.log.begin(generation)
	_, err = d.load()
	return err
}

// count records which allocations the database has.
func (d *Disk) count(all *bolt.Bucket) error {
	clear(d.stored)
	return all.ForEachBucket(func(name []byte) error {
		d.stored[string(name)] = struct{}{}
		return nil
	})
}

// recover opens the log and applies what a killed agent left in it to the database.
func (d *Disk) recover(tx *bolt.Tx, agent *bolt.Bucket) (err error) {
	if format := agent.Get(keyFormat); format != nil && !bytes.Equal(format, formatNow) {
		return fmt.Errorf("format %.20q is unknown to this version", format)
	}
	generation := agent.Get(keyLog)
	if d.log, err = openLog(logPath(d.path), generation == nil); err != nil || generation == nil {
		return err
	}
	if len(generation) != 8 {
		return errors.New("which log belongs to it is unreadable")
	}
	ops, lost, err := d.log.replay(binary.LittleEndian.Uint64(generation))
	if err != nil {
		return err
	}
	if lost > 0 {
		kept, err := d.log.keepCopy()
		if err != nil {
			return err
		}
		d.damage = fmt.Sprintf("%s is damaged in the middle: %d acknowledged records are lost, and what they said about tasks is asked of the drivers; a copy is kept in %s",
			logPath(d.path), lost, kept)
	}
	for _, o := range ops {
		d.pending.add(o)
	}
	return d.pending.store(tx)
}

// begin binds the log of a generation to the database.
func begin(tx *bolt.Tx, generation uint64) error {
	b := tx.Bucket(bucketAgent)
	return errors.Join(b.Put(keyFormat, formatNow), b.Put(keyLog, binary.LittleEndian.AppendUint64(nil, generation)))
}

// faults turns reading beyond the end of a truncated mapped file into a panic, which can be recovered, instead of a
// crash. undo restores the previous setting.
func faults() (undo func()) {
	old := debug.SetPanicOnFault(true)
	return func() { debug.SetPanicOnFault(old) }
}

// guard turns a panic caused by a broken file into an error.
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
	res := make(chan error, 1)
	if err := d.enqueue(change{done: func(err error) {
		if err == nil || noRoom(err) {
			out, err = d.load()
		}
		res <- err
	}}); err != nil {
		return nil, err
	}
	err = <-res
	return out, err
}

// view reads the database with the pending changes applied, without writing to disk.
func (d *Disk) view(fn func(*bolt.Tx) error) error {
	if len(d.pending.allocs)+len(d.pending.agent) == 0 {
		return d.db.View(fn)
	}
	tx, err := d.db.Begin(true)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	return errors.Join(d.pending.store(tx), fn(tx))
}

// load reads everything. Only the writer may call it after open.
func (d *Disk) load() (out *Saved, err error) {
	defer faults()()
	defer guard("load "+d.path, &err)
	out = &Saved{}
	err = d.view(func(tx *bolt.Tx) error {
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

// storedAlloc is an allocation on disk. Its Job is encoded separately, not in Alloc.
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
	// b belongs to the mapped file, and the decoder may keep slices of its input.
	if err := rpc.Decode(append([]byte(nil), b...), v); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// PutAlloc implements Store.
func (d *Disk) PutAlloc(list ...*structs.Allocation) error {
	if len(list) == 0 {
		return nil
	}
	ops := make([]op, len(list))
	for i, a := range list {
		v, err := rpc.Encode(&storedAlloc{Alloc: a, Job: a.Job})
		if err != nil {
			return err
		}
		ops[i] = op{kind: opPut, alloc: a.ID.String(), key: keyAlloc, value: v}
	}
	return d.do(ops...)
}

// PutTask implements Store. It fails for an allocation that is not stored.
func (d *Disk) PutTask(id structs.AllocID, task string, r *TaskRecord) error {
	o, err := putTask(id, task, r)
	if err != nil {
		return err
	}
	return d.do(o)
}

func putTask(id structs.AllocID, task string, r *TaskRecord) (op, error) {
	v, err := rpc.Encode(r)
	return op{kind: opPut, alloc: id.String(), key: []byte(taskPrefix + task), value: v, must: true}, err
}

// PutTaskSoon implements Store.
func (d *Disk) PutTaskSoon(id structs.AllocID, task string, r *TaskRecord, failed func(error)) {
	o, err := putTask(id, task, r)
	if err == nil {
		err = d.enqueue(change{ops: []op{o}, done: func(err error) {
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
	return d.do(op{kind: opPut, alloc: id.String(), key: keyFinal, value: v, must: true})
}

// DeleteAlloc implements Store.
func (d *Disk) DeleteAlloc(id structs.AllocID) error {
	return d.do(op{kind: opDelete, alloc: id.String()})
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
	return d.do(op{kind: opAgent, key: key, value: b})
}

// ErrClosed is the error of writes after Close.
var ErrClosed = errors.New("the agent's state store is closed")

func (d *Disk) do(ops ...op) error {
	res := make(chan error, 1)
	if err := d.enqueue(change{ops: ops, done: func(err error) { res <- err }}); err != nil {
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

// write is the only writer. Changes that were queued during one commit go into the next. Waiting for the disk costs as
// much for a hundred changes as for one, so under load it waits a little for more.
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

// commit makes a batch durable: as one record of the log, or by a checkpoint if the log is full or fails. A change that
// is not allowed fails alone.
func (d *Disk) commit(batch []change) {
	if d.broken != nil {
		for _, c := range batch {
			c.done(d.broken)
		}
		return
	}
	record, asked := d.log.begun(), false
	good := make([]change, 0, len(batch))
	var undo undo
	for _, c := range batch {
		if missing := d.allow(c.ops, &undo); missing != "" {
			c.done(fmt.Errorf("write %s: allocation %s is not stored", d.path, missing))
			continue
		}
		for i := range c.ops {
			record = c.ops[i].encode(record)
		}
		asked = asked || len(c.ops) == 0
		good = append(good, c)
	}
	var err error
	logged := len(record) == recordHeader // nothing to write
	if !logged && !d.doubt && d.log.fits(record) {
		err = d.log.write(record)
		logged = err == nil
	}
	if logged {
		d.pending.addAll(good)
	}
	if fsync.Failed(err) {
		undo.undo(d.stored)
	} else if asked || !logged {
		rest := good
		if logged {
			rest = nil
		}
		if cerr := d.checkpoint(rest); cerr == nil {
			err = nil
		} else if err = errors.Join(err, cerr); !logged {
			undo.undo(d.stored)
		}
	}
	if err == nil {
		d.commits++
	} else if fsync.Failed(err) {
		d.broken = err
		if d.OnFailedSync != nil {
			d.OnFailedSync(err)
		}
	}
	for _, c := range good {
		d.changes += uint64(min(len(c.ops), 1))
		if logged && len(c.ops) > 0 {
			c.done(nil)
		} else {
			c.done(err)
		}
	}
}

// undo restores d.stored after a batch that failed.
type undo []struct {
	alloc string
	had   bool
}

func (u undo) undo(stored map[string]struct{}) {
	for _, x := range slices.Backward(u) {
		if delete(stored, x.alloc); x.had {
			stored[x.alloc] = struct{}{}
		}
	}
}

// allow updates the set of stored allocations. It returns the allocation that a change needs and that is not stored, or
// "".
func (d *Disk) allow(ops []op, u *undo) (missing string) {
	for _, o := range ops {
		_, had := d.stored[o.alloc]
		switch {
		case o.kind == opAgent || had && o.kind == opPut:
			continue
		case o.must:
			return o.alloc
		case o.kind == opDelete:
			delete(d.stored, o.alloc)
		default:
			d.stored[o.alloc] = struct{}{}
		}
		*u = append(*u, struct {
			alloc string
			had   bool
		}{o.alloc, had})
	}
	return ""
}

// checkpoint writes the content of the log, and more, to the database, and restarts the log.
func (d *Disk) checkpoint(more []change) error {
	generation := rand.Uint64()
	rest := newPending()
	rest.addAll(more)
	err := d.transact(func(tx *bolt.Tx) error {
		return errors.Join(d.pending.store(tx), rest.store(tx), begin(tx, generation))
	})
	if err != nil {
		d.doubt = true
		return fmt.Errorf("write %s: %w", d.path, err)
	}
	d.doubt, d.pending = false, newPending()
	d.log.begin(generation)
	d.checkpoints++
	return nil
}

func (d *Disk) transact(fn func(*bolt.Tx) error) (err error) {
	defer guard("write", &err)
	return fsync.Commit(d.path, d.db.Update(fn))
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
	defer faults()()
	if d.broken != nil { // the next agent finds what was acknowledged in the log
		return errors.Join(d.broken, d.log.file.Close(), d.db.Close())
	}
	// If this fails, the next agent finds everything in the log.
	err := d.transact(func(tx *bolt.Tx) error {
		return errors.Join(d.pending.store(tx), tx.Bucket(bucketAgent).Delete(keyLog))
	})
	if err == nil {
		err = os.Remove(logPath(d.path))
	}
	return errors.Join(err, d.log.file.Close(), d.db.Close())
}
