package runner

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/taskfs"
	"github.com/muster-sched/muster/client/users"
	"github.com/muster-sched/muster/structs"
)

// RunAs says which users tasks may name. A pattern is a user name (with * and ? as in a shell), "@GROUP" for the
// members of a group of the node, SubmitterName or TokenName.
type RunAs struct {
	Allow []string // nil: DefaultRunAs
	Deny  []string // wins over Allow; it also denies the same user under another name or number
}

// Patterns of RunAs that depend on who submitted the job.
const (
	// SubmitterName is the submitter, if they logged in as a user of a machine at an agent's unix socket, which proves
	// name and number. A token of the same name does not make its holder the submitter.
	SubmitterName = "submitter"
	// TokenName is the user with the name of the submitter's token. Operators choose the names of tokens.
	TokenName = "token-name"
)

// DefaultRunAs is what RunAs.Allow is without configuration: the home directories of a machine's other users stay theirs.
var DefaultRunAs = []string{SubmitterName, "nobody"}

// may returns an error if a task may not run as u. name is the user as the job spells it, own the number of the user
// that a task without a user would get: naming that one changes nothing.
func (x *RunAs) may(name string, u *user.User, own string, by structs.Submitter) error {
	rules := RunAs{}
	if x != nil {
		rules = *x
	}
	for _, no := range rules.Deny {
		same := false
		if d, err := lookUser(no); err == nil {
			same = d.Uid == u.Uid
		}
		if same || isUser(no, u, by) {
			return fmt.Errorf("this node does not let tasks run as %q (client, run_as, deny)", name)
		}
	}
	if rules.Allow == nil {
		rules.Allow = DefaultRunAs
	}
	if u.Uid == own || slices.ContainsFunc(rules.Allow, func(p string) bool { return isUser(p, u, by) }) {
		return nil
	}
	who := "an unknown user: access control is off"
	if !by.Accessor.IsZero() {
		who = strconv.Quote(by.Name)
		if by.UID < 0 {
			who += ", who did not log in as a user of a machine"
		}
	}
	return fmt.Errorf("this node does not let the task run as %q: allowed are %s (client, run_as, allow), and the job was submitted by %s", name, strings.Join(rules.Allow, ", "), who)
}

// isSubmitter reports whether a user is the one who submitted a job, proved by a login at an agent's unix socket.
func isSubmitter(u *user.User, by structs.Submitter) bool {
	return by.UID >= 0 && !by.Accessor.IsZero() && by.Name == u.Username && strconv.FormatInt(by.UID, 10) == u.Uid
}

// isUser reports whether a pattern matches a user.
func isUser(pattern string, u *user.User, by structs.Submitter) bool {
	switch pattern {
	case SubmitterName:
		return isSubmitter(u, by)
	case TokenName:
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

// resolveUser finds the user of the task, who also owns its directories. A task without a user gets the driver's choice.
func resolveUser(_ context.Context, a *attempt) error {
	a.config.User, a.config.UserGroups = a.env.Replace(a.spec.User), false
	a.owner = taskfs.Agent
	name, policy, by := a.config.User, &a.task.r.cfg.Policy, a.task.r.job().Submitter
	if elsewhere(a.driver) != nil {
		return resolveImageUser(a, policy.RunAs, by)
	}
	own := policy.DefaultUsers[a.spec.Driver]
	if own == "" || os.Geteuid() != 0 {
		own = strconv.Itoa(os.Geteuid())
		if name == "" {
			return nil
		}
	}
	u, err := lookUser(cmp.Or(name, own))
	if err != nil {
		return err
	}
	if name != "" {
		ownUID := u.Uid
		if d, err := lookUser(own); err == nil {
			ownUID = d.Uid
		}
		if err := policy.RunAs.may(name, u, ownUID, by); err != nil {
			return driver.Permanent(err)
		}
		a.config.UserGroups = isSubmitter(u, by)
	}
	a.owner.UID, _ = strconv.Atoi(u.Uid)
	a.owner.GID, _ = strconv.Atoi(u.Gid)
	switch {
	case a.owner.UID == os.Geteuid(): // the agent's own variables fit
	case os.Geteuid() != 0:
		a.owner.UID = -1 // only root can give files away; the driver reports that it cannot change users
	default:
		// Programs keep their caches at home: a user without one needs a place too.
		a.env.Person(u.Username, cmp.Or(users.Home(u), a.env.Get("NOMAD_TASK_DIR")))
	}
	return nil
}

// resolveImageUser is about tasks whose users are defined inside their own root, such as an image's. A number means the
// same user outside, so one that belongs to a user of the node must be allowed like their name. 0 is what an image without
// a user has anyway.
func resolveImageUser(a *attempt, rules *RunAs, by structs.Submitter) error {
	number, _, _ := strings.Cut(a.config.User, ":")
	n, err := strconv.ParseUint(number, 10, 31)
	if err != nil {
		return nil
	}
	if u, err := users.LookupID(strconv.FormatUint(n, 10)); err == nil && n != 0 {
		if err := rules.may(a.config.User, u, "0", by); err != nil {
			return driver.Permanent(err)
		}
	}
	if os.Geteuid() == 0 {
		a.owner = taskfs.Owner{UID: int(n), GID: int(n)}
	}
	return nil
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
	grants := a.task.r.Alloc().Grants
	wants, must := rdmaWish(a.spec, grants)
	if !wants {
		return nil
	}
	if far := withoutAdapter(a.task.r.cfg.Host.Node(), a.spec, grants); far != "" {
		a.note(event(EventRDMA, far))
	}
	if a.task.r.cfg.Host.RDMAFiles == nil {
		return nil // a simulated node
	}
	files, err := a.task.r.cfg.Host.RDMAFiles()
	if err != nil {
		return err
	}
	if len(files) == 0 && !must {
		return nil // there is nothing for which it would lock memory
	}
	if len(files) == 0 {
		return fmt.Errorf("the task asks for RDMA and this node has no such devices any more")
	}
	if a.config.Ulimits == nil {
		a.config.Ulimits = map[string]string{}
	}
	if a.config.Ulimits[structs.UlimitMemlock] == "" {
		a.config.Ulimits[structs.UlimitMemlock] = "unlimited"
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
