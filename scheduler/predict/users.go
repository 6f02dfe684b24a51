package predict

// usersMax is how many users are remembered at least; beyond twice as many, those that nothing was heard of for longest
// are forgotten.
const usersMax = 50_000

// users keeps something per user in two generations, so that forgetting depends on nothing but the order of calls.
type users[T any] struct {
	young, old map[string]*T
}

// get finds what is known of a user, or nil.
func (u *users[T]) get(name string) *T {
	if x := u.young[name]; x != nil {
		return x
	}
	return u.old[name]
}

// at finds or makes what is known of a user, who becomes young again.
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
