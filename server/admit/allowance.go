package admit

import (
	"time"

	"github.com/muster-sched/muster/internal/gcra"
	"github.com/muster-sched/muster/structs"
)

// Costs of writes. The unit is an allocation, which takes about 4 KiB of a server's memory while it is placed and runs.
const (
	allowanceBurst = structs.JobCountMax // allocations that a token may ask for at once: any job that is valid
	bytesPerUnit   = 4 << 10             // of a request, which the log and the state keep
)

// Allowance limits what the writes of one caller make, because a request of 2 KB can ask for 100,000 allocations. A gate
// counts calls and requests are counted at the edge; both take a large job for a small one. A caller who has asked for
// little lately may make any valid write.
type Allowance struct {
	perSecond int
	taken     *gcra.Limiter
}

// NewAllowance returns the limits. perSecond 0 is structs.AllocRateDefault, negative is no limit.
func NewAllowance(perSecond int) *Allowance {
	if perSecond == 0 {
		perSecond = structs.AllocRateDefault
	}
	return &Allowance{max(perSecond, 0), gcra.New()}
}

// Allocs charges a caller for a write that asks for n allocations. The error has CodeBusy and says when to try again.
// giveBack is for a write that was refused later.
func (a *Allowance) Allocs(caller string, n int) (giveBack func(), err error) {
	if wait := a.taken.Take(caller, n, a.rate()); wait > 0 {
		return nil, a.refused(wait, "this write asks for %d allocations more than this token had before", n)
	}
	return func() { a.taken.Return(caller, n, a.rate()) }, nil
}

// Bytes charges a caller for a request of n bytes.
func (a *Allowance) Bytes(caller string, n int) error {
	if wait := a.taken.Take(caller, n/bytesPerUnit, a.rate()); wait > 0 {
		return a.refused(wait, "this request has %d bytes, and every 4,096 count as an allocation", n)
	}
	return nil
}

func (a *Allowance) rate() gcra.Rate {
	if a.perSecond == 0 {
		return gcra.Rate{}
	}
	return gcra.Rate{PerSecond: a.perSecond, Burst: time.Duration(allowanceBurst) * time.Second / time.Duration(a.perSecond)}
}

func (a *Allowance) refused(wait time.Duration, format string, n int) error {
	err := structs.Errorf(structs.CodeBusy, format+"; a token may ask for %d at once and %d a second (alloc_max_rate_per_token in the block limits of the servers). "+
		"Nothing was done, try again in %s", n, allowanceBurst, a.perSecond, wait.Round(time.Second)+time.Second)
	err.RetryAfter = wait
	return err
}
