package methods

import "github.com/muster-sched/muster/structs"

// Requests and responses about variables. The namespace is the header's. Items are not encrypted here, but the
// connection is.
type (
	// VariableMeta is a variable without its items.
	VariableMeta struct {
		Namespace, Path          string
		CreateTime, ModifyTime   structs.LogTime
		CreateIndex, ModifyIndex structs.Index
	}
	// Variable is a variable with its items.
	Variable struct {
		VariableMeta
		Items map[string]string
	}
	// VariableGetRequest asks for a variable.
	VariableGetRequest struct {
		Query
		Path string
	}
	// VariableGetResponse is a variable; nil when absent.
	VariableGetResponse struct {
		Meta
		Variable *Variable
	}
	// VariableListResponse lists the variables that the caller may list, by namespace and path.
	VariableListResponse struct {
		Meta
		Variables []VariableMeta
	}
	// VariableSetRequest writes a variable. With CAS it does so only if ModifyIndex is still CASIndex (0: if the
	// variable does not exist).
	VariableSetRequest struct {
		Path     string
		Items    map[string]string
		CAS      bool
		CASIndex structs.Index
	}
	// VariableDeleteRequest deletes a variable. With CAS it does so only if ModifyIndex is still CASIndex.
	VariableDeleteRequest struct {
		Path     string
		CAS      bool
		CASIndex structs.Index
	}
	// VariableWriteResponse acknowledges a write. If Updated is false, a check-and-set failed and Variable is the
	// current variable: with its items if the caller may read them, zero if there is none.
	VariableWriteResponse struct {
		Index    structs.Index
		Updated  bool
		Variable *Variable
	}
	// SealKeyRequest stores a key for variables in a server's keystore (with Key), deletes it (with Drop), or asks for
	// it. With Look, and without ID, it asks which of these keys have no file there.
	SealKeyRequest struct {
		ID   string
		Key  []byte
		Drop bool // delete it: the cluster no longer uses it
		Look []string
	}
	// SealKeyResponse is a key of the keystore; nil when absent.
	SealKeyResponse struct {
		Key    []byte
		Looked bool     // the server knows Look
		Absent []string // of Look, without a file or with a damaged one
	}
	// SealKeyInfo describes a key of the keystores, without the key itself.
	SealKeyInfo struct {
		ID                       string
		Algorithm                string   // "aes256-gcm" seals variables, "RS256" signs identities
		State                    string   // "active", "rekeying" or "inactive"
		Variables                int64    // sealed with it
		Missing                  []string // names of servers where its file is missing or damaged
		Unknown                  []string // names of servers that did not say
		CreateTime               structs.LogTime
		CreateIndex, ModifyIndex structs.Index
	}
	// SealKeyListResponse lists the keys of the keystores, oldest first.
	SealKeyListResponse struct {
		Meta
		Keys []SealKeyInfo
	}
	// SealKeyRotateRequest asks for a new key. With Full all variables are resealed with it.
	SealKeyRotateRequest struct{ Full bool }
	// SealKeyRotateResponse is the new key, now the active one.
	SealKeyRotateResponse struct {
		Index structs.Index
		Key   SealKeyInfo
	}
)

// VariableRequest is a request about one variable; authorisation needs its path.
type VariableRequest interface{ VariablePath() string }

// VariablePath implements VariableRequest.
func (r *VariableGetRequest) VariablePath() string { return r.Path }

// VariablePath implements VariableRequest.
func (r *VariableSetRequest) VariablePath() string { return r.Path }

// VariablePath implements VariableRequest.
func (r *VariableDeleteRequest) VariablePath() string { return r.Path }

// Methods of variables and their keys.
var (
	VariableGet    = method[VariableGetRequest, VariableGetResponse]("Variable.Get", SideServer, KindRead, Need{Variable: "read"})
	VariableList   = method[ListRequest, VariableListResponse]("Variable.List", SideServer, KindRead, Need{AnyToken: true})
	VariableSet    = method[VariableSetRequest, VariableWriteResponse]("Variable.Set", SideServer, AtLeader, Need{Variable: "write"})
	VariableDelete = method[VariableDeleteRequest, VariableWriteResponse]("Variable.Delete", SideServer, AtLeader, Need{Variable: "destroy"})
	SealKeyList    = method[ListRequest, SealKeyListResponse]("Keyring.List", SideServer, KindRead, Need{Management: true})
	SealKeyRotate  = method[SealKeyRotateRequest, SealKeyRotateResponse]("Keyring.Rotate", SideServer, AtLeader, Need{Management: true})
	SealKeyDelete  = method[NameRequest, WriteResponse]("Keyring.Delete", SideServer, AtLeader, Need{Management: true})
	ServerSealKey  = method[SealKeyRequest, SealKeyResponse]("Server.SealKey", SideServer, KindAny, Need{ServerCert: true})
)
