package gpu

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The kernel's log is a second source of errors: the driver writes them there as well, even if its library no longer
// answers. An error from both sources counts once.

// kernelLog is the file of the kernel's messages; each read returns one.
const kernelLog = "/dev/kmsg"

// messageRE matches "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus." and the older
// form without "PCI:"; for a MIG instance the form is "Xid (PCI:0000:3b:00 GPU-I:05): 13".
var messageRE = regexp.MustCompile(`NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-9])?(?: GPU-I:([0-9]+))?\): ([0-9]+)(?:, pid=([0-9]{1,9}),)?`)

// parseXID reads an error from a kernel message. bus has the form of Device.Bus.
func parseXID(text string) (bus string, e Event, ok bool) {
	m := messageRE.FindStringSubmatch(text)
	if m == nil {
		return "", Event{}, false
	}
	domain, err := strconv.ParseUint(m[1], 16, 32)
	code, err2 := strconv.ParseInt(m[5], 10, 32)
	if err != nil || err2 != nil || code == 0 {
		return "", Event{}, false
	}
	e = Event{XID: code, GI: -1}
	if m[4] != "" {
		if e.GI, err = strconv.ParseInt(m[4], 10, 32); err != nil {
			return "", Event{}, false
		}
	}
	e.PID, _ = strconv.Atoi(m[6])
	return busID(uint32(domain), m[2], m[3]), e, true
}

func busID(domain uint32, bus, device string) string {
	d := strings.ToUpper(strconv.FormatUint(uint64(domain), 16))
	return strings.Repeat("0", 8-len(d)) + d + ":" + strings.ToUpper(bus) + ":" + strings.ToUpper(device) + ".0"
}

// readKernelLog handles the kernel's messages from now on, until ctx ends. Without read permission it returns.
func (n *NVIDIA) readKernelLog(ctx context.Context, path string) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	defer f.Close()
	n.readsKernel.Store(true)
	defer n.readsKernel.Store(false)
	_, _ = f.Seek(0, 2) // skip old messages; a pipe cannot seek and has none
	b := make([]byte, 8<<10)
	for ctx.Err() == nil {
		k, err := f.Read(b)
		if err != nil {
			if ctx.Err() != nil || !errors.Is(err, syscall.EPIPE) {
				return
			}
			continue // messages were overwritten before they were read
		}
		for line := range strings.Lines(string(b[:k])) {
			if bus, e, ok := parseXID(line); ok {
				n.kernelEvent(bus, e)
			}
		}
	}
}

// kernelEvent handles an error that the kernel reported for the GPU on a bus.
func (n *NVIDIA) kernelEvent(bus string, e Event) {
	n.mu.Lock()
	if n.snapshot != nil {
		for _, g := range n.snapshot.GPUs {
			if strings.EqualFold(g.Bus, bus) {
				e.UUID = g.UUID
			}
		}
	}
	n.mu.Unlock()
	if e.UUID != "" {
		n.event(e, true)
	}
}

// kernelFirst is how long an error that a program caused waits for the kernel's log, which names the process, when the
// driver's library reports it.
const kernelFirst = 500 * time.Millisecond

// libraryEvent handles an error that the driver's library reported.
func (n *NVIDIA) libraryEvent(e Event) {
	if e.XID == 0 || n.cfg.xidAction(e.XID) != XIDProgram || !n.readsKernel.Load() {
		n.event(e, false)
		return
	}
	time.AfterFunc(kernelFirst, func() {
		if n.ctx.Err() == nil {
			n.event(e, false)
		}
	})
}

// twiceWithin is the largest distance of two reports of the same error.
const twiceWithin = 10 * time.Second

// errorSource identifies an error and its source.
type errorSource struct {
	uuid   string
	xid    int64
	kernel bool
}

// errorKeysMax limits how many errors of one kind are remembered.
const errorKeysMax = 1000

// heard reports whether the other source has just reported the same error. Each report cancels one of the other source.
// The caller holds mu.
func (n *NVIDIA) heard(e Event, kernel bool, now time.Time) bool {
	for k, list := range n.recentErrors {
		for len(list) > 0 && now.Sub(list[0]) > twiceWithin {
			list = list[1:]
		}
		if n.recentErrors[k] = list; len(list) == 0 {
			delete(n.recentErrors, k)
		}
	}
	mine, other := errorSource{e.UUID, e.XID, kernel}, errorSource{e.UUID, e.XID, !kernel}
	if list := n.recentErrors[other]; len(list) > 0 {
		n.recentErrors[other] = list[1:]
		return true
	}
	if list := n.recentErrors[mine]; len(list) < errorKeysMax {
		n.recentErrors[mine] = append(list, now)
	}
	return false
}
