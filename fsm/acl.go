package fsm

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

func applyPolicyUpsert(x *tx, c *structs.PolicyUpsertCommand) *structs.Error {
	for _, p := range c.Policies {
		if p == nil || p.Name == "" {
			return structs.Errorf(structs.CodeInvalid, "an ACL policy needs a name")
		}
		n := *p
		n.CreateIndex, n.ModifyIndex = x.index, x.index
		if old := state.Policies.Get(x, p.Name); old != nil {
			n.CreateIndex = old.CreateIndex
		}
		state.Policies.Put(x, &n)
	}
	return nil
}

func applyPolicyDelete(x *tx, c *structs.PolicyDeleteCommand) *structs.Error {
	for _, name := range c.Names {
		if state.Policies.Get(x, name) == nil {
			return structs.Errorf(structs.CodeNotFound, "ACL policy %q not found", name)
		}
		state.Policies.Delete(x, name)
	}
	return nil
}

func (x *tx) checkToken(t *structs.ACLToken) *structs.Error {
	switch {
	case t == nil || t.Accessor.IsZero() || t.Secret.IsZero():
		return structs.Errorf(structs.CodeInvalid, "an ACL token has an accessor and a secret")
	case t.Type != structs.TokenClient && t.Type != structs.TokenManagement:
		return structs.Errorf(structs.CodeInvalid, "token type %q; want client or management", t.Type)
	case t.Type == structs.TokenManagement && len(t.Policies)+len(t.Roles) > 0:
		return structs.Errorf(structs.CodeInvalid, "management token cannot be associated with policies or roles")
	case t.Type == structs.TokenClient && len(t.Policies)+len(t.Roles) == 0:
		return structs.Errorf(structs.CodeInvalid, "client token missing policies or roles")
	}
	if other := x.TokenBySecret(t.Secret); other != nil && other.Accessor != t.Accessor {
		return structs.Errorf(structs.CodeConflict, "the secret belongs to another token")
	}
	return nil
}

// applyTokenUpsert writes tokens. Secret, type, scope and expiry of an existing token never change. Roles must exist; a
// policy may be created later, and grants nothing until then.
func applyTokenUpsert(x *tx, c *structs.TokenUpsertCommand) *structs.Error {
	for _, in := range c.Tokens {
		if in == nil {
			return x.checkToken(nil)
		}
		n := *in
		n.CreateIndex, n.ModifyIndex = x.index, x.index
		if old := state.Tokens.Get(x, in.Accessor); old != nil {
			if in.Secret != old.Secret || in.Type != old.Type || in.Global != old.Global {
				return structs.Errorf(structs.CodeInvalid, "secret, type and global flag of token %s cannot change", in.Accessor)
			}
			n.CreateIndex, n.CreateTime = old.CreateIndex, old.CreateTime
			n.ExpiresAt, n.ExpirationTTL = old.ExpiresAt, old.ExpirationTTL
		} else {
			if n.CreateTime == 0 {
				n.CreateTime = x.time
			}
			if n.ExpiresAt == 0 && n.ExpirationTTL > 0 {
				n.ExpiresAt = n.CreateTime + structs.LogTime(n.ExpirationTTL)
			}
		}
		if err := x.checkToken(&n); err != nil {
			return err
		}
		var err *structs.Error
		if n.Roles, err = x.resolveRoles(n.Roles); err != nil {
			return err
		}
		state.Tokens.Put(x, &n)
	}
	return nil
}

// resolveRoles completes links that have only a name or only an id, and drops duplicates.
func (x *tx) resolveRoles(in []structs.ACLTokenRole) ([]structs.ACLTokenRole, *structs.Error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := make([]structs.ACLTokenRole, 0, len(in))
	seen := map[structs.RoleID]bool{}
	for _, l := range in {
		var r *structs.ACLRole
		if l.ID.IsZero() {
			for c := range state.Roles.All(x) {
				if c.Name == l.Name {
					r = c
				}
			}
		} else {
			r = state.Roles.Get(x, l.ID)
		}
		if r == nil {
			return nil, structs.Errorf(structs.CodeInvalid, "cannot find role %s%s", l.Name, l.ID)
		}
		if !seen[r.ID] {
			seen[r.ID] = true
			out = append(out, structs.ACLTokenRole{ID: r.ID, Name: r.Name})
		}
	}
	return out, nil
}

func applyTokenDelete(x *tx, c *structs.TokenDeleteCommand) *structs.Error {
	for _, id := range c.Accessors {
		if state.Tokens.Get(x, id) == nil {
			return structs.Errorf(structs.CodeNotFound, "token %s not found", id)
		}
		state.Tokens.Delete(x, id)
	}
	return nil
}

// applyACLBootstrap creates the first management token. Once that has happened it refuses, unless the command has the
// index of the last bootstrap, which an operator with access to a server's disk can read.
func applyACLBootstrap(x *tx, c *structs.ACLBootstrapCommand) *structs.Error {
	if c.Token == nil {
		return structs.Errorf(structs.CodeInvalid, "the command carries no token")
	}
	if at := x.BootstrapIndex(); at != 0 && c.ResetIndex != at {
		return structs.Errorf(structs.CodeInvalid, "ACL bootstrap already done (reset index: %d)", at)
	}
	n := *c.Token
	n.Type, n.Global, n.Policies, n.Roles = structs.TokenManagement, true, nil, nil
	n.CreateIndex, n.ModifyIndex, n.ExpiresAt, n.ExpirationTTL = x.index, x.index, 0, 0
	if n.CreateTime == 0 {
		n.CreateTime = x.time
	}
	if err := x.checkToken(&n); err != nil {
		return err
	}
	if state.Tokens.Get(x, n.Accessor) != nil {
		return structs.Errorf(structs.CodeConflict, "token %s exists", n.Accessor)
	}
	state.Tokens.Put(x, &n)
	x.SetBootstrapIndex(x.index)
	return nil
}

func applyRoleUpsert(x *tx, c *structs.RoleUpsertCommand) *structs.Error {
	for i, in := range c.Roles {
		if in == nil || in.Name == "" {
			return structs.Errorf(structs.CodeInvalid, "an ACL role needs a name")
		}
		n := *in
		if n.ID.IsZero() {
			n.ID = structs.DeriveID[structs.RoleID](x.cmd.Seed, "role", n.Name, uint64(i))
		}
		for r := range state.Roles.All(x) {
			if r.Name == n.Name && r.ID != n.ID {
				return structs.Errorf(structs.CodeConflict, "a role named %q exists", n.Name)
			}
		}
		if len(n.Policies) == 0 {
			return structs.Errorf(structs.CodeInvalid, "role %q needs at least one policy", n.Name)
		}
		for _, p := range n.Policies {
			if state.Policies.Get(x, p) == nil {
				return structs.Errorf(structs.CodeInvalid, "cannot find policy %s", p)
			}
		}
		n.CreateIndex, n.ModifyIndex = x.index, x.index
		if old := state.Roles.Get(x, n.ID); old != nil {
			n.CreateIndex = old.CreateIndex
		}
		state.Roles.Put(x, &n)
	}
	return nil
}

func applyRoleDelete(x *tx, c *structs.RoleDeleteCommand) *structs.Error {
	for _, id := range c.IDs {
		if state.Roles.Get(x, id) == nil {
			return structs.Errorf(structs.CodeNotFound, "role %s not found", id)
		}
		state.Roles.Delete(x, id)
	}
	return nil
}

func applyOneTimeUpsert(x *tx, c *structs.OneTimeUpsertCommand) *structs.Error {
	switch {
	case c.Token == nil || c.Token.Secret.IsZero() || c.Token.ExpiresAt == 0:
		return structs.Errorf(structs.CodeInvalid, "a one-time token has a secret and an expiry")
	case state.Tokens.Get(x, c.Token.Accessor) == nil:
		return structs.Errorf(structs.CodeNotFound, "token %s not found", c.Token.Accessor)
	case state.OneTime.Get(x, c.Token.Secret) != nil:
		return structs.Errorf(structs.CodeConflict, "the one-time token exists")
	}
	n := *c.Token
	n.CreateIndex, n.ModifyIndex = x.index, x.index
	state.OneTime.Put(x, &n)
	return nil
}

func applyOneTimeDelete(x *tx, c *structs.OneTimeDeleteCommand) *structs.Error {
	for _, s := range c.Secrets {
		if state.OneTime.Get(x, s) == nil {
			return structs.Errorf(structs.CodeNotFound, "the one-time token does not exist or was used") // exchanged at most once
		}
		state.OneTime.Delete(x, s)
	}
	return nil
}
