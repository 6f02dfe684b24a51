package logfile

import (
	"encoding/binary"
	"io"
	"os"
	"sort"
	"time"

	"github.com/muster-sched/muster/client/taskfs"
)

// Each file of a log, base.N, has an index .base.N.times of when its parts were written. It consists of records of
// timeSize bytes, each an offset in base.N and the time of the write that began there, in Unix nanoseconds, both
// little-endian. A part reaches to the next record, so its end was written later than its time says: by at most
// timeApart, or by timeCoarse where the index is larger than timesFree and than a quarter of the log.
const (
	timeSize   = 16
	timeApart  = 100 * time.Millisecond
	timeCoarse = time.Second
	timesFree  = 256 << 10
	timesMax   = 16 << 20 // bytes of an index that are read: a task may have written it
)

// moment is a record of an index.
type moment struct {
	offset int64
	at     int64 // Unix nanoseconds
}

func timesName(base string, index int) string { return "." + name(base, index) + ".times" }

// noteTime records, where it is due, that a write began at the file's present size. Without an index, as on a full disk,
// the log continues.
func (r *Rotated) noteTime(now time.Time) {
	if r.times == nil {
		return
	}
	apart := timeApart
	if r.timesSize > max(timesFree, r.Size/4) {
		apart = timeCoarse
	}
	if since := now.Sub(r.noted); since >= 0 && since < apart { // the clock may have been set back
		return
	}
	var b [timeSize]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(r.Size))
	binary.LittleEndian.PutUint64(b[8:], uint64(now.UnixNano()))
	n, err := r.times.Write(b[:])
	switch {
	case err == nil:
		r.noted, r.timesSize = now, r.timesSize+timeSize
	case n > 0:
		r.closeTimes() // half a record would shift those after it
	}
}

// openTimes continues the index of the newest file.
func (r *Rotated) openTimes() {
	r.noted = time.Time{}
	f, err := r.Dir.Output(timesName(r.Base, r.Index), os.O_APPEND)
	if err != nil {
		return
	}
	st, err := f.Stat()
	whole := int64(0)
	if err == nil {
		whole = st.Size() - st.Size()%timeSize
		err = f.Truncate(whole)
	}
	if err != nil {
		f.Close()
		return
	}
	r.times, r.timesSize = f, whole
}

func (r *Rotated) closeTimes() {
	if r.times != nil {
		r.times.Close()
		r.times = nil
	}
}

// times are the records of one file, read as they are written.
type times struct {
	all  []moment
	read int64 // bytes of the index
}

// load reads the records that have been added.
func (t *times) load(dir *taskfs.Dir, base string, index int) {
	f, err := dir.Open(timesName(base, index))
	if err != nil {
		return // written before times were kept, or removed
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, t.read, timesMax-t.read))
	if err != nil {
		return
	}
	b = b[:len(b)-len(b)%timeSize]
	t.read += int64(len(b))
	for ; len(b) > 0; b = b[timeSize:] {
		m := moment{int64(binary.LittleEndian.Uint64(b)), int64(binary.LittleEndian.Uint64(b[8:]))}
		if k := len(t.all); k == 0 && m.offset >= 0 || k > 0 && m.offset > t.all[k-1].offset {
			t.all = append(t.all, m)
		}
	}
}

// late reports whether what was written at an offset must have a record that is not read yet: a writer makes it after the
// write, and the last one is too old to stand for it.
func (t *times) late(off int64, now time.Time) bool {
	k := len(t.all)
	return k > 0 && t.all[k-1].offset < off && now.UnixNano()-t.all[k-1].at > int64(timeCoarse)
}

// part returns when what is at an offset was written, 0 if that is not known, and where the next part begins.
func (t *times) part(off int64) (at, end int64) {
	i := sort.Search(len(t.all), func(i int) bool { return t.all[i].offset > off })
	end = 1<<63 - 1
	if i < len(t.all) {
		end = t.all[i].offset
	}
	if i > 0 {
		at = t.all[i-1].at
	}
	return at, end
}

// since returns where what was written at a time or later begins; ok is false if all is older.
func (t *times) since(at time.Time) (off int64, ok bool) {
	least := at.Add(-timeApart).UnixNano() // a record stands for so long
	for _, m := range t.all {
		if m.at >= least {
			return m.offset, true
		}
	}
	return 0, false
}
