// Package auth proves who makes a call and decides whether they may.
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/identity"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/tasktoken"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Identity is the proven caller of a method.
type Identity struct {
	ACL       *acl.ACL
	Token     *structs.ACLToken   // nil for an anonymous caller, or when access control is off
	anonymous bool                // access control is on and no token was sent
	Node      structs.NodeID      // set when the caller proved to be this node by its secret
	Task      *structs.Allocation // the calling task's allocation, as named in its token; nil for other callers
	TaskName  string              // "" when the token names no task
	server    bool                // another server, proven by its certificate or the join key
	By        structs.Submitter
	resolved  bool   // from a token, or the lack of one, with rights
	rights    Rights // of the state in which it was authenticated
}

// Payer names whom the writes of the caller are charged to: the user of a login, who has many tokens, or the token. It
// is "" for callers with management rights, nodes and servers, whose writes are not limited.
func (id *Identity) Payer() string {
	switch {
	case id.ACL.IsManagement() || !id.Node.IsZero() || id.server:
		return ""
	case id.By.UID >= 0:
		return "uid " + strconv.FormatInt(id.By.UID, 10)
	case id.Task != nil:
		return "job " + id.Task.Namespace + " " + id.Task.JobID
	}
	return "token " + id.By.Accessor.String() // of all zeros for the anonymous
}

type identityKey struct{}

// With returns a context that carries the identity of the caller.
func With(ctx context.Context, id *Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// Who returns the identity that the wrapper proved. If there is none, it returns one that may do nothing.
func Who(ctx context.Context) *Identity {
	id, _ := ctx.Value(identityKey{}).(*Identity)
	if id == nil {
		return &Identity{ACL: acl.Deny, anonymous: true}
	}
	return id
}

var (
	ErrTokenUnknown = structs.Errorf(structs.CodeDenied, "%s", structs.ErrTokenNotFound.Msg) // not in this server's state; another server may have it
	errTokenInvalid = structs.Errorf(structs.CodeDenied, "%s", structs.ErrTokenNotFound.Msg) // no state could make it valid
	errTokenExpired = structs.Errorf(structs.CodeDenied, "%s", structs.ErrTokenExpired.Msg)
)

// TokenUnknown reports whether a token was refused only because this server's state does not have it. errors.Is treats
// errors with the same code and sentence as equal, so the values are compared.
func TokenUnknown(err error) bool { return err == error(ErrTokenUnknown) }

// PolicyAnonymous names the policy of callers without a token. If it does not exist, they may do nothing.
const PolicyAnonymous = "anonymous"

// PeerTokenPrefix starts the name of a token made by a login at an agent's unix socket, "peer:<uid>:<gid>:<user>".
const PeerTokenPrefix = "peer:"

// Environment is what a Guard needs from its server.
type Environment struct {
	ACL       bool                   // access control is on; if off, every caller has management rights
	Region    string                 // of this server
	TLS       bool                   // connections between agents use TLS, which proves the peer's role
	Proof     bool                   // servers must prove that they are servers; if off, every peer is taken for one
	Now       func() structs.LogTime // the time that most servers agree on, never the wall clock
	Published func() *replica.Published
}

// Guard authenticates callers against the state that this server has applied, and decides what they may do.
type Guard struct {
	env      Environment
	policies *policyCache
}

// NewGuard returns a guard.
func NewGuard(env Environment) *Guard {
	return &Guard{env: env, policies: &policyCache{compiled: map[string]*acl.ACL{}}}
}

// policyCacheMax limits the compiled sets of policies. At the limit the cache is emptied.
const policyCacheMax = 4096

// policyCache keeps compiled sets of policies for one version of the policy and role tables.
type policyCache struct {
	mu       sync.Mutex
	asOf     [2]structs.Index // indexes of the policy and role tables
	compiled map[string]*acl.ACL
}

// compile returns the ACL of a set of policies, given by name. Unknown policies grant nothing.
func (c *policyCache) compile(snap *state.Snapshot, names []string) *acl.ACL {
	asOf := [2]structs.Index{snap.TableIndex(state.Policies), snap.TableIndex(state.Roles)}
	key := strings.Join(names, "\x00")
	c.mu.Lock()
	if c.asOf != asOf || len(c.compiled) >= policyCacheMax {
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
			continue // rules are checked when they are written; a policy that no longer parses grants nothing
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

// Resolve returns the identity that belongs to a token's secret.
func (g *Guard) Resolve(secret string) (*Identity, error) {
	rights := RightsIn(g.env.Published().Snapshot) // first: a change meanwhile is then noticed by Still
	id, err := g.resolve(secret)
	if err != nil {
		return nil, err
	}
	id.resolved, id.rights = true, rights
	return id, nil
}

func (g *Guard) resolve(secret string) (*Identity, error) {
	if !g.env.ACL {
		return &Identity{ACL: acl.Management, By: structs.Submitter{Name: "anonymous", UID: -1, GID: -1}}, nil
	}
	snap := g.env.Published().Snapshot
	if secret == "" {
		return &Identity{ACL: g.policies.compile(snap, []string{PolicyAnonymous}), anonymous: true,
			By: structs.Submitter{Name: "anonymous", UID: -1, GID: -1}}, nil
	}
	if tasktoken.Is(secret) {
		return g.resolveTask(secret)
	}
	if identity.Is(secret) {
		return g.resolveIdentity(secret)
	}
	sid, err := structs.ParseID[structs.SecretID](secret)
	if err != nil {
		return nil, errTokenInvalid
	}
	t := snap.TokenBySecret(sid)
	if t == nil {
		return nil, ErrTokenUnknown
	}
	if g.expired(t) {
		return nil, errTokenExpired
	}
	id := &Identity{Token: t, By: submitterOf(t)}
	if t.Type == structs.TokenManagement {
		id.ACL = acl.Management
		return id, nil
	}
	id.ACL = g.policies.compile(snap, PoliciesOf(snap, t))
	return id, nil
}

// PoliciesOf returns the names of a token's policies, including those of its roles, sorted.
func PoliciesOf(snap *state.Snapshot, t *structs.ACLToken) []string {
	names := append([]string{}, t.Policies...)
	for _, r := range t.Roles {
		if role := snap.RoleByID(r.ID); role != nil {
			names = append(names, role.Policies...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func submitterOf(t *structs.ACLToken) structs.Submitter {
	by := structs.Submitter{Name: t.Name, UID: -1, GID: -1, Accessor: t.Accessor}
	if rest, ok := strings.CutPrefix(t.Name, PeerTokenPrefix); ok {
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

// NodeAuth returns the node ID and secret in a node's request, or nil if the request has none.
func NodeAuth(req any) *methods.NodeAuth {
	switch r := req.(type) {
	case *methods.NodeRegisterRequest:
		if r.Node == nil {
			return nil
		}
		return &methods.NodeAuth{NodeID: r.Node.ID, Secret: r.Node.SecretID, Start: r.Node.Start}
	case methods.NodeRequest:
		return r.AuthRef()
	}
	return nil
}

// authenticateNode checks a node's secret. An unknown node may only send heartbeats and, if permitted, register.
func (g *Guard) authenticateNode(c *rpc.Call) (*Identity, error) {
	if g.env.TLS && !c.Peer.Local && (c.Peer.Role != "client" && c.Peer.Role != "server" || c.Peer.Region != g.env.Region) {
		return nil, structs.Denied("a certificate of role client or server of region %q", g.env.Region)
	}
	req, err := c.Request()
	if err != nil {
		return nil, err
	}
	a := NodeAuth(req)
	if a == nil || a.NodeID.IsZero() || a.Secret.IsZero() {
		return nil, structs.Errorf(structs.CodeDenied, "%s needs the node's id and secret", c.Method)
	}
	if r, ok := req.(*methods.NodeRegisterRequest); ok {
		err = g.CheckRegistration(a, r.Introduction, c.Inside)
	} else if known, cerr := g.CheckNode(a); known || c.Method != methods.NodeHeartbeat.Name {
		err = cerr // an unknown node may send heartbeats: it is asked to register
	}
	if err != nil {
		return nil, err
	}
	return &Identity{ACL: acl.Deny, Node: a.NodeID, By: structs.Submitter{Name: "node " + a.NodeID.String(), UID: -1, GID: -1}}, nil
}

// Hash returns what the servers keep of an introduction token.
func Hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// CheckRegistration returns an error unless an agent may register as a node. A known node proves itself by its secret;
// which of its agents may speak for it is decided by the handler. With access control, the agent of a new node needs a
// certificate, is a part of a server's process (inside), or has an introduction token. Apply checks the token again.
func (g *Guard) CheckRegistration(a *methods.NodeAuth, introduction string, inside bool) error {
	known, err := g.CheckNode(a)
	switch {
	case known && structs.CodeOf(err) == structs.CodeFenced:
		return nil
	case known:
		return err
	case !g.env.ACL || g.env.TLS || inside:
		return nil
	case introduction == "":
		return structs.Errorf(structs.CodeNotFound, "node %s is not known: with ACLs and without TLS, an agent registers for the first time by an introduction token in client.intro_token; "+
			"`muster node intro create` makes one", a.NodeID)
	case state.Introductions.Get(g.env.Published().Snapshot, Hash(introduction)) == nil:
		return structs.ErrIntroductionUnknown
	}
	return nil
}

// CheckNode compares a node's secret, and the start of its agent, with the state. known reports whether the state has the node at all.
func (g *Guard) CheckNode(a *methods.NodeAuth) (known bool, err error) {
	n := g.env.Published().Snapshot.NodeByID(a.NodeID)
	if n == nil {
		return false, structs.Errorf(structs.CodeNotFound, "node %s is not registered", a.NodeID)
	}
	if subtle.ConstantTimeCompare(n.SecretID[:], a.Secret[:]) != 1 {
		return true, structs.Errorf(structs.CodeDenied, "the secret does not belong to node %s; if the node's state was lost, purge the node first or let it register under a new id", a.NodeID)
	}
	if n.Start != a.Start {
		return true, structs.Errorf(structs.CodeFenced, "another agent has registered as node %s", a.NodeID)
	}
	return true, nil
}

// Inside reports whether a caller is a part of a server's process: of this one, or of the one that forwarded the call.
func (g *Guard) Inside(c *rpc.Call) bool {
	return c.Peer.Local || c.Inside && g.isServer(c.Peer)
}

// isServer reports whether the peer has proved that it is a server of this region: by its certificate, or by the join
// key.
func (g *Guard) isServer(p rpc.Peer) bool {
	if !g.env.Proof && !p.Local {
		return true // without ACLs and TLS a cluster trusts its network; its agents start only if their configuration allows that
	}
	return p.Role == "server" && p.Region == g.env.Region
}

// Authenticate proves the caller's identity from this server's state, by the means that the method needs. Callers
// without a token are refused unless anyone may call the method or an anonymous policy exists.
func (g *Guard) Authenticate(row *methods.Row, c *rpc.Call) (*Identity, error) {
	switch {
	case row.Need.NodeSecret:
		return g.authenticateNode(c)
	case row.Need.ServerCert:
		if !g.isServer(c.Peer) {
			return nil, structs.Denied("a server's certificate")
		}
		return &Identity{ACL: acl.Deny, server: true, By: structs.Submitter{Name: c.Peer.Name, UID: -1, GID: -1}}, nil
	}
	id, err := g.Resolve(c.Token)
	switch {
	case row.Need.Anonymous && err != nil:
		return g.Resolve("") // a bad token does not lock a caller out of what is open to all
	case !row.Need.Anonymous && err == nil && id.anonymous && g.env.Published().Snapshot.Policy(PolicyAnonymous) == nil:
		return nil, structs.Denied("a token; the request has none")
	}
	return id, err
}

// byObject lists methods that act in the namespace of the object they name. The wrapper checks the capability in any
// namespace; the handler checks it in the object's.
var byObject = map[string]bool{
	methods.AllocGet.Name: true, methods.AllocStop.Name: true, methods.AllocSuspend.Name: true,
	methods.EvalGet.Name: true, methods.EvalAllocs.Name: true,
	methods.DeploymentGet.Name: true, methods.DeploymentAllocs.Name: true, methods.DeploymentFail.Name: true,
	methods.ClientFSList.Name: true, methods.ClientFSStat.Name: true, methods.ClientFSStream.Name: true,
	methods.ClientLogs.Name: true, methods.ClientExec.Name: true, methods.ClientForward.Name: true, methods.ClientStats.Name: true,
	methods.ClientRestart.Name: true, methods.ClientSignal.Name: true, methods.ClientCheckpoint.Name: true, methods.ClientGC.Name: true,
	methods.ClientChecks.Name: true, methods.ServiceAlloc.Name: true, methods.ScalingGet.Name: true,
}

// Authorise returns an error unless the identity may make the call. What no rule grants is denied, and the error names
// the missing right.
func (g *Guard) Authorise(row *methods.Row, c *rpc.Call, id *Identity) error {
	req, err := c.Request()
	if err != nil {
		return err
	}
	n := row.Need
	switch {
	case n.Anonymous:
		return nil
	case id.Task != nil:
		return unless(g.authoriseTask(c, id), "a user's token: a task may read its own job and gangs, its variables and the services of its namespace, and run commands in its group")
	case n.NodeSecret:
		return unless(!id.Node.IsZero(), "the secret of a node")
	case n.ServerCert:
		return unless(id.server, "a server's certificate")
	case n.NodePool != "":
		name := poolOf(req)
		return id.unless((name != "*" || id.ACL.IsManagement()) && id.ACL.AllowNodePool(name, n.NodePool), "node_pool capability %s on node pool %q", n.NodePool, name)
	case n.Queue != "":
		return id.mayQueues(req, n.Queue)
	case n.Variable != "":
		r, named := req.(methods.VariableRequest)
		if !named {
			return structs.ErrPermissionDenied
		}
		ns, path := NamespaceOf(c), r.VariablePath()
		return id.unless(id.ACL.AllowVariable(ns, path, n.Variable), "variables capability %s on path %q in namespace %q", n.Variable, path, ns)
	case n.Namespace != "" && byObject[c.Method]:
		return id.unless(id.ACL.AllowNamespaceOp("*", n.Namespace), "namespace capability %s in the namespace of the object", n.Namespace)
	}
	return Allow(id, n, NamespaceOf(c))
}

// Allow returns an error unless the identity meets a need that names no object but a namespace.
func Allow(id *Identity, n methods.Need, ns string) error {
	switch {
	case n.Management:
		return id.unless(id.ACL.IsManagement(), "a management token")
	case n.AnyToken: // Authenticate has refused callers without a token, unless an anonymous policy exists
		return id.unless(id.ACL.IsManagement() || id.Token != nil || id.anonymous, "a token")
	case n.Namespace != "" && ns == "*":
		return id.unless(id.ACL.AllowNamespaceOp(ns, n.Namespace), "namespace capability %s in at least one namespace", n.Namespace)
	case n.Namespace != "":
		return id.unless(id.ACL.AllowNamespaceOp(ns, n.Namespace), "namespace capability %s in namespace %q", n.Namespace, ns)
	case n.Node != "":
		return id.unless(id.ACL.AllowNode(n.Node), "node policy %s", n.Node)
	case n.Quota != "":
		return id.unless(id.ACL.AllowQuota(n.Quota), "quota policy %s, or operator policy %s", n.Quota, n.Quota)
	case n.Agent != "":
		return id.unless(id.ACL.AllowAgent(n.Agent), "agent policy %s", n.Agent)
	case n.Operator != "":
		return id.unless(id.ACL.AllowOperator(n.Operator), "operator policy %s", n.Operator)
	}
	return structs.ErrPermissionDenied
}

// unless returns nil, or an error that names the missing right.
func unless(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return structs.Denied(format, args...)
}

// unless is like the function, and says so if the caller sent no token at all.
func (id *Identity) unless(ok bool, format string, args ...any) error {
	if !ok && id.anonymous {
		format += "; the request has no token"
	}
	return unless(ok, format, args...)
}

// mayQueues checks a capability on all queues that a request names.
func (id *Identity) mayQueues(req any, capability string) error {
	r, ok := req.(methods.QueueRequest)
	if !ok {
		return structs.ErrPermissionDenied
	}
	paths := r.QueuePaths()
	if len(paths) == 0 {
		return id.unless(id.ACL.AllowOperator(capability), "operator policy %s", capability)
	}
	for _, p := range paths {
		if !id.ACL.AllowQueue(string(p), capability) {
			return id.unless(false, "queue capability %s on queue %q", capability, p)
		}
	}
	return nil
}

// poolOf returns the node pool that a request names.
func poolOf(req any) structs.PoolName {
	switch r := req.(type) {
	case *methods.NameRequest:
		return structs.PoolName(r.Name)
	case *methods.NamedListRequest:
		return structs.PoolName(r.Name)
	case *methods.PoolUpsertRequest:
		return structs.PoolName(r.Name)
	}
	return "*"
}

// NamespaceOf returns the namespace of a call, or the default one.
func NamespaceOf(c *rpc.Call) string {
	if c.Namespace == "" {
		return structs.NamespaceDefault
	}
	return c.Namespace
}
