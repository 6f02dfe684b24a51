// Package users looks up users of the node, with a short-lived cache: a lookup may query a directory service, and even
// reading two files costs more than much of the rest of a task's start.
package users

import (
	"os"
	"os/user"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Limits of the cache: lifetime and size. A change of the node's users is visible after the lifetime at the latest.
const (
	memory = time.Second
	most   = 256
)

// kept is a cache of answers. Refusals are not kept.
type kept[V any] struct {
	mu      sync.Mutex
	answers map[string]answer[V] // guarded by mu
}

type answer[V any] struct {
	value V
	since time.Time
}

// get answers from the cache, or asks. Concurrent calls may ask twice.
func (k *kept[V]) get(question string, ask func() (V, error)) (V, error) {
	now := time.Now()
	k.mu.Lock()
	a, ok := k.answers[question]
	k.mu.Unlock()
	if age := now.Sub(a.since); ok && age >= 0 && age < memory {
		return a.value, nil
	}
	v, err := ask()
	if err != nil {
		return v, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.answers == nil || len(k.answers) >= most {
		k.answers = map[string]answer[V]{}
	}
	k.answers[question] = answer[V]{v, now}
	return v, nil
}

var (
	byName kept[user.User]
	byID   kept[user.User]
	groups kept[[]string]
)

// Lookup finds a user by name.
func Lookup(name string) (*user.User, error) {
	return found(byName.get(name, func() (user.User, error) { return plain(user.Lookup(name)) }))
}

// LookupID finds a user by number.
func LookupID(uid string) (*user.User, error) {
	return found(byID.get(uid, func() (user.User, error) { return plain(user.LookupId(uid)) }))
}

// Groups returns the numbers of a user's groups. They must not be changed.
func Groups(u *user.User) ([]string, error) { return groups.get(u.Username+":"+u.Gid, u.GroupIds) }

// Home returns a user's home directory, if there is one that belongs to them; "" otherwise.
func Home(u *user.User) string {
	fi, err := os.Stat(u.HomeDir)
	if err != nil || !fi.IsDir() {
		return ""
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || strconv.FormatUint(uint64(st.Uid), 10) != u.Uid {
		return ""
	}
	return u.HomeDir
}

func plain(u *user.User, err error) (user.User, error) {
	if err != nil {
		return user.User{}, err
	}
	return *u, nil
}

func found(u user.User, err error) (*user.User, error) {
	if err != nil {
		return nil, err
	}
	return &u, nil
}
