package policy

// nextFit stays on the node it used last while things fit there, then continues with the next one in ID order, and
// after the last one with the first.
type nextFit struct{ firstFit }

func (nextFit) Name() string  { return "next-fit" }
func (nextFit) Rotates() bool { return true }
