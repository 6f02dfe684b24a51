package client

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// lateServers refuse reports while err is set, and keep how many updates each had.
type lateServers struct {
	Conn
	err error
	got []int
}

func (l *lateServers) Invoke(_ context.Context, _ rpc.Header, req, _ any) error {
	l.got = append(l.got, len(req.(*methods.NodeObserveRequest).Updates))
	return l.err
}

// While servers refuse reports, because they are late or do not answer in time, reports become small: all of a report is read before
// it is refused. Afterwards they grow again, and nothing of what was refused is lost.
func TestReportsToLateServersAreSmall(t *testing.T) {
	late := &lateServers{err: structs.Errorf(structs.CodeBusy, "the servers are late")}
	o := newObserver(&Client{conn: late})
	const allocs = 400
	for i := range allocs {
		id := structs.AllocID{}
		binary.BigEndian.PutUint64(id[:], uint64(i+1))
		o.add(&structs.AllocObserved{ID: id, Client: structs.ClientRunning})
	}
	for range 4 {
		if _, err := o.send(t.Context()); err == nil {
			t.Fatal("the servers took a report")
		}
	}
	if n := late.got[len(late.got)-1]; n != observeLeast {
		t.Errorf("reports had %v updates, want %d in the end", late.got, observeLeast)
	}
	late.err, late.got = nil, nil
	sum := 0
	for more := true; more; {
		var err error
		if more, err = o.send(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range late.got {
		sum += n
	}
	if sum != allocs || late.got[1] != 2*observeLeast {
		t.Errorf("then reports had %v updates, %d together, want %d, each twice as many as the one before", late.got, sum, allocs)
	}
}
