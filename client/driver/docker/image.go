package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"github.com/muster-sched/muster/client/allocdir"
	"github.com/muster-sched/muster/client/driver"
)

// Prepare makes sure that the task's image is present. It first refuses what Start would refuse.
func (d *Driver) Prepare(ctx context.Context, cfg *driver.TaskConfig, tell func(string)) error {
	if cfg.Umask != nil {
		return driver.Permanent(errors.New("docker: a container sets its own umask"))
	}
	if cfg.Launcher != "" {
		return driver.Permanent(errors.New("docker: launch mode \"rank\" needs the driver exec or raw_exec; in a container let a launcher of the image start the ranks, with mode \"node\""))
	}
	e, err := d.look(ctx)
	if err != nil {
		return fmt.Errorf("docker: the engine at %s: %w", d.opt.Host, err)
	}
	v, err := d.decode(cfg.Config)
	if err != nil {
		return err
	}
	if _, err := d.request(cfg, v, ""); err != nil {
		return err
	}
	id, err := d.image(ctx, cfg, v, tell)
	if err != nil {
		return err
	}
	// Emulation may run programs of other machines, so this is not refused.
	if in, err := d.api.ImageInspect(ctx, id); err == nil && in.Architecture != "" && e.arch != "" && in.Architecture != e.arch {
		tell(fmt.Sprintf("The image %s is for %s machines, and this one is %s: its programs run only by emulation", v.String("image"), in.Architecture, e.arch))
	}
	return nil
}

// image finds or fetches the task's image and returns its id.
func (d *Driver) image(ctx context.Context, cfg *driver.TaskConfig, v driver.Values, tell func(string)) (string, error) {
	name := v.String("image")
	ref, err := reference.ParseDockerRef(name)
	if err != nil && !strings.HasPrefix(name, "sha256:") {
		return "", refuse("config key \"image\": %q: %v", name, err)
	}
	if archive := v.String("load"); archive != "" {
		if err := d.load(ctx, cfg, archive, tell); err != nil {
			return "", err
		}
	}
	fresh := v.Bool("force_pull")
	if t, ok := ref.(reference.Tagged); ok && t.Tag() == "latest" && v.String("load") == "" {
		fresh = true
	}
	in, err := d.api.ImageInspect(ctx, name)
	switch {
	case err == nil && (!fresh || ref == nil):
		d.images.wanted(in.ID)
		return in.ID, nil
	case err != nil && !gone(err):
		err = fmt.Errorf("docker: look for image %s: %w", name, brief(err))
		if errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), "invalid reference format") {
			err = driver.Permanent(err)
		}
		return "", err
	case v.String("load") != "":
		return "", refuse("the archive %s does not hold the image %s", v.String("load"), name)
	case ref == nil:
		return "", refuse("image %s is not on this node", name)
	}
	have := ""
	if err == nil {
		have = in.ID
	}
	auth, err := d.credentials(ctx, ref, v)
	if err != nil {
		return "", err
	}
	id, err := d.pull(ctx, ref, auth, have, v.Duration("image_pull_timeout"), tell)
	if err != nil && have != "" && !v.Bool("force_pull") && ctx.Err() == nil {
		tell(fmt.Sprintf("The registry could not be asked for a newer %s (%v); the image that is here is used", name, err))
		return have, nil
	}
	return id, err
}

// load reads an archive of `docker save`. Its path is below the task's directory.
func (d *Driver) load(ctx context.Context, cfg *driver.TaskConfig, archive string, tell func(string)) error {
	rel, err := filepath.Rel(cfg.Dirs.AllocRoot, filepath.Join(cfg.Dirs.TaskDir, archive))
	if err != nil || filepath.IsAbs(archive) || !filepath.IsLocal(rel) {
		return refuse("config key \"load\": %q: want a path below the task's directory", archive)
	}
	alloc := allocdir.Dir{Root: cfg.Dirs.AllocRoot}
	n, err := alloc.Find(rel)
	if errors.Is(err, os.ErrNotExist) && !strings.Contains(archive, "/") { // as in Nomad: artifacts are in local
		n, err = alloc.Find(filepath.Join(filepath.Dir(rel), allocdir.Local, archive))
	}
	if err != nil {
		return refuse("config key \"load\": %v", err)
	}
	defer n.Close()
	f, err := n.Open(os.O_RDONLY)
	if err != nil {
		return refuse("config key \"load\": %v", err)
	}
	defer f.Close()
	tell("Loading the image from " + archive)
	res, err := d.api.ImageLoad(ctx, f, client.ImageLoadWithQuiet(true))
	if err != nil {
		return fmt.Errorf("docker: load the image from %s: %w", archive, err)
	}
	defer res.Close()
	for dec := json.NewDecoder(res); ; {
		var m jsonstream.Message
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("docker: load the image from %s: %w", archive, err)
		}
		if m.Error != nil {
			return refuse("load the image from %s: %s", archive, m.Error.Message)
		}
	}
}

// pull is one fetch of an image, shared by all tasks that wait for it.
type pull struct {
	done   chan struct{}
	cancel context.CancelFunc
	users  int // guarded by Driver.mu

	mu   sync.Mutex // guards the fields below
	text string     // progress
	id   string
	err  error
}

// progressFirst is the delay of the first progress event. Later ones come less and less often: a task keeps ten events.
const progressFirst = 5 * time.Second

// pull fetches an image. Tasks that want the same one with the same credentials share a fetch; it is cancelled when no
// task waits for it any more. have is the image that currently has the name, or "".
func (d *Driver) pull(ctx context.Context, ref reference.Named, auth, have string, limit time.Duration, tell func(string)) (string, error) {
	key := ref.String() + "\x00" + auth
	d.mu.Lock()
	p := d.pulls[key]
	if p == nil {
		pctx, cancel := context.WithCancel(d.ctx)
		p = &pull{done: make(chan struct{}), cancel: cancel}
		d.pulls[key] = p
		d.wg.Add(1)
		go func() {
			defer d.wg.Done()
			id, err := d.fetch(pctx, p, ref, auth, have)
			cancel()
			p.mu.Lock()
			p.id, p.err = id, err
			p.mu.Unlock()
			d.mu.Lock()
			delete(d.pulls, key)
			d.mu.Unlock()
			close(p.done)
		}()
	}
	p.users++
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		if p.users--; p.users == 0 {
			p.cancel()
			if d.pulls[key] == p { // the next request starts again
				delete(d.pulls, key)
			}
		}
		d.mu.Unlock()
	}()
	tell("Downloading image " + reference.FamiliarString(ref))
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("image_pull_timeout of %s is over", limit))
		defer cancel()
	}
	wait := progressFirst
	for last := ""; ; {
		timer := time.NewTimer(wait)
		select {
		case <-p.done:
			timer.Stop()
			return p.id, p.err
		case <-ctx.Done():
			timer.Stop()
			return "", fmt.Errorf("docker: pull %s: %w", reference.FamiliarString(ref), context.Cause(ctx))
		case <-timer.C:
			wait *= 2
			p.mu.Lock()
			text := p.text
			p.mu.Unlock()
			if text != last {
				last = text
				tell(text)
			}
		}
	}
}

// fetch pulls the image.
func (d *Driver) fetch(ctx context.Context, p *pull, ref reference.Named, auth, have string) (string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(d.opt.PullPatience, func() { cancel(fmt.Errorf("no progress for %s", d.opt.PullPatience)) })
	defer idle.Stop()
	name := reference.FamiliarString(ref)
	fail := func(err error) (string, error) {
		if c := context.Cause(ctx); c != nil {
			err = c
		}
		err = fmt.Errorf("docker: pull %s: %w", name, err)
		if refused(err) {
			return "", driver.Permanent(err)
		}
		return "", err
	}
	res, err := d.api.ImagePull(ctx, ref.String(), client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return fail(err)
	}
	defer res.Close()
	bar := progress{name: name, layers: map[string]layer{}}
	for m, err := range res.JSONMessages(ctx) {
		if err != nil {
			return fail(err)
		}
		idle.Reset(d.opt.PullPatience)
		if m.Error != nil {
			return fail(errors.New(m.Error.Message))
		}
		bar.note(m)
		p.mu.Lock()
		p.text = bar.String()
		p.mu.Unlock()
	}
	in, err := d.api.ImageInspect(ctx, ref.String())
	if err != nil {
		return fail(err)
	}
	d.images.pulled(in.ID, name, have)
	return in.ID, nil
}

// refused reports whether a registry has refused permanently.
func refused(err error) bool {
	if errdefs.IsUnauthorized(err) || errdefs.IsPermissionDenied(err) || errdefs.IsNotFound(err) {
		return true
	}
	s := strings.ToLower(err.Error())
	for _, no := range []string{"unauthorized", "authentication required", "no basic auth credentials", "pull access denied", "access to the resource is denied", "manifest unknown", "not found", "repository does not exist", "incorrect username or password", "no matching manifest"} {
		if strings.Contains(s, no) {
			return true
		}
	}
	return false
}

// progress sums up the engine's reports about the layers of an image.
type progress struct {
	name   string
	layers map[string]layer
}

type layer struct {
	got, size int64
	done      bool
}

func (b *progress) note(m jsonstream.Message) {
	if m.ID == "" {
		return
	}
	l := b.layers[m.ID]
	switch m.Status {
	case "Pulling fs layer", "Waiting":
	case "Downloading":
		if m.Progress != nil {
			l.got, l.size = m.Progress.Current, m.Progress.Total
		}
	case "Download complete", "Verifying Checksum", "Extracting":
		l.got = l.size
	case "Pull complete", "Already exists":
		l.got, l.done = l.size, true
	default:
		return // not a layer
	}
	b.layers[m.ID] = l
}

// String describes the progress for users.
func (b *progress) String() string {
	var got, size int64
	done := 0
	for _, l := range b.layers {
		got, size = got+l.got, size+l.size
		if l.done {
			done++
		}
	}
	return fmt.Sprintf("Downloading image %s: %d of %d layers, %.1f of %.1f MiB so far", b.name, done, len(b.layers), float64(got)/(1<<20), float64(size)/(1<<20))
}
