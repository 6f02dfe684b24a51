package structs

import (
	"math/bits"
	"time"
)

// roots are 2^-(1/2), 2^-(1/4), 2^-(1/8) ... in units of 2^-63: an integer table, so that every processor computes the
// same decay (D10).
var roots = [24]uint64{
	0x5a827999fcef3242, 0x6ba27e656b4eb57a, 0x75606373ee921c97, 0x7a92be8a92436616, 0x7d41d96db915019d, 0x7e9f06067a4360ba,
	0x7f4f08ae3dc7c426, 0x7fa765aca88f6453, 0x7fd3ab290e46d769, 0x7fe9d3a8e07bf086, 0x7ff4e9597bed93ab, 0x7ffa748dff8dc61f,
	0x7ffd3a3f50020332, 0x7ffe9d1dbc0a75aa, 0x7fff4e8e6306ed59, 0x7fffa74712c3cdfd, 0x7fffd3a381b1fa29, 0x7fffe9d1beed018a,
	0x7ffff4e8defb81d7, 0x7ffffa746f5f012f, 0x7ffffd3a37a7d0a8, 0x7ffffe9d1bd1fc58, 0x7fffff4e8de8832d, 0x7fffffa746f422d7,
}

const (
	one63    = 1 << 63                   // 1 in units of 2^-63
	ln2x63   = 0x58b90bfbe8e7bcd5        // ln 2 in units of 2^-63
	perLn2   = 0x5c551d94ae0bf85e        // 1 / ln 2 in units of 2^-62
	lifeMax  = 20 * 365 * 24 * time.Hour // the longest half-life; above it the products below would not fit
	livesMax = 63                        // half-lives after which nothing is left
	second   = uint64(time.Second)
	lowBits  = uint64(1)<<(63-24) - 1 // of a fraction: what the table does not cover
)

// fraction returns 2^-(dt/half) in units of 2^-63.
func fraction(dt, half time.Duration) uint64 {
	if dt <= 0 {
		return one63
	}
	whole := dt / half
	if whole >= livesMax {
		return 0
	}
	x, _ := bits.Div64(uint64(dt%half)>>1, uint64(dt%half)<<63, uint64(half)) // below 2^63
	f := uint64(one63)
	for i, r := range roots {
		if x&(1<<(62-i)) != 0 {
			hi, lo := bits.Mul64(f, r)
			f = hi<<1 | lo>>63
		}
	}
	// The rest is below 2^-24: 2^-x = 1 - x ln 2 to 15 digits.
	hi, lo := bits.Mul64(x&lowBits, ln2x63)
	hi, lo = bits.Mul64(f, hi<<1|lo>>63)
	return (f - (hi<<1 | lo>>63)) >> uint(whole)
}

func clampLife(half time.Duration) time.Duration {
	if half <= 0 {
		return HalfLifeDefault
	}
	return min(half, lifeMax)
}

// Decay returns v * 2^-(dt/half), rounded down. v and dt are not negative; a half-life of 0 is HalfLifeDefault.
func Decay(v int64, dt, half time.Duration) int64 {
	hi, lo := bits.Mul64(uint64(max(v, 0)), fraction(dt, clampLife(half)))
	return int64(hi<<1 | lo>>63)
}

// gathered returns how much of dt counts if usage decays while it accumulates: the integral of 2^-(s/half), s from 0 to
// dt. It is below half / ln 2 for any dt.
func gathered(dt, half time.Duration) time.Duration {
	hi, lo := bits.Mul64(uint64(half), perLn2)
	hi, lo = bits.Mul64(hi<<2|lo>>62, one63-fraction(dt, half))
	return time.Duration(hi<<1 | lo>>63)
}

// seconds returns rate * dt in rate-seconds, to the nearest.
func seconds(rate int64, dt time.Duration) int64 {
	if rate <= 0 || dt <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(rate), uint64(dt))
	lo, carry := bits.Add64(lo, second/2, 0)
	q, _ := bits.Div64((hi+carry)%second, lo, second)
	return int64(q)
}

func (a Amount) each(f func(int64) int64) Amount {
	return Amount{f(a.GPUMilli), f(a.GPUMemoryMiB), f(a.CPU), f(a.MemoryMiB), f(a.Billed)}
}

// UsedAt returns the decayed usage at a time not before u.At: the closed form of D11.
func (u *QueueUsage) UsedAt(t LogTime, half time.Duration) Amount {
	half = clampLife(half)
	dt := max(t.Sub(u.At), 0)
	tau := gathered(dt, half)
	return u.Used.each(func(v int64) int64 { return Decay(v, dt, half) }).
		Add(u.Held.each(func(r int64) int64 { return seconds(r, tau) }))
}

// TotalAt returns the total usage, without decay, at a time not before u.At.
func (u *QueueUsage) TotalAt(t LogTime) Amount {
	dt := max(t.Sub(u.At), 0)
	return u.Total.Add(u.Held.each(func(r int64) int64 { return seconds(r, dt) }))
}

// MeanAt returns the decayed usage as an amount: the constant amount that would have led to the same usage. It
// converges to Held while Held does not change.
func (u *QueueUsage) MeanAt(t LogTime, half time.Duration) Amount { return u.mean(t, half, 1) }

// MeanFine is how many times an amount's units are in a part of what WithMean returns.
const MeanFine = 1024

// WithMean returns what an entity holds and the mean of its usage together, in units of 1/MeanFine of an amount's: a minute
// of a GPU in a week is far below a thousandth of a GPU.
func (u *QueueUsage) WithMean(held Amount, t LogTime, half time.Duration) Amount {
	sum := held.each(func(v int64) int64 { return v * MeanFine })
	if u != nil {
		sum = sum.Add(u.mean(t, half, MeanFine))
	}
	return sum
}

func (u *QueueUsage) mean(t LogTime, half time.Duration, fine uint64) Amount {
	half = clampLife(half)
	hi, lo := bits.Mul64(uint64(half), perLn2)
	whole := hi<<2 | lo>>62 // half / ln 2 in ns
	return u.UsedAt(t, half).each(func(v int64) int64 {
		hi, lo := bits.Mul64(uint64(max(v, 0)), second*fine)
		if hi >= whole {
			return v
		}
		q, _ := bits.Div64(hi, lo, whole)
		return int64(q)
	})
}

// Settle advances the row to t and adds the usage since At; period is that of the queue's budget. It must be called before
// Held changes.
func (u *QueueUsage) Settle(t LogTime, half time.Duration, period string) {
	u.begin(t, period)
	if t <= u.At {
		return
	}
	u.Used, u.Total, u.At = u.UsedAt(t, half), u.TotalAt(t), t
}
