package gpu

import (
	"regexp"
	"testing"
)

// FuzzKernelLog reads any line of the kernel's log: an error that is read names a GPU in the driver's form.
func FuzzKernelLog(f *testing.F) {
	f.Add("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.")
	f.Add("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 13")
	f.Add("NVRM: Xid (ffffffff:ff:ff.0): 99999999999999999999")
	bus := regexp.MustCompile(`^[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0$`)
	f.Fuzz(func(t *testing.T, line string) {
		if at, e, ok := parseXID(line); ok && (!bus.MatchString(at) || e.XID <= 0 || e.GI < -1) {
			t.Fatalf("%q is %q %+v", line, at, e)
		}
	})
}
