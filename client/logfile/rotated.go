package logfile

import (
	"os"
	"path/filepath"
	"time"

	"github.com/muster-sched/muster/client/taskfs"
)

// Rotated is a log that is being written: the files base.0, base.1 and so on, of which the newest are kept.
type Rotated struct {
	Dir  *taskfs.Dir
	Base string // name of the files without index
	Keep int    // number of files that are kept
	Flag int    // for opening the files: os.O_APPEND or 0

	File  *os.File // the newest file; nil before Use
	Index int      // its number
	Size  int64    // its size

	times     *os.File  // its index, see times.go; nil where there is none
	timesSize int64     // of the index
	noted     time.Time // of the last record; zero before this writer's first
}

// Wrote adds to the newest file's size what was written to its end at that time.
func (r *Rotated) Wrote(n int64, at time.Time) {
	if n > 0 {
		r.noteTime(at)
		r.Size += n
	}
}

// Newest returns the highest number of the files that exist, 0 if there are none.
func (r *Rotated) Newest() int {
	all, err := Indexes(r.Dir, r.Base)
	if err != nil || len(all) == 0 {
		return 0
	}
	return all[len(all)-1]
}

// Length returns the size of a file, 0 if there is none.
func (r *Rotated) Length(index int) int64 {
	info, err := r.Dir.Stat(name(r.Base, index))
	if err != nil {
		return 0
	}
	return info.Size()
}

// Use continues with the file of that number, and creates it if there is none.
func (r *Rotated) Use(index int) error {
	f, err := r.Dir.Output(name(r.Base, index), r.Flag)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	r.Close()
	r.File, r.Index, r.Size = f, index, st.Size()
	r.openTimes()
	return nil
}

// Next continues with the next file and removes those that are not kept.
func (r *Rotated) Next() error {
	if err := r.Use(r.Index + 1); err != nil {
		return err
	}
	all, err := Indexes(r.Dir, r.Base)
	if err != nil {
		return nil
	}
	for _, i := range all {
		if i <= r.Index-r.Keep {
			_ = r.Dir.Remove(timesName(r.Base, i))
			_ = r.Dir.Remove(name(r.Base, i)) // tried again at the next file
		}
	}
	return nil
}

// Close closes the newest file.
func (r *Rotated) Close() {
	if r.File != nil {
		r.File.Close()
		r.File = nil
	}
	r.closeTimes()
}

// Place splits the base of a log's paths into its directory, which is opened, and the base of its names.
func Place(base string) (*taskfs.Dir, string, error) {
	dir, err := taskfs.Open(filepath.Dir(base))
	return dir, filepath.Base(base), err
}
