package agentstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/internal/fsync"
)

// The log is a write-ahead log in front of the database. A commit of bbolt writes each page that a change has touched,
// and the changes of tasks that start and end together touch as many pages as there are tasks: that was a fifth of what
// a short task cost the agent. So changes are acknowledged once they are in the log, with one write and one sync for
// all that came together, and reach the database in a checkpoint, when the log is full or the store is closed. By then
// most are obsolete: a task that has ended was starting and running before, and what was deleted is never written at
// all.
//
//	change -> record in the log, synced -> acknowledged -> pending -> checkpoint: database committed, log restarted
//
// The database names the generation of its log; records of another generation are not read. A checkpoint and the change
// of the generation are one transaction, so that a kill at any instant leaves either the records or their effect. Close
// writes the last checkpoint and removes the name of the log.

// LogName is the name of the log file, next to the database.
const LogName = "client.log"

const (
	// logMax is the largest size of the log. A batch that does not fit goes to the database directly.
	logMax = 4 << 20
	// logStep is the size by which the log grows: a file that need not grow is cheaper to sync.
	logStep      = 256 << 10
	recordMagic  = 0x4d4c4f47
	recordHeader = 32 // magic, checksum of all that follows it, generation, number, length, 0
)

// Kinds of operations. The numbers never change.
const (
	opPut    = 1 // sets a value of an allocation, which is created if absent
	opDelete = 2 // deletes an allocation with all its values
	opAgent  = 3 // sets a value of the agent
)

// op is one operation of a change.
type op struct {
	kind  byte
	alloc string // id; "" for the agent
	key   []byte
	value []byte
	// must means that the allocation has to exist. It is not in the log, which holds only operations that were allowed.
	must bool
}

func (o *op) encode(b []byte) []byte {
	b = append(b, o.kind)
	for _, s := range [...][]byte{[]byte(o.alloc), o.key, o.value} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return b
}

var errRecord = errors.New("a record of the log is malformed")

// decodeOps reads the operations of a record. They alias b.
func decodeOps(b []byte) (ops []op, err error) {
	for len(b) > 0 {
		o := op{kind: b[0]}
		b = b[1:]
		var part [3][]byte
		for i := range part {
			n, w := binary.Uvarint(b)
			if w <= 0 || n > uint64(len(b)-w) {
				return nil, errRecord
			}
			part[i], b = b[w:w+int(n)], b[w+int(n):]
		}
		o.alloc, o.key, o.value = string(part[0]), part[1], part[2]
		if o.kind < opPut || o.kind > opAgent || (o.kind == opAgent) != (o.alloc == "") {
			return nil, errRecord
		}
		ops = append(ops, o)
	}
	return ops, nil
}

// logFile is the file of the log.
type logFile struct {
	file       *os.File
	generation uint64
	number     uint64 // of the next record
	at, size   int64
	buf        []byte // of the last record, reused
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openLog opens the log at path. With fresh it is created if absent, and its name is synced.
func openLog(path string, fresh bool) (*logFile, error) {
	flag := os.O_RDWR | unix.O_NOFOLLOW
	if fresh {
		flag |= os.O_CREATE
	}
	f, err := os.OpenFile(path, flag, 0o600)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err == nil && fresh {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &logFile{file: f, size: st.Size()}, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// replay returns the operations of a generation in order. Bytes after the last complete record were never acknowledged,
// unless a later record follows them: then something else than a crash has damaged the log, and lost says how many
// acknowledged records are unreadable or behind the damage.
func (l *logFile) replay(generation uint64) (all []op, lost uint64, err error) {
	b, err := io.ReadAll(io.NewSectionReader(l.file, 0, logMax))
	if err != nil {
		return nil, 0, err
	}
	number := uint64(0)
	for ; ; number++ {
		n, body := record(b, generation)
		if body == nil || n != number {
			return all, behind(b, generation, number), nil
		}
		ops, err := decodeOps(body)
		if err != nil {
			return nil, 0, err
		}
		all, b = append(all, ops...), b[recordHeader+len(body):]
	}
}

// record returns the number and the content of the record of a generation at the beginning of b; nil if there is none
// that is complete.
func record(b []byte, generation uint64) (number uint64, body []byte) {
	le := binary.LittleEndian
	if len(b) < recordHeader || le.Uint32(b) != recordMagic || le.Uint64(b[8:]) != generation {
		return 0, nil
	}
	n := uint64(le.Uint32(b[24:]))
	if n > uint64(len(b)-recordHeader) || crc32.Checksum(b[8:recordHeader+n], castagnoli) != le.Uint32(b[4:]) {
		return 0, nil
	}
	return le.Uint64(b[16:]), b[recordHeader : recordHeader+n]
}

// behind returns how many records from number on were acknowledged, judged by the newest one that can be found in b.
func behind(b []byte, generation, number uint64) (lost uint64) {
	magic := binary.LittleEndian.AppendUint32(nil, recordMagic)
	for at := bytes.Index(b, magic); at >= 0; {
		b = b[at:]
		next := 1
		if n, body := record(b, generation); body != nil && n >= number {
			lost, next = n-number+1, recordHeader+len(body)
		}
		b = b[next:]
		at = bytes.Index(b, magic)
	}
	return lost
}

// keepCopy writes a copy of the log for inspection, and returns its path.
func (l *logFile) keepCopy() (path string, err error) {
	if path, err = corruptName(l.file.Name()); err != nil {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(f, io.NewSectionReader(l.file, 0, logMax))
	return path, errors.Join(err, f.Sync(), f.Close())
}

// begin restarts the log.
func (l *logFile) begin(generation uint64) { l.generation, l.number, l.at = generation, 0, 0 }

// begun returns a record with an empty header and no content.
func (l *logFile) begun() []byte { return append(l.buf[:0], make([]byte, recordHeader)...) }

// fits reports whether the log has room for a record.
func (l *logFile) fits(record []byte) bool { return l.at+int64(len(record)) <= logMax }

// write writes a record and returns when it is on disk. After an error the record may or may not be there; the next one
// overwrites it.
func (l *logFile) write(record []byte) error {
	le := binary.LittleEndian
	n := len(record)
	le.PutUint32(record, recordMagic)
	le.PutUint64(record[8:], l.generation)
	le.PutUint64(record[16:], l.number)
	le.PutUint32(record[24:], uint32(n-recordHeader))
	le.PutUint32(record[4:], crc32.Checksum(record[8:], castagnoli))
	end := l.at + int64(n)
	if end > l.size { // write zeros ahead, so that blocks are allocated when they are needed
		record = append(record, make([]byte, (end+logStep-1)/logStep*logStep-end)...)
	}
	l.buf = record[:0]
	if _, err := l.file.WriteAt(record, l.at); err != nil {
		return err
	}
	if err := fsync.Error(l.file.Name(), fdatasync(l.file)); err != nil {
		return err
	}
	l.size = max(l.size, l.at+int64(len(record)))
	l.at, l.number = end, l.number+1
	return nil
}

func fdatasync(f *os.File) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := rc.Control(func(fd uintptr) {
		for {
			if serr = unix.Fdatasync(int(fd)); serr != unix.EINTR {
				return
			}
		}
	}); err != nil {
		return err
	}
	return serr
}

// pending holds the changes that are in the log and not in the database.
type pending struct {
	allocs map[string]*pendingAlloc
	agent  map[string][]byte
}

type pendingAlloc struct {
	deleted bool // before the values in put
	put     map[string][]byte
}

func newPending() pending {
	return pending{allocs: map[string]*pendingAlloc{}, agent: map[string][]byte{}}
}

// add applies an operation.
func (p *pending) add(o op) {
	if o.kind == opAgent {
		p.agent[string(o.key)] = o.value
		return
	}
	a := p.allocs[o.alloc]
	if a == nil {
		a = &pendingAlloc{}
		p.allocs[o.alloc] = a
	}
	if o.kind == opDelete {
		a.deleted, a.put = true, nil
		return
	}
	if a.put == nil {
		a.put = map[string][]byte{}
	}
	a.put[string(o.key)] = o.value
}

func (p *pending) addAll(list []change) {
	for _, c := range list {
		for _, o := range c.ops {
			p.add(o)
		}
	}
}

// count updates the set of stored allocations.
func (p *pending) count(stored map[string]struct{}) {
	for id, a := range p.allocs {
		if a.deleted {
			delete(stored, id)
		}
		if len(a.put) > 0 {
			stored[id] = struct{}{}
		}
	}
}

// store writes everything to the database.
func (p *pending) store(tx *bolt.Tx) error {
	agent := tx.Bucket(bucketAgent)
	for k, v := range p.agent {
		if err := agent.Put([]byte(k), v); err != nil {
			return err
		}
	}
	all := tx.Bucket(bucketAllocs)
	for id, a := range p.allocs {
		if a.deleted {
			if err := all.DeleteBucket([]byte(id)); err != nil && !errors.Is(err, berrors.ErrBucketNotFound) {
				return err
			}
		}
		if len(a.put) == 0 {
			continue
		}
		b, err := all.CreateBucketIfNotExists([]byte(id))
		if err != nil {
			return err
		}
		for k, v := range a.put {
			if err := b.Put([]byte(k), v); err != nil {
				return err
			}
		}
	}
	return nil
}
