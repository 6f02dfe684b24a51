package endpoint

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/structs"
)

// Timings and limits of an event stream.
const (
	EventHeartbeat  = 10 * time.Second // an empty batch is sent this often, so that both sides notice a dead peer
	EventReauth     = time.Second      // time between checks that the reader may still read
	eventFrameTop   = 64               // events in one frame
	eventStreamsMax = 1000             // streams of one server; beyond it CodeBusy
	eventTopicsMax  = 64
)

func (s *Set) registerEvents() {
	rpc.HandleStream(s.env.Registry, methods.EventStream, s.eventStream)
}

var eventTopics = []string{"*", "Job", "Evaluation", "Allocation", "Deployment", "Node", "NodePool", "Namespace", "Service", "HostVolume", "CSIVolume", "CSIPlugin",
	"ACLToken", "ACLPolicy", "ACLRole", "ACLAuthMethod", "ACLBindingRule", "Operator", "Queue", "Quota", "Reservation"}

// eventStream sends events as they are applied, filtered by topic, key, namespace and the caller's rights. A reader
// that is too slow for the ring gets a batch with Gap and must list again.
func (s *Set) eventStream(ctx context.Context, c *rpc.Call, req *methods.EventStreamRequest, st *rpc.Stream) error {
	topics := req.Topics
	if len(topics) == 0 {
		topics = map[string][]string{"*": {"*"}}
	}
	if len(topics) > eventTopicsMax {
		return structs.Errorf(structs.CodeInvalid, "more than %d topics", eventTopicsMax)
	}
	for t := range topics {
		if !slices.Contains(eventTopics, t) {
			return structs.Errorf(structs.CodeInvalid, "unknown topic %q", t)
		}
	}
	id := auth.Who(ctx)
	ns := auth.NamespaceOf(c)
	if err := mayFollow(id, ns, topics); err != nil {
		return err
	}
	if s.streams.Add(1) > eventStreamsMax {
		s.streams.Add(-1)
		return structs.Errorf(structs.CodeBusy, "%d event streams are open on this server", eventStreamsMax)
	}
	defer s.streams.Add(-1)
	// When the peer hangs up, the stream's context ends; frames from the peer are ignored. Index 0 asks for all events
	// still kept. The empty batch tells the peer that the stream is open.
	after := max(req.Index, s.env.Events.Oldest())
	if req.Index != 0 {
		after = req.Index
	}
	if err := st.SendMsg(&methods.EventBatch{Index: after}); err != nil {
		return err
	}
	beat := time.NewTicker(EventHeartbeat)
	defer beat.Stop()
	reauth := time.NewTicker(EventReauth)
	defer reauth.Stop()
	recheck := func() error {
		fresh, err := s.env.Guard.Resolve(c.Token)
		if err != nil {
			return err
		}
		id = fresh
		return mayFollow(id, ns, topics)
	}
	for {
		batches, gap, changed := s.env.Events.After(after)
		// An event is shown by the rights of its state or a newer one: events are fed after their state was published.
		if !s.env.Guard.Still(id, s.published().Snapshot) {
			if err := recheck(); err != nil {
				return err
			}
		}
		if gap {
			if err := st.SendMsg(&methods.EventBatch{Index: after, Gap: true}); err != nil {
				return err
			}
		}
		for _, b := range batches {
			after = b.Index
			var out []methods.Event
			for i := range b.Events {
				if ev := &b.Events[i]; ev.Index > req.Index && matches(ev, topics, ns) && mayRead(id, ev) {
					out = append(out, *ev)
				}
			}
			// A frame has events of one index, so that a reader can resume after any frame.
			slices.SortStableFunc(out, func(a, b methods.Event) int { return cmp.Compare(a.Index, b.Index) })
			for len(out) > 0 {
				n := 1
				for n < len(out) && n < eventFrameTop && out[n].Index == out[0].Index {
					n++
				}
				resume := out[0].Index
				if n < len(out) && out[n].Index == resume {
					resume-- // the next frame has more of this index
				}
				if err := sendEvents(st, resume, out[:n]); err != nil {
					return err
				}
				out = out[n:]
			}
		}
		if gap && len(batches) == 0 {
			after = max(after, s.published().Index)
		}
	wait:
		for {
			select {
			case <-changed:
				break wait
			case <-beat.C:
				if err := st.SendMsg(&methods.EventBatch{Index: after}); err != nil {
					return err
				}
			case <-reauth.C:
				if err := recheck(); err != nil {
					return err
				}
				behind, err := s.env.RightsBehind(ctx)
				if err == nil && behind {
					err = structs.Errorf(structs.CodeUnavailable, "this server's state is older than the leader's; follow events again")
				}
				if err != nil {
					return err
				}
			case <-st.Context().Done():
				return nil
			case <-s.env.Closing:
				return structs.Errorf(structs.CodeUnavailable, "the server is shutting down")
			}
		}
	}
}

// sendEvents sends events of one index in frames that fit. The frame's index is where a reader may resume: after it, nothing
// is missing. A single event that is too large is replaced by a gap.
func sendEvents(st *rpc.Stream, index structs.Index, evs []methods.Event) error {
	b, err := rpc.Encode(&methods.EventBatch{Index: index, Events: evs})
	if err != nil {
		return err
	}
	if len(b) <= rpc.MaxFrame {
		return st.Send(b)
	}
	if len(evs) == 1 {
		return st.SendMsg(&methods.EventBatch{Index: index, Gap: true})
	}
	if err := sendEvents(st, min(index, evs[0].Index-1), evs[:len(evs)/2]); err != nil {
		return err
	}
	return sendEvents(st, index, evs[len(evs)/2:])
}

func matches(ev *methods.Event, topics map[string][]string, ns string) bool {
	if ev.Namespace != "" && ns != "*" && ev.Namespace != ns && ev.Topic != "Namespace" {
		return false
	}
	for _, t := range []string{ev.Topic, "*"} {
		keys, ok := topics[t]
		if !ok {
			continue
		}
		if len(keys) == 0 || slices.Contains(keys, "*") || slices.Contains(keys, ev.Key) {
			return true
		}
		for _, k := range ev.FilterKeys {
			if slices.Contains(keys, k) {
				return true
			}
		}
	}
	return false
}

// mayFollow refuses a stream in which the caller could never see anything.
func mayFollow(id *auth.Identity, ns string, topics map[string][]string) error {
	for t := range topics {
		ok, needs := false, "a management token"
		switch t {
		case "*":
			ok = id.ACL.IsManagement() || id.ACL.AllowNamespaceOp(ns, acl.CapReadJob) || id.ACL.AllowNode("read") || id.ACL.AllowOperator("read")
			needs = fmt.Sprintf("namespace capability %s in namespace %q, or node or operator policy read", acl.CapReadJob, ns)
		case "Job", "Evaluation", "Allocation", "Deployment", "Service":
			ok, needs = id.ACL.AllowNamespaceOp(ns, acl.CapReadJob), fmt.Sprintf("namespace capability %s in namespace %q", acl.CapReadJob, ns)
		case "Node":
			ok, needs = id.ACL.AllowNode("read"), "node policy read"
		case "NodePool":
			ok, needs = id.ACL.AllowNodePool("*", "read"), "node_pool capability read on at least one node pool"
		case "Namespace":
			ok = id.ACL.AllowNamespaceOp("*", acl.CapListJobs) || id.ACL.AllowNamespaceOp("*", acl.CapReadJob)
			needs = fmt.Sprintf("namespace capability %s or %s in at least one namespace", acl.CapListJobs, acl.CapReadJob)
		case "Queue":
			ok = true // each event is filtered by its queue
		case "Quota":
			ok, needs = id.ACL.AllowQuota("read"), "quota policy read"
		case "Reservation", "Operator":
			ok, needs = id.ACL.AllowOperator("read"), "operator policy read"
		default:
			ok = id.ACL.IsManagement()
		}
		if !ok {
			return structs.Denied("%s for events of topic %q", needs, t)
		}
	}
	return nil
}

func mayRead(id *auth.Identity, ev *methods.Event) bool {
	switch ev.Topic {
	case "Job", "Evaluation", "Allocation", "Service":
		return id.ACL.AllowNamespaceOp(ev.Namespace, acl.CapReadJob)
	case "Node":
		return id.ACL.AllowNode("read")
	case "NodePool":
		return id.ACL.AllowNodePool(structs.PoolName(ev.Key), "read")
	case "Namespace":
		return id.ACL.AllowNamespace(ev.Key)
	case "Queue":
		return id.ACL.AllowQueue(ev.Key, acl.CapQueueRead)
	case "Quota":
		return id.ACL.AllowQuota("read")
	case "Reservation", "Operator":
		return id.ACL.AllowOperator("read")
	}
	return id.ACL.IsManagement()
}
