package wire

import "github.com/muster-sched/muster/internal/methods"

// RootKeyAlgorithm is the algorithm that encrypts variables.
const RootKeyAlgorithm = "aes256-gcm"

// RootKeyMeta describes a key that encrypts variables or signs identities. Variables, Missing and Unknown are Muster extensions.
type RootKeyMeta struct {
	KeyID       string
	Algorithm   string
	CreateTime  int64 // Unix nanoseconds
	CreateIndex uint64
	ModifyIndex uint64
	State       string // active, rekeying or inactive
	PublishTime int64  // 0: keys are not published before their use
	Variables   int64  // number of variables that are encrypted with it

	Missing []string `json:",omitempty"` // names of servers where its file is missing or damaged
	Unknown []string `json:",omitempty"` // names of servers that did not say
}

// RotateResponse is the new key.
type RotateResponse struct {
	Key   *RootKeyMeta
	Index uint64
}

// RootKeyMetaFrom converts the description of a key.
func RootKeyMetaFrom(k *methods.SealKeyInfo) *RootKeyMeta {
	return &RootKeyMeta{KeyID: k.ID, Algorithm: k.Algorithm, CreateTime: int64(k.CreateTime), CreateIndex: uint64(k.CreateIndex),
		ModifyIndex: uint64(k.ModifyIndex), State: k.State, Variables: k.Variables, Missing: k.Missing, Unknown: k.Unknown}
}
