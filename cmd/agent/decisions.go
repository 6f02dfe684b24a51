package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/rotate"
	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/structs"
)

const (
	decisionsEvery = time.Second // the log keeps about 13 s of decisions at full speed
	lastLineMax    = 1 << 20     // bytes from the end of the file, in which its last line begins
)

// decisionLog writes the rows of the decision log to a file, in their order.
type decisionLog struct {
	w     io.Writer
	seq   uint64 // of the last row
	index structs.Index
	torn  bool // the file may end within a line
}

// missed is the line for rows that the cluster no longer had.
type missed struct {
	Missed uint64 // how many
	Seq    uint64 // of the first
}

// logDecisions writes rows until ctx ends. What cannot be written is tried again.
func (a *Agent) logDecisions(ctx context.Context, o rotate.Options) error {
	f, err := rotate.Open(o)
	if err != nil {
		return err
	}
	defer f.Close()
	d := &decisionLog{w: f}
	if err := d.resume(f.Path()); err != nil {
		return err
	}
	tick := time.NewTicker(decisionsEvery)
	defer tick.Stop()
	failing := false
	for {
		err := d.write(a.server.Published().Snapshot)
		if err != nil && !failing {
			a.log.Error("the decision log cannot be written to its file; it is tried again", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// resume continues after the last row of a file.
func (d *decisionLog) resume(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	b, err := io.ReadAll(io.NewSectionReader(f, max(0, st.Size()-lastLineMax), lastLineMax))
	if err != nil {
		return err
	}
	d.torn = len(b) > 0 && b[len(b)-1] != '\n'
	for lines := bytes.Split(b, []byte("\n")); len(lines) > 0; lines = lines[:len(lines)-1] {
		var row struct{ Seq, Index, Missed uint64 }
		if json.Unmarshal(lines[len(lines)-1], &row) == nil && row.Index != 0 {
			d.seq, d.index = row.Seq, structs.Index(row.Index)
			return nil
		}
	}
	if len(b) > 0 {
		return fmt.Errorf("%s has no row of a decision log: name another file", path)
	}
	return nil
}

// write writes the rows of a snapshot that are new.
func (d *decisionLog) write(s *state.Snapshot) error {
	from := d.seq + 1
	for newest := range s.DecisionsBack() {
		if newest.Index > d.index && newest.Seq < from { // an older state was restored, and the numbers began there again
			from, d.seq = 0, 0
		}
		break
	}
	var b bytes.Buffer
	var last structs.DecisionRow
	flush := func() error {
		if b.Len() == 0 {
			return nil
		}
		if _, err := d.w.Write(b.Bytes()); err != nil {
			d.torn = true
			return err
		}
		d.seq, d.index, d.torn = last.Seq, last.Index, false
		b.Reset()
		return nil
	}
	enc := json.NewEncoder(&b)
	next := d.seq + 1
	if d.torn {
		b.WriteByte('\n')
	}
	var err error
	for r := range s.Decisions(from) {
		if r.Index < d.index || from == 0 && r.Index == d.index {
			continue
		}
		if r.Seq > next && (d.seq > 0 || next > 1) {
			err = errors.Join(err, enc.Encode(missed{r.Seq - next, next}))
		}
		err = errors.Join(err, enc.Encode(nomadlike.DecisionOf(&r)))
		last, next = r, r.Seq+1
		if b.Len() >= 64<<10 {
			if err = errors.Join(err, flush()); err != nil {
				return err
			}
		}
	}
	if last.Seq == 0 {
		return nil
	}
	return errors.Join(err, flush())
}
