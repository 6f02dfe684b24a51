package server

import (
	"context"
	"crypto/subtle"
	"strconv"
	"strings"
	"sync"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/tasktoken"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/structs"
)

// identity is who makes a call, as far as it was proven.
type identity struct {
	acl       *acl.ACL
	token     *structs.ACLToken   // nil: anonymous, or access control is off
	anonymous bool                // no token was sent and access control is on
	node      structs.NodeID      // proven by its secret
	task      *structs.Allocation // of the task that makes the call, by its agent's word; nil for other callers
	taskName  string              // with task: which one; "": its agent does not say
	server    bool                // another server, by its certificate
	by        structs.Submitter
}

type identityKey struct{}

// who is the identity that the wrapper proved. Handlers run inside the wrapper, so there always is one.
func who(ctx context.Context) *identity {
	id, _ := ctx.Value(identityKey{}).(*identity)
	if id == nil {
		return &identity{acl: acl.Deny, anonymous: true}
	}
	return id
}

var (
	errTokenUnknown = structs.Errorf(structs.CodeDenied, "ACL token not found") // in this server's state
	errTokenInvalid = structs.Errorf(structs.CodeDenied, "ACL token not found") // in whatever state
	errTokenExpired = structs.Errorf(structs.CodeDenied, "ACL token expired")
)

// tokenUnknown reports whether a token was refused only because this server's state does not have it. Errors of one code
// and sentence are equal to errors.Is, so the values are compared.
func tokenUnknown(err error) bool { return err == error(errTokenUnknown) }

// policyAnonymous grants what callers without a token may do; absent, they may do nothing.
const policyAnonymous = "anonymous"

// peerTokenPrefix starts the name of a token made by a login at an agent's unix socket: "peer:<uid>:<gid>:<user>".
const peerTokenPrefix = "peer:"

// aclCacheMax is how many compiled policy sets are kept; at the limit the cache starts anew.
const aclCacheMax = 4096

// aclCache keeps compiled policies per token, as of one state of the policy, role and token tables.
type aclCache struct {
	mu       sync.Mutex
	asOf     [2]structs.Index // of policies and roles
	compiled map[string]*acl.ACL
}

func newACLCache() *aclCache { return &aclCache{compiled: map[string]*acl.ACL{}} }

// compile gives the ACL of a set of policy names. Unknown policies grant nothing.
func (c *aclCache) compile(snap *state.Snapshot, names []string) *acl.ACL {
	asOf := [2]structs.Index{snap.TableIndex(state.Policies), snap.TableIndex(state.Roles)}
	key := strings.Join(names, "\x00")
	c.mu.Lock()
	if c.asOf != asOf || len(c.compiled) >= aclCacheMax {
		c.asOf, c.compiled = asOf, map[string]*acl.ACL{}
	}
	if a := c.compiled[key]; a != nil {
		c.mu.Unlock()
		return a
	}
	c.mu.Unlock()
	var ps []*acl.Policy
	for _, n := range names {
		stored := snap.Policy(n)
		if stored == nil {
			continue
		}
		p, err := acl.Parse(n, stored.Rules)
		if err != nil {
			continue // checked when it was written; a policy that no longer parses grants nothing
		}
		ps = append(ps, p)
	}
	a := acl.Compile(ps)
	c.mu.Lock()
	if c.asOf == asOf {
		c.compiled[key] = a
	}
	c.mu.Unlock()
	return a
}

// resolve finds out what a token secret may do.
func (s *Server) resolve(secret string) (*identity, error) {
	if !s.cfg.ACL {
		return &identity{acl: acl.Management, by: structs.Submitter{Name: "anonymous", UID: -1, GID: -1}}, nil
	}
	p := s.Published()
	snap := p.Snapshot
	if secret == "" {
		return &identity{acl: s.acls.compile(snap, []string{policyAnonymous}), anonymous: true,
			by: structs.Submitter{Name: "anonymous", UID: -1, GID: -1}}, nil
	}
	if tasktoken.Is(secret) {
		return s.resolveTask(secret)
	}
	sid, err := structs.ParseID[structs.SecretID](secret)
	if err != nil {
		return nil, errTokenInvalid
	}
	t := snap.TokenBySecret(sid)
	if t == nil {
		return nil, errTokenUnknown
	}
	if t.Expired(max(p.Time, structs.LogTimeOf(s.cfg.Now()))) {
		return nil, errTokenExpired
	}
	id := &identity{token: t, by: submitterOf(t)}
	if t.Type == structs.TokenManagement {
		id.acl = acl.Management
		return id, nil
	}
	id.acl = s.acls.compile(snap, policiesOf(snap, t))
	return id, nil
}

// policiesOf are the names of the policies of a token, through its roles too, in a fixed order.
func policiesOf(snap *state.Snapshot, t *structs.ACLToken) []string {
	names := append([]string{}, t.Policies...)
	for _, r := range t.Roles {
		if role := snap.RoleByID(r.ID); role != nil {
			names = append(names, role.Policies...)
		}
	}
	return sortedUnique(names)
}

func submitterOf(t *structs.ACLToken) structs.Submitter {
	by := structs.Submitter{Name: t.Name, UID: -1, GID: -1, Accessor: t.Accessor}
	if rest, ok := strings.CutPrefix(t.Name, peerTokenPrefix); ok {
		if f := strings.SplitN(rest, ":", 3); len(f) == 3 {
			uid, err1 := strconv.ParseInt(f[0], 10, 64)
			gid, err2 := strconv.ParseInt(f[1], 10, 64)
			if err1 == nil && err2 == nil {
				by.UID, by.GID, by.Name = uid, gid, f[2]
			}
		}
	}
	return by
}

// nodeAuth is the proof in a request of a node, or nil.
func nodeAuth(req any) *methods.NodeAuth {
	switch r := req.(type) {
	case *methods.NodeRegisterRequest:
		if r.Node == nil {
			return nil
		}
		return &methods.NodeAuth{NodeID: r.Node.ID, Secret: r.Node.SecretID}
	case methods.NodeRequest:
		return r.AuthRef()
	}
	return nil
}

// authenticateNode checks a node's secret. A node that no server knows may only register.
func (s *Server) authenticateNode(c *rpc.Call) (*identity, error) {
	if s.cfg.TLSServer != nil && !c.Peer.Local && (c.Peer.Role != "client" && c.Peer.Role != "server" || c.Peer.Region != s.cfg.Region) {
		return nil, structs.ErrPermissionDenied
	}
	req, err := c.Request()
	if err != nil {
		return nil, err
	}
	a := nodeAuth(req)
	if a == nil || a.NodeID.IsZero() || a.Secret.IsZero() {
		return nil, structs.Errorf(structs.CodeDenied, "%s needs the node's id and secret", c.Method)
	}
	known, err := s.checkNode(a)
	if err != nil && (known || c.Method != methods.NodeRegister.Name && c.Method != methods.NodeHeartbeat.Name) {
		return nil, err
	}
	return &identity{acl: acl.Deny, node: a.NodeID, by: structs.Submitter{Name: "node " + a.NodeID.String(), UID: -1, GID: -1}}, nil
}

// checkNode compares a node's secret with the state, and reports whether the state has the node at all.
func (s *Server) checkNode(a *methods.NodeAuth) (known bool, err error) {
	n := s.Published().Snapshot.NodeByID(a.NodeID)
	if n == nil {
		return false, structs.Errorf(structs.CodeNotFound, "node %s is not registered", a.NodeID)
	}
	if subtle.ConstantTimeCompare(n.SecretID[:], a.Secret[:]) != 1 {
		return true, structs.Errorf(structs.CodeDenied, "the secret does not belong to node %s; if the node's state was lost, purge the node first or let it register under a new id", a.NodeID)
	}
	return true, nil
}

// isServer reports whether the peer proved to be a server of this region.
func (s *Server) isServer(p rpc.Peer) bool {
	if s.cfg.TLSServer == nil && !p.Local {
		return true // plaintext clusters trust their network; the agent refuses to start one by accident
	}
	return p.Role == "server" && p.Region == s.cfg.Region
}

// authenticate proves who calls, from this server's state, by what the method needs. Callers without a token are only
// known where everybody may call the method or an anonymous policy exists.
func (s *Server) authenticate(row *methods.Row, c *rpc.Call) (*identity, error) {
	switch {
	case row.Need.NodeSecret:
		return s.authenticateNode(c)
	case row.Need.ServerCert:
		if !s.isServer(c.Peer) {
			return nil, structs.ErrPermissionDenied
		}
		return &identity{acl: acl.Deny, server: true, by: structs.Submitter{Name: c.Peer.Name, UID: -1, GID: -1}}, nil
	}
	id, err := s.resolve(c.Token)
	switch {
	case row.Need.Anonymous && err != nil:
		return s.resolve("") // a bad token closes nothing that is open to all
	case !row.Need.Anonymous && err == nil && id.anonymous && s.Published().Snapshot.Policy(policyAnonymous) == nil:
		return nil, structs.ErrPermissionDenied
	}
	return id, err
}

// byObject are the methods whose namespace is that of the object they name: the wrapper asks for the capability in any
// namespace, the handler for it in the right one.
var byObject = map[string]bool{
	methods.AllocGet.Name: true, methods.AllocStop.Name: true, methods.AllocSuspend.Name: true,
	methods.EvalGet.Name: true, methods.EvalAllocs.Name: true,
	methods.ClientFSList.Name: true, methods.ClientFSStat.Name: true, methods.ClientFSStream.Name: true,
	methods.ClientLogs.Name: true, methods.ClientExec.Name: true, methods.ClientStats.Name: true,
	methods.ClientRestart.Name: true, methods.ClientSignal.Name: true, methods.ClientCheckpoint.Name: true, methods.ClientGC.Name: true,
	methods.ClientChecks.Name: true,
}

// authorise answers whether the identity may make the call. What no rule grants is denied.
func (s *Server) authorise(row *methods.Row, c *rpc.Call, id *identity) error {
	n := row.Need
	ok := false
	switch {
	case n.Anonymous:
		ok = true
	case id.task != nil:
		ok = s.authoriseTask(c, id)
	case n.NodeSecret:
		ok = !id.node.IsZero()
	case n.ServerCert:
		ok = id.server
	case n.Management:
		ok = id.acl.IsManagement()
	case n.AnyToken: // authenticate has refused callers without one, unless an anonymous policy exists
		ok = id.acl.IsManagement() || id.token != nil || id.anonymous
	case n.Namespace != "":
		ns := namespaceOf(c)
		if byObject[c.Method] {
			ns = "*"
		}
		ok = id.acl.AllowNamespaceOp(ns, n.Namespace)
	case n.Node != "":
		ok = id.acl.AllowNode(n.Node)
	case n.NodePool != "":
		name := "*"
		if req, err := c.Request(); err == nil {
			switch r := req.(type) {
			case *methods.NameRequest:
				name = r.Name
			case *methods.NamedListRequest:
				name = r.Name
			case *methods.PoolUpsertRequest:
				name = r.Name
			}
		} else {
			return err
		}
		ok = name != "*" && id.acl.AllowNodePool(name, n.NodePool)
	case n.Variable != "":
		req, err := c.Request()
		if err != nil {
			return err
		}
		r, named := req.(methods.VariableRequest)
		ok = named && id.acl.AllowVariable(namespaceOf(c), r.VariablePath(), n.Variable)
	case n.Agent != "":
		ok = id.acl.AllowAgent(n.Agent)
	case n.Operator != "":
		ok = id.acl.AllowOperator(n.Operator)
	}
	if !ok {
		s.metrics.denied.Add(1)
		return structs.ErrPermissionDenied
	}
	return nil
}

// namespaceOf is the namespace a call is about.
func namespaceOf(c *rpc.Call) string {
	if c.Namespace == "" {
		return structs.NamespaceDefault
	}
	return c.Namespace
}
