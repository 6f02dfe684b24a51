// Package tasktoken makes and checks the tokens that a node's agent sends when a task asks it for something: "this
// comes from a task of that allocation, on my node". A token is signed with the node's secret, which servers know; it
// is valid for minutes and not beyond the allocation's end. Tasks never see it.
package tasktoken

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/muster-sched/muster/structs"
)

// prefix distinguishes task tokens from the secrets of ACL tokens.
const prefix = "task."

// TTL is how long a token is valid. An agent makes one per request, so TTL is also the tolerated difference of clocks.
const TTL = 5 * time.Minute

// New makes the token of a task of an allocation, at now. Without a task's name it acts for the whole allocation.
func New(secret structs.SecretID, alloc structs.AllocID, task string, now time.Time) string {
	t := Token{Alloc: alloc, Task: task, until: strconv.FormatInt(now.Add(TTL).Unix(), 10)}
	return prefix + t.said() + "." + hex.EncodeToString(t.sign(secret))
}

// said returns the signed text of a token. Without a task it has the form that servers of older versions know.
func (t Token) said() string {
	if t.Task == "" {
		return t.Alloc.String() + "." + t.until
	}
	return t.Alloc.String() + "." + t.until + "." + hex.EncodeToString([]byte(t.Task))
}

func (t Token) sign(secret structs.SecretID) []byte {
	m := hmac.New(sha256.New, secret[:])
	m.Write([]byte("muster task token 1\x00" + t.Alloc.String() + "\x00" + t.until))
	if t.Task != "" {
		m.Write([]byte("\x00" + t.Task))
	}
	return m.Sum(nil)
}

// Is reports whether a string has the form of a task token.
func Is(token string) bool { return strings.HasPrefix(token, prefix) }

// Token is a parsed token, not yet verified.
type Token struct {
	Alloc structs.AllocID
	Task  string // "": of the allocation as a whole
	until string
	mac   []byte
}

// Parse reads a token without verifying it.
func Parse(token string) (Token, bool) {
	rest, ok := strings.CutPrefix(token, prefix)
	parts := strings.Split(rest, ".")
	if !ok || len(parts) < 3 || len(parts) > 4 {
		return Token{}, false
	}
	id, err := structs.ParseID[structs.AllocID](parts[0])
	if err != nil || id.IsZero() {
		return Token{}, false
	}
	t := Token{Alloc: id, until: parts[1]}
	if len(parts) == 4 {
		name, err := hex.DecodeString(parts[2])
		if err != nil || len(name) == 0 {
			return Token{}, false
		}
		t.Task = string(name)
	}
	t.mac, err = hex.DecodeString(parts[len(parts)-1])
	return t, err == nil
}

// Valid reports whether the node's secret signed the token and it has not expired at now.
func (t Token) Valid(secret structs.SecretID, now time.Time) bool {
	if secret.IsZero() || !hmac.Equal(t.mac, t.sign(secret)) {
		return false
	}
	until, err := strconv.ParseInt(t.until, 10, 64)
	left := time.Unix(until, 0).Sub(now)
	return err == nil && left > 0 && left <= 2*TTL
}
