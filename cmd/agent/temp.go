package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/netns"
)

// tempPrefix begins the name of a temporary data directory.
const tempPrefix = "muster-dev-"

// networkDir returns where the client part of an agent keeps the networks of allocations.
func networkDir(clientDir string) string { return filepath.Join(clientDir, "network") }

// RemoveTemp removes what an agent that was killed has left of its temporary data directory, once its tasks have ended:
// the networks of allocations, and the directory itself.
func RemoveTemp(dir string) error {
	if !strings.HasPrefix(filepath.Base(dir), tempPrefix) {
		return fmt.Errorf("%s is not a temporary data directory", dir)
	}
	var err error
	networks := networkDir(filepath.Join(dir, "client"))
	if _, serr := os.Stat(networks); serr == nil {
		var m *netns.Manager
		if m, err = netns.New(netns.Config{Dir: networks}); err == nil {
			err = errors.Join(m.Sweep(func(string) bool { return false }), m.Close())
		}
	}
	return errors.Join(err, removeTemp(dir))
}

// removeTemp removes a temporary data directory, after what is mounted in it.
func removeTemp(dir string) error {
	unmountBelow(dir)
	return os.RemoveAll(dir)
}

// unmountBelow unmounts what is mounted below a directory: tasks' secrets are on memory file systems. An allocation unmounts its own
// when it ends, but an agent that ends does not wait for that.
func unmountBelow(dir string) {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
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
}
