package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Disk is a small file system on a loop device, or in memory, that can be filled, frozen and broken.
type Disk struct {
	Dir string // where it is mounted

	t      testing.TB
	loop   string // device; "" for one in memory
	image  string // file behind the device
	bytes  int64
	frozen bool
}

// FS_IOC_FREEZE and its opposite; golang.org/x/sys has no names for them.
const (
	ioctlFreeze = 0xC0045877
	ioctlThaw   = 0xC0045878
)

// NewDisk mounts an ext4 file system of so many bytes at dir, or skips the test where that is not possible.
func NewDisk(t testing.TB, dir string, bytes int64) *Disk {
	t.Helper()
	d := &Disk{Dir: dir, t: t, image: dir + ".image", bytes: bytes}
	t.Cleanup(d.Close)
	if err := d.make(); err != nil {
		NotRun(t, "a disk on a loop device: "+err.Error())
	}
	return d
}

// NewMemoryDisk mounts a file system in memory. It can be filled, but neither frozen nor broken.
func NewMemoryDisk(t testing.TB, dir string, bytes int64) *Disk {
	t.Helper()
	d := &Disk{Dir: dir, t: t, bytes: bytes}
	t.Cleanup(d.Close)
	if err := d.make(); err != nil {
		NotRun(t, "a disk in memory: "+err.Error())
	}
	return d
}

func (d *Disk) make() error {
	if err := os.MkdirAll(d.Dir, 0o700); err != nil {
		return err
	}
	if d.image == "" {
		return unix.Mount("muster-test", d.Dir, "tmpfs", 0, fmt.Sprintf("size=%d", d.bytes))
	}
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(d.image, d.bytes); err != nil {
		return err
	}
	loop, err := output("losetup", "-f", "--show", d.image)
	if err != nil {
		return err
	}
	d.loop = loop
	if _, err := output("mkfs.ext4", "-q", "-O", "^has_journal", loop); err != nil {
		return err
	}
	return unix.Mount(loop, d.Dir, "ext4", 0, "")
}

func output(name string, args ...string) (string, error) {
	b, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, b)
	}
	return strings.TrimSpace(string(b)), nil
}

// CanBreak reports whether the disk can be frozen and broken.
func (d *Disk) CanBreak() bool { return d.loop != "" }

func (d *Disk) ballast() string { return filepath.Join(d.Dir, "ballast") }

// Fill uses up all room.
func (d *Disk) Fill() {
	f, err := os.Create(d.ballast())
	if err != nil {
		return // it is full
	}
	defer f.Close()
	for b := make([]byte, 4096); err == nil; {
		_, err = f.Write(b)
	}
}

// Free gives the room back that Fill used.
func (d *Disk) Free() { _ = os.Remove(d.ballast()) }

// Freeze makes every write wait, as a controller does that has stopped. Thaw ends it.
func (d *Disk) Freeze() {
	d.t.Helper()
	d.t.Cleanup(d.Thaw) // a process that waits for a frozen disk cannot be killed
	d.freeze(true)
}

// Thaw undoes Freeze.
func (d *Disk) Thaw() { d.freeze(false) }

func (d *Disk) freeze(on bool) {
	d.t.Helper()
	if on == d.frozen {
		return
	}
	f, err := os.Open(d.Dir)
	if err == nil {
		request := uint(ioctlThaw)
		if on {
			request = ioctlFreeze
		}
		err = unix.IoctlSetInt(int(f.Fd()), request, 0)
		f.Close()
	}
	if err != nil {
		d.t.Fatalf("freeze %s: %v", d.Dir, err)
	}
	d.frozen = on
}

// Break shrinks the device to its first half. What lies behind cannot be read or written: input/output errors.
func (d *Disk) Break() {
	d.t.Helper()
	if err := os.Truncate(d.image, d.bytes/2); err != nil {
		d.t.Fatal(err)
	}
	if _, err := output("losetup", "-c", d.loop); err != nil {
		d.t.Fatal(err)
	}
}

// Replace puts a new, empty disk in the place of the old one. No process may use it.
func (d *Disk) Replace() {
	d.t.Helper()
	d.Close()
	if err := d.make(); err != nil {
		d.t.Fatal(err)
	}
}

// Close unmounts the disk.
func (d *Disk) Close() {
	if d.frozen {
		d.Thaw()
	}
	for range 100 {
		if err := unix.Unmount(d.Dir, 0); err != syscall.EBUSY {
			break
		}
		time.Sleep(20 * time.Millisecond) // a process that was killed has not ended
	}
	_ = unix.Unmount(d.Dir, unix.MNT_DETACH)
	if d.loop != "" {
		_ = exec.Command("losetup", "-d", d.loop).Run()
		d.loop = ""
	}
}
