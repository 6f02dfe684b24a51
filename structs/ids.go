package structs

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// ID is a 16-byte identifier, written in text in the shape of a UUID. The type parameter keeps kinds apart at compile
// time. The zero ID means "none".
type ID[Kind any] [16]byte

type (
	nodeKind   struct{}
	allocKind  struct{}
	evalKind   struct{}
	deployKind struct{}
	tokenKind  struct{}
	roleKind   struct{}
	secretKind struct{}
	clusterK   struct{}
	startKind  struct{}
)

// The kinds of identifier in use.
type (
	NodeID       = ID[nodeKind]
	AllocID      = ID[allocKind]
	EvalID       = ID[evalKind]
	DeploymentID = ID[deployKind]
	AccessorID   = ID[tokenKind]  // identifies an ACL token; public
	RoleID       = ID[roleKind]   // identifies an ACL role
	SecretID     = ID[secretKind] // a bearer secret: of a token or of a node; never logged
	ClusterID    = ID[clusterK]
	StartID      = ID[startKind] // one start of an agent
)

// Seed is the randomness of one command, minted before the log. Everything random in Apply derives from it (D5).
type Seed [16]byte

// Index is a raft log index. Zero means "never".
type Index uint64

// IsZero reports whether id is the zero ID.
func (id ID[K]) IsZero() bool { return id == ID[K]{} }

// String returns the 36-character text form, or "" for the zero ID.
func (id ID[K]) String() string {
	if id.IsZero() {
		return ""
	}
	var b [36]byte
	hex.Encode(b[0:8], id[0:4])
	b[8] = '-'
	hex.Encode(b[9:13], id[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], id[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], id[8:10])
	b[23] = '-'
	hex.Encode(b[24:36], id[10:16])
	return string(b[:])
}

// Short returns the first 8 characters of the text form, as the CLI shows ids.
func (id ID[K]) Short() string {
	if s := id.String(); s != "" {
		return s[:8]
	}
	return ""
}

// MarshalText writes the UUID form.
func (id ID[K]) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads the UUID form; empty text is the zero ID.
func (id *ID[K]) UnmarshalText(b []byte) error {
	v, err := ParseID[ID[K]](string(b))
	if err != nil {
		return err
	}
	*id = v
	return nil
}

// ParseID parses the 36-character form; empty text and 32 zeros are the zero ID, which nothing has. Use as ParseID[NodeID](s).
func ParseID[T ~[16]byte](s string) (T, error) {
	var id T
	if s == "" {
		return id, nil
	}
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return id, Errorf(CodeInvalid, "%q is not an id: want 36 characters like 6f1c1f3e-8a52-4d0e-9a8a-1b6f0a3c2d4e", clip(s, 64))
	}
	hx := s[0:8] + s[9:13] + s[14:18] + s[19:23] + s[24:36]
	b, err := hex.DecodeString(hx)
	if err != nil {
		return id, Errorf(CodeInvalid, "%q is not an id: it may hold only 0-9, a-f and dashes", s)
	}
	copy(id[:], b)
	return id, nil
}

// DeriveID derives the n-th id of a kind from a seed and a key; the same arguments give the same id on every server
// (D5). The version and variant bits are those of a random UUID, because some clients check them.
func DeriveID[T ~[16]byte](seed Seed, kind, key string, n uint64) T {
	var room [128]byte // enough for most keys; longer ones grow on the heap
	b := append(room[:0], seed[:]...)
	b = append(b, kind...)
	b = append(b, 0)
	b = append(b, key...)
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(b, n))
	var id T
	copy(id[:], sum[:16])
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

// DeriveAllocID returns the id of the allocation that a plan makes for (evaluation, snapshot index, group, name index).
// Ids of one evaluation share their first 2 bytes, so that they are close to each other in the store (D24); more would
// make the 8 characters that people type ambiguous.
func DeriveAllocID(eval EvalID, snapshot Index, group GroupName, index int) AllocID {
	of := AllocIDsOf(eval, snapshot)
	return of.ID(group, index)
}

// AllocIDs derives the ids of one evaluation and snapshot index like DeriveAllocID; the common part is derived once.
type AllocIDs struct {
	seed     Seed
	snapshot Index
	pre      [2]byte
}

// AllocIDsOf makes the AllocIDs of an evaluation and a snapshot index.
func AllocIDsOf(eval EvalID, snapshot Index) AllocIDs {
	x := AllocIDs{seed: Seed(eval), snapshot: snapshot}
	pre := DeriveID[AllocID](x.seed, "alloc-prefix", "", uint64(snapshot))
	copy(x.pre[:], pre[:2])
	return x
}

// ID returns the id of the allocation of a group and name index.
func (x *AllocIDs) ID(group GroupName, index int) AllocID {
	id := DeriveID[AllocID](x.seed, "alloc", string(group), uint64(x.snapshot)<<20^uint64(index))
	copy(id[:2], x.pre[:])
	return id
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + fmt.Sprintf("... (%d bytes)", len(s))
}
