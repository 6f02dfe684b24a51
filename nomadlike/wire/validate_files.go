package wire

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// files checks the volumes of a group, their mounts, and the artifacts of its tasks.
func (v *validator) files(w string, g *TaskGroup) {
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
		v.artifacts(tw, t)
		v.templates(tw, t)
		v.identities(tw, t)
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
			v.oneOf(mw+", propagation_mode", val(m.PropagationMode), "VolumeMount.PropagationMode")
		}
	}
}

// artifacts checks a task's artifacts; the node checks the rest of the source.
func (v *validator) artifacts(w string, t *Task) {
	v.count(w+", artifact", len(t.Artifacts))
	for i, a := range t.Artifacts {
		if a == nil {
			continue
		}
		aw := fmt.Sprintf("%s, artifact %d", w, i+1)
		switch src := val(a.GetterSource); {
		case src == "":
			v.errorf(aw+", source", "is missing")
		case strings.HasPrefix(src, "file:") || strings.HasPrefix(src, "/"):
			v.errorf(aw+", source", "%.64q: files of the node are not fetched; mount a host volume", src)
		}
		v.oneOf(aw+", mode", val(a.GetterMode), "Artifact.Mode")
		v.inside(aw+", destination", t.Driver, val(a.RelativeDest))
	}
}

// inside checks that a path stays in the task's directory. The node checks what begins with a variable.
func (v *validator) inside(w, driver, p string) {
	switch clean := path.Clean(p); {
	case strings.HasPrefix(p, "${"):
	case !path.IsAbs(p):
		if clean == ".." || strings.HasPrefix(clean, "../") {
			v.errorf(w, "%.64q leads out of the task's directory", p)
		}
	case driver == "docker": // its containers have these directories
		if top := strings.Split(clean, "/")[1]; !slices.Contains([]string{"alloc", "local", "secrets"}, top) {
			v.errorf(w, "%.64q is not in a directory of the allocation: write a path below /local, /secrets or /alloc", p)
		}
	case driver == "exec" || driver == "raw_exec": // their tasks see the node's directories, where the allocation's differ each time
		right := strings.TrimPrefix(clean, "/")
		if top, rest, _ := strings.Cut(right, "/"); top == "alloc" {
			right = path.Join("${NOMAD_ALLOC_DIR}", rest)
		} else if top != "local" && top != "secrets" {
			right = path.Join("local", path.Base(clean))
		}
		v.errorf(w, "%.64q is a directory of the node: paths are below the task's directory, write %.64q", p, right)
	}
}

// identities checks a task's identities.
func (v *validator) identities(w string, t *Task) {
	v.count(w+", identity", len(t.Identities))
	seen := map[string]bool{}
	for i, id := range t.Identities {
		if id == nil {
			continue
		}
		iw := fmt.Sprintf("%s, identity %d", w, i+1)
		name := id.Name
		switch {
		case !identityName.MatchString(name):
			v.errorf(iw+", name", "%.64q: want 1 to 128 letters, digits, - and _", name)
		case seen[name]:
			v.errorf(iw+", name", "%.64q is another identity's already", name)
		}
		seen[name] = true
		switch aud := id.Audience; {
		case name == structs.IdentityDefault && len(aud) > 0 && !slices.Equal(aud, []string{structs.IdentityAudience}):
			v.errorf(iw+", aud", "the default identity is for the cluster itself, %q; give an identity for others a name", structs.IdentityAudience)
		case name != structs.IdentityDefault && len(aud) == 0:
			v.errorf(iw+", aud", "is missing: name the service that takes the token, such as aud = [\"vault.example.com\"]")
		case name != structs.IdentityDefault && slices.Contains(aud, structs.IdentityAudience):
			v.errorf(iw+", aud", "%q is the audience of the default identity: whoever gets the token could act as the task", structs.IdentityAudience)
		}
		v.oneOf(iw+", change_mode", cmp.Or(id.ChangeMode, "noop"), "Identity.ChangeMode")
		if s := id.ChangeSignal; id.ChangeMode == "signal" && !strings.HasPrefix(s, "SIG") {
			v.errorf(iw+", change_signal", "%.20q is not a signal; want something like SIGHUP", s)
		}
		if ttl := id.TTL.D(); ttl != 0 && (ttl < structs.IdentityTTLMin || ttl > structs.IdentityTTLMax) {
			v.errorf(iw+", ttl", "%s: want %s to %s; without it tokens are valid for %s and are renewed after half of that", ttl, structs.IdentityTTLMin, structs.IdentityTTLMax, structs.IdentityTTLDefault)
		}
		v.inside(iw+", filepath", t.Driver, id.Filepath)
	}
}

var identityName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// templates checks a task's templates; their content is checked when they are rendered.
func (v *validator) templates(w string, t *Task) {
	v.count(w+", template", len(t.Templates))
	seen := map[string]bool{}
	for i, m := range t.Templates {
		if m == nil {
			continue
		}
		tw := fmt.Sprintf("%s, template %d", w, i+1)
		switch {
		case val(m.EmbeddedTmpl) == "" && val(m.SourcePath) == "":
			v.errorf(tw, "needs data or source")
		case val(m.EmbeddedTmpl) != "" && val(m.SourcePath) != "":
			v.errorf(tw, "has both data and source; want one of them")
		}
		dest := path.Clean(val(m.DestPath))
		switch {
		case val(m.DestPath) == "":
			v.errorf(tw+", destination", "is missing: a file such as \"local/app.conf\"")
		case seen[dest]:
			v.errorf(tw+", destination", "%.64q is another template's already", val(m.DestPath))
		}
		seen[dest] = true
		v.inside(tw+", destination", t.Driver, val(m.DestPath))
		v.inside(tw+", source", t.Driver, val(m.SourcePath))
		v.oneOf(tw+", change_mode", val(m.ChangeMode), "Template.ChangeMode")
		if s := val(m.ChangeSignal); val(m.ChangeMode) == "signal" && !strings.HasPrefix(s, "SIG") {
			v.errorf(tw+", change_signal", "%.20q is not a signal; want something like SIGHUP", s)
		}
		switch c := m.ChangeScript; {
		case val(m.ChangeMode) != "script":
		case c == nil || val(c.Command) == "":
			v.errorf(tw+", change_script", "change_mode \"script\" needs a command, such as change_script { command = \"/bin/reload\" }")
		default:
			v.duration(tw+", change_script, timeout", c.Timeout)
		}
		v.duration(tw+", splay", m.Splay)
		if _, err := strconv.ParseUint(val(m.Perms), 8, 12); val(m.Perms) != "" && err != nil {
			v.errorf(tw+", perms", "%.20q: want octal digits such as 0644", val(m.Perms))
		}
	}
}
