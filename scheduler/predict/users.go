package predict

// usersMax is how many users are remembered at least. Beyond twice as many, the least recently active ones are
// forgotten.
const usersMax = 50_000

// users keeps a T per user in two generations, so that what it forgets depends only on the order of calls.
type users[T any] struct {
	young, old map[string]*T
}

// get returns the T of a user, or nil.
func (u *users[T]) get(name string) *T {
	if x := u.young[name]; x != nil {
		return x
	}
	return u.old[name]
}

// at returns the T of a user, makes it if needed, and moves it to the young generation.
func (u *users[T]) at(name string) *T {
	if x := u.young[name]; x != nil {
		return x
	}
	x := u.old[name]
	if x == nil {
		x = new(T)
	}
	if u.young == nil || len(u.young) >= usersMax {
		u.young, u.old = make(map[string]*T), u.young
	}
	u.young[name] = x
	return x
}
