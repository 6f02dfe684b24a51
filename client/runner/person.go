package runner

import (
	"context"
	"fmt"
	"maps"
	"os/user"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/users"
	"github.com/muster-sched/muster/structs"
)

// RunAs says which users tasks may name. A pattern is a user name (with * and ? as in a shell), "@GROUP" for the
// members of a group of the node, or SubmitterName.
type RunAs struct {
	Allow []string // nil: every user who is not denied
	Deny  []string // wins over Allow; it also denies the same user under another name or number
}

// SubmitterName is the pattern for the job's submitter, whom the servers know by the token. Without access control the
// submitter is unknown, and the pattern matches no user.
const SubmitterName = "submitter"

// may returns an error if a task may not run as u. name is the user as the job spells it.
func (x *RunAs) may(name string, u *user.User, by structs.Submitter) error {
	if x == nil {
		return nil
	}
	for _, no := range x.Deny {
		same := false
		if d, err := lookUser(no); err == nil {
			same = d.Uid == u.Uid
		}
		if same || isUser(no, u, by) {
			return fmt.Errorf("this node does not let tasks run as %q (client, run_as, deny)", name)
		}
	}
	if x.Allow == nil || slices.ContainsFunc(x.Allow, func(p string) bool { return isUser(p, u, by) }) {
		return nil
	}
	who := "an unknown user: access control is off"
	if !by.Accessor.IsZero() {
		who = strconv.Quote(by.Name)
	}
	return fmt.Errorf("this node does not let the task run as %q: allowed are %s (client, run_as), and the job was submitted by %s", name, strings.Join(x.Allow, ", "), who)
}

// isUser reports whether a pattern matches a user.
func isUser(pattern string, u *user.User, by structs.Submitter) bool {
	if pattern == SubmitterName {
		return !by.Accessor.IsZero() && by.Name == u.Username
	}
	if group, ok := strings.CutPrefix(pattern, "@"); ok {
		g, err := user.LookupGroup(group)
		if err != nil {
			return false
		}
		ids, err := users.Groups(u)
		return err == nil && slices.Contains(ids, g.Gid)
	}
	ok, err := path.Match(pattern, u.Username)
	return err == nil && ok
}

// lookUser finds a user of the node by name or number. A number without an account is a user, too.
func lookUser(name string) (*user.User, error) {
	u, err := users.Lookup(name)
	if err == nil {
		return u, nil
	}
	if u, ierr := users.LookupID(name); ierr == nil {
		return u, nil
	}
	if n, nerr := strconv.ParseUint(name, 10, 32); nerr == nil {
		id := strconv.FormatUint(n, 10)
		return &user.User{Uid: id, Gid: id, Username: id}, nil
	}
	return nil, driver.Permanent(fmt.Errorf("this node has no user %q", name))
}

// setPerson sets the working directory and the umask that the job asks for.
func setPerson(_ context.Context, a *attempt) error {
	a.config.WorkDir = a.env.Replace(a.spec.WorkDir)
	if d := a.config.WorkDir; d != "" && !filepath.IsAbs(d) {
		return driver.Permanent(fmt.Errorf("work_dir %q is not absolute", d))
	}
	if a.spec.Umask != "" {
		m, err := structs.ParseUmask(a.spec.Umask)
		if err != nil {
			return driver.Permanent(err)
		}
		a.config.Umask = &m
	}
	return nil
}

// setRDMA gives the task the RDMA devices that it asks for, and lifts the limit on locked memory: registering memory
// locks it.
func setRDMA(_ context.Context, a *attempt) error {
	res := a.spec.Resources
	a.config.Ulimits = maps.Clone(res.Ulimits)
	if !res.RDMA {
		return nil
	}
	if a.config.Ulimits == nil {
		a.config.Ulimits = map[string]string{}
	}
	if a.config.Ulimits[structs.UlimitMemlock] == "" {
		a.config.Ulimits[structs.UlimitMemlock] = "unlimited"
	}
	if a.task.r.cfg.Host.RDMAFiles == nil {
		return nil // a simulated node
	}
	files, err := a.task.r.cfg.Host.RDMAFiles()
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("the task asks for RDMA and this node has no such devices any more")
	}
	a.config.Resources.RDMA = files
	return nil
}

// setLauncher starts a main task through the agent's launcher if the group asks for ranks or the task for its own log
// file.
func setLauncher(_ context.Context, a *attempt) error {
	ranks := a.gang != nil && a.gang.Launch.InRanks() && roleOf(a.spec) == roleMain
	if a.task.r.cfg.Host.Launcher == "" {
		return nil
	}
	paths := []string{a.spec.LogPath, a.spec.LogErrorPath}
	if !ranks && paths[0] == "" && paths[1] == "" {
		return nil
	}
	a.config.Launcher = a.task.r.cfg.Host.Launcher
	if !ranks {
		a.config.LauncherArgs = append(a.config.LauncherArgs, "-single")
	}
	for i, flag := range []string{"-log", "-log-error"} {
		if paths[i] == "" {
			continue
		}
		p, err := a.logPath(paths[i], ranks)
		if err != nil {
			return driver.Permanent(err)
		}
		a.config.LauncherArgs = append(a.config.LauncherArgs, flag, p)
	}
	return nil
}

// logPath expands the placeholders of a log path that are the same for all ranks. The launcher expands the others.
func (a *attempt) logPath(template string, ranks bool) (string, error) {
	al := a.task.r.Alloc()
	member := 0
	if a.gang != nil {
		member = a.gang.Rank
	}
	plain := func(s string) string { // a name must not add a placeholder or a directory
		return strings.NewReplacer("%", "%%", "/", "_").Replace(s)
	}
	return structs.ExpandPath(a.env.Replace(template), func(word byte) (string, bool) {
		switch word {
		case 'j', 'A':
			return plain(al.JobID), true
		case 'x':
			return plain(al.Job.Name), true
		case 'N':
			return plain(a.task.r.cfg.Host.Node().Name), true
		case 'n':
			return strconv.Itoa(member), true
		case 'a':
			return strconv.Itoa(al.NameIndex), true
		case 'u':
			if a.owner.UID >= 0 {
				if u, err := users.LookupID(strconv.Itoa(a.owner.UID)); err == nil {
					return plain(u.Username), true
				}
				return strconv.Itoa(a.owner.UID), true
			}
			if u, err := user.Current(); err == nil {
				return plain(u.Username), true
			}
			return "", true
		case 't':
			if !ranks {
				return strconv.Itoa(member), true
			}
		}
		return "", false
	})
}
