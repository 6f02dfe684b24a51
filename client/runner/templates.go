package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/taskfs"
	"github.com/muster-sched/muster/client/template"
	"github.com/muster-sched/muster/structs"
)

// templateSpec is the part of a job's template block that the client uses.
type templateSpec struct {
	SourcePath, DestPath, EmbeddedTmpl string
	ChangeMode, ChangeSignal, Perms    string
	LeftDelim, RightDelim              string
	Once, Envvars, ErrMissingKey       bool
	Splay                              time.Duration
	Uid, Gid                           *int
	ChangeScript                       *changeScript
}

// changeScript is the command that runs in the task when a template changes.
type changeScript struct {
	Command     string
	Args        []string
	Timeout     time.Duration
	FailOnError bool
}

// templatesEvery is the interval at which the inputs of templates are checked: the node's attributes and meta, and
// files.
const templatesEvery = 3 * time.Second

// rendering renders the templates of a task once.
type rendering struct {
	a    *attempt
	vars template.Variables // or nil
	svcs template.Services  // or nil
}

func templatesOf(spec *structs.Task) ([]templateSpec, error) {
	out := make([]templateSpec, len(spec.Templates))
	for i, raw := range spec.Templates {
		if err := json.Unmarshal(raw.Raw, &out[i]); err != nil {
			return nil, driver.Permanent(fmt.Errorf("template %d: %w", i+1, err))
		}
	}
	return out, nil
}

// renderTemplates writes the files of the task's templates, at each start. While variables are missing or unreadable,
// the start waits, and an event of the task names them.
func renderTemplates(ctx context.Context, a *attempt) error {
	if len(a.spec.Templates) == 0 || a.task.r.dir == nil {
		return nil
	}
	list, err := templatesOf(a.spec)
	if err != nil {
		return err
	}
	looks := a.task.lookupsIn(ctx)
	return a.interruptibly(ctx, func(ctx context.Context) error {
		told := ""
		bo := backoff{min: lookupRestMin, max: lookupRestMax}
		for {
			v := looks.during(ctx)
			err := rendering{a, v, servicesIn(v)}.all(list)
			var lack *template.MissingError
			switch {
			case errors.As(err, &lack):
				err = lack
			case !errors.Is(err, errUnread):
				return err
			}
			if err.Error() != told {
				told = err.Error()
				a.note(event(EventTemplate, told))
			}
			if !looks.wait(ctx, bo.next()) {
				return ctx.Err()
			}
		}
	})
}

// all renders a task's templates and writes the changed ones. The missing inputs of all templates are one error.
func (r rendering) all(list []templateSpec) error {
	var names []string
	for i := range list {
		_, err := r.update(i, &list[i])
		var lack *template.MissingError
		switch {
		case err == nil:
		case errors.As(err, &lack):
			names = append(names, lack.Names...)
		case errors.Is(err, template.ErrBad):
			return driver.Permanent(fmt.Errorf("template %d (%s): %w", i+1, list[i].DestPath, err))
		default:
			return fmt.Errorf("template %d (%s): %w", i+1, list[i].DestPath, err)
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		return &template.MissingError{Names: slices.Compact(names)}
	}
	return nil
}

// update renders a template and writes the file if it has changed since the last rendering.
func (r rendering) update(i int, s *templateSpec) (changed bool, err error) {
	content, err := r.render(s)
	if err != nil {
		return false, err
	}
	if s.Envvars {
		vars, err := parseEnv(string(content))
		if err != nil {
			return false, driver.Permanent(err)
		}
		env := r.a.environment()
		for k, v := range vars {
			if r.a.env.Set(k, v) {
				env[k] = v
			}
		}
	}
	dest, err := r.a.place(s.DestPath)
	if err != nil {
		return false, err
	}
	sum := sha256.Sum256(content)
	mark := hex.EncodeToString(sum[:])
	marks, err := r.a.task.r.dir.Private(fetchDir, 0o711)
	if err != nil {
		return false, err
	}
	defer marks.Close()
	to, name, err := r.a.task.r.dir.Create(dest)
	if err != nil {
		return false, driver.Permanent(err)
	}
	defer to.Close()
	have, err := to.Stat(name)
	markFile := fmt.Sprintf("%s.template.%d", r.a.spec.Name, i)
	switch {
	case err == nil && have.IsDir():
		return false, driver.Permanent(errors.New("the destination is a directory; want the path of a file"))
	case err == nil && have.Mode().IsRegular() && marked(marks, markFile, mark):
		return false, nil
	}
	if err := r.write(to, name, content, s); err != nil {
		return false, err
	}
	return true, marks.Replace(markFile, []byte(mark), 0o600, taskfs.Agent)
}

func (r rendering) render(s *templateSpec) ([]byte, error) {
	in := template.Input{
		Vars: r.vars, Services: r.svcs, Source: s.EmbeddedTmpl, Left: s.LeftDelim, Right: s.RightDelim, MissingErr: s.ErrMissingKey, Env: r.a.env.Get, Replace: r.a.env.Replace, File: r.file,
	}
	if s.SourcePath != "" {
		text, err := r.file(s.SourcePath)
		if err != nil {
			return nil, err
		}
		in.Source = text
	}
	return template.Render(in)
}

// file reads a file of the task or of its allocation.
func (r rendering) file(name string) (string, error) {
	p, err := r.a.place(name)
	if err != nil {
		return "", fmt.Errorf("file %q: %w", name, err)
	}
	n, err := r.a.task.r.dir.Find(p)
	if err != nil {
		return "", err
	}
	defer n.Close()
	f, err := n.Open(os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, template.ResultMax+1))
	if err == nil && len(b) > template.ResultMax {
		err = fmt.Errorf("file %q has more than %d bytes", name, template.ResultMax)
	}
	return string(b), err
}

// write replaces the file atomically: a task never sees half of it.
func (r rendering) write(to *taskfs.Dir, name string, content []byte, s *templateSpec) error {
	mode := fs.FileMode(0o644)
	if s.Perms != "" {
		n, err := strconv.ParseUint(s.Perms, 8, 12)
		if err != nil {
			return driver.Permanent(fmt.Errorf("perms %q: want octal digits such as 0644", s.Perms))
		}
		mode = fs.FileMode(n).Perm()
	}
	who := r.a.owner
	if s.Uid != nil && *s.Uid >= 0 {
		who.UID = *s.Uid
	}
	if s.Gid != nil && *s.Gid >= 0 {
		who.GID = *s.Gid
	}
	if os.Geteuid() != 0 {
		who = taskfs.Agent
	}
	return to.Replace(name, content, mode, who)
}

// parseEnv reads lines KEY=VALUE. It skips empty lines and lines that begin with #, and removes quotes around a value.
func parseEnv(text string) (map[string]string, error) {
	out := map[string]string{}
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "export "))
		if line == "" || line[0] == '#' {
			continue
		}
		k, v, ok := strings.Cut(line, "=")
		if k = strings.TrimSpace(k); !ok || k == "" || strings.ContainsAny(k, " \t\"'") {
			return nil, fmt.Errorf("line %d of a template for the environment: want KEY=VALUE", n+1)
		}
		v = strings.TrimSpace(v)
		switch {
		case len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"':
			u, err := strconv.Unquote(v)
			if err != nil {
				return nil, fmt.Errorf("line %d of a template for the environment: %w", n+1, err)
			}
			v = u
		case len(v) >= 2 && v[0] == '\'' && v[len(v)-1] == '\'':
			v = v[1 : len(v)-1]
		}
		out[k] = v
	}
	return out, nil
}

// watchTemplates renders the templates of a running task again when their inputs change, and applies their change_mode.
// It ends with the run.
func (t *task) watchTemplates(ctx context.Context, h driver.Task) {
	spec := t.spec()
	if spec == nil || len(spec.Templates) == 0 || t.r.dir == nil {
		return
	}
	list, err := templatesOf(spec)
	if err != nil || !slices.ContainsFunc(list, func(s templateSpec) bool { return !s.Once }) {
		return
	}
	t.r.cfg.Agent.Go(func() {
		told := ""
		looks := t.lookupsIn(ctx)
		for looks.wait(ctx, templatesEvery) {
			if now, err := t.running(); err != nil || now != h {
				return
			}
			todo, err := t.renderAgain(ctx, spec, list)
			if err != nil && err.Error() != told {
				told = err.Error()
				t.r.log().Warn("a template of a running task cannot be rendered; its file is not changed", "task", t.name, "error", err)
			}
			if len(todo) > 0 && !t.followTemplates(ctx, h, todo) {
				return
			}
		}
	})
}

// renderAgain renders the templates and returns those whose files have changed.
func (t *task) renderAgain(ctx context.Context, spec *structs.Task, list []templateSpec) ([]templateSpec, error) {
	a := &attempt{task: t, spec: spec, driver: t.r.cfg.Host.Drivers[spec.Driver], note: func(structs.TaskEvent) {}}
	if err := errors.Join(makeEnv(ctx, a), resolveUser(ctx, a)); err != nil {
		return nil, err
	}
	vars := t.lookupsIn(ctx).during(ctx)
	var todo []templateSpec
	var errs []error
	for i := range list {
		if list[i].Once {
			continue
		}
		changed, err := (rendering{a, vars, servicesIn(vars)}).update(i, &list[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("template %d (%s): %w", i+1, list[i].DestPath, err))
		}
		if changed {
			todo = append(todo, list[i])
		}
	}
	return todo, errors.Join(errs...)
}

// followTemplates restarts or signals the task, or runs commands in it, once for all changed templates, after a random
// part of the longest splay. It reports whether the run continues.
func (t *task) followTemplates(ctx context.Context, h driver.Task, todo []templateSpec) bool {
	var splay time.Duration
	restart, signals := false, []string(nil)
	var scripts []*changeScript
	for _, s := range todo {
		switch s.ChangeMode {
		case "restart", "":
			restart = true
		case "signal":
			if !slices.Contains(signals, s.ChangeSignal) {
				signals = append(signals, s.ChangeSignal)
			}
		case "script":
			scripts = append(scripts, s.ChangeScript)
		default:
			continue
		}
		splay = max(splay, s.Splay)
	}
	if !restart && signals == nil && scripts == nil {
		return true
	}
	if splay > 0 && !sleep(ctx, rand.N(splay)) {
		return false
	}
	if restart {
		t.ask(ctx, wish{wishRestart, event(EventRestartSignal, "Template with change_mode restart re-rendered", detailRestartReason, "Template with change_mode restart re-rendered")})
		return false
	}
	for _, sig := range signals {
		t.note(ctx, event(EventSignaling, "Template re-rendered", "signal", sig))
		if err := h.Signal(ctx, sig); err != nil {
			t.r.log().Warn("a task could not be notified of a changed template", "task", t.name, "signal", sig, "error", err)
		}
	}
	for _, s := range scripts {
		if s != nil && !t.runScript(ctx, h, s) {
			return false
		}
	}
	return true
}

// scriptPatience is the time limit of a command that sets none.
const scriptPatience = 5 * time.Second

// runScript runs the command of a changed template inside the task, and reports whether the run continues.
func (t *task) runScript(ctx context.Context, h driver.Task, s *changeScript) bool {
	patience := s.Timeout
	if patience <= 0 {
		patience = scriptPatience
	}
	sctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	code, err := h.Exec(sctx, driver.ExecRequest{Command: append([]string{s.Command}, s.Args...)})
	var msg string
	switch {
	case ctx.Err() != nil:
		return false
	case sctx.Err() != nil:
		msg = fmt.Sprintf("Template re-rendered, and its script %q did not end within %s", s.Command, patience)
	case err != nil:
		msg = fmt.Sprintf("Template re-rendered, and its script %q could not be run: %v", s.Command, err)
	case code != 0:
		msg = fmt.Sprintf("Template re-rendered, and its script %q ended with exit code %d", s.Command, code)
	default:
		t.note(ctx, event(EventTemplate, fmt.Sprintf("Template re-rendered, and its script %q has run", s.Command)))
		return true
	}
	if !s.FailOnError {
		t.note(ctx, event(EventTemplate, msg))
		return true
	}
	t.ask(ctx, wish{wishKill, failing(event(EventKilling, msg))})
	return false
}
