package structs

// What a cluster without ACLs answers to requests about them: the words that Nomad's clients look for, and the cure.
const (
	ACLDisabled = "ACL support disabled"
	ACLEnable   = "set acl { enabled = true } in the configuration of every agent, restart them and run `muster acl bootstrap`"
)

// ACLPolicy is a named set of rules in Nomad's policy language.
type ACLPolicy struct {
	Name        string
	Description string
	Rules       string // HCL, at most 64 KiB
	JobACL      *JobACL
	CreateIndex Index
	ModifyIndex Index
}

// JobACL ties a policy to the workload identity of a job.
type JobACL struct{ Namespace, JobID, Group, Task string }

// Token types.
const (
	TokenClient     = "client"
	TokenManagement = "management"
)

// ACLToken is a bearer token.
type ACLToken struct {
	Accessor      AccessorID
	Secret        SecretID
	Name          string
	Type          string
	Policies      []string
	Roles         []ACLTokenRole
	Global        bool
	CreateTime    LogTime
	ExpiresAt     LogTime // 0: never expires
	ExpirationTTL int64   // nanoseconds, as requested
	CreateIndex   Index
	ModifyIndex   Index
}

// ACLTokenRole links a token to a role.
type ACLTokenRole struct {
	ID   RoleID
	Name string
}

// Expired reports whether the token has expired at now.
func (t *ACLToken) Expired(now LogTime) bool { return t.ExpiresAt != 0 && now >= t.ExpiresAt }

// ACLRole is a named set of policies.
type ACLRole struct {
	ID          RoleID
	Name        string
	Description string
	Policies    []string
	CreateIndex Index
	ModifyIndex Index
}

// OneTimeToken is exchanged once for the secret of a token.
type OneTimeToken struct {
	Secret      SecretID // of the one-time token
	Accessor    AccessorID
	ExpiresAt   LogTime
	CreateIndex Index
	ModifyIndex Index
}
