package fsm

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/structs"
)

// A plan entry is the bulk of the log, so it has its own columnar encoding (D9): a version byte; the header, packed; a
// table of the strings that parts repeat; and the parts as varints. A place takes about 5 bytes in addition to its
// node's 20.
//
//	parts:  count, then per part: places, stops, updates (counts), then those
//	place:  flags, group, node, index, then the fields that the flags announce
//	stop:   id, flags, then the fields that the flags announce
//	update: id
const planVersion = 1

type planHeader struct {
	Namespace     string
	JobID         string
	JobVersion    uint64
	JobCreate     structs.Index
	EvalID        structs.EvalID
	SnapshotIndex structs.Index
	Groups        []structs.GroupName
	Evals         []*structs.Evaluation
	Workload      *structs.Workload
	LinkNext      bool
	QueueEpoch    structs.Index
	Reservation   *structs.Reservation
	Rosters       []*structs.Roster
}

// reschedules packs the rare, long part of a place.
type reschedules struct{ Events []structs.RescheduleEvent }

// Optional fields of a place or a stop. The bits never change; a reader refuses an entry with an unknown one.
const (
	placeVersion  = 1 << 0
	placeGrants   = 1 << 1
	placePorts    = 1 << 2
	placeCores    = 1 << 3
	placeWaits    = 1 << 4
	placePrevious = 1 << 5
	placeResched  = 1 << 6
	placeExpect   = 1 << 7
	placeSizes    = 1 << 8 // of the grants' devices
	placeRestart  = 1 << 9 // restarts, requeues and reason
	placeKnown    = 1<<10 - 1

	stopDesc     = 1 << 0
	stopClient   = 1 << 1
	stopDesired  = 1 << 2
	stopFollowup = 1 << 3
	stopPreempt  = 1 << 4
	stopCause    = 1 << 5
	stopKnown    = 1<<6 - 1
)

// gpuPrefix starts the UUIDs of GPUs, which are packed into 16 bytes.
const gpuPrefix = "GPU-"

type planWriter struct {
	b     []byte
	names map[string]uint64
	list  []string
}

func (w *planWriter) uint(u uint64) { w.b = binary.AppendUvarint(w.b, u) }
func (w *planWriter) int(i int64)   { w.b = binary.AppendVarint(w.b, i) }

// name writes a reference to the string table.
func (w *planWriter) name(s string) {
	i, ok := w.names[s]
	if !ok {
		i = uint64(len(w.list))
		w.names[s] = i
		w.list = append(w.list, s)
	}
	w.uint(i)
}

// instance writes a device instance: a GPU's UUID as 16 bytes, anything else through the string table.
func (w *planWriter) instance(s string) {
	if len(s) == len(gpuPrefix)+36 && s[:len(gpuPrefix)] == gpuPrefix {
		if id, err := structs.ParseID[structs.AllocID](s[len(gpuPrefix):]); err == nil && gpuPrefix+id.String() == s {
			w.b = append(w.b, 1)
			w.b = append(w.b, id[:]...)
			return
		}
	}
	w.b = append(w.b, 0)
	w.name(s)
}

// appendPlan writes a PlanEntry after b.
func appendPlan(b []byte, p *structs.PlanEntry) ([]byte, error) {
	if p == nil {
		return nil, structs.Errorf(structs.CodeInternal, "a plan entry is missing")
	}
	h := planHeader{
		Namespace: p.Namespace, JobID: p.JobID, JobVersion: p.JobVersion, JobCreate: p.JobCreate, EvalID: p.EvalID,
		SnapshotIndex: p.SnapshotIndex, Groups: p.Groups, Evals: p.Evals, Workload: p.Workload, LinkNext: p.LinkNext,
		QueueEpoch: p.QueueEpoch, Reservation: p.Reservation, Rosters: p.Rosters,
	}
	w := planWriter{names: map[string]uint64{}, b: make([]byte, 0, 64+32*len(p.Nodes))}
	w.uint(uint64(len(p.Nodes)))
	for _, n := range p.Nodes {
		w.b = append(w.b, n.ID[:]...)
		w.uint(uint64(n.Epoch))
	}
	w.uint(uint64(len(p.Parts)))
	for i := range p.Parts {
		part := &p.Parts[i]
		w.uint(uint64(len(part.Places)))
		w.uint(uint64(len(part.Stops)))
		w.uint(uint64(len(part.Updates)))
		for j := range part.Places {
			w.place(&part.Places[j])
		}
		for j := range part.Stops {
			w.stop(&part.Stops[j])
		}
		for _, u := range part.Updates {
			w.b = append(w.b, u.ID[:]...)
		}
	}
	head := pack.Append(make([]byte, 0, 512), &h)
	b = append(b, planVersion)
	b = binary.AppendUvarint(b, uint64(len(head)))
	b = append(b, head...)
	b = binary.AppendUvarint(b, uint64(len(w.list)))
	for _, s := range w.list {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return append(b, w.b...), nil
}

// appendPlans writes the entries of a PlansCommand, each packed by appendPlan.
func appendPlans(b []byte, c *structs.PlansCommand) ([]byte, error) {
	var p parts
	for _, e := range c.Entries {
		raw, err := appendPlan(nil, e)
		if err != nil {
			return nil, err
		}
		p.Parts = append(p.Parts, raw)
	}
	return pack.Append(b, &p), nil
}

// decodePlans reads what appendPlans wrote.
func decodePlans(b []byte, c *structs.PlansCommand) error {
	var p parts
	if err := pack.Decode(b, &p); err != nil {
		return err
	}
	for _, raw := range p.Parts {
		e := new(structs.PlanEntry)
		if err := decodePlan(raw, e); err != nil {
			return err
		}
		c.Entries = append(c.Entries, e)
	}
	return nil
}

func (w *planWriter) place(p *structs.PlanPlace) {
	var flags uint64
	set := func(on bool, bit uint64) {
		if on {
			flags |= bit
		}
	}
	set(p.Version != nil, placeVersion)
	set(len(p.Grants) > 0, placeGrants)
	set(len(p.Ports) > 0, placePorts)
	set(len(p.Cores) > 0, placeCores)
	set(len(p.WaitsOn) > 0, placeWaits)
	set(!p.Previous.IsZero(), placePrevious)
	set(len(p.Resched) > 0, placeResched)
	set(p.Expect != 0, placeExpect)
	for _, g := range p.Grants {
		set(g.SizeMiB != 0, placeSizes)
	}
	set(p.Restarts != 0 || p.Requeues != 0 || p.Reason != "", placeRestart)
	w.uint(flags)
	w.int(int64(p.Group))
	w.int(int64(p.Node))
	w.int(int64(p.Index))
	if p.Version != nil {
		w.uint(*p.Version)
	}
	if len(p.Grants) > 0 {
		w.uint(uint64(len(p.Grants)))
		for _, g := range p.Grants {
			w.name(g.Task)
			w.name(g.Device)
			w.instance(g.Instance)
			w.int(g.MemoryMiB)
			w.int(g.Compute)
			w.name(g.Backend)
		}
	}
	if len(p.Ports) > 0 {
		w.uint(uint64(len(p.Ports)))
		for _, g := range p.Ports {
			w.name(g.Label)
			w.int(int64(g.Value))
			w.int(int64(g.To))
			w.name(g.HostIP)
		}
	}
	if len(p.Cores) > 0 {
		w.uint(uint64(len(p.Cores)))
		prev := int64(0)
		for _, c := range p.Cores {
			w.int(c - prev)
			prev = c
		}
	}
	if len(p.WaitsOn) > 0 {
		w.uint(uint64(len(p.WaitsOn)))
		for _, id := range p.WaitsOn {
			w.b = append(w.b, id[:]...)
		}
	}
	if !p.Previous.IsZero() {
		w.b = append(w.b, p.Previous[:]...)
	}
	if len(p.Resched) > 0 {
		raw := pack.Append(nil, &reschedules{p.Resched})
		w.uint(uint64(len(raw)))
		w.b = append(w.b, raw...)
	}
	if p.Expect != 0 {
		w.int(int64(p.Expect))
	}
	if flags&placeSizes != 0 {
		for _, g := range p.Grants {
			w.int(g.SizeMiB)
		}
	}
	if flags&placeRestart != 0 {
		w.int(p.Restarts)
		w.int(p.Requeues)
		w.name(p.Reason)
	}
}

func (w *planWriter) stop(s *structs.PlanStop) {
	var flags uint64
	set := func(on bool, bit uint64) {
		if on {
			flags |= bit
		}
	}
	set(s.Desc != "", stopDesc)
	set(s.Client != "", stopClient)
	set(s.Desired != "", stopDesired)
	set(!s.Followup.IsZero(), stopFollowup)
	set(!s.Preempt.IsZero(), stopPreempt)
	set(s.Cause != "", stopCause)
	w.b = append(w.b, s.ID[:]...)
	w.uint(flags)
	if s.Desc != "" {
		w.name(s.Desc)
	}
	if s.Client != "" {
		w.name(string(s.Client))
	}
	if s.Desired != "" {
		w.name(string(s.Desired))
	}
	if !s.Followup.IsZero() {
		w.b = append(w.b, s.Followup[:]...)
	}
	if !s.Preempt.IsZero() {
		w.b = append(w.b, s.Preempt[:]...)
	}
	if s.Cause != "" {
		w.name(s.Cause)
	}
}

var errPlanShort = errors.New("plan: the data ends in the middle of a part")

// planReader remembers the first error and reads zeros after it.
type planReader struct {
	b    []byte
	list []string
	err  error
}

func (r *planReader) fail(err error) {
	if r.err == nil {
		r.err, r.b = err, nil
	}
}

func (r *planReader) uint() uint64 {
	u, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail(errPlanShort)
		return 0
	}
	r.b = r.b[n:]
	return u
}

func (r *planReader) int() int64 {
	i, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail(errPlanShort)
		return 0
	}
	r.b = r.b[n:]
	return i
}

func (r *planReader) bytes(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail(errPlanShort)
		return nil
	}
	s := r.b[:n]
	r.b = r.b[n:]
	return s
}

func (r *planReader) id() (id [16]byte) {
	copy(id[:], r.bytes(16))
	return id
}

// count reads a number of elements that take at least size bytes each. It refuses a number that cannot be right, before
// anything is allocated.
func (r *planReader) count(size int) int {
	n := r.uint()
	if n > uint64(len(r.b)/size) {
		r.fail(errPlanShort)
		return 0
	}
	return int(n)
}

func (r *planReader) name() string {
	i := r.uint()
	if r.err == nil && i >= uint64(len(r.list)) {
		r.fail(fmt.Errorf("plan: string %d of %d", i, len(r.list)))
	}
	if r.err != nil {
		return ""
	}
	return r.list[i]
}

func (r *planReader) instance() string {
	kind := r.bytes(1)
	switch {
	case r.err != nil:
		return ""
	case kind[0] == 1:
		id := r.id()
		var text [len(gpuPrefix) + 36]byte
		copy(text[:], gpuPrefix)
		t := text[len(gpuPrefix):]
		hex.Encode(t[0:8], id[0:4])
		hex.Encode(t[9:13], id[4:6])
		hex.Encode(t[14:18], id[6:8])
		hex.Encode(t[19:23], id[8:10])
		hex.Encode(t[24:36], id[10:16])
		t[8], t[13], t[18], t[23] = '-', '-', '-', '-'
		return string(text[:])
	case kind[0] == 0:
		return r.name()
	}
	r.fail(fmt.Errorf("plan: device instance of kind %d; this version knows 0 and 1", kind[0]))
	return ""
}

func (r *planReader) flags(known uint64) uint64 {
	f := r.uint()
	if f&^known != 0 {
		r.fail(fmt.Errorf("plan: flags %#x hold bits that this version does not know", f))
		return 0
	}
	return f
}

// decodePlan reads what appendPlan wrote.
func decodePlan(b []byte, p *structs.PlanEntry) error {
	r := &planReader{b: b}
	if v := r.bytes(1); r.err != nil || v[0] != planVersion {
		if r.err != nil {
			return r.err
		}
		return fmt.Errorf("plan: encoding version %d; this version of muster reads %d", v[0], planVersion)
	}
	var h planHeader
	raw := r.bytes(r.uint())
	if r.err != nil {
		return r.err
	}
	if err := pack.Decode(raw, &h); err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	*p = structs.PlanEntry{
		Namespace: h.Namespace, JobID: h.JobID, JobVersion: h.JobVersion, JobCreate: h.JobCreate, EvalID: h.EvalID,
		SnapshotIndex: h.SnapshotIndex, Groups: h.Groups, Evals: h.Evals, Workload: h.Workload, LinkNext: h.LinkNext,
		QueueEpoch: h.QueueEpoch, Reservation: h.Reservation, Rosters: h.Rosters,
	}
	for range r.count(1) {
		r.list = append(r.list, string(r.bytes(r.uint())))
	}
	if n := r.count(17); n > 0 {
		p.Nodes = make([]structs.PlanNode, n)
		for i := range p.Nodes {
			p.Nodes[i] = structs.PlanNode{ID: r.id(), Epoch: structs.Index(r.uint())}
		}
	}
	if n := r.count(3); n > 0 {
		p.Parts = make([]structs.PlanPart, n)
	}
	for i := range p.Parts {
		if r.err != nil {
			break
		}
		part := &p.Parts[i]
		places, stops, updates := r.count(4), r.count(17), r.count(16)
		if places > 0 {
			part.Places = make([]structs.PlanPlace, places)
			for j := range part.Places {
				r.place(&part.Places[j])
			}
		}
		if stops > 0 {
			part.Stops = make([]structs.PlanStop, stops)
			for j := range part.Stops {
				r.stop(&part.Stops[j])
			}
		}
		if updates > 0 {
			part.Updates = make([]structs.PlanUpdate, updates)
			for j := range part.Updates {
				part.Updates[j].ID = r.id()
			}
		}
	}
	if r.err == nil && len(r.b) > 0 {
		return fmt.Errorf("plan: %d bytes after the last part", len(r.b))
	}
	return r.err
}

func (r *planReader) place(p *structs.PlanPlace) {
	flags := r.flags(placeKnown)
	p.Group, p.Node, p.Index = int(r.int()), int(r.int()), int(r.int())
	if flags&placeVersion != 0 {
		v := r.uint()
		p.Version = &v
	}
	if flags&placeGrants != 0 {
		p.Grants = make([]structs.Grant, r.count(6))
		for i := range p.Grants {
			g := &p.Grants[i]
			g.Task, g.Device, g.Instance = r.name(), r.name(), r.instance()
			g.MemoryMiB, g.Compute, g.Backend = r.int(), r.int(), r.name()
		}
	}
	if flags&placePorts != 0 {
		p.Ports = make([]structs.PortGrant, r.count(4))
		for i := range p.Ports {
			g := &p.Ports[i]
			g.Label, g.Value, g.To, g.HostIP = r.name(), int(r.int()), int(r.int()), r.name()
		}
	}
	if flags&placeCores != 0 {
		p.Cores = make([]int64, r.count(1))
		prev := int64(0)
		for i := range p.Cores {
			prev += r.int()
			p.Cores[i] = prev
		}
	}
	if flags&placeWaits != 0 {
		p.WaitsOn = make([]structs.AllocID, r.count(16))
		for i := range p.WaitsOn {
			p.WaitsOn[i] = r.id()
		}
	}
	if flags&placePrevious != 0 {
		p.Previous = r.id()
	}
	if flags&placeResched != 0 {
		var rs reschedules
		raw := r.bytes(r.uint())
		if r.err != nil {
			return
		}
		if err := pack.Decode(raw, &rs); err != nil {
			r.fail(fmt.Errorf("plan: %w", err))
		}
		p.Resched = rs.Events
	}
	if flags&placeExpect != 0 {
		p.Expect = time.Duration(r.int())
	}
	if flags&placeSizes != 0 {
		for i := range p.Grants {
			p.Grants[i].SizeMiB = r.int()
		}
	}
	if flags&placeRestart != 0 {
		p.Restarts, p.Requeues, p.Reason = r.int(), r.int(), r.name()
	}
}

func (r *planReader) stop(s *structs.PlanStop) {
	s.ID = r.id()
	flags := r.flags(stopKnown)
	if flags&stopDesc != 0 {
		s.Desc = r.name()
	}
	if flags&stopClient != 0 {
		s.Client = structs.ClientStatus(r.name())
	}
	if flags&stopDesired != 0 {
		s.Desired = structs.DesiredStatus(r.name())
	}
	if flags&stopFollowup != 0 {
		s.Followup = r.id()
	}
	if flags&stopPreempt != 0 {
		s.Preempt = r.id()
	}
	if flags&stopCause != 0 {
		s.Cause = r.name()
	}
}
