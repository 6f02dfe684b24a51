package wire

import (
	"fmt"
	"path"
)

// volumes checks what a group asks for and where its tasks see it.
func (v *validator) volumes(w string, g *TaskGroup) {
	v.count(w+", volume", len(g.Volumes))
	for _, name := range sortedKeys(g.Volumes) {
		x := g.Volumes[name]
		if x == nil {
			continue
		}
		v.name(fmt.Sprintf("%s, volume %q", w, name), "a volume", name)
		if x.Source == "" {
			v.errorf(fmt.Sprintf("%s, volume %q, source", w, name), "is missing: the name of a host_volume of the nodes")
		}
	}
	for _, t := range g.Tasks {
		if t == nil {
			continue
		}
		tw := fmt.Sprintf("%s, task %q", w, t.Name)
		v.count(tw+", volume_mount", len(t.VolumeMounts))
		seen := map[string]bool{}
		for i, m := range t.VolumeMounts {
			if m == nil {
				continue
			}
			mw := fmt.Sprintf("%s, volume_mount %d", tw, i+1)
			if g.Volumes[val(m.Volume)] == nil {
				v.errorf(mw+", volume", "the group has no volume %.64q", val(m.Volume))
			}
			dest := path.Clean(val(m.Destination))
			switch {
			case val(m.Destination) == "":
				v.errorf(mw+", destination", "is missing: where the task sees the volume")
			case dest == "/" || dest == "." || dest == "..":
				v.errorf(mw+", destination", "%.64q is not a place for a volume", val(m.Destination))
			case seen[dest]:
				v.errorf(mw+", destination", "%.64q is another volume's already", val(m.Destination))
			}
			seen[dest] = true
			v.oneOf(mw+", propagation_mode", val(m.PropagationMode), "private", "host-to-task", "bidirectional")
		}
	}
}
