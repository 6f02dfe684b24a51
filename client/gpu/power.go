package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
)

// Tasks may have their own power limit on whole GPUs. The original limit is stored before it is changed, so that a
// restarted agent can restore it, too. A limit that is not the one that was set has been changed by someone else, or by
// a reboot, and is left alone.

// powerSet is a limit that was changed for a task, milliwatts. HadMW is the previous task's limit, until the change is
// known to have happened.
type powerSet struct {
	WasMW, SetMW int64
	HadMW        int64 `json:",omitempty"`
}

// ours reports whether the agent has set this limit.
func (s powerSet) ours(mw int64) bool { return mw != 0 && (mw == s.SetMW || mw == s.HadMW) }

// LimitPower sets the power limit of a GPU until RestorePower.
func (n *NVIDIA) LimitPower(ctx context.Context, uuid string, watts int64) error {
	n.powering.Lock()
	defer n.powering.Unlock()
	a, err := n.call(ctx, request{Op: "power", UUID: uuid})
	if err != nil {
		return err
	}
	n.mu.Lock()
	was, changed := n.power[uuid]
	n.mu.Unlock()
	set := powerSet{WasMW: a.power, SetMW: 1000 * watts}
	if changed && was.ours(a.power) { // restore the original limit, not that of the previous task
		set.WasMW, set.HadMW = was.WasMW, a.power
	}
	if err := n.notePower(uuid, &set); err != nil {
		return err
	}
	if _, err = n.call(ctx, request{Op: "power", UUID: uuid, MW: set.SetMW}); err == nil {
		if set.HadMW == 0 {
			return nil
		}
		set.HadMW = 0
		return n.notePower(uuid, &set)
	}
	if errors.Is(err, ctx.Err()) {
		return err // it may have happened: RestorePower finds out
	}
	if changed {
		return errors.Join(err, n.notePower(uuid, &was))
	}
	return errors.Join(err, n.notePower(uuid, nil))
}

// RestorePower restores the limits that LimitPower changed, except on GPUs in the result of still. still is called
// while no limit is being changed, so that the limit of a task that has just arrived is not taken for an old one. A
// failed restore is retried the next time.
func (n *NVIDIA) RestorePower(ctx context.Context, still func() map[string]bool) error {
	n.powering.Lock()
	defer n.powering.Unlock()
	wanted := still()
	n.mu.Lock()
	var list []string
	sets := map[string]powerSet{}
	for uuid, s := range n.power {
		if !wanted[uuid] {
			list = append(list, uuid)
			sets[uuid] = s
		}
	}
	n.mu.Unlock()
	slices.Sort(list)
	var errs []error
	for _, uuid := range list {
		a, err := n.call(ctx, request{Op: "power", UUID: uuid})
		if err == nil && sets[uuid].ours(a.power) {
			_, err = n.call(ctx, request{Op: "power", UUID: uuid, MW: sets[uuid].WasMW})
		}
		if err == nil {
			n.cfg.Log.Info("the power limit of a GPU is as before", "gpu", uuid, "watts", sets[uuid].WasMW/1000)
			err = n.notePower(uuid, nil)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// notePower records a change, nil for none; the file is written first.
func (n *NVIDIA) notePower(uuid string, set *powerSet) error {
	n.mu.Lock()
	next := map[string]powerSet{}
	for k, v := range n.power {
		next[k] = v
	}
	n.mu.Unlock()
	if delete(next, uuid); set != nil {
		next[uuid] = *set
	}
	if n.cfg.PowerFile != "" {
		b, err := json.Marshal(next)
		if err != nil {
			return err
		}
		tmp := n.cfg.PowerFile + ".tmp"
		if err := os.WriteFile(tmp, b, 0o600); err != nil {
			return err
		}
		if err := os.Rename(tmp, n.cfg.PowerFile); err != nil {
			return err
		}
	}
	n.mu.Lock()
	n.power = next
	n.mu.Unlock()
	return nil
}

// readPower reads the changes of an earlier agent.
func (n *NVIDIA) readPower() {
	n.power = map[string]powerSet{}
	if n.cfg.PowerFile == "" {
		return
	}
	b, err := os.ReadFile(n.cfg.PowerFile)
	if err == nil {
		err = json.Unmarshal(b, &n.power)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.cfg.Log.Warn("which power limits were changed cannot be read; they stay as they are", "error", err)
		n.power = map[string]powerSet{}
	}
}
