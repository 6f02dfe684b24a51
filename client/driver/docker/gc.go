package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"github.com/moby/moby/client"
)

// imageBook records which images this driver has pulled, and under which names: it never removes any other image or
// name.
type imageBook struct {
	path string

	mu     sync.Mutex
	images map[string]*imageEntry // by id
}

type imageEntry struct {
	Name     string    // name of the first pull; further names are in More
	More     []string  `json:",omitempty"`
	LastUsed time.Time // when a container of it was last seen, a task asked for it, or it was pulled
}

func (e *imageEntry) names() []string { return append([]string{e.Name}, e.More...) }

func openImageBook(dir string) *imageBook {
	b := &imageBook{path: filepath.Join(dir, "images.json"), images: map[string]*imageEntry{}}
	if data, err := os.ReadFile(b.path); err == nil {
		_ = json.Unmarshal(data, &b.images) // unreadable: these images are never removed
	}
	return b
}

func (b *imageBook) saveLocked() {
	data, err := json.Marshal(b.images)
	if err == nil && os.MkdirAll(filepath.Dir(b.path), 0o700) == nil {
		_ = renameio.WriteFile(b.path, data, 0o600)
	}
}

// pulled records a pulled image. had is the image that had the name before, or "": an image that existed under that
// name is not this driver's, even if it is pulled again.
func (b *imageBook) pulled(id, name, had string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.images[id]
	switch {
	case e == nil && had == id:
		return
	case e == nil:
		e = &imageEntry{Name: name}
		b.images[id] = e
	case had != id && !slices.Contains(e.names(), name):
		e.More = append(e.More, name)
	}
	e.LastUsed = time.Now()
	b.saveLocked()
}

// wanted records that a task is about to use an image.
func (b *imageBook) wanted(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.images[id]; e != nil {
		e.LastUsed = time.Now()
	}
}

// unused records which images have containers now, and returns those without one for longer than delay, with their
// names.
func (b *imageBook) unused(used map[string]bool, delay time.Duration, now time.Time) map[string][]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string][]string{}
	for id, e := range b.images {
		if used[id] {
			e.LastUsed = now
		} else if now.Sub(e.LastUsed) > delay {
			out[id] = e.names()
		}
	}
	b.saveLocked()
	return out
}

func (b *imageBook) forget(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.images, id)
	b.saveLocked()
}

// sweepEvery is the interval of sweeps, and sweepFirst the delay of the first one after the start.
const (
	sweepEvery = time.Minute
	sweepFirst = 3 * time.Second
)

func (d *Driver) sweepLoop() {
	defer d.wg.Done()
	timer := time.NewTimer(sweepFirst)
	defer timer.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-timer.C:
			timer.Reset(sweepEvery)
		}
		ctx, cancel := context.WithTimeout(d.ctx, sweepEvery)
		if _, err := d.look(ctx); err == nil {
			d.Sweep(ctx)
		}
		cancel()
	}
}

// TaskIDs lists the tasks whose containers this agent has created, running or not.
func (d *Driver) TaskIDs(ctx context.Context) ([]string, error) {
	if _, err := d.look(ctx); err != nil {
		d.mu.Lock()
		seen := d.seen
		d.mu.Unlock()
		if !seen {
			return nil, nil // a machine without an engine
		}
		return nil, err
	}
	res, err := d.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", LabelNode+"="+d.opt.NodeID())})
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, c := range res.Items {
		if id := c.Labels[LabelID]; id != "" {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Remove kills a task's container and forgets it.
func (d *Driver) Remove(ctx context.Context, taskID string) error {
	in, err := d.inspect(ctx, taskID)
	if gone(err) {
		d.forget(taskID)
		return nil
	}
	if err != nil {
		return err
	}
	if in.Config == nil || in.Config.Labels[LabelNode] != d.opt.NodeID() {
		return nil // it belongs to another agent
	}
	return d.remove(ctx, in.ID, taskID)
}

// Discard implements driver.Discarder.
func (d *Driver) Discard(ctx context.Context, taskID, sig string, timeout time.Duration) error {
	in, err := d.inspect(ctx, taskID)
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("docker: look for the container: %w", brief(err))
	}
	if in.Config == nil || in.Config.Labels[LabelID] != taskID || in.Config.Labels[LabelNode] != d.opt.NodeID() {
		return nil // it belongs to another agent
	}
	t := &Task{d: d, state: taskState{Container: in.ID, TaskID: taskID, Guarded: true}}
	t.see(&in)
	if err := t.Stop(ctx, sig, timeout); err != nil {
		return err
	}
	return t.Destroy(ctx)
}

func (d *Driver) remove(ctx context.Context, container, taskID string) error {
	_, err := d.api.ContainerRemove(ctx, container, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && !gone(err) && !strings.Contains(err.Error(), "is already in progress") {
		return err
	}
	d.forget(taskID)
	return nil
}

// forget removes the driver's files of a task.
func (d *Driver) forget(taskID string) {
	_ = os.Remove(d.positionFile(taskID))
	_ = os.RemoveAll(d.deviceDir(taskID))
	_ = os.Remove(d.specFile(taskID))
	d.unpin(taskID)
}

// Sweep removes containers of this agent that belong to no task, their files, and pulled images that have been unused
// for a while.
func (d *Driver) Sweep(ctx context.Context) {
	ids, err := d.TaskIDs(ctx)
	if err != nil || d.opt.Known == nil {
		return
	}
	there := map[string]bool{}
	for _, id := range ids {
		there[id] = true
		if d.opt.Known(id) {
			continue
		}
		d.log.Warn("removing a container that belongs to no task", "task", id)
		if err := d.Remove(ctx, id); err != nil {
			d.log.Warn("a container that belongs to no task could not be removed; it is tried again", "task", id, "error", err)
		}
	}
	files, _ := os.ReadDir(d.opt.StateDir)
	for _, f := range files {
		if id, ok := strings.CutSuffix(f.Name(), positionSuffix); ok && !there[id] && !d.opt.Known(id) {
			d.forget(id)
		}
	}
	d.unpinOthers(func(id string) bool { return there[id] || d.opt.Known(id) })
	if d.opt.KeepImages {
		return
	}
	all, err := d.api.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return
	}
	used := map[string]bool{}
	for _, c := range all.Items {
		used[c.ImageID] = true
	}
	for id, names := range d.images.unused(used, d.opt.ImageDelay, time.Now()) {
		if err := d.removeImage(ctx, id, names); err != nil {
			d.log.Debug("an image that is not used any more could not be removed", "image", id, "error", err)
			if unreachable(err) || ctx.Err() != nil {
				return // all of them at the next sweep
			}
		}
		d.images.forget(id)
	}
}

// removeImage removes an image's names, and the image with the last one. A name that has moved to another image is left
// alone, and so is an image with other names.
func (d *Driver) removeImage(ctx context.Context, id string, names []string) error {
	var errs []error
	for _, name := range names {
		in, err := d.api.ImageInspect(ctx, name)
		if err == nil && in.ID == id {
			_, err = d.api.ImageRemove(ctx, name, client.ImageRemoveOptions{PruneChildren: true})
		}
		if err != nil && !gone(err) {
			errs = append(errs, err)
		}
	}
	in, err := d.api.ImageInspect(ctx, id)
	if err == nil && len(in.RepoTags) == 0 { // its name has moved to a newer image
		_, err = d.api.ImageRemove(ctx, id, client.ImageRemoveOptions{PruneChildren: true})
	}
	if err != nil && !gone(err) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
