package auth

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Rights is the version of everything in a state that decides what tokens may do: tokens, policies and roles.
type Rights struct {
	Epoch uint64 // of the cluster's restores; indexes of different epochs say nothing about each other
	Index structs.Index
}

// RightsIn returns the version of the rights in a state.
func RightsIn(snap *state.Snapshot) Rights {
	r := Rights{Index: max(snap.TableIndex(state.Tokens), snap.TableIndex(state.Policies), snap.TableIndex(state.Roles))}
	if meta := snap.ClusterMeta(); meta != nil {
		r.Epoch = meta.RestoreEpoch
	}
	return r
}

// Before reports whether r is older than other.
func (r Rights) Before(other Rights) bool {
	return r.Epoch < other.Epoch || r.Epoch == other.Epoch && r.Index < other.Index
}

// Still reports whether a caller has, in a later state, the rights that it was given: if not, it has to be authenticated
// again before it is shown anything of that state. Nodes and servers prove themselves by other means.
func (g *Guard) Still(id *Identity, snap *state.Snapshot) bool {
	switch {
	case !g.env.ACL || !id.resolved:
		return true
	case id.Token != nil && g.expired(id.Token):
		return false
	case id.Task != nil && snap.AllocByID(id.Task.ID) != id.Task:
		return false // it may have ended
	}
	return RightsIn(snap) == id.rights
}

// expired is asked when a caller is authenticated and when it is looked at again. The two must agree, or a query is
// authenticated again and again.
func (g *Guard) expired(t *structs.ACLToken) bool { return t.Expired(g.env.Now()) }
