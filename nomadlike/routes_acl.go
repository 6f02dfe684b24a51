package nomadlike

import (
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

func aclRoutes() []route {
	return []route{
		{methods: "PUT,POST", pattern: "/v1/acl/bootstrap", rpc: methods.ACLBootstrap.Name, handle: aclBootstrap},
		{methods: "GET", pattern: "/v1/acl/policies", rpc: methods.ACLPolicyList.Name, handle: aclPolicies},
		{methods: "GET", pattern: "/v1/acl/policy/self", rpc: methods.ACLPolicySelf.Name, handle: aclPolicySelf},
		{methods: "GET", pattern: "/v1/acl/policy/{name}", rpc: methods.ACLPolicyGet.Name, handle: aclPolicyGet},
		{methods: "PUT,POST", pattern: "/v1/acl/policy/{name}", rpc: methods.ACLPolicyUpsert.Name, handle: aclPolicyPut},
		{methods: "DELETE", pattern: "/v1/acl/policy/{name}", rpc: methods.ACLPolicyDelete.Name, handle: aclPolicyDelete},
		{methods: "GET", pattern: "/v1/acl/tokens", rpc: methods.ACLTokenList.Name, handle: aclTokens},
		{methods: "PUT,POST", pattern: "/v1/acl/token", rpc: methods.ACLTokenUpsert.Name, handle: aclTokenPut},
		{methods: "GET", pattern: "/v1/acl/token/self", rpc: methods.ACLTokenSelf.Name, handle: aclTokenSelf},
		{methods: "PUT,POST", pattern: "/v1/acl/token/onetime", rpc: methods.ACLOneTimeCreate.Name, handle: aclOneTime},
		{methods: "PUT,POST", pattern: "/v1/acl/token/onetime/exchange", rpc: methods.ACLOneTimeUse.Name, handle: aclExchange},
		{methods: "GET", pattern: "/v1/acl/token/{id}", rpc: methods.ACLTokenGet.Name, handle: aclTokenGet},
		{methods: "PUT,POST", pattern: "/v1/acl/token/{id}", rpc: methods.ACLTokenUpsert.Name, handle: aclTokenPut},
		{methods: "DELETE", pattern: "/v1/acl/token/{id}", rpc: methods.ACLTokenDelete.Name, handle: aclTokenDelete},
		{methods: "GET", pattern: "/v1/acl/roles", rpc: methods.ACLRoleList.Name, handle: aclRoles},
		{methods: "PUT,POST", pattern: "/v1/acl/role", rpc: methods.ACLRoleUpsert.Name, handle: aclRolePut},
		{methods: "GET", pattern: "/v1/acl/role/name/{name}", rpc: methods.ACLRoleGet.Name, handle: aclRoleByName},
		{methods: "GET", pattern: "/v1/acl/role/{id}", rpc: methods.ACLRoleGet.Name, handle: aclRoleGet},
		{methods: "PUT,POST", pattern: "/v1/acl/role/{id}", rpc: methods.ACLRoleUpsert.Name, handle: aclRolePut},
		{methods: "DELETE", pattern: "/v1/acl/role/{id}", rpc: methods.ACLRoleDelete.Name, handle: aclRoleDelete},
		{methods: "GET", pattern: "/v1/acl/auth-methods", rpc: "", handle: emptyList},
		{methods: "PUT,POST", pattern: "/v1/acl/identity/client-introduction-token", rpc: methods.NodeIntroduce.Name, handle: aclIntroduce},
		{methods: "GET", pattern: "/v1/acl/binding-rules", rpc: methods.ACLRoleList.Name, handle: aclBindingRules},
	}
}

func (c *call) token(t *structs.ACLToken) any { return wire.TokenFromStructs(t) }

func aclBootstrap(c *call) (any, error) {
	var body wire.BootstrapRequest
	if err := c.optionalBody(&body); err != nil {
		return nil, err
	}
	secret, err := structs.ParseID[structs.SecretID](body.BootstrapSecret)
	if err != nil {
		return nil, structs.Errorf(structs.CodeInvalid, "invalid acl token")
	}
	resp, err := invoke(c, methods.ACLBootstrap, &methods.ACLBootstrapRequest{Secret: secret})
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return c.token(resp.Token), nil
}

func policyStubs(in []*structs.ACLPolicy) []*wire.ACLPolicyListStub {
	return each(in, wire.PolicyStubFromStructs)
}

func aclPolicies(c *call) (any, error) {
	return invokeList(c, methods.ACLPolicyList, &methods.ListRequest{}, func(resp *methods.ACLPolicyListResponse) []*wire.ACLPolicyListStub {
		return policyStubs(resp.Policies)
	})
}

func aclPolicySelf(c *call) (any, error) {
	resp, err := invoke(c, methods.ACLPolicySelf, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	return policyStubs(resp.Policies), nil
}

func aclPolicyGet(c *call) (any, error) {
	resp, err := invoke(c, methods.ACLPolicyGet, &methods.NameRequest{Name: c.params["name"]})
	if err != nil {
		return nil, err
	}
	if resp.Policy == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "ACL policy not found")
	}
	return wire.PolicyFromStructs(resp.Policy), nil
}

func aclPolicyPut(c *call) (any, error) {
	var body wire.ACLPolicy
	if err := c.body(&body); err != nil {
		return nil, err
	}
	if body.Name != c.params["name"] {
		return nil, structs.Errorf(structs.CodeInvalid, "ACL policy name does not match request path")
	}
	return c.written(invoke(c, methods.ACLPolicyUpsert, &methods.ACLPolicyUpsertRequest{Policies: []*structs.ACLPolicy{body.ToStructs()}}))
}

func aclPolicyDelete(c *call) (any, error) {
	return c.written(invoke(c, methods.ACLPolicyDelete, &methods.NameRequest{Name: c.params["name"]}))
}

func aclTokens(c *call) (any, error) {
	return invokeList(c, methods.ACLTokenList, &methods.ListRequest{Options: c.options("global")}, func(resp *methods.ACLTokenListResponse) []*wire.ACLTokenListStub {
		return each(resp.Tokens, wire.TokenStubFromStructs)
	})
}

func aclTokenPut(c *call) (any, error) {
	var body wire.ACLToken
	if err := c.body(&body); err != nil {
		return nil, err
	}
	if id := c.params["id"]; id != "" && body.AccessorID != id {
		return nil, structs.Errorf(structs.CodeInvalid, "ACL token accessor ID does not match request path")
	}
	t, err := body.ToStructs()
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.ACLTokenUpsert, &methods.ACLTokenUpsertRequest{Token: t})
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return c.token(resp.Token), nil
}

func aclTokenSelf(c *call) (any, error) {
	resp, err := invoke(c, methods.ACLTokenSelf, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	if resp.Token == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "ACL token not found")
	}
	return c.token(resp.Token), nil
}

func aclTokenGet(c *call) (any, error) {
	id, err := pathID[structs.AccessorID](c, "ACL token")
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.ACLTokenGet, &methods.ACLTokenGetRequest{Accessor: id})
	if err != nil {
		return nil, err
	}
	if resp.Token == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "ACL token not found")
	}
	return c.token(resp.Token), nil
}

func aclTokenDelete(c *call) (any, error) {
	id, err := pathID[structs.AccessorID](c, "ACL token")
	if err != nil {
		return nil, err
	}
	return c.written(invoke(c, methods.ACLTokenDelete, &methods.ACLTokenDeleteRequest{Accessors: []structs.AccessorID{id}}))
}

func aclOneTime(c *call) (any, error) {
	resp, err := invoke(c, methods.ACLOneTimeCreate, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return &wire.OneTimeTokenUpsertResponse{OneTimeToken: wire.OneTimeFromStructs(resp.Token), Index: uint64(resp.Index)}, nil
}

func aclIntroduce(c *call) (any, error) {
	var body wire.IntroductionRequest
	if err := c.optionalBody(&body); err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.NodeIntroduce, &methods.NodeIntroduceRequest{NodeName: body.NodeName, Pool: structs.PoolName(body.NodePool), TTL: body.TTL})
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return &wire.IntroductionResponse{JWT: resp.Token}, nil
}

func aclExchange(c *call) (any, error) {
	var body wire.OneTimeTokenExchangeRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	secret, err := structs.ParseID[structs.SecretID](body.OneTimeSecretID)
	if err != nil {
		return nil, structs.ErrPermissionDenied
	}
	resp, err := invoke(c, methods.ACLOneTimeUse, &methods.ACLOneTimeRequest{Secret: secret})
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return &wire.OneTimeTokenExchangeResponse{Token: wire.TokenFromStructs(resp.Token), Index: uint64(resp.Index)}, nil
}

func aclRoles(c *call) (any, error) {
	return invokeList(c, methods.ACLRoleList, &methods.ListRequest{}, func(resp *methods.ACLRoleListResponse) []*wire.ACLRole {
		return each(resp.Roles, wire.RoleFromStructs)
	})
}

func aclRolePut(c *call) (any, error) {
	var body wire.ACLRole
	if err := c.body(&body); err != nil {
		return nil, err
	}
	if id := c.params["id"]; id != "" && body.ID != id {
		return nil, structs.Errorf(structs.CodeInvalid, "ACL role ID does not match request path")
	}
	role, err := body.ToStructs()
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.ACLRoleUpsert, &methods.ACLRoleUpsertRequest{Role: role})
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return wire.RoleFromStructs(resp.Role), nil
}

func (c *call) role(req *methods.ACLRoleGetRequest) (any, error) {
	resp, err := invoke(c, methods.ACLRoleGet, req)
	if err != nil {
		return nil, err
	}
	if resp.Role == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "ACL role not found")
	}
	return wire.RoleFromStructs(resp.Role), nil
}

func aclRoleByName(c *call) (any, error) {
	return c.role(&methods.ACLRoleGetRequest{Name: c.params["name"]})
}

func aclRoleGet(c *call) (any, error) {
	id, err := pathID[structs.RoleID](c, "ACL role")
	if err != nil {
		return nil, err
	}
	return c.role(&methods.ACLRoleGetRequest{ID: id})
}

func aclRoleDelete(c *call) (any, error) {
	id, err := pathID[structs.RoleID](c, "ACL role")
	if err != nil {
		return nil, err
	}
	return c.written(invoke(c, methods.ACLRoleDelete, &methods.ACLRoleGetRequest{ID: id}))
}

// emptyList answers lists of objects that this build does not have.
func emptyList(c *call) (any, error) {
	c.meta(&methods.Meta{Index: 1, KnownLeader: true})
	return []any{}, nil
}

func aclBindingRules(c *call) (any, error) {
	if _, err := invoke(c, methods.ACLRoleList, &methods.ListRequest{}); err != nil {
		return nil, err
	}
	return []any{}, nil
}
