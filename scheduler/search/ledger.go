package search

import (
	"sync"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Limits of the ledgers. The least recently used entries are dropped.
const (
	ledgersMax    = 4       // pairs of policy and mix, for each pool
	ledgerRowsMax = 1 << 19 // rows cached by one ledger, over all asks: about 30 MiB
)

// ledger is the cache for one policy, mix and pool. One pass at a time uses it.
type ledger struct {
	busy   sync.Mutex
	policy string
	pool   string
	mix    *model.Mix
	rater  GPURater
	suits  map[[16]byte][]bool // by class
	asks   map[string]*asked
	used   int64 // counts uses
	market marketRows
	now    column[valued]
}

// valued is the value of a node as it is, independent of the ask.
type valued struct {
	origin
	value int64
}

// origin is what a cached value was made from: a row as it was, or a set of twins.
type origin struct {
	node *structs.Node
	hold *model.Holding
	set  *twins
}

// column has an element for each row, and one for each set of twins. What is not used takes no memory.
type column[T any] struct {
	rows []*[columnPart]T
	sets []T
}

const columnPart = 128

// at returns the element of a row, or of its set if it is not nil.
func (c *column[T]) at(row int, set *twins) *T {
	if set != nil {
		if n := int(set.num) + 1; n > len(c.sets) {
			c.sets = append(c.sets, make([]T, n-len(c.sets)+n/4)...)
		}
		return &c.sets[set.num]
	}
	k := row / columnPart
	if k >= len(c.rows) {
		c.rows = append(c.rows, make([]*[columnPart]T, k+1-len(c.rows))...)
	}
	if c.rows[k] == nil {
		c.rows[k] = new([columnPart]T)
	}
	return &c.rows[k][row%columnPart]
}

// asked is how nodes were rated for one ask.
type asked struct {
	column[rated]
	whys []match.ShortageOf // shortages of nodes on which it does not fit
	used int64
}

// whyOf stores a shortage and returns 1 + its place. Neighbouring nodes often have the same shortage.
func (a *asked) whyOf(x match.ShortageOf) int32 {
	for k := len(a.whys) - 1; k >= max(0, len(a.whys)-8); k-- {
		if a.whys[k].Same(&x) {
			return int32(k + 1)
		}
	}
	a.whys = append(a.whys, x)
	return int32(len(a.whys))
}

// rated is the cached rating of one node for one ask. It is valid for the very node and holding, or set of twins.
type rated struct {
	origin
	before int64
	after  [2]int64 // [0] without using an idle GPU, [1] using some; where can says so
	milli  [2]int32 // thousandths of GPUs that each uses
	can    [2]bool
	idle   uint8 // idle GPUs before
	takes  uint8 // idle GPUs that [1] uses
	why    int32 // 1 + place in whys if the ask does not fit
}

// newLedger returns an empty ledger, locked by the caller.
func newLedger(p GPUPolicy, pool string, mix *model.Mix) *ledger {
	l := &ledger{policy: p.Name(), pool: pool, mix: mix, rater: p.Rater(mix), suits: make(map[[16]byte][]bool), asks: make(map[string]*asked)}
	l.market.begin(mix)
	l.busy.Lock()
	return l
}

// ask returns the cache of an ask, by its key.
func (l *ledger) ask(key string, rows int) *asked {
	l.used++
	a := l.asks[key]
	if a == nil {
		for (len(l.asks)+1)*rows > ledgerRowsMax && len(l.asks) > 0 { // drop the least recently used one
			oldest, when := "", l.used
			for k, x := range l.asks {
				if x.used < when {
					oldest, when = k, x.used
				}
			}
			delete(l.asks, oldest)
		}
		a = &asked{}
		l.asks[key] = a
	}
	if len(a.whys) > 4*rows { // mostly shortages of holdings that no longer exist
		a.whys, a.column = nil, column[rated]{}
	}
	a.used = l.used
	return a
}

// suit reports which shapes of the mix suit the nodes of a class.
func (l *ledger) suit(class [16]byte, n *structs.Node) []bool {
	s, ok := l.suits[class]
	if !ok {
		if len(l.suits) > 2*model.ClassesSlack {
			clear(l.suits)
		}
		s = l.mix.Suits(n)
		l.suits[class] = s
	}
	return s
}
