package predict

import "math/bits"

// Doubling is Log(2): logarithms are in 1/1024 of a doubling.
const Doubling = 1 << logBits

const logBits = 10

// logTable holds log2(1 + i/64) in 1/1024, i = 0..64. A table with interpolation gives the same results on every
// machine.
var logTable = [65]int64{
	0, 23, 45, 68, 90, 111, 132, 153, 174, 194, 214, 234, 254, 273, 292, 311,
	330, 348, 366, 384, 402, 419, 436, 454, 470, 487, 504, 520, 536, 552, 568, 584,
	599, 614, 629, 644, 659, 674, 689, 703, 717, 731, 745, 759, 773, 787, 800, 813,
	827, 840, 853, 866, 879, 891, 904, 916, 929, 941, 953, 965, 977, 989, 1001, 1012,
	1024,
}

// Log returns the logarithm of x to the base 2 in 1/1024, rounded; 0 for numbers below 1.
func Log(x int64) int64 {
	if x <= 1 {
		return 0
	}
	n := bits.Len64(uint64(x)) - 1
	// The mantissa in 1/2^16: 0 to 65535.
	var m int64
	if n >= 16 {
		m = x>>(n-16) - 1<<16
	} else {
		m = x<<(16-n) - 1<<16
	}
	i, rest := m>>10, m&1023
	return int64(n)<<logBits + logTable[i] + ((logTable[i+1]-logTable[i])*rest+512)>>10
}
