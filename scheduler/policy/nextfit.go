package policy

// nextFit stays on the node it used last while things fit there, then goes on to the next one in the order of ids, and
// from the last to the first.
type nextFit struct{ firstFit }

func (nextFit) Name() string  { return "next-fit" }
func (nextFit) Rotates() bool { return true }
