package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"time"

	"github.com/muster-sched/muster/client/allocdir"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/taskfs"
	"github.com/muster-sched/muster/internal/identity"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// Pauses between attempts to have an identity signed; they double.
const (
	signRestMin = 200 * time.Millisecond
	signRestMax = 30 * time.Second
)

// identityLife is what an agent remembers of a token between two agents: the task may have no file.
type identityLife struct{ Issued, Expires structs.LogTime }

// identitiesOf returns the identities of a task that it gets to see.
func identitiesOf(spec *structs.Task) ([]*identity.Spec, error) {
	var out []*identity.Spec
	for _, raw := range spec.Identities {
		id, err := identity.Parse(raw)
		if err != nil {
			return nil, driver.Permanent(err)
		}
		if id.Exposed() {
			out = append(out, id)
		}
	}
	return out, nil
}

// signIdentities gets the tokens of the task's identities, at each start. While no server signs, the start waits, and
// an event of the task says so.
func signIdentities(ctx context.Context, a *attempt) error {
	if a.task.r.dir == nil || a.task.r.cfg.Servers.Identity == nil {
		return nil
	}
	ids, err := identitiesOf(a.spec)
	if err != nil {
		return err
	}
	for _, id := range ids {
		err := a.interruptibly(ctx, func(ctx context.Context) error {
			noted := ""
			bo := backoff{min: signRestMin, max: signRestMax}
			for {
				err := a.sign(ctx, id)
				if err == nil || errors.Is(err, driver.ErrPermanent) || structs.CodeOf(err) == structs.CodeInvalid {
					return err
				}
				if err.Error() != noted {
					noted = err.Error()
					a.note(event(EventIdentity, fmt.Sprintf("Waiting for the token of identity %q: %v", id.Name, err)))
				}
				if !sleep(ctx, bo.next()) {
					return ctx.Err()
				}
			}
		})
		if err != nil {
			return fmt.Errorf("identity %q: %w", id.Name, err)
		}
	}
	return nil
}

// sign gets the token of an identity and hands it to the task.
func (a *attempt) sign(ctx context.Context, id *identity.Spec) error {
	r := a.task.r
	resp, err := r.cfg.Servers.Identity(ctx, r.id, a.spec.Name, id.Name)
	if err != nil {
		return err
	}
	if id.Env {
		name := "TOKEN"
		if id.Name != structs.IdentityDefault {
			name += "_" + id.Name
		}
		vars := a.environment()
		for _, prefix := range []string{"NOMAD_", "MUSTER_"} {
			if a.env.Set(prefix+name, resp.Token) {
				vars[prefix+name] = resp.Token
			}
		}
	}
	if id.File || id.Filepath != "" {
		if err := a.writeToken(id, resp.Token); err != nil {
			return err
		}
	}
	mark, err := json.Marshal(identityLife{resp.Issued, resp.Expires})
	if err != nil {
		return err
	}
	marks, err := r.dir.Private(fetchDir, 0o711)
	if err != nil {
		return err
	}
	defer marks.Close()
	return marks.Replace(lifeFile(a.spec.Name, id.Name), mark, 0o600, taskfs.Agent)
}

// writeToken replaces the file of an identity. Only the task's user can read it.
func (a *attempt) writeToken(id *identity.Spec, token string) error {
	dest, err := a.place(tokenFile(id))
	if err != nil {
		return err
	}
	to, name, err := a.task.r.dir.Create(dest)
	if err != nil {
		return driver.Permanent(err)
	}
	defer to.Close()
	mode, who := fs.FileMode(0o600), a.owner
	if elsewhere(a.driver) != nil && who.UID < 0 {
		mode = 0o644 // the user exists only inside the task's root, and only the task has the directory
	}
	if os.Geteuid() != 0 {
		who = taskfs.Agent
	}
	return to.Replace(name, []byte(token), mode, who)
}

// tokenFile returns the file of an identity, relative to the task's directory.
func tokenFile(id *identity.Spec) string {
	switch {
	case id.Filepath != "":
		return id.Filepath
	case id.Name == structs.IdentityDefault:
		return path.Join(allocdir.Secrets, "nomad_token")
	}
	return path.Join(allocdir.Secrets, "nomad_"+id.Name+".jwt")
}

func lifeFile(task, name string) string {
	return task + ".identity." + name
}

// watchIdentities renews the tokens of a running task after half of their life, and applies their change_mode. It ends
// with the run.
func (t *task) watchIdentities(ctx context.Context, h driver.Task) {
	spec := t.spec()
	if spec == nil || t.r.dir == nil || t.r.cfg.Servers.Identity == nil {
		return
	}
	ids, err := identitiesOf(spec)
	if err != nil {
		return
	}
	for _, id := range ids {
		t.r.cfg.Agent.Go(func() { t.keepSigned(ctx, h, spec, id) })
	}
}

// keepSigned renews one token.
func (t *task) keepSigned(ctx context.Context, h driver.Task, spec *structs.Task, id *identity.Spec) {
	warned := false
	bo := backoff{min: signRestMin, max: signRestMax}
	for wait := t.untilRenewal(id); sleep(ctx, wait); {
		if now, err := t.running(); err != nil || now != h {
			return
		}
		a := &attempt{task: t, spec: spec, driver: t.r.cfg.Host.Drivers[spec.Driver], note: func(structs.TaskEvent) {}}
		err := errors.Join(makeEnv(ctx, a), resolveUser(ctx, a))
		if err == nil {
			err = a.sign(ctx, id)
		}
		if err != nil {
			if wait = bo.next(); !warned {
				warned = true
				t.r.log().Warn("the token of an identity cannot be renewed; the task keeps the older one", "task", t.name, "identity", id.Name, "error", err)
			}
			continue
		}
		warned = false
		bo.reset()
		wait = t.untilRenewal(id)
		const renewed = "Identity with change_mode restart renewed"
		switch id.ChangeMode {
		case "restart":
			t.ask(ctx, wish{wishRestart, event(EventRestartSignal, renewed, detailRestartReason, renewed)})
			return
		case "signal":
			t.note(ctx, event(EventSignaling, "Identity renewed", "signal", id.ChangeSignal))
			if err := h.Signal(ctx, id.ChangeSignal); err != nil {
				t.r.log().Warn("a task could not be notified of a renewed identity", "task", t.name, "signal", id.ChangeSignal, "error", err)
			}
		}
	}
}

// untilRenewal returns how long a token is used before it is renewed: about half of its life. An agent that has just
// started counts from when the token was signed.
func (t *task) untilRenewal(id *identity.Spec) time.Duration {
	half := id.TTL / 2
	var life identityLife
	marks, err := t.r.dir.Private(fetchDir, 0o711)
	if err == nil {
		var f *os.File
		if f, err = marks.Open(lifeFile(t.name, id.Name)); err == nil {
			err = json.NewDecoder(f).Decode(&life)
			f.Close()
		}
		marks.Close()
	}
	if err != nil || life.Expires <= life.Issued {
		return rand.N(half/10 + 1)
	}
	used := max(0, now().Sub(life.Issued))
	return max(life.Expires.Sub(life.Issued)/2-used, 0) + rand.N(half/10+1)
}

// Identity gets a token of a task. The agent's connection implements it.
type Identity func(ctx context.Context, alloc structs.AllocID, task, name string) (*methods.NodeIdentityResponse, error)
