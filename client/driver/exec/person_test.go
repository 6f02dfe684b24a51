package exec

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	osexec "os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-sched/muster/client/driver"
)

// newUser makes a real user of this machine for the length of the test.
func newUser(t *testing.T) (name string, uid, gid int) {
	t.Helper()
	name = fmt.Sprintf("mt%d", os.Getpid())
	if out, err := osexec.Command("useradd", "--no-create-home", name).CombinedOutput(); err != nil {
		t.Skipf("not run: cannot make a user: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = osexec.Command("userdel", name).Run() })
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	uid, _ = strconv.Atoi(u.Uid)
	gid, _ = strconv.Atoi(u.Gid)
	return name, uid, gid
}

// TestRunsAsItsSubmitterWould starts a task of two ranks as a real user in a directory that only that user may enter, with a
// umask, and logs that grow there, rank by rank.
func TestRunsAsItsSubmitterWould(t *testing.T) {
	n := newNode(t)
	name, uid, gid := newUser(t)
	home := filepath.Join(n.dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(home, uid, gid); err != nil {
		t.Fatal(err)
	}
	mask := uint32(0o027)
	config := func(script string) *driver.TaskConfig {
		cfg := n.config(script)
		cfg.Dirs.HideDir = ""
		cfg.User, cfg.WorkDir, cfg.Umask = name, home, &mask
		return cfg
	}
	for _, d := range []driver.Driver{n.exec, n.raw} {
		t.Run(d.Name(), func(t *testing.T) {
			cfg := config(`echo "$(id -un) $(pwd) $(umask)"; : >made-$RANK-` + d.Name() + `; [ $RANK = 1 ] || sleep 300`)
			cfg.Env()["MUSTER_RANKS"] = "2"
			cfg.Launcher = fmt.Sprintf("/proc/%d/exe", os.Getpid())
			cfg.LauncherArgs = []string{"-log", home + "/" + d.Name() + "-%t.log"}
			task := n.run(d, cfg)
			defer task.Stop(t.Context(), "", -1)
			says := fmt.Sprintf("%s %s 0027\n", name, home)
			for _, rank := range []string{"0", "1"} {
				log := filepath.Join(home, d.Name()+"-"+rank+".log")
				within(t, 20e9, "the log of rank "+rank+" grows", func() bool {
					b, _ := os.ReadFile(log)
					return string(b) == says
				})
				for _, file := range []string{log, filepath.Join(home, "made-"+rank+"-"+d.Name())} {
					within(t, 5e9, file, func() bool { _, err := os.Stat(file); return err == nil })
					st, err := os.Stat(file)
					if err != nil {
						t.Fatal(err)
					}
					if own := st.Sys().(*syscall.Stat_t); st.Mode() != fs.FileMode(0o640) || int(own.Uid) != uid || int(own.Gid) != gid {
						t.Errorf("%s has mode %s and owner %d:%d, want 0640 and %d:%d", file, st.Mode(), own.Uid, own.Gid, uid, gid)
					}
				}
			}
			within(t, 5e9, "the agent's own log", func() bool {
				return strings.Contains(stdout(cfg), "0: "+says) && strings.Contains(stdout(cfg), "1: "+says)
			})
			var out strings.Builder
			code, err := task.Exec(t.Context(), driver.ExecRequest{Command: []string{"/bin/sh", "-c", "echo $(id -un) $(pwd) $(umask)"}, Stdout: &out})
			if err != nil || code != 0 || out.String() != says {
				t.Errorf("a command in the task: %d, %v, %q, want %q", code, err, out.String(), says)
			}
		})
	}
	t.Run("commands beside the directory", func(t *testing.T) {
		script := filepath.Join(n.dir, "beside.sh")
		if err := os.WriteFile(script, []byte("#!/bin/sh\necho ran in $(pwd)\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct{ dir, command, want string }{
			{home, "../beside.sh", "ran in " + home},
			{n.dir + "/", "./beside.sh", "ran in " + n.dir},
			{home + "/../", "beside.sh", "ran in " + n.dir},
			{"/", "pwd", "/"},
			{"/", "bin/pwd", "/"},
		} {
			t.Run(c.command, func(t *testing.T) {
				cfg := config("")
				cfg.WorkDir = c.dir
				cfg.Config = map[string]any{"command": c.command}
				if r := n.wait(n.run(n.exec, cfg)); r.ExitCode != 0 || strings.TrimSpace(stdout(cfg)) != c.want {
					t.Errorf("%s in %s: %+v, %q%s, want %q", c.command, c.dir, r, stdout(cfg), stderr(cfg), c.want)
				}
			})
		}
	})
	t.Run("refused", func(t *testing.T) {
		for what, c := range map[string]struct {
			change func(*driver.TaskConfig)
			want   string
		}{
			"no such user":      {func(c *driver.TaskConfig) { c.User = "no-such-user" }, `user "no-such-user" does not exist on this node`},
			"no such directory": {func(c *driver.TaskConfig) { c.WorkDir = home + "/none" }, "does not exist on this node"},
			"not a directory":   {func(c *driver.TaskConfig) { c.WorkDir = "/etc/passwd" }, "is not a directory"},
			"not theirs":        {func(c *driver.TaskConfig) { c.User = "nobody" }, "permission denied (as the task's user)"},
			"a private /tmp":    {func(c *driver.TaskConfig) { c.WorkDir = "/tmp" }, "every task has its own /tmp"},
			"leads nowhere":     {func(c *driver.TaskConfig) { c.Config = map[string]any{"command": "../none"} }, "no such file"},
			"too many files":    {func(c *driver.TaskConfig) { c.Ulimits = map[string]string{"nofile": "unlimited"} }, "this node allows"},
		} {
			t.Run(what, func(t *testing.T) {
				cfg := config("true")
				c.change(cfg)
				if _, err := n.exec.Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, driver.ErrPermanent) {
					t.Errorf("%s: %v, want %q, for good", what, err, c.want)
				}
			})
		}
		cfg := config("echo ran")
		cfg.Launcher = fmt.Sprintf("/proc/%d/exe", os.Getpid())
		cfg.LauncherArgs = []string{"-single", "-log", "/etc/muster-must-not-be.log"}
		if r := n.wait(n.run(n.exec, cfg)); r.ExitCode != 73 || stdout(cfg) != "" || !strings.Contains(stderr(cfg), "permission denied") {
			t.Errorf("a log that the user may not write: %+v, %q, %q", r, stdout(cfg), stderr(cfg))
		}
	})
}

// TestGroupsOfTheSubmitterOnly: a task has the other groups of its user only if the runner says that they are the
// submitter.
func TestGroupsOfTheSubmitterOnly(t *testing.T) {
	n := newNode(t)
	name, _, gid := newUser(t)
	if out, err := osexec.Command("usermod", "-aG", "daemon", name).CombinedOutput(); err != nil {
		t.Skipf("not run: cannot change the groups of a user: %v: %s", err, out)
	}
	daemon, err := user.LookupGroup("daemon")
	if err != nil {
		t.Skipf("not run: %v", err)
	}
	for _, d := range []driver.Driver{n.exec, n.raw} {
		for _, own := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s: %v", d.Name(), own), func(t *testing.T) {
				cfg := n.config("id -G")
				cfg.User, cfg.UserGroups = name, own
				want := strconv.Itoa(gid)
				if own {
					want += " " + daemon.Gid
				}
				if r := n.wait(n.run(d, cfg)); r.ExitCode != 0 || strings.TrimSpace(stdout(cfg)) != want {
					t.Errorf("%+v: groups %q, want %q; %s", r, stdout(cfg), want, stderr(cfg))
				}
			})
		}
	}
}
