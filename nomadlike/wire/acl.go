package wire

import (
	"time"

	"github.com/muster-sched/muster/structs"
)

// ACLPolicy is a named set of rules.
type ACLPolicy struct {
	Name        string
	Description string
	Rules       string
	JobACL      *JobACL
	CreateIndex uint64
	ModifyIndex uint64
}

// ACLPolicyListStub is a policy in a list.
type ACLPolicyListStub struct {
	Name        string
	Description string
	JobACL      *JobACL
	CreateIndex uint64
	ModifyIndex uint64
}

// JobACL ties a policy to a workload.
type JobACL struct {
	Namespace string
	JobID     string
	Group     string
	Task      string
}

// ACLToken is a bearer token.
type ACLToken struct {
	AccessorID     string
	SecretID       string
	Name           string
	Type           string
	Policies       []string
	Roles          []*ACLTokenRoleLink
	Global         bool
	CreateTime     time.Time
	ExpirationTime *time.Time   `json:",omitempty"`
	ExpirationTTL  TextDuration `json:",omitempty"`
	CreateIndex    uint64
	ModifyIndex    uint64
}

// ACLTokenListStub is a token in a list, without its secret.
type ACLTokenListStub struct {
	AccessorID     string
	Name           string
	Type           string
	Policies       []string
	Roles          []*ACLTokenRoleLink
	Global         bool
	CreateTime     time.Time
	ExpirationTime *time.Time `json:",omitempty"`
	CreateIndex    uint64
	ModifyIndex    uint64
}

// ACLTokenRoleLink names a role of a token.
type ACLTokenRoleLink struct {
	ID   string
	Name string
}

// ACLRole is a named set of policies. It is also its own list stub.
type ACLRole struct {
	ID          string
	Name        string
	Description string
	Policies    []*ACLRolePolicyLink
	CreateIndex uint64
	ModifyIndex uint64
}

// ACLRolePolicyLink names a policy of a role.
type ACLRolePolicyLink struct{ Name string }

// The bodies of the ACL endpoints.
type (
	// OneTimeToken can be exchanged once for a token.
	OneTimeToken struct {
		OneTimeSecretID string
		AccessorID      string
		ExpiresAt       time.Time
		CreateIndex     uint64
		ModifyIndex     uint64
	}
	// OneTimeTokenUpsertResponse answers the creation of one.
	OneTimeTokenUpsertResponse struct {
		OneTimeToken *OneTimeToken
		Index        uint64
	}
	// OneTimeTokenExchangeRequest exchanges one.
	OneTimeTokenExchangeRequest struct {
		OneTimeSecretID string
		WriteRequest
	}
	// OneTimeTokenExchangeResponse is the token it was exchanged for.
	OneTimeTokenExchangeResponse struct {
		Token *ACLToken
		Index uint64
	}
	// IntroductionRequest asks for a token by which a new node may register.
	IntroductionRequest struct {
		TTL      time.Duration // 0: the servers' default
		NodeName string        // of the node that may use it; "": any
		NodePool string        // of that node; "": any
	}
	// IntroductionResponse is that token. It is no JWT; the name is that of Nomad's clients.
	IntroductionResponse struct{ JWT string }
	// BootstrapRequest may name the secret of the first token.
	BootstrapRequest struct {
		BootstrapSecret string
		WriteRequest
	}
)

// PolicyFromStructs converts a policy.
func PolicyFromStructs(p *structs.ACLPolicy) *ACLPolicy {
	return &ACLPolicy{Name: p.Name, Description: p.Description, Rules: p.Rules, JobACL: jobACL(p.JobACL), CreateIndex: uint64(p.CreateIndex), ModifyIndex: uint64(p.ModifyIndex)}
}

// PolicyStubFromStructs converts a policy for a list.
func PolicyStubFromStructs(p *structs.ACLPolicy) *ACLPolicyListStub {
	return &ACLPolicyListStub{Name: p.Name, Description: p.Description, JobACL: jobACL(p.JobACL), CreateIndex: uint64(p.CreateIndex), ModifyIndex: uint64(p.ModifyIndex)}
}

func jobACL(a *structs.JobACL) *JobACL {
	if a == nil {
		return nil
	}
	return &JobACL{Namespace: a.Namespace, JobID: a.JobID, Group: a.Group, Task: a.Task}
}

// ToStructs converts a policy.
func (p *ACLPolicy) ToStructs() *structs.ACLPolicy {
	out := &structs.ACLPolicy{Name: p.Name, Description: p.Description, Rules: p.Rules}
	if a := p.JobACL; a != nil {
		out.JobACL = &structs.JobACL{Namespace: a.Namespace, JobID: a.JobID, Group: a.Group, Task: a.Task}
	}
	return out
}

// TokenFromStructs converts a token, secret included.
func TokenFromStructs(t *structs.ACLToken) *ACLToken {
	return &ACLToken{
		AccessorID: t.Accessor.String(), SecretID: t.Secret.String(), Name: t.Name, Type: t.Type, Policies: t.Policies, Roles: roleLinks(t),
		Global: t.Global, CreateTime: t.CreateTime.Time(), ExpirationTime: expiry(t), ExpirationTTL: TextDuration(t.ExpirationTTL),
		CreateIndex: uint64(t.CreateIndex), ModifyIndex: uint64(t.ModifyIndex),
	}
}

// TokenStubFromStructs converts a token for a list.
func TokenStubFromStructs(t *structs.ACLToken) *ACLTokenListStub {
	return &ACLTokenListStub{
		AccessorID: t.Accessor.String(), Name: t.Name, Type: t.Type, Policies: t.Policies, Roles: roleLinks(t), Global: t.Global,
		CreateTime: t.CreateTime.Time(), ExpirationTime: expiry(t), CreateIndex: uint64(t.CreateIndex), ModifyIndex: uint64(t.ModifyIndex),
	}
}

func expiry(t *structs.ACLToken) *time.Time {
	if t.ExpiresAt == 0 {
		return nil
	}
	return ptr(t.ExpiresAt.Time())
}

func roleLinks(t *structs.ACLToken) []*ACLTokenRoleLink {
	var out []*ACLTokenRoleLink
	for _, r := range t.Roles {
		out = append(out, &ACLTokenRoleLink{ID: r.ID.String(), Name: r.Name})
	}
	return out
}

// ToStructs converts the fields of a token that a client may set. Roles may be linked by id or by name; the server
// resolves a name.
func (t *ACLToken) ToStructs() (*structs.ACLToken, error) {
	out := &structs.ACLToken{Name: t.Name, Type: t.Type, Policies: t.Policies, Global: t.Global, ExpirationTTL: int64(t.ExpirationTTL)}
	var err error
	if out.Accessor, err = structs.ParseID[structs.AccessorID](t.AccessorID); err != nil {
		return nil, err
	}
	if out.Secret, err = structs.ParseID[structs.SecretID](t.SecretID); err != nil {
		return nil, structs.Errorf(structs.CodeInvalid, "SecretID is not an id of 36 characters")
	}
	if t.ExpirationTime != nil {
		out.ExpiresAt = structs.LogTimeOf(*t.ExpirationTime)
	}
	for _, r := range t.Roles {
		if r == nil {
			continue
		}
		id, err := structs.ParseID[structs.RoleID](r.ID)
		if err != nil {
			return nil, err
		}
		out.Roles = append(out.Roles, structs.ACLTokenRole{ID: id, Name: r.Name})
	}
	return out, nil
}

// RoleFromStructs converts a role.
func RoleFromStructs(r *structs.ACLRole) *ACLRole {
	out := &ACLRole{ID: r.ID.String(), Name: r.Name, Description: r.Description, CreateIndex: uint64(r.CreateIndex), ModifyIndex: uint64(r.ModifyIndex)}
	for _, p := range r.Policies {
		out.Policies = append(out.Policies, &ACLRolePolicyLink{Name: p})
	}
	return out
}

// ToStructs converts a role.
func (r *ACLRole) ToStructs() (*structs.ACLRole, error) {
	id, err := structs.ParseID[structs.RoleID](r.ID)
	if err != nil {
		return nil, err
	}
	out := &structs.ACLRole{ID: id, Name: r.Name, Description: r.Description}
	for _, p := range r.Policies {
		if p != nil {
			out.Policies = append(out.Policies, p.Name)
		}
	}
	return out, nil
}

// OneTimeFromStructs converts a one-time token.
func OneTimeFromStructs(t *structs.OneTimeToken) *OneTimeToken {
	return &OneTimeToken{OneTimeSecretID: t.Secret.String(), AccessorID: t.Accessor.String(), ExpiresAt: t.ExpiresAt.Time(), CreateIndex: uint64(t.CreateIndex), ModifyIndex: uint64(t.ModifyIndex)}
}
