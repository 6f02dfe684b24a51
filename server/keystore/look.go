package keystore

import (
	"context"
	"slices"

	"github.com/muster-sched/muster/internal/methods"
)

// A server works on with the keys in its memory when a file is deleted, and a restart loses them. So the list of keys
// says where files are missing.

// absent returns those of the keys that have no file here, or a damaged one.
func (k *Keystore) absent(ids []string) []string {
	var out []string
	for _, id := range ids {
		var key []byte
		switch {
		case k.dir == "":
			key, _ = k.Get(id)
		case keyName.MatchString(id):
			key, _ = k.read(id) // an unreadable file is as good as none
		}
		if key == nil {
			out = append(out, id)
		}
	}
	return out
}

// Look adds to the descriptions of keys which servers lack their files. name gives the name of a server by its address,
// "" for this one.
func (k *Keystore) Look(ctx context.Context, keys []methods.SealKeyInfo, name func(addr string) string) error {
	ids := k.named()
	answers, addrs, _, err := k.askAll(ctx, &methods.SealKeyRequest{Look: ids})
	if err != nil {
		return err
	}
	absent := map[string][]string{"": k.absent(ids)}
	var unknown []string
	for addr := range addrs {
		if r := answers[addr]; r != nil && r.Looked {
			absent[addr] = r.Absent
		} else {
			unknown = append(unknown, name(addr))
		}
	}
	slices.Sort(unknown)
	for i := range keys {
		x := &keys[i]
		if !slices.Contains(ids, x.ID) {
			continue // an earlier key of identities: its private part was deleted
		}
		x.Unknown = unknown
		for addr, list := range absent {
			if slices.Contains(list, x.ID) {
				x.Missing = append(x.Missing, name(addr))
			}
		}
		slices.Sort(x.Missing)
	}
	return nil
}
