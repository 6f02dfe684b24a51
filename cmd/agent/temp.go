package agent

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// removeTemp removes a temporary data directory. It first unmounts what is mounted in it: tasks' secrets are on memory
// file systems.
func removeTemp(dir string) error {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	var points []string
	for _, line := range strings.Split(string(b), "\n") {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		p := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[4])
		if strings.HasPrefix(p, dir+"/") {
			points = append(points, p)
		}
	}
	slices.Reverse(points) // unmount in reverse order
	for _, p := range points {
		_ = unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	return os.RemoveAll(dir)
}
