package endpoint

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/server/watch"
	"github.com/muster-sched/muster/structs"
)

// Lifetimes of tokens; see also peerTokenTTL.
const (
	oneTimeTTL  = 10 * time.Minute
	tokenTTLMin = time.Minute
	tokenTTLMax = 24 * 365 * time.Hour
)

func (s *Set) registerACL() {
	handle(s, methods.ACLBootstrap, s.aclBootstrap)
	handle(s, methods.ACLTokenUpsert, s.tokenUpsert)
	handle(s, methods.ACLTokenDelete, s.tokenDelete)
	handle(s, methods.ACLTokenGet, s.tokenGet)
	handle(s, methods.ACLTokenSelf, s.tokenSelf)
	handle(s, methods.ACLTokenList, s.tokenList)
	handle(s, methods.ACLPolicyUpsert, s.policyUpsert)
	handle(s, methods.ACLPolicyDelete, s.policyDelete)
	handle(s, methods.ACLPolicyGet, s.policyGet)
	handle(s, methods.ACLPolicyList, s.policyList)
	handle(s, methods.ACLPolicySelf, s.policySelf)
	handle(s, methods.ACLRoleUpsert, s.roleUpsert)
	handle(s, methods.ACLRoleDelete, s.roleDelete)
	handle(s, methods.ACLRoleGet, s.roleGet)
	handle(s, methods.ACLRoleList, s.roleList)
	handle(s, methods.ACLOneTimeCreate, s.oneTimeCreate)
	handle(s, methods.ACLOneTimeUse, s.oneTimeUse)
	handle(s, methods.ACLPeerLogin, s.peerLogin)
}

// What a caller may not see is refused like what does not exist.
var (
	errForeignRole = structs.Denied("a management token, or one with the role")
	errOneTime     = structs.Denied("a one-time token that was not used and has not expired")
)

var (
	errACLDisabled = structs.Errorf(structs.CodeInvalid, structs.ACLDisabled+": "+structs.ACLEnable)
	// errNoSelf is without the cure: Nomad's web interface compares this answer to the request for the token in use.
	errNoSelf = structs.Errorf(structs.CodeInvalid, structs.ACLDisabled)
)

// NewID returns a random ID. It must not be used inside the log.
func NewID[T ~[16]byte]() T {
	var id T
	rand.Read(id[:])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id
}

func (s *Set) aclBootstrap(ctx context.Context, c *rpc.Call, req *methods.ACLBootstrapRequest) (*methods.ACLTokenResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	t := &structs.ACLToken{Accessor: NewID[structs.AccessorID](), Secret: req.Secret, Name: "Bootstrap Token", Type: structs.TokenManagement, Global: true}
	if t.Secret.IsZero() {
		t.Secret = NewID[structs.SecretID]()
	}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.ACLBootstrapCommand{Token: t, ResetIndex: s.bootstrapReset()}})
	if err != nil {
		return nil, err
	}
	return &methods.ACLTokenResponse{Index: res.Index, Token: s.published().Snapshot.TokenByAccessor(t.Accessor)}, nil
}

func (s *Set) tokenUpsert(ctx context.Context, c *rpc.Call, req *methods.ACLTokenUpsertRequest) (*methods.ACLTokenResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	if req.Token == nil {
		return nil, structs.Errorf(structs.CodeInvalid, "missing token")
	}
	t := *req.Token
	snap := s.published().Snapshot
	if len(t.Name) > 256 || strings.HasPrefix(t.Name, auth.PeerTokenPrefix) {
		return nil, structs.Errorf(structs.CodeInvalid, "token name must have at most 256 bytes and not start with %q", auth.PeerTokenPrefix)
	}
	if len(t.Policies) > 256 || len(t.Roles) > 256 {
		return nil, structs.Errorf(structs.CodeInvalid, "a token has at most 256 policies and 256 roles")
	}
	switch t.Type {
	case structs.TokenClient:
		if len(t.Policies)+len(t.Roles) == 0 {
			return nil, structs.Errorf(structs.CodeInvalid, "client token missing policies or roles")
		}
	case structs.TokenManagement:
		if len(t.Policies)+len(t.Roles) != 0 {
			return nil, structs.Errorf(structs.CodeInvalid, "management token cannot be associated with policies or roles")
		}
	default:
		return nil, structs.Errorf(structs.CodeInvalid, "token type must be client or management, not %q", t.Type)
	}
	t.CreateIndex, t.ModifyIndex = 0, 0
	if old := snap.TokenByAccessor(t.Accessor); !t.Accessor.IsZero() && old != nil {
		if t.Secret.IsZero() {
			t.Secret = old.Secret
		}
		if t.Secret != old.Secret {
			return nil, structs.Errorf(structs.CodeInvalid, "cannot change the secret of a token")
		}
		if t.ExpirationTTL != 0 && t.ExpirationTTL != old.ExpirationTTL || t.ExpiresAt != 0 && t.ExpiresAt != old.ExpiresAt {
			return nil, structs.Errorf(structs.CodeInvalid, "cannot change when a token expires; create a new one")
		}
		t.CreateTime, t.ExpiresAt, t.ExpirationTTL = old.CreateTime, old.ExpiresAt, old.ExpirationTTL
	} else {
		if !t.Accessor.IsZero() && t.Secret.IsZero() {
			return nil, structs.Errorf(structs.CodeNotFound, "cannot find token %s", t.Accessor)
		}
		if t.Accessor.IsZero() {
			t.Accessor, t.Secret = NewID[structs.AccessorID](), NewID[structs.SecretID]()
		}
		now := s.env.Replica.Now()
		t.CreateTime = now
		if t.ExpirationTTL != 0 {
			if t.ExpiresAt != 0 {
				return nil, structs.Errorf(structs.CodeInvalid, "a token has an expiration time or a TTL, not both")
			}
			ttl := time.Duration(t.ExpirationTTL)
			if ttl < tokenTTLMin || ttl > tokenTTLMax {
				return nil, structs.Errorf(structs.CodeInvalid, "expiration TTL %s is not between %s and %s", ttl, tokenTTLMin, tokenTTLMax)
			}
			t.ExpiresAt = now.Add(ttl)
		}
		if t.ExpiresAt != 0 && t.ExpiresAt <= now {
			return nil, structs.Errorf(structs.CodeInvalid, "the expiration time is in the past")
		}
	}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.TokenUpsertCommand{Tokens: []*structs.ACLToken{&t}}})
	if err != nil {
		return nil, err
	}
	return &methods.ACLTokenResponse{Index: res.Index, Token: s.published().Snapshot.TokenByAccessor(t.Accessor)}, nil
}

func (s *Set) tokenDelete(ctx context.Context, c *rpc.Call, req *methods.ACLTokenDeleteRequest) (*methods.WriteResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	if len(req.Accessors) == 0 || len(req.Accessors) > 1024 {
		return nil, structs.Errorf(structs.CodeInvalid, "name 1 to 1024 accessors to delete, not %d", len(req.Accessors))
	}
	return s.write(ctx, &structs.TokenDeleteCommand{Accessors: req.Accessors})
}

// tokenGet returns a token, to management and to the token's holder only.
func (s *Set) tokenGet(ctx context.Context, c *rpc.Call, req *methods.ACLTokenGetRequest) (*methods.ACLTokenResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	id := auth.Who(ctx)
	if !id.ACL.IsManagement() && (id.Token == nil || id.Token.Accessor != req.Accessor) {
		return nil, structs.Denied("a management token, or the token itself")
	}
	resp := &methods.ACLTokenResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Tokens)}, func(p *replica.Published) (structs.Index, error) {
		resp.Token = p.Snapshot.TokenByAccessor(req.Accessor)
		if resp.Token == nil {
			return p.Snapshot.TableIndex(state.Tokens), nil
		}
		resp.Index = resp.Token.ModifyIndex
		return resp.Token.ModifyIndex, nil
	})
}

func (s *Set) tokenSelf(ctx context.Context, c *rpc.Call, req *methods.EmptyRequest) (*methods.ACLTokenResponse, error) {
	if !s.env.ACL {
		return nil, errNoSelf
	}
	id := auth.Who(ctx)
	if id.Token == nil {
		return nil, auth.ErrTokenUnknown
	}
	resp := &methods.ACLTokenResponse{Token: id.Token, Index: id.Token.ModifyIndex}
	resp.Meta.Index = id.Token.ModifyIndex
	return resp, nil
}

func (s *Set) tokenList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.ACLTokenListResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	resp := &methods.ACLTokenListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Tokens)}, func(p *replica.Published) (structs.Index, error) {
		seq := p.Snapshot.Tokens()
		if req.Prefix != "" {
			var err error
			if seq, err = p.Snapshot.TokensByPrefix(req.Prefix); err != nil {
				return 0, err
			}
		}
		global := req.Options["global"] == "true"
		ts, next, err := list(s, &req.Query, lister[structs.ACLToken]{kind: "token",
			key:  func(t *structs.ACLToken) string { return t.Accessor.String() },
			keep: func(t *structs.ACLToken) bool { return !global || t.Global },
		}, seq)
		resp.Tokens, resp.NextToken = nil, next
		for _, t := range ts {
			bare := *t
			bare.Secret = structs.SecretID{}
			resp.Tokens = append(resp.Tokens, &bare)
		}
		return p.Snapshot.TableIndex(state.Tokens), err
	})
}

func (s *Set) policyUpsert(ctx context.Context, c *rpc.Call, req *methods.ACLPolicyUpsertRequest) (*methods.WriteResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	if len(req.Policies) == 0 || len(req.Policies) > 64 {
		return nil, structs.Errorf(structs.CodeInvalid, "write 1 to 64 policies at a time, not %d", len(req.Policies))
	}
	for _, p := range req.Policies {
		if p == nil {
			return nil, structs.Errorf(structs.CodeInvalid, "missing policy")
		}
		if err := validName("policy", p.Name, 128); err != nil {
			return nil, err
		}
		if len(p.Description) > 256 {
			return nil, structs.Errorf(structs.CodeInvalid, "policy %q: description longer than 256", p.Name)
		}
		if _, err := acl.Parse(p.Name, p.Rules); err != nil {
			return nil, err
		}
	}
	return s.write(ctx, &structs.PolicyUpsertCommand{Policies: req.Policies})
}

func (s *Set) policyDelete(ctx context.Context, c *rpc.Call, req *methods.NameRequest) (*methods.WriteResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	return s.write(ctx, &structs.PolicyDeleteCommand{Names: []string{req.Name}})
}

// mine returns which policies a caller may read: management all, others those of their token.
func mine(ctx context.Context, snap *state.Snapshot) func(name string) bool {
	id := auth.Who(ctx)
	if id.ACL.IsManagement() {
		return func(string) bool { return true }
	}
	own := map[string]bool{}
	if id.Token != nil {
		for _, n := range auth.PoliciesOf(snap, id.Token) {
			own[n] = true
		}
	} else {
		own[auth.PolicyAnonymous] = true
	}
	return func(name string) bool { return own[name] }
}

func (s *Set) policyGet(ctx context.Context, c *rpc.Call, req *methods.NameRequest) (*methods.ACLPolicyResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	resp := &methods.ACLPolicyResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Policies)}, func(p *replica.Published) (structs.Index, error) {
		if !mine(ctx, p.Snapshot)(req.Name) {
			return 0, structs.Denied("a management token, or one with policy %q", req.Name)
		}
		resp.Policy = p.Snapshot.Policy(req.Name)
		if resp.Policy == nil {
			return max(1, p.Snapshot.TableIndex(state.Policies)), nil
		}
		return resp.Policy.ModifyIndex, nil
	})
}

func (s *Set) policyList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.ACLPolicyListResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	resp := &methods.ACLPolicyListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Policies)}, func(p *replica.Published) (structs.Index, error) {
		may := mine(ctx, p.Snapshot)
		ps, next, err := list(s, &req.Query, lister[structs.ACLPolicy]{kind: "policy",
			key:  func(x *structs.ACLPolicy) string { return x.Name },
			keep: func(x *structs.ACLPolicy) bool { return strings.HasPrefix(x.Name, req.Prefix) && may(x.Name) },
		}, p.Snapshot.Policies())
		resp.Policies, resp.NextToken = ps, next
		return max(1, p.Snapshot.TableIndex(state.Policies)), err // like Nomad, ACL lists start at index 1
	})
}

func (s *Set) policySelf(ctx context.Context, c *rpc.Call, req *methods.EmptyRequest) (*methods.ACLPolicyListResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	id := auth.Who(ctx)
	p := s.published()
	resp := &methods.ACLPolicyListResponse{}
	if id.Token != nil && id.Token.Type != structs.TokenManagement {
		for _, n := range auth.PoliciesOf(p.Snapshot, id.Token) {
			if x := p.Snapshot.Policy(n); x != nil {
				resp.Policies = append(resp.Policies, x)
			}
		}
	}
	resp.Meta.Index = max(1, p.Snapshot.TableIndex(state.Policies))
	return resp, nil
}

func (s *Set) roleUpsert(ctx context.Context, c *rpc.Call, req *methods.ACLRoleUpsertRequest) (*methods.ACLRoleResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	if req.Role == nil {
		return nil, structs.Errorf(structs.CodeInvalid, "missing role")
	}
	r := *req.Role
	if err := validName("role", r.Name, 128); err != nil {
		return nil, err
	}
	if len(r.Policies) == 0 || len(r.Policies) > 256 || len(r.Description) > 256 {
		return nil, structs.Errorf(structs.CodeInvalid, "a role has 1 to 256 policies and a description of at most 256 bytes")
	}
	if r.ID.IsZero() {
		r.ID = NewID[structs.RoleID]()
	} else if s.published().Snapshot.RoleByID(r.ID) == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "cannot find role %s", r.ID)
	}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.RoleUpsertCommand{Roles: []*structs.ACLRole{&r}}})
	if err != nil {
		return nil, err
	}
	return &methods.ACLRoleResponse{Index: res.Index, Role: s.published().Snapshot.RoleByID(r.ID)}, nil
}

func (s *Set) roleNamed(snap *state.Snapshot, req *methods.ACLRoleGetRequest) *structs.ACLRole {
	if !req.ID.IsZero() {
		return snap.RoleByID(req.ID)
	}
	return snap.RoleByName(req.Name)
}

func (s *Set) roleDelete(ctx context.Context, c *rpc.Call, req *methods.ACLRoleGetRequest) (*methods.WriteResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	r := s.roleNamed(s.published().Snapshot, req)
	if r == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "ACL role not found")
	}
	return s.write(ctx, &structs.RoleDeleteCommand{IDs: []structs.RoleID{r.ID}})
}

// holds returns which roles a caller may see: management all, others those of their token.
func holds(ctx context.Context) func(id structs.RoleID) bool {
	who := auth.Who(ctx)
	return func(id structs.RoleID) bool {
		if who.ACL.IsManagement() {
			return true
		}
		if who.Token != nil {
			for _, r := range who.Token.Roles {
				if r.ID == id {
					return true
				}
			}
		}
		return false
	}
}

func (s *Set) roleGet(ctx context.Context, c *rpc.Call, req *methods.ACLRoleGetRequest) (*methods.ACLRoleResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	may := holds(ctx)
	resp := &methods.ACLRoleResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Roles)}, func(p *replica.Published) (structs.Index, error) {
		r := s.roleNamed(p.Snapshot, req)
		resp.Role = nil
		if r == nil {
			if !auth.Who(ctx).ACL.IsManagement() {
				return 0, errForeignRole
			}
			return max(1, p.Snapshot.TableIndex(state.Roles)), nil
		}
		if !may(r.ID) {
			return 0, errForeignRole
		}
		resp.Role, resp.Index = r, r.ModifyIndex
		return r.ModifyIndex, nil
	})
}

func (s *Set) roleList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.ACLRoleListResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	may := holds(ctx)
	resp := &methods.ACLRoleListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Roles)}, func(p *replica.Published) (structs.Index, error) {
		rs, next, err := list(s, &req.Query, lister[structs.ACLRole]{kind: "role",
			key:  func(x *structs.ACLRole) string { return x.ID.String() },
			keep: func(x *structs.ACLRole) bool { return strings.HasPrefix(x.ID.String(), req.Prefix) && may(x.ID) },
		}, p.Snapshot.Roles())
		resp.Roles, resp.NextToken = rs, next
		return max(1, p.Snapshot.TableIndex(state.Roles)), err
	})
}

func (s *Set) oneTimeCreate(ctx context.Context, c *rpc.Call, req *methods.EmptyRequest) (*methods.ACLOneTimeResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	id := auth.Who(ctx)
	if id.Token == nil {
		return nil, structs.Denied("a token; the request has none")
	}
	t := &structs.OneTimeToken{Secret: NewID[structs.SecretID](), Accessor: id.Token.Accessor, ExpiresAt: s.env.Replica.Now().Add(oneTimeTTL)}
	res, err := s.apply(ctx, structs.Command{By: id.By, Body: &structs.OneTimeUpsertCommand{Token: t}})
	if err != nil {
		return nil, err
	}
	return &methods.ACLOneTimeResponse{Index: res.Index, Token: t}, nil
}

// oneTimeUse exchanges a one-time token for the token it stands for. The exchange deletes it, and Apply can do that
// only once.
func (s *Set) oneTimeUse(ctx context.Context, c *rpc.Call, req *methods.ACLOneTimeRequest) (*methods.ACLTokenResponse, error) {
	if !s.env.ACL {
		return nil, errACLDisabled
	}
	snap := s.published().Snapshot
	ott := snap.OneTimeToken(req.Secret)
	if ott == nil || s.env.Replica.Now() >= ott.ExpiresAt {
		return nil, errOneTime
	}
	t := snap.TokenByAccessor(ott.Accessor)
	if t == nil || t.Expired(s.env.Replica.Now()) {
		return nil, errOneTime
	}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.OneTimeDeleteCommand{Secrets: []structs.SecretID{req.Secret}}})
	if err != nil {
		return nil, err
	}
	return &methods.ACLTokenResponse{Index: res.Index, Token: t}, nil
}

func (s *Set) bootstrapReset() structs.Index {
	if s.env.DataDir == "" {
		return 0
	}
	path := filepath.Join(s.env.DataDir, bootstrapResetFile)
	b, err := os.ReadFile(path)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			s.env.Log.Warn("reading the bootstrap reset file failed", "error", err)
		}
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		s.env.Log.Warn("the bootstrap reset file does not hold a number", "file", path)
		return 0
	}
	return structs.Index(n)
}

// bootstrapResetFile is a file in the data directory with a reset index. An operator who has lost every management
// token writes it to make ACL bootstrap possible once more; the failed bootstrap names the index.
const bootstrapResetFile = "acl-bootstrap-reset"
