// Package procfile reads and writes small kernel files: those of /proc and of control groups. It needs three system
// calls. Package os makes twice as many, because it registers every file with the poller, and a task's start and end
// touch dozens of them.
package procfile

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Read returns the whole content of a file.
func Read(path string) ([]byte, error) {
	fd, err := open(path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 0, 512)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return buf, &os.PathError{Op: "read", Path: path, Err: err}
		case n == 0:
			return buf, nil
		default:
			buf = buf[:len(buf)+n]
		}
	}
}

// Of reads a file of a process: Of(1, "stat") is /proc/1/stat.
func Of(pid int, file string) ([]byte, error) { return Read("/proc/" + strconv.Itoa(pid) + "/" + file) }

// Write writes a text in one system call, as the kernel's files require.
func Write(path, text string) error {
	fd, err := open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Write(fd, []byte(text))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "write", Path: path, Err: err}
		}
		return nil
	}
}

func open(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return fd, nil
	}
}
