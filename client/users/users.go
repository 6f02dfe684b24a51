// Package users finds users of the node, and remembers them for a moment: a lookup may ask a directory service, and even
// where it reads two files it costs more than much of what a start of a task needs besides.
package users

import (
	"os/user"
	"sync"
	"time"
)

// What is remembered, for how long and how much of it. A change of the node's users shows after that time at the latest.
const (
	memory = time.Second
	most   = 256
)

// kept are answers by question. Refusals are not kept.
type kept[V any] struct {
	mu      sync.Mutex
	answers map[string]answer[V] // guarded by mu
}

type answer[V any] struct {
	value V
	since time.Time
}

// get answers from memory, or asks. The same may be asked twice at once.
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

// Groups returns the numbers of the groups that a user is in. They are not to be changed.
func Groups(u *user.User) ([]string, error) { return groups.get(u.Username+":"+u.Gid, u.GroupIds) }

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
