package fsm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// checksWanted returns how many checks the property runs make; MUSTER_PROPERTY_CHECKS overrides it.
func checksWanted(t *testing.T) int {
	text := os.Getenv("MUSTER_PROPERTY_CHECKS")
	if text == "" {
		return 900_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("MUSTER_PROPERTY_CHECKS=%q; want a positive number", text)
	}
	return n
}

// run is one property run: what was checked, and what happened in it.
type run struct {
	t      *testing.T
	seed   uint64
	checks int
	seen   map[string]int
	runs   map[structs.JobKey]*jobRun // of this log
}

func (r *run) check(ok bool, format string, args ...any) {
	r.checks++
	if !ok {
		r.t.Helper()
		r.t.Fatalf("seed %d: %s", r.seed, fmt.Sprintf(format, args...))
	}
}

func (r *run) saw(what string) { r.seen[what]++ }

// occurrences are what a property run must have met at least once, besides a success and a refusal of commands.
var occurrences = []string{
	"part accepted", "part refused", "refused: epoch", "refused: version", "refused: job absent or stopped", "refused: exists",
	"alloc replaced with link", "alloc lost by plan", "alloc lost by purge", "alloc failed", "alloc updated in place", "alloc preempted",
	"alloc collected", "job purged", "job kept for its allocs", "job dead", "job revived", "version pruned", "version kept by tag",
	"workload made", "workload ended", "place in queue kept", "eval canceled by purge", "system job woken by node", "overlap prohibited",
	"dispatch repeated", "entry rolled back", "restored midway", "usage counted", "whole GPUs counted", "GPU shares counted", "batch refused", "secret refused",
	"standby held", "gang placed", "joint job placed", "joint job ended", "gang grown", "gang resized", "gang restarted", "gang went on", "partial gang refused", "gang timed out", "gang assembled", "job preempted", "service attained",
	"accounted", "accounted: collected before the end", "accounted: GPU time", "accounted: use of GPUs", "accounting record dropped", "decision logged",
	"workload command refused", "held", "released", "suspended", "resumed", "suspension refused", "gang suspended or resumed", "requeued", "failed by the server", "retried", "end of an index kept",
	"usage of queues checked", "usage gathered", "queue at its limit", "refused: limit of a queue", "refused: limit of a user", "refused: running cap", "moved within a limit",
	"services registered", "service changed", "service kept its health", "services of another ended", "service deleted", "variables counted", "variable deleted", "variable changed", "variable swap refused", "variable sealed anew", "key retired",
	"registration refused by a cap", "reservation made", "reservation kept", "reservation ended", "credit given",
}

// TestProperties applies random logs entry by entry, checks what every entry did, then applies the same log cut into
// batches at random and through a snapshot and restore, and wants the same results, changes and hashes.
func TestProperties(t *testing.T) {
	r := &run{t: t, seen: map[string]int{}}
	want := checksWanted(t)
	first := uint64(1)
	if s := os.Getenv("MUSTER_PROPERTY_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("MUSTER_PROPERTY_SEED=%q; want a number", s)
		}
		first = n
	}
	for r.seed = first; r.checks < want; r.seed++ {
		r.log(300)
	}
	for _, o := range occurrences {
		if r.seen[o] == 0 {
			t.Errorf("never happened: %s", o)
		}
	}
	for _, typ := range commandTypes() {
		if typ == TypeOf[*structs.UpgradeFinishCommand]() && feature.Newest == feature.Oldest {
			continue // there is no format to raise the cluster to
		}
		if r.seen[fmt.Sprintf("command %d carried out", typ)] == 0 {
			t.Errorf("never carried out: command type %d", typ)
		}
	}
	t.Logf("%d checks, %d logs, %v", r.checks, r.seed-first, r.seen)
}

func (r *run) log(length int) {
	g := newGenerator(r.seed)
	r.runs = map[structs.JobKey]*jobRun{}
	a := New(Options{CheckWrites: true})
	var entries []Entry
	var results []structs.Result
	var total structs.Delta
	index := structs.Index(10)
	var kept []*state.Snapshot
	for i := range length {
		g.snap = a.Snapshot()
		if i%7 == 0 {
			g.old = g.snap
		}
		cmd := g.next()
		if i == 0 { // some logs begin at an old format
			cmd.Body = &structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: feature.Oldest + structs.Format(r.seed%uint64(feature.Newest-feature.Oldest+1)), By: "test"}
		}
		in := a.Snapshot().Format()
		data, err := Encode(cmd, in)
		if err != nil && in < feature.Newest && structs.CodeOf(err) == structs.CodeConflict {
			r.saw("refused: gate")
			continue
		}
		r.check(err == nil, "encode: %v", err)
		back, err := Decode(data)
		r.check(err == nil && typeOf(back) == typeOf(cmd) && back.Seed == cmd.Seed, "decode: %v", err)
		again, err := Encode(back, in)
		r.check(err == nil && bytes.Equal(again, data), "encoding of command type %d is not stable", typeOf(cmd))
		index += structs.Index(1 + g.r.IntN(2))
		before := a.Snapshot()
		e := Entry{Index: index, Data: data}
		res, delta, _ := a.ApplyBatch([]Entry{e})
		entries, results = append(entries, e), append(results, res[0])
		r.entry(before, a.Snapshot(), cmd, res[0], delta)
		r.gangs(before, a.Snapshot(), cmd, res[0], delta)
		r.held(before, a.Snapshot(), cmd, res[0])
		appendDelta(&total, delta)
		if i%50 == 49 {
			r.whole(a)
			kept = append(kept, a.Snapshot())
		}
	}
	for _, s := range kept {
		r.check(s.Hash() == s.Rehash(), "the snapshot at %d changed after it was taken", s.Index())
	}
	r.whole(a)
	if err := a.VerifyImmutable(); err != nil {
		r.t.Fatalf("seed %d: %v", r.seed, err)
	}
	r.replay(a, entries, results, total)
}

// replay applies a log again, cut at random, through a snapshot in the middle.
func (r *run) replay(a *FSM, entries []Entry, results []structs.Result, total structs.Delta) {
	rng := rand.New(rand.NewPCG(r.seed, 2))
	b := New(Options{})
	middle := rng.IntN(len(entries))
	var delta structs.Delta
	for at := 0; at < len(entries); {
		n := min(1+rng.IntN(60), len(entries)-at)
		res, d, _ := b.ApplyBatch(entries[at : at+n])
		for i := range res {
			r.check(reflect.DeepEqual(res[i], results[at+i]), "entry %d answers otherwise in a batch of %d:\n%+v\n%+v", at+i, n, res[i], results[at+i])
		}
		appendDelta(&delta, d)
		if at <= middle && middle < at+n {
			var file bytes.Buffer
			if err := WriteSnapshot(&file, b.Snapshot()); err != nil {
				r.t.Fatal(err)
			}
			hash := b.Snapshot().Hash()
			d, err := b.Restore(&file)
			r.check(err == nil && d.Restored && b.Snapshot().Hash() == hash, "restore: %v", err)
			r.saw("restored midway")
		}
		at += n
	}
	r.check(a.Snapshot().Hash() == b.Snapshot().Hash(), "the hash depends on the cuts")
	r.whole(b)
	dv, tv := reflect.ValueOf(delta), reflect.ValueOf(total)
	for i := range dv.NumField() {
		name := dv.Type().Field(i).Name
		if dv.Field(i).Kind() != reflect.Slice {
			continue
		}
		r.check(dv.Field(i).Len() == tv.Field(i).Len(), "delta %s has %d changes, in batches %d", name, tv.Field(i).Len(), dv.Field(i).Len())
		for j := range dv.Field(i).Len() {
			r.check(reflect.DeepEqual(unlinked(tv.Field(i).Index(j)), unlinked(dv.Field(i).Index(j))), "delta %s[%d] depends on the cuts", name, j)
		}
	}
}

// unlinked drops the pointer from allocations to jobs, which is not part of the state.
func unlinked(v reflect.Value) any {
	c, ok := v.Interface().(structs.Changed[structs.Allocation])
	if !ok {
		return v.Interface()
	}
	strip := func(a *structs.Allocation) *structs.Allocation {
		if a == nil {
			return nil
		}
		n := *a
		n.Job = nil
		return &n
	}
	return structs.Changed[structs.Allocation]{Before: strip(c.Before), After: strip(c.After)}
}

func appendDelta(to *structs.Delta, d structs.Delta) {
	a, b := reflect.ValueOf(to).Elem(), reflect.ValueOf(d)
	for i := range b.NumField() {
		if b.Field(i).Kind() == reflect.Slice {
			a.Field(i).Set(reflect.AppendSlice(a.Field(i), b.Field(i)))
		}
	}
}

// whole checks the state against what can be computed from it.
func (r *run) whole(f *FSM) {
	s := f.Snapshot()
	r.check(s.Hash() == s.Rehash(), "the incremental hash has drifted")
	usage, counts := s.Recount()
	n := 0
	for u := range s.Usages() {
		r.check(usage[u.Kind+" "+u.Name] == *u, "usage %+v, recounted %+v", *u, usage[u.Kind+" "+u.Name])
		r.saw("usage counted")
		if u.GPUs > 0 {
			r.saw("whole GPUs counted")
		}
		if u.GPUShares > 0 && u.GPUMemoryMiB > 0 {
			r.saw("GPU shares counted")
		}
		n++
	}
	why := s.CheckUse()
	r.check(why == "", "%s", why)
	for u := range s.QueueUses() {
		r.saw("usage of queues checked")
		if u.Used.GPUMilli > 0 && u.Total.GPUMilli > u.Used.GPUMilli {
			r.saw("usage gathered")
		}
		if u.Credit != (structs.Amount{}) {
			r.saw("credit given")
		}
	}
	active := 0
	for k := range s.SealKeys() {
		r.check(!k.Active || !k.Retired, "the active key %s is retired", k.ID)
		if k.Active {
			active++
		}
		if k.Retired {
			r.saw("key retired")
		}
	}
	r.check(active <= 1, "%d keys for variables are active", active)
	bytes := int64(0)
	for v := range s.Variables("*", "") {
		r.check(s.SealKey(v.KeyID) != nil, "variable %s is sealed with %s, which is not there", v.Path, v.KeyID)
		bytes += int64(len(v.Sealed) + len(v.Path))
		r.saw("variables counted")
	}
	r.check(bytes == f.store.VariableBytes(), "variables take %d bytes, recounted %d", f.store.VariableBytes(), bytes)
	r.check(n == len(usage), "%d usage rows, recounted %d", n, len(usage))
	r.check(reflect.DeepEqual(counts, f.store.AllCounts()), "job counters differ from a recount")
	r.indexes(s)
	for a := range s.Allocs() {
		r.check(a.Job != nil && a.Job.Version == a.JobVersion && s.JobVersion(a.JobKey(), a.JobVersion) != nil, "allocation %s lost version %d of its job", a.ID, a.JobVersion)
		if s.JobByKey(a.JobKey()) == nil {
			r.saw("job kept for its allocs")
		}
	}
	for j := range s.Jobs("", "") {
		w := s.Workload(j.Key())
		waits := j.Status != structs.JobDead && !j.IsPeriodic() && !j.IsParameterized()
		r.check((w != nil) == waits, "job %s is %s, workload %v", j.Key(), j.Status, w)
		untagged := 0
		for _, v := range s.JobVersions(j.Key()) {
			if v.VersionTag != nil {
				r.saw("version kept by tag")
			} else if !f.store.HasAllocsOfVersion(j.Key(), v.Version) {
				untagged++
			}
		}
		r.check(untagged <= structs.JobVersionsKept, "job %s keeps %d versions", j.Key(), untagged)
	}
}

// services checks that registrations follow what agents report and nothing else does, except that they end with what serves.
func (r *run) services(after *state.Snapshot, cmd structs.Command, d structs.Delta) {
	for _, c := range d.Services {
		switch {
		case c.After == nil && isA[*structs.ServiceDeleteCommand](cmd):
			r.saw("service deleted")
		case c.After == nil && !isA[*structs.AllocObservedCommand](cmd) && !isA[*structs.BatchCommand](cmd):
			a := after.AllocByID(c.Before.AllocID)
			r.check(a == nil || !a.Serves(), "command %d removed service %s of an allocation that serves", typeOf(cmd), c.Before.ID)
			r.saw("services of another ended")
		case c.After == nil:
		case c.Before == nil:
			r.saw("services registered")
			r.check(c.After.CreateIndex == d.Index && c.After.ModifyIndex == d.Index, "service %s is new at %d and says %d", c.After.ID, d.Index, c.After.CreateIndex)
		default:
			r.saw("service changed")
			r.check(!c.Before.Same(c.After) && c.After.CreateIndex == c.Before.CreateIndex && c.After.ModifyIndex == d.Index, "service %s was written and did not change", c.After.ID)
		}
	}
	if body, ok := cmd.Body.(*structs.AllocObservedCommand); ok {
		for i := range body.Updates {
			for j := range body.Updates[i].Services {
				x := &body.Updates[i].Services[j]
				a := after.AllocByID(body.Updates[i].ID)
				if a == nil {
					continue
				}
				is := after.Service(structs.ServiceKey{Namespace: a.Namespace, Service: x.Service, ID: x.ID})
				if is != nil && x.Health == structs.HealthPending && is.Health != structs.HealthPending && is.Health != structs.HealthNone {
					r.saw("service kept its health")
				}
			}
		}
	}
}

// indexes compares every secondary index with a walk over its table.
func (r *run) indexes(s *state.Snapshot) {
	byNode, byJob, evals := map[structs.NodeID]int{}, map[structs.JobKey]int{}, map[structs.JobKey]int{}
	for a := range s.Allocs() {
		byNode[a.NodeID]++
		byJob[a.JobKey()]++
	}
	for id, n := range byNode {
		list := s.AllocsByNode(id)
		for _, a := range list {
			r.check(a.NodeID == id && s.AllocByID(a.ID) == a, "index by node holds another %s", a.ID)
		}
		r.check(len(list) == n, "index by node has %d allocations of %d", len(list), n)
	}
	for k, n := range byJob {
		list := s.AllocsByJob(k)
		for i, a := range list {
			r.check(a.JobKey() == k && s.AllocByID(a.ID) == a && (i == 0 || list[i-1].JobVersion <= a.JobVersion), "index by job holds another %s", a.ID)
		}
		r.check(len(list) == n, "index by job has %d allocations of %d", len(list), n)
	}
	for e := range s.Evals() {
		evals[e.JobKey()]++
	}
	for k, n := range evals {
		list := s.EvalsByJob(k)
		for _, e := range list {
			r.check(e.JobKey() == k && s.EvalByID(e.ID) == e, "index by job holds another %s", e.ID)
		}
		r.check(len(list) == n, "index by job has %d evaluations of %d", len(list), n)
	}
	offered := map[structs.AllocID]int{}
	for x := range s.Services("*") {
		a := s.AllocByID(x.AllocID)
		r.check(a != nil && a.Serves(), "service %s is registered for an allocation that does not serve: %+v", x.ID, a)
		r.check(a.Namespace == x.Namespace && a.JobID == x.JobID && a.NodeID == x.NodeID, "service %s does not say whose it is: %+v", x.ID, x)
		offered[x.AllocID]++
	}
	for id, n := range offered {
		list := s.ServicesByAlloc(id)
		for _, x := range list {
			r.check(x.AllocID == id && s.Service(x.Key()) == x, "index by allocation holds another %s", x.ID)
		}
		r.check(len(list) == n, "index by allocation has %d services of %d", len(list), n)
	}
	for t := range s.Tokens() {
		r.check(s.TokenBySecret(t.Secret) == t, "index by secret holds another token")
	}
}

// entry checks what one entry did.
func (r *run) entry(before, after *state.Snapshot, cmd structs.Command, res structs.Result, d structs.Delta) {
	changed := 0
	dv := reflect.ValueOf(d)
	for i := range dv.NumField() {
		if dv.Field(i).Kind() == reflect.Slice {
			changed += dv.Field(i).Len()
		}
	}
	if res.Err != nil {
		r.saw("command refused")
		r.saw(fmt.Sprintf("command %d refused", typeOf(cmd)))
		if isA[*structs.BatchCommand](cmd) {
			r.saw("batch refused")
		}
		if res.Err.Code == structs.CodeDenied {
			r.saw("secret refused")
		}
		if res.Err.Code == structs.CodeUnprocessable {
			r.saw("registration refused by a cap")
		}
		r.saw("entry rolled back")
		ha, hb := after.Hash(), before.Hash()
		r.check(changed == 0 && (ha == hb || after.Time() != before.Time()), "command type %d was refused (%s) and changed something", typeOf(cmd), res.Err.Msg)
		return
	}
	r.saw(fmt.Sprintf("command %d carried out", typeOf(cmd)))
	r.check(res.Index == after.Index() && after.Time() >= before.Time(), "index or time")
	r.allocs(after, cmd, d)
	r.accounting(before, after, cmd, res, d)
	r.limits(before, after, d)
	r.services(after, cmd, d)
	for _, c := range d.Evals {
		if c.Before != nil && c.Before.Terminal() && c.After != nil && c.After.CreateIndex == c.Before.CreateIndex { // else collected, and written again by a batch
			r.check(false, "evaluation %s was over and changed", c.Before.ID)
		}
		if c.After != nil {
			r.check(c.After.ModifyIndex == res.Index, "evaluation %s has modify index %d at %d", c.After.ID, c.After.ModifyIndex, res.Index)
			if c.After.StatusDesc == "job purged" {
				r.saw("eval canceled by purge")
			}
			if c.After.Trigger == structs.TriggerNodeUpdate && c.After.Type == structs.JobSystem && c.Before == nil && isA[*structs.NodeStatusCommand](cmd) {
				r.saw("system job woken by node")
			}
		}
	}
	for _, c := range d.Workloads {
		switch {
		case c.Before == nil:
			r.saw("workload made")
		case c.After == nil:
			r.saw("workload ended")
		default:
			r.check(c.After.SubmitIndex == c.Before.SubmitIndex, "workload of %s lost its place", c.After.JobID)
			r.saw("place in queue kept")
		}
	}
	for _, c := range d.Jobs {
		switch {
		case c.After == nil:
			r.saw("job purged")
		case c.Before != nil && c.Before.Status == structs.JobDead && c.After.Status != structs.JobDead:
			r.saw("job revived")
		case c.After.Status == structs.JobDead:
			r.saw("job dead")
		}
		if c.Before != nil && c.After != nil && c.After.Version > structs.JobVersionsKept {
			r.saw("version pruned")
		}
	}
	for _, c := range d.Nodes {
		if c.Before != nil && c.After != nil && isA[*structs.NodeRegisterCommand](cmd) {
			r.check(c.After.Status == c.Before.Status && c.After.Eligibility == c.Before.Eligibility && reflect.DeepEqual(c.After.Drain, c.Before.Drain), "a registration changed what the server owns")
		}
		if c.Before == nil {
			r.check(c.After.Status == structs.NodeInit && c.After.Epoch == res.Index, "a new node is %s at epoch %d", c.After.Status, c.After.Epoch)
		}
	}
	switch body := cmd.Body.(type) {
	case *structs.PlanEntry:
		r.plan(before, body, res.Plan)
	case *structs.JobRegisterCommand:
		if res.ChildID != "" && res.ChildID != body.Job.ID {
			r.saw("dispatch repeated")
			r.check(changed == 0, "a repeated dispatch changed something")
		}
		r.check(!body.Eval || !body.Job.Placeable() || !res.EvalID.IsZero() || res.ChildID != "", "registration of %s made no evaluation", body.Job.ID)
	case *structs.VariableSetCommand:
		if !res.Swapped {
			r.saw("variable swap refused")
			r.check(body.CAS && changed == 0, "a variable was not written, and something changed")
		}
	case *structs.PeriodicLaunchCommand:
		if body.Child != nil && res.ChildID == "" {
			r.saw("overlap prohibited")
		}
	}
}

// claimedTwice reports whether two allocations wait for the place of one, which plans may bring about only before there is a
// queue.
func claimedTwice(s *state.Snapshot) bool {
	claims := map[structs.AllocID]bool{}
	for a := range s.Allocs() {
		for _, id := range a.WaitsOn {
			if claims[id] && structs.Holds(a) {
				return true
			}
			claims[id] = claims[id] || structs.Holds(a)
		}
	}
	return false
}

// moved returns what an entry may add to a limit beyond it: what those that it stops on nodes without new work, and replaces,
// hold until they have ended.
func (r *run) moved(before *state.Snapshot, d structs.Delta, counts func(*structs.Allocation) bool) (sum structs.Amount) {
	replaced := map[structs.AllocID]bool{}
	for _, c := range d.Allocs {
		if c.Before == nil && c.After != nil {
			replaced[c.After.Lineage().Previous] = true
		}
	}
	moves := false
	for _, c := range d.Allocs {
		if a := c.Before; a != nil && c.After != nil && replaced[a.ID] && structs.Holds(a) && !a.ServerTerminal() && c.After.ServerTerminal() && counts(a) {
			sum = sum.Add(structs.AmountOf(a))
			moves = moves || structs.Moves(a, before.NodeByID(a.NodeID))
		}
	}
	if !moves || !before.Has(feature.MoveCharges) {
		return structs.Amount{}
	}
	r.saw("moved within a limit")
	return sum
}

// limits checks that no entry adds to what is beyond a limit, unless it changed the limit.
func (r *run) limits(before, after *state.Snapshot, d structs.Delta) {
	why := after.CheckUse()
	r.check(why == "", "%s", why)
	for q := range after.Queues() {
		if q.Limit == nil || before.QueueByPath(q.Path) != q {
			continue
		}
		was, is := before.QueueUse(q.Path, "").Held, after.QueueUse(q.Path, "").Held
		if claimedTwice(before) {
			continue // from before there were queues; what it charges grows by itself when who is waited for ends
		}
		what, over := structs.Breaks(was, is.Sub(was).Sub(r.moved(before, d, func(a *structs.Allocation) bool {
			return slices.Contains(structs.UseRows(a), structs.UseRow{Path: q.Path})
		})), *q.Limit)
		r.check(over == 0, "queue %q went from %+v to %+v and may hold %+v: %s", q.Path, was, is, *q.Limit, what)
		if is.CPU > 0 && is.CPU == q.Limit.CPU {
			r.saw("queue at its limit")
		}
	}
	for q := range after.Quotas() {
		was, is := before.QuotaHeld(q.Name), after.QuotaHeld(q.Name)
		if l := q.Limit("global"); before.Quota(q.Name) == q && len(d.Namespaces) == 0 && !claimedTwice(before) {
			what, over := structs.Breaks(was, is.Sub(was).Sub(r.moved(before, d, func(a *structs.Allocation) bool { return before.Namespace(a.Namespace).Quota == q.Name })), l.Hard)
			r.check(over == 0, "quota %q went from %+v to %+v and may hold %+v: %s", q.Name, was, is, l.Hard, what)
		}
	}
	for _, c := range d.Variables {
		switch {
		case c.After == nil:
			r.saw("variable deleted")
		case c.Before != nil && c.Before.KeyID != c.After.KeyID && c.Before.ModifyIndex == c.After.ModifyIndex:
			r.saw("variable sealed anew")
			was := *c.After
			was.KeyID, was.Sealed = c.Before.KeyID, c.Before.Sealed
			r.check(reflect.DeepEqual(&was, c.Before), "variable %s was sealed anew and is %+v; it was %+v", c.After.Path, c.After, c.Before)
		case c.Before != nil:
			r.saw("variable changed")
			r.check(c.After.CreateIndex == c.Before.CreateIndex && c.After.ModifyIndex == d.Index, "variable %s: created %d, then %d; changed %d at %d", c.After.Path, c.Before.CreateIndex, c.After.CreateIndex, c.After.ModifyIndex, d.Index)
		}
		if c.After != nil {
			r.check(after.Namespace(c.After.Namespace) != nil, "variable %s is in namespace %s, which is not there", c.After.Path, c.After.Namespace)
		}
	}
	for _, c := range d.Reserved {
		switch {
		case c.Before == nil:
			r.saw("reservation made")
		case c.After == nil:
			r.saw("reservation ended")
		default:
			r.saw("reservation kept")
		}
		if c.After != nil && c.After.JobID != "" {
			r.check(after.Workload(structs.JobKey{Namespace: c.After.Namespace, ID: c.After.JobID}) != nil, "reservation %s outlives its job", c.After.ID)
		}
	}
}

func (r *run) allocs(after *state.Snapshot, cmd structs.Command, d structs.Delta) {
	for _, c := range d.Allocs {
		b, a := c.Before, c.After
		if a == nil {
			r.saw("alloc collected")
			// Within a batch it may end and be collected in one entry.
			r.check(b.ClientTerminal() || isA[*structs.BatchCommand](cmd), "allocation %s was deleted while %s by command type %d", b.ID, b.Client, typeOf(cmd))
			continue
		}
		r.check(a.ModifyIndex == d.Index && a.Job != nil, "allocation %s: modify index %d at %d, job %v", a.ID, a.ModifyIndex, d.Index, a.Job != nil)
		if b == nil {
			continue
		}
		r.check(!b.ClientTerminal() || a.Client == b.Client, "allocation %s ended as %s and became %s", a.ID, b.Client, a.Client)
		r.check(!b.ServerTerminal() || a.ServerTerminal(), "allocation %s was stopped and is to run", a.ID)
		restart := a.Desired == structs.DesiredStop && b.Desired == structs.DesiredRun && (strings.HasPrefix(a.DesiredDesc, descMember) || strings.HasPrefix(a.DesiredDesc, descJoint) || a.DesiredDesc == descStandbyBack || a.DesiredDesc == descTooLate)
		switch cmd.Body.(type) {
		case *structs.AllocObservedCommand: // only the agent's fields
			x := *a
			if restart { // its gang lost another member
				x.Desired, x.DesiredDesc, x.AllocIndex, x.OwnLineage().Asked, x.Transition = b.Desired, b.DesiredDesc, b.AllocIndex, b.Lineage().Asked, b.Transition
			}
			x.Client, x.ClientDesc, x.TaskStates, x.NetworkIP, x.StartedAt, x.FinishedAt, x.GPUUse, x.Saved = b.Client, b.ClientDesc, b.TaskStates, b.NetworkIP, b.StartedAt, b.FinishedAt, b.GPUUse, b.Saved
			x.ClientIndex, x.ModifyIndex, x.ModifyTime, x.OwnLineage().DisconnectedAt, x.Job = b.ClientIndex, b.ModifyIndex, b.ModifyTime, b.Lineage().DisconnectedAt, b.Job
			x.SetLineage(*x.Lineage())
			r.check(reflect.DeepEqual(&x, b), "an observation of %s changed what the server owns", a.ID)
			if a.Client == structs.ClientFailed {
				r.saw("alloc failed")
			}
		case *structs.BatchCommand: // any of the others
		case *structs.NodePurgeCommand, *structs.NodeRegisterCommand:
			r.check(a.Client == structs.ClientLost || restart, "a purge made %s %s", a.ID, a.Client)
			r.saw("alloc lost by purge")
		case *structs.PlanEntry, *structs.PlansCommand:
			if a.Client != b.Client {
				r.check(a.Client == structs.ClientLost || a.Client == structs.ClientUnknown, "a plan made %s %s", a.ID, a.Client)
				r.saw("alloc lost by plan")
			}
			if a.Lineage().Next != b.Lineage().Next {
				r.saw("alloc replaced with link")
				n := after.AllocByID(a.Lineage().Next)
				r.check(n != nil && n.Lineage().Previous == a.ID, "allocation %s names a successor that does not name it", a.ID)
			}
			if a.JobVersion != b.JobVersion {
				r.saw("alloc updated in place")
			}
			if a.Lineage().PreemptedBy != b.Lineage().PreemptedBy {
				r.saw("alloc preempted")
			}
		default:
			r.check(a.Client == b.Client, "command type %d changed the observed status of %s", typeOf(cmd), a.ID)
		}
	}
}

// plan checks the verdict against the state that the entry met.
func (r *run) plan(before *state.Snapshot, p *structs.PlanEntry, res *structs.PlanResult) {
	for text, what := range map[string]string{"exceed its limit": "limit of a queue", "exceed the limit of each user": "limit of a user", "quota": "quota", "may run": "running cap", "of GPUs of model": "limit of a model", "in GPUs of model": "limit of a model of a quota", "was decided at": "queue epoch"} {
		if strings.Contains(res.Refused, text) {
			r.saw("refused: " + what)
		}
	}
	r.check(len(res.Accepted) == len(p.Parts), "%d verdicts for %d parts", len(res.Accepted), len(p.Parts))
	j := before.JobByKey(structs.JobKey{Namespace: p.Namespace, ID: p.JobID})
	for i, part := range p.Parts {
		stale, moved, gone := false, false, false
		if len(part.Places)+len(part.Updates) > 0 {
			gone = j == nil || j.Stop || j.CreateIndex != p.JobCreate
			moved = j != nil && j.Version != p.JobVersion
		}
		for _, pl := range part.Places {
			n := before.NodeByID(p.Nodes[pl.Node].ID)
			stale = stale || n == nil || n.Epoch != p.Nodes[pl.Node].Epoch
		}
		if res.Accepted[i] {
			r.saw("part accepted")
			r.check(!stale && !moved && !gone, "part %d was accepted although its premises had changed", i)
			continue
		}
		r.saw("part refused")
		switch {
		case gone:
			r.saw("refused: job absent or stopped")
		case moved:
			r.saw("refused: version")
		case stale:
			r.saw("refused: epoch")
		default:
			r.saw("refused: exists")
		}
	}
}
