package structs

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
)

// ComputeClass returns a number that is equal for nodes that constraints cannot distinguish: datacenter, pool, class,
// attributes and meta other than "unique.*", drivers and their health, volumes, and device models with their
// attributes. Amounts (memory, cores, device counts) are not part of it: those are compared node by node.
func ComputeClass(n *Node) uint64 {
	var b []byte
	put := func(parts ...string) {
		for _, s := range parts {
			b = binary.AppendUvarint(b, uint64(len(s)))
			b = append(b, s...)
		}
	}
	put("dc", n.Datacenter, "pool", string(n.Pool), "class", n.Class)
	keys := func(kind string, m map[string]string) {
		for _, k := range sortedKeys(m) {
			if !strings.HasPrefix(k, "unique.") {
				put(kind, k, m[k])
			}
		}
	}
	keys("attr", n.Attributes)
	keys("meta", n.Meta)
	for _, t := range n.Tainted {
		put("taint", t.Key, t.Value, t.Effect)
	}
	for _, name := range sortedKeys(n.Drivers) {
		d := n.Drivers[name]
		put("driver", name, strconv.FormatBool(d.Detected), strconv.FormatBool(d.Healthy))
		keys("driver-attr", d.Attributes)
	}
	for _, name := range sortedKeys(n.HostVolumes) {
		put("volume", name, strconv.FormatBool(n.HostVolumes[name].ReadOnly))
	}
	for i := range n.Resources.Devices {
		d := &n.Resources.Devices[i]
		put("device", d.ID())
		for _, k := range sortedKeys(d.Attributes) {
			a := d.Attributes[k]
			put("device-attr", k, a.Kind, strconv.FormatInt(a.Int, 10), a.Str, strconv.FormatBool(a.Bool), a.Unit)
		}
	}
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:8])
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
