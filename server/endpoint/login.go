package endpoint

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// peerTokenTTL is how long a token from a login is valid.
const peerTokenTTL = time.Hour

// policyLogin names the policy of users who log in at an agent's unix socket. "login-group-<name>" adds the rights of a
// group's members.
const (
	policyLogin      = "login"
	policyLoginGroup = "login-group-"
)

// LoginNodes are the nodes whose agents may say who any user is (ADR 0020).
type LoginNodes struct {
	All   bool
	Nodes []structs.NodeID
}

// peerLogin makes a short-lived token for a user whom an agent identified at its unix socket. It has the policies
// "login" and, at a login node, "login-group-<group>", those that exist. If none exists, the login is denied.
//
// The server has only the agent's word for user and groups. From nodes that the operator has not named it takes that
// word only for users who run something on the node, and for no group: an agent in the wrong hands has what these users
// gave to their tasks there anyway.
func (s *Set) peerLogin(ctx context.Context, c *rpc.Call, req *methods.ACLPeerLoginRequest) (*methods.ACLPeerLoginResponse, error) {
	if !s.env.ACL {
		return &methods.ACLPeerLoginResponse{}, nil
	}
	if req.UID < 0 || req.GID < 0 || req.User == "" || len(req.User) > 128 || len(req.Groups) > 4096 {
		return nil, structs.Errorf(structs.CodeInvalid, "a login needs uid, gid, user name and at most 4,096 groups")
	}
	snap := s.published().Snapshot
	policies := []string{policyLogin}
	if s.env.Logins.All || slices.Contains(s.env.Logins.Nodes, req.NodeID) {
		for _, g := range req.Groups {
			policies = append(policies, policyLoginGroup+g)
		}
	} else if !runsOn(snap, req) {
		return nil, structs.Errorf(structs.CodeDenied, "user %q runs nothing on node %s, and it is not one of login_nodes in the block acl of the servers' configuration", req.User, req.NodeID)
	}
	policies = slices.DeleteFunc(policies, func(name string) bool { return snap.Policy(name) == nil })
	if len(policies) == 0 {
		return nil, structs.Errorf(structs.CodeDenied, "no policy named %q allows users of a machine to log in", policyLogin)
	}
	slices.Sort(policies)
	now := s.env.Replica.Now()
	t := &structs.ACLToken{Accessor: NewID[structs.AccessorID](), Secret: NewID[structs.SecretID](), Type: structs.TokenClient,
		Name: fmt.Sprintf("%s%d:%d:%s", auth.PeerTokenPrefix, req.UID, req.GID, req.User), Policies: slices.Compact(policies), CreateTime: now,
		ExpiresAt: now.Add(peerTokenTTL), ExpirationTTL: int64(peerTokenTTL)}
	if _, err := s.env.Apply(ctx, replica.LanePriority, structs.Command{By: auth.Who(ctx).By, Body: &structs.TokenUpsertCommand{Tokens: []*structs.ACLToken{t}}}); err != nil {
		return nil, err
	}
	return &methods.ACLPeerLoginResponse{Secret: t.Secret, Accessor: t.Accessor, TTL: peerTokenTTL}, nil
}

// runsOn reports whether the user has work on the node that has not ended: a job that they submitted after a login. The
// user of a task does not count. A job file names any user, and an agent in the wrong hands would have one submitted that
// names its victim; the victim's token would then run work as the victim on every other node.
func runsOn(snap *state.Snapshot, req *methods.ACLPeerLoginRequest) bool {
	for _, a := range snap.AllocsByNode(req.NodeID) {
		if a.ClientTerminal() || a.Job == nil {
			continue
		}
		if by := a.Job.Submitter; by.UID == req.UID && by.Name == req.User {
			return true
		}
	}
	return false
}
