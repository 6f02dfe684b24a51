package search

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Market is the free GPU capacity of a pool, for policies that charge placements for scarce resources.
type Market struct {
	Mix     *model.Mix
	Free    int64         // thousandths of GPUs
	Classes []MarketClass // of nodes
	Wide    []int         // the shapes of Mix that ask for several GPUs, those in highest demand: places in Mix.Shapes
	Blocks  []int64       // for each of Wide: how many more of it fit on the nodes
}

// MarketClass is the nodes with the same GPU models.
type MarketClass struct {
	Suits []bool // of each shape of the mix; see GPUState
	Free  int64  // thousandths of GPUs
}

// Prices is what a placement pays in addition to what its node loses, in the unit of the rater's values.
type Prices struct {
	Rent []int64 // for each class of the market: millionths for each thousandth of a GPU used there; nil: none
	Wide []int64 // for each of Market.Wide: for one block less that fits on a node. Only the dearest counts
}

// wideMax is the highest number of shapes with several GPUs in a market.
const wideMax = 16

// marketRows is the market with the contribution of each node, so that only changed nodes are looked at.
type marketRows struct {
	Market
	rows  []marketRow
	class map[[16]byte]int
	seen  []marketChunk // the chunks as of the last sync
	sets  column[marketSet]
	state model.GPUState
}

// marketSet is the contribution of each row of a set of twins.
type marketSet struct {
	set *twins
	row marketRow
}

// marketChunk is a chunk, and its first row, as of the last sync; chunk is nil if a row of it had been touched by the
// pass.
type marketChunk struct {
	chunk *model.Chunk
	first int
}

type marketRow struct {
	node   *structs.Node
	hold   *model.Holding
	free   int32
	class  int32 // into Market.Classes; -1: contributes nothing
	blocks [wideMax]uint8
}

func (m *marketRows) begin(mix *model.Mix) {
	m.Mix, m.class = mix, make(map[[16]byte]int)
	for i := range mix.Shapes {
		if mix.Shapes[i].GPUs > 1 {
			m.Wide = append(m.Wide, i)
		}
	}
	slices.SortStableFunc(m.Wide, func(a, b int) int {
		x, y := &mix.Shapes[a], &mix.Shapes[b]
		return cmp.Compare(y.GPUs*y.Count, x.GPUs*x.Count)
	})
	m.Wide = m.Wide[:min(len(m.Wide), wideMax)]
	m.Blocks = make([]int64, len(m.Wide))
}

// count adds or removes the contribution of a node.
func (m *marketRows) count(r *marketRow, sign int64) {
	if r.class < 0 {
		return
	}
	m.Free += sign * int64(r.free)
	m.Classes[r.class].Free += sign * int64(r.free)
	for k := range m.Blocks {
		m.Blocks[k] += sign * int64(r.blocks[k])
	}
}

// worth returns the value of a node's idle GPUs in blocks, to asks for several GPUs.
func (p *Prices) worth(m *Market, suits []bool, idle, cpu int64) int64 {
	best := int64(0)
	for k, price := range p.Wide {
		if price > 0 && suits[m.Wide[k]] {
			best = max(best, price*m.Mix.Shapes[m.Wide[k]].Blocks(idle, cpu))
		}
	}
	return best
}
