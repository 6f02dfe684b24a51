package shim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/taskfs"
)

// File is the open file of one GPU. The task can write its content: a false value must harm only the task. It is read
// and written, not mapped: a task may truncate it, and a mapping would then crash the agent.
type File struct{ f *os.File }

// ErrGone means that the library or file has been removed or changed.
var ErrGone = errors.New("the share's file is gone")

// Open opens the file of a GPU in a directory that Place has filled.
func Open(dir, uuid string) (*File, error) {
	at, err := below(dir, (*taskfs.Dir).Sub)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, err
	}
	defer at.Close()
	if _, err := at.Stat(Library); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrGone, Library)
	}
	f, err := at.Update(uuid, os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, taskfs.ErrNotRegular) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || st.Size() != fileSize {
		f.Close()
		return nil, fmt.Errorf("%w: %s has another size", ErrGone, uuid)
	}
	return &File{f}, nil
}

// Close closes the file.
func (f *File) Close() { f.f.Close() }

// Usage is the content of a file.
type Usage struct {
	LimitBytes     int64
	UsedBytes      int64 // recorded by the task's processes
	UntrackedBytes int64 // added by the agent
	PeakBytes      int64 // of both together
	Denied         int64 // allocations refused
	Processes      []Process
}

// Process is what one process has recorded. PID is its number in the pid namespace NS.
type Process struct {
	PID       int
	Start     uint64 // ticks since boot
	NS        uint64
	UsedBytes int64

	slot int64
}

// believed limits a number that a task may have written.
func believed(v uint64) int64 { return int64(min(v, 1<<50)) }

// Read reads the file.
func (f *File) Read() (Usage, error) {
	b := make([]byte, fileSize)
	if _, err := f.f.ReadAt(b, 0); err != nil {
		return Usage{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	u64 := func(at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
	if u64(0) != magic {
		return Usage{}, fmt.Errorf("%w: it has been overwritten", ErrGone)
	}
	u := Usage{LimitBytes: believed(u64(atLimit)), UntrackedBytes: believed(u64(atUntracked)), PeakBytes: believed(u64(atPeak)), Denied: believed(u64(atDenied))}
	for i := range slots {
		at := headerSize + i*slotSize
		pid, used := binary.NativeEndian.Uint32(b[at:]), believed(u64(at+slotUsed))
		if pid == 0 {
			continue
		}
		u.UsedBytes = min(u.UsedBytes+used, 1<<50)
		u.Processes = append(u.Processes, Process{PID: int(pid), Start: u64(at + slotStart), NS: u64(at + slotNS), UsedBytes: used, slot: int64(at)})
	}
	return u, nil
}

func (f *File) put(at int64, v uint64) error {
	_, err := f.f.WriteAt(binary.NativeEndian.AppendUint64(nil, v), at)
	return err
}

// SetLimit changes the share.
func (f *File) SetLimit(bytes int64) error { return f.put(atLimit, uint64(bytes)) }

// SetUntracked stores how much memory is held beyond what the task's processes have recorded.
func (f *File) SetUntracked(bytes int64) error { return f.put(atUntracked, uint64(max(bytes, 0))) }

// Sweep frees the records of dead processes and returns their number. While a process of the task holds the file's lock
// nothing is swept until the next call.
func (f *File) Sweep(list []Process, gone func(Process) bool) (int, error) {
	var dead []Process
	for _, p := range list {
		if gone(p) {
			dead = append(dead, p)
		}
	}
	if len(dead) == 0 {
		return 0, nil
	}
	if err := unix.Flock(int(f.f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return 0, nil
	}
	defer unix.Flock(int(f.f.Fd()), unix.LOCK_UN)
	n := 0
	b := make([]byte, slotSize)
	for _, p := range dead {
		if _, err := f.f.ReadAt(b, p.slot); err != nil {
			return n, fmt.Errorf("%w: %w", ErrGone, err)
		}
		if binary.NativeEndian.Uint32(b) != uint32(p.PID) || binary.NativeEndian.Uint64(b[slotStart:]) != p.Start {
			continue // swept, and reused by another process
		}
		if err := f.put(p.slot+slotUsed, 0); err != nil {
			return n, err
		}
		if err := f.put(p.slot, 0); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
