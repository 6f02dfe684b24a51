// Package suggest finds the known name that is closest to a misspelt one.
package suggest

import (
	"fmt"
	"slices"
	"strings"
)

// Nearest returns the candidate with the least edit distance to word, or "" when none is close. Of equal distances the
// one with the longest beginning in common wins, then the one that sorts first. When none is close, a single candidate is
// that ends in word after a hyphen or an underscore, or begins with a word of at least four letters.
func Nearest(word string, candidates []string) string {
	if len(word) > 64 {
		return ""
	}
	sorted := slices.Clone(candidates)
	slices.Sort(sorted)
	lower := strings.ToLower(word)
	best, bestDist := "", 1+max(1, len(word)/3)
	for _, c := range sorted {
		if c == "" || len(c) > 64 {
			continue
		}
		d := distance(lower, strings.ToLower(c))
		if d < bestDist || d == bestDist && best != "" && alike(lower, strings.ToLower(c)) > alike(lower, strings.ToLower(best)) {
			best, bestDist = c, d
		}
	}
	if best != "" || word == "" {
		return best
	}
	longer := slices.DeleteFunc(sorted, func(c string) bool {
		c = strings.ToLower(c)
		return !strings.HasSuffix(c, "-"+lower) && !strings.HasSuffix(c, "_"+lower) && (len(lower) < 4 || !strings.HasPrefix(c, lower))
	})
	if len(longer) == 1 {
		return longer[0]
	}
	return ""
}

// DidYouMean returns `; did you mean "x"?`, or "" when no candidate is close.
func DidYouMean(word string, candidates []string) string {
	if n := Nearest(word, candidates); n != "" {
		return fmt.Sprintf("; did you mean %q?", n)
	}
	return ""
}

// alike returns how many bytes at their beginnings a and b share.
func alike(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// distance counts the insertions, deletions, replacements and swaps of neighbours that turn a into b.
func distance(a, b string) int {
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
