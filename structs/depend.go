package structs

import "strings"

// circleStepsMax limits the jobs that the search for a circle visits.
const circleStepsMax = 10_000

// DependencyCircle returns the jobs that would wait for each other if j were registered: j first and last, each waiting
// for the next; nil if there is no circle. get returns a registered job or nil. Ended and stopped jobs do not wait.
func DependencyCircle(j *Job, get func(JobKey) *Job) []JobKey {
	start := j.Key()
	seen := map[JobKey]bool{}
	var path []JobKey
	var walk func(of *Job) bool
	walk = func(of *Job) bool {
		path = append(path, of.Key())
		for i := range of.Depends {
			k := of.Depends[i].On(of)
			if k == start {
				return true
			}
			if seen[k] || len(seen) >= circleStepsMax {
				continue
			}
			seen[k] = true
			if next := get(k); next != nil && !next.Stop && next.Status != JobDead && walk(next) {
				return true
			}
		}
		path = path[:len(path)-1]
		return false
	}
	if !walk(j) {
		return nil
	}
	return append(path, start)
}

// CircleText formats a circle as "a -> b -> a": a waits for b, which waits for a. Namespaces are included when they
// differ.
func CircleText(circle []JobKey) string {
	var b strings.Builder
	for i, k := range circle {
		if i > 0 {
			b.WriteString(" -> ")
		}
		if k.Namespace != circle[0].Namespace {
			b.WriteString(k.Namespace + "/")
		}
		b.WriteString(k.ID)
	}
	return b.String()
}
