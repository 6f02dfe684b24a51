package acl

import (
	"sort"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// ACL is what one caller may do: the union of its policies, where a denial wins. It is immutable. The zero ACL and a
// nil *ACL allow nothing.
type ACL struct {
	management bool

	namespaces  globs
	nodePools   globs
	hostVolumes globs
	queues      globs
	variables   map[string]*globs // by namespace glob as written

	node, agent, operator, quota string
}

// Management allows everything.
var Management = &ACL{management: true}

// Deny allows nothing.
var Deny = &ACL{}

// globs maps exact names and globs to capability sets.
type globs struct {
	exact map[string]caps
	list  []glob // longest first, then by text
}

type glob struct {
	pattern string
	caps    caps
}

type caps map[string]bool

func (g *globs) add(name string, capabilities []string) {
	if g.exact == nil {
		g.exact = map[string]caps{}
	}
	c := g.exact[name]
	if c == nil {
		c = caps{}
		g.exact[name] = c
	}
	for _, x := range capabilities {
		c[x] = true
	}
}

// seal sorts the globs. Nothing may be added after it.
func (g *globs) seal() {
	for name, c := range g.exact {
		if strings.ContainsAny(name, "*?") {
			g.list = append(g.list, glob{name, c})
		}
	}
	sort.Slice(g.list, func(i, j int) bool {
		a, b := g.list[i].pattern, g.list[j].pattern
		if la, lb := literal(a), literal(b); la != lb {
			return la > lb
		}
		return a < b
	})
}

// literal counts the characters of a pattern that match themselves. A pattern with more of them is more specific.
func literal(p string) int {
	n := 0
	for i := range len(p) {
		if p[i] != '*' && p[i] != '?' {
			n++
		}
	}
	return n
}

// find returns the capability set for a name: that of the exact name, or of the most specific glob that matches.
func (g *globs) find(name string) caps {
	if c, ok := g.exact[name]; ok && !strings.ContainsAny(name, "*?") {
		return c
	}
	for _, x := range g.list {
		if Match(x.pattern, name) {
			return x.caps
		}
	}
	return nil
}

func (g *globs) allow(name, capability string) bool {
	c := g.find(name)
	return c[capability] && !c[CapDeny]
}

// any reports whether the capability is granted for at least one name.
func (g *globs) any(capability string) bool {
	for _, c := range g.exact {
		if c[capability] && !c[CapDeny] {
			return true
		}
	}
	return false
}

// Match reports whether a glob with * (any characters) and ? (one character) matches a name. It uses constant space and
// backtracks only to the last star.
func Match(pattern, name string) bool {
	p, n, star, mark := 0, 0, -1, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, n
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == name[n]):
			p, n = p+1, n+1
		case star >= 0:
			mark++
			p, n = star+1, mark
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// Compile merges policies into an ACL.
func Compile(policies []*Policy) *ACL {
	a := &ACL{variables: map[string]*globs{}}
	for _, p := range policies {
		for _, r := range p.Namespaces {
			a.namespaces.add(r.Name, r.Capabilities)
			for _, v := range r.Variables {
				g := a.variables[r.Name]
				if g == nil {
					g = &globs{}
					a.variables[r.Name] = g
				}
				g.add(v.Name, v.Capabilities)
			}
		}
		for _, r := range p.NodePools {
			a.nodePools.add(r.Name, r.Capabilities)
		}
		for _, r := range p.HostVolumes {
			a.hostVolumes.add(r.Name, r.Capabilities)
		}
		for _, r := range p.Queues {
			a.queues.add(r.Name, r.Capabilities)
		}
		a.node, a.agent = stronger(a.node, p.Node), stronger(a.agent, p.Agent)
		a.operator, a.quota = stronger(a.operator, p.Operator), stronger(a.quota, p.Quota)
	}
	a.namespaces.seal()
	a.nodePools.seal()
	a.hostVolumes.seal()
	a.queues.seal()
	for _, g := range a.variables {
		g.seal()
	}
	return a
}

// stronger merges two levels. A denial wins.
func stronger(a, b string) string {
	for _, w := range []string{CapDeny, "write", "read"} {
		if a == w || b == w {
			return w
		}
	}
	return ""
}

// covers reports whether a level includes another one.
func covers(have, want string) bool {
	return have == want && have != CapDeny || have == "write" && want == "read"
}

// IsManagement reports whether everything is allowed.
func (a *ACL) IsManagement() bool { return a != nil && a.management }

// AllowNamespaceOp reports whether the capability is granted in a namespace. "*" asks for any namespace.
func (a *ACL) AllowNamespaceOp(namespace, capability string) bool {
	switch {
	case a == nil:
		return false
	case a.management:
		return true
	case namespace == "*":
		return a.namespaces.any(capability)
	}
	return a.namespaces.allow(namespace, capability)
}

// AllowNamespace reports whether anything but deny is granted in a namespace.
func (a *ACL) AllowNamespace(namespace string) bool {
	if a == nil {
		return false
	}
	if a.management {
		return true
	}
	c := a.namespaces.find(namespace)
	return len(c) > 0 && !c[CapDeny]
}

// AllowNodePool reports whether "read", "write" or "delete" is granted on a pool; "*" asks for any.
func (a *ACL) AllowNodePool(pool structs.PoolName, capability string) bool {
	switch {
	case a == nil:
		return false
	case a.management:
		return true
	case pool == "*":
		return a.nodePools.any(capability)
	}
	return a.nodePools.allow(string(pool), capability)
}

// AllowHostVolume reports whether "mount-readonly" or "mount-readwrite" is granted on a host volume.
func (a *ACL) AllowHostVolume(name, capability string) bool {
	return a != nil && (a.management || a.hostVolumes.allow(name, capability))
}

// AllowQueue reports whether "read", "submit" or "write" is granted on a queue path. A queue that no rule mentions may
// be read and used by everyone who may submit jobs. What operator rules grant on all queues, a denial of one takes away.
func (a *ACL) AllowQueue(path, capability string) bool {
	switch c := a.queueCaps(path); {
	case a == nil || c[CapDeny]:
		return false
	case a.management || c[capability]:
		return true
	case capability == CapQueueRead:
		return c == nil || covers(a.operator, "read")
	case capability == CapQueueWrite:
		return covers(a.operator, "write")
	default:
		return c == nil
	}
}

// queueCaps returns what rules say about a queue; nil if none mentions it.
func (a *ACL) queueCaps(path string) caps {
	if a == nil || a.management {
		return nil
	}
	return a.queues.find(path)
}

// AllowVariable reports whether "list", "read", "write" or "destroy" is granted on a path in a namespace.
func (a *ACL) AllowVariable(namespace, path, capability string) bool {
	if a == nil || a.management {
		return a != nil
	}
	if a.namespaces.find(namespace)[CapDeny] {
		return false
	}
	best, found := "", false
	for pattern := range a.variables {
		if Match(pattern, namespace) && (!found || literal(pattern) > literal(best) || literal(pattern) == literal(best) && pattern < best) {
			best, found = pattern, true
		}
	}
	return found && a.variables[best].allow(path, capability)
}

// AllowNode reports whether "read" or "write" is granted on nodes.
func (a *ACL) AllowNode(op string) bool { return a != nil && (a.management || covers(a.node, op)) }

// AllowAgent reports whether "read" or "write" is granted on agents.
func (a *ACL) AllowAgent(op string) bool { return a != nil && (a.management || covers(a.agent, op)) }

// AllowOperator reports whether "read" or "write" is granted on the operator API.
func (a *ACL) AllowOperator(op string) bool {
	return a != nil && (a.management || covers(a.operator, op))
}

// AllowQuota reports whether "read" or "write" is granted on quotas, by a quota rule, or by an operator rule if no quota
// rule denies it.
func (a *ACL) AllowQuota(op string) bool {
	if a == nil || a.management {
		return a != nil
	}
	return a.quota != CapDeny && (covers(a.quota, op) || covers(a.operator, op))
}
