// Package shim is the agent's side of the library that enforces shares of GPU memory (backend "shim"; src/shim.c and
// its parts, committed as shim_<arch>.so). A task gets a directory with a copy of the library, which is preloaded into
// its programs, and a file for each of its GPUs: the share, the memory recorded by process, and what the driver counts
// beyond that. The library finds the files next to itself, so that no environment variable can redirect it.
//
// Programs that are linked statically, or with a C library other than glibc, do not load it, and a program can avoid it
// deliberately. The agent therefore also monitors what the driver reports.
package shim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/muster-sched/muster/client/taskfs"
)

// Built says why this program has no library for tasks, or "".
func Built() string {
	if len(image) == 0 {
		return "not built in"
	}
	return ""
}

// Library is the name of the library's file.
const Library = "libmuster-gpu.so"

// Env is the variable that makes the dynamic linker load the library.
const Env = "LD_PRELOAD"

// Preload returns the value of Env: the library in dir before the task's own.
func Preload(dir, own string) string {
	lib := filepath.Join(dir, Library)
	if own = strings.TrimSpace(own); own == "" {
		return lib
	}
	return lib + ":" + own
}

// Layout of a file; struct quota of src/share.h must match.
const (
	magic      = 0x31544f5551474d4d
	slots      = 1023
	slotSize   = 32
	headerSize = 64
	fileSize   = headerSize + slots*slotSize

	atLimit     = 8
	atUntracked = 16
	atPeak      = 24
	atDenied    = 32

	slotStart = 8
	slotNS    = 16
	slotUsed  = 24
)

// below opens a task's directory and the one around it with open. They are below one that a container's root may write
// to.
func below(dir string, open func(in *taskfs.Dir, path string) (*taskfs.Dir, error)) (*taskfs.Dir, error) {
	parent := filepath.Dir(dir)
	shared, err := taskfs.Open(filepath.Dir(parent))
	if err != nil {
		return nil, err
	}
	defer shared.Close()
	return open(shared, filepath.Join(filepath.Base(parent), filepath.Base(dir)))
}

// Write writes only the library into a directory of the agent, for drivers that mount it over the task's own copy in a
// container, and returns its path.
func Write(dir string) (string, error) {
	if why := Built(); why != "" {
		return "", errors.New("the library for shares of GPU memory is " + why)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	name := filepath.Join(dir, Library)
	if b, err := os.ReadFile(name); err == nil && bytes.Equal(b, image) {
		return name, nil
	}
	at, err := taskfs.Open(dir)
	if err != nil {
		return "", err
	}
	defer at.Close()
	return name, at.Replace(Library, image, 0o755, taskfs.Agent)
}

// Place writes library and files into dir, which the agent owns: tasks can read and write the files, but neither remove
// nor replace them. limits are bytes by UUID. Existing files stay, with a new limit.
func Place(dir string, limits map[string]int64) error {
	if why := Built(); why != "" {
		return errors.New("the library for shares of GPU memory is " + why)
	}
	at, err := below(dir, func(in *taskfs.Dir, path string) (*taskfs.Dir, error) { return in.MakeAll(path, 0o755) })
	if err != nil {
		return err
	}
	defer at.Close()
	if st, err := at.Stat(Library); err != nil || st.Size() != int64(len(image)) {
		if err := at.Replace(Library, image, 0o755, taskfs.Agent); err != nil {
			return fmt.Errorf("place the library for shares of GPU memory: %w", err)
		}
	}
	for uuid, limit := range limits {
		if uuid == "" || uuid != filepath.Base(uuid) {
			return fmt.Errorf("GPU %q cannot have a file", uuid)
		}
		if st, err := at.Stat(uuid); err != nil || st.Size() != fileSize {
			b := make([]byte, fileSize)
			binary.NativeEndian.PutUint64(b, magic)
			binary.NativeEndian.PutUint64(b[atLimit:], uint64(limit))
			if err := at.Replace(uuid, b, 0o666, taskfs.Agent); err != nil {
				return fmt.Errorf("write the share of GPU %s: %w", uuid, err)
			}
			continue
		}
		f, err := Open(dir, uuid)
		if err != nil {
			return err
		}
		err = f.SetLimit(limit)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
