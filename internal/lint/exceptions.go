package lint

// exception silences one rule at one place.
type exception struct {
	rule  string // "clock", "random", "goroutine", "map-order", "float", "math", "import", "long-file", "todo"
	where string // file, or file:function
	why   string
}

// exceptions is the whole list.
var exceptions = []exception{
	{"float", "scheduler/model/fixed.go", "the table of a score term is made once from floating point and rounded to millionths"},
	{"map-order", "fsm/state/table.go:publish", "the state hash is a sum over a multiset, and addition commutes (D8)"},
	{"map-order", "fsm/state/usage.go:flushUsage", "one write per key into a sorted tree; the delta does not list usage rows"},
	{"map-order", "scheduler/search/ledger.go:ask", "it looks for the least of numbers that are all different"},
	{"map-order", "scheduler/jobdiff/diff.go:flattenValue", "it fills a map whose keys are sorted when the diff is written"},
	{"map-order", "scheduler/suggest/suggest.go:restored", "it fills a map, a driver from a driver of the same name"},
	{"map-order", "fsm/acct.go:exit", "it sets booleans, and keeps the newest of the failed ones by a total order"},
	{"map-order", "internal/pack/pack.go:learn", "it fills a map of what types are written by"},
	{"import", "internal/pack/memory.go", "the only file of its package that uses unsafe; ADR 0014 says what that is worth"},
}
