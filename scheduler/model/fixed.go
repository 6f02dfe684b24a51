package model

import "math"

// Micro is one, in the fixed point of scores.
const Micro = 1_000_000

// pow10Steps is how finely pow10Table divides [0,1].
const pow10Steps = 1024

// pow10Table holds 10^(i/1024) in millionths. Values are rounded far from where platforms could differ.
var pow10Table = func() (t [pow10Steps + 2]int64) {
	for i := range t {
		t[i] = int64(math.Round(math.Pow(10, float64(i)/pow10Steps) * Micro))
	}
	return t
}()

// Pow10 returns 10^(num/den) in millionths for 0 <= num/den <= 1, and clamps values outside. It uses a table and linear
// interpolation on integers, so that every machine gets the same answer (D10).
func Pow10(num, den int64) int64 {
	if den <= 0 || num <= 0 {
		return Micro
	}
	if num >= den {
		return 10 * Micro
	}
	for den > 1<<40 { // the product below must not overflow; the lowest bits do not matter here
		num, den = num>>10, den>>10
	}
	const sub = 1024
	x := uint64(num) * (pow10Steps * sub) / uint64(den) // nothing is negative from here on, and shifts are exact
	i, frac := x/sub, x%sub
	low := pow10Table[i]
	return low + int64(uint64(pow10Table[i+1]-low)*frac/sub)
}
