package queue

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// Lottery draws by lot (Waldspurger and Weihl, OSDI'94): queues by weight, then the workloads of a submitter by
// priority. A draw holds until work starts (QueueTable.Draw), so that users see the order in which work will be served, and
// then everything that waits is drawn again, so nothing starves for long. Under a backfill of "none" what is drawn first
// keeps all others waiting until it has room.
//
// A draw compares exponentially distributed waiting times whose rate is the number of tickets: the smallest one wins
// with exactly the right odds, and each is drawn independently of the others. So a draw among thousands is one sort.
type Lottery struct{}

// Name is "lottery".
func (Lottery) Name() structs.Order { return structs.OrderLottery }

// Key is the workload's waiting time in the draw.
func (Lottery) Key(w *contend.Workload, at *Scene) Key {
	return Key{drawTime(at.Seed, w.Key.Namespace, w.Key.ID, 0, int64(w.Priority()))}
}

// Share is the time of the entity's next turn: that of its last one plus a new draw.
func (Lottery) Share(e *Entity, at *Scene) int64 {
	return e.Last + drawTime(at.Seed, string(at.Queue.Path), e.Name, e.Turns, e.Weight)
}

// Terms are the tickets, and the wait.
func (Lottery) Terms(w *contend.Workload, at *Scene) []structs.ScoreTerm {
	return []structs.ScoreTerm{{Name: "tickets", Micro: micro * max(int64(w.Priority()), 1)}, waitTerm(w, at)}
}

// drawTime draws a waiting time with the given rate.
func drawTime(seed uint64, a, b string, turn, rate int64) int64 {
	buf := binary.BigEndian.AppendUint64(make([]byte, 0, 64), seed)
	buf = binary.BigEndian.AppendUint64(buf, uint64(turn))
	buf = append(append(append(buf, a...), 0), b...)
	d := sha256.Sum256(buf)
	return minusLog2(binary.BigEndian.Uint64(d[:])) / max(rate, 1)
}

// minusLog2 is -log2((u+1) / 2^64) in units of 2^-32, by repeated squaring (integers only: D10).
func minusLog2(u uint64) int64 {
	if u++; u == 0 {
		return 0
	}
	zeros := bits.LeadingZeros64(u)
	out := int64(zeros+1) << 32
	m := u << zeros // in [1,2) with 63 bits after the point
	for bit := int64(1) << 31; bit > 0; bit >>= 1 {
		hi, lo := bits.Mul64(m, m)
		if hi&(1<<63) != 0 { // the square is at least 2
			out -= bit
			m = hi
		} else {
			m = hi<<1 | lo>>63
		}
	}
	return out
}
