//go:build e2e

package history

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// Limits of the load.
const (
	clients     = 8
	readers     = 4                       // of the clients, one at each host
	dispatchers = 4                       // besides, one at each host
	opsPerKey   = 60                      // then the clients take the next key, so that histories of keys stay short
	patience    = 2500 * time.Millisecond // for an answer; then the outcome is unknown
)

// history is what the clients record.
type history struct {
	c     *cluster
	began time.Time
	api   *harness.API

	values atomic.Int64
	slots  []*slot

	mu         sync.Mutex
	ops        []Op
	dispatches []Dispatch
	denied     map[string]int // answers with status 403, by server and text
}

// slot is a sequence of keys, one after another.
type slot struct {
	name string
	ops  atomic.Int64
}

func (s *slot) key() string { return fmt.Sprintf("%s-%d", s.name, s.ops.Add(1)/opsPerKey) }

// keys returns all keys of the slot that were used.
func (s *slot) keys() (out []string) {
	for i := range s.ops.Load()/opsPerKey + 1 {
		out = append(out, fmt.Sprintf("%s-%d", s.name, i))
	}
	return out
}

func newHistory(c *cluster) *history {
	h := &history{c: c, began: time.Now(), api: c.api.Within(patience), denied: map[string]int{}}
	for _, n := range []string{"var0", "var1", "job0", "job1", region + "var"} {
		h.slots = append(h.slots, &slot{name: n})
	}
	return h
}

func (h *history) now() int64 { return time.Since(h.began).Nanoseconds() }

func (h *history) record(o Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

// client is one sequential caller. It asks its host, a server or an agent, and for a while another one if there was no
// answer. So while a leader is cut off, some clients still ask it, and others have reached the next one.
type client struct {
	h     *history
	id    int
	r     *rand.Rand
	seen  map[string]Op // the last operation that showed the state of a key
	avoid map[string]time.Time
}

func (h *history) client(id int, seed uint64) *client {
	return &client{h: h, id: id, r: rand.New(rand.NewPCG(seed, uint64(id))), seen: map[string]Op{}, avoid: map[string]time.Time{}}
}

// run sends operations until stop.
func (k *client) run(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(k.r.IntN(20)) * time.Millisecond):
		}
		s := k.h.slots[k.r.IntN(len(k.h.slots))]
		key := s.key()
		o := Op{Client: k.id, Key: key}
		p := k.r.IntN(100)
		if k.id < readers {
			p = 57 + p%43
		}
		switch {
		case p < 20:
			o.Kind = opWrite
		case p < 45:
			o.Kind = opSwap
		case p < 50:
			o.Kind = opDelete
		case p < 57 && isJob(key):
			o.Kind = opStop
		case p < 80:
			o.Kind = opRead
		default:
			o.Kind = opStale
		}
		if o.Kind == opWrite || o.Kind == opSwap {
			o.Value = fmt.Sprintf("v%d", k.h.values.Add(1))
		}
		k.do(o)
	}
}

// endpoint picks a host to ask.
func (k *client) endpoint() string {
	all := append([]string{agents[0]}, servers...)
	if home := all[k.id%len(all)]; time.Now().After(k.avoid[home]) {
		return home
	}
	return all[k.r.IntN(len(all))]
}

// send sends one request to one host.
func (k *client) send(host, method, path string, body any) (*harness.Answer, harness.Outcome) {
	before := k.h.c.incarnation(host)
	a, err := k.h.api.Send(k.h.c.addr(host), method, path, body)
	out := a.Outcome(err)
	if err == nil && a.Status == 403 {
		k.h.mu.Lock()
		k.h.denied[fmt.Sprintf("%s %s: %.200s", before, method, a.Body)]++
		k.h.mu.Unlock()
	}
	if err != nil {
		k.avoid[host] = time.Now().Add(time.Second)
	}
	return a, out
}

func isJob(key string) bool { return strings.HasPrefix(key, "job") }

// do sends an operation and records it.
func (k *client) do(o Op) {
	host := k.endpoint()
	base := k.seen[o.Key] // for a check-and-set
	o.Expect = ""
	if o.Kind == opSwap {
		o.Expect = base.Seen
	}
	before := k.h.c.incarnation(host)
	method, path, body := request(&o, base.Index, k.r.IntN(2) == 0)
	o.Call = k.h.now()
	a, out := k.send(host, method, path, body)
	o.Return = k.h.now()
	o.Outcome = out
	if host[0] == 's' && before == k.h.c.incarnation(host) && k.h.c.answersItself(host) {
		o.Server = before
	}
	if out == harness.Done || out == harness.Refused {
		answered(&o, a)
	}
	if o.SeenOK {
		k.seen[o.Key] = o
	}
	k.h.record(o)
}

// request returns the HTTP request of an operation. index is that of the state which a check-and-set expects.
func request(o *Op, index uint64, confirm bool) (method, path string, body any) {
	query := ""
	if strings.HasPrefix(o.Key, region) {
		query = "&region=" + region
	}
	switch {
	case o.Kind == opStale:
		query += "&stale=true"
	case o.Kind == opRead && confirm:
		query += "&consistent=true"
	case o.Kind == opSwap && !isJob(o.Key):
		query += fmt.Sprintf("&cas=%d", index)
	case o.Kind == opDelete && isJob(o.Key):
		query += "&purge=true"
	}
	path = "/v1/var/" + o.Key
	if isJob(o.Key) {
		path = "/v1/job/" + o.Key
	}
	path += "?" + strings.TrimPrefix(query, "&")
	switch o.Kind {
	case opRead, opStale:
		return "GET", path, nil
	case opDelete, opStop:
		return "DELETE", path, nil
	}
	if !isJob(o.Key) {
		return "PUT", path, dict{"Items": dict{"v": o.Value}}
	}
	register := dict{"Job": template(o.Key, o.Value)}
	if o.Kind == opSwap {
		register["EnforceIndex"], register["JobModifyIndex"] = true, index
	}
	return "PUT", "/v1/jobs", register
}

type dict = map[string]any

// template is a parameterized job: only state, until it is dispatched; and its children fit on no node.
func template(id, value string) dict {
	return dict{"ID": id, "Name": id, "Type": "batch", "Datacenters": []string{"*"}, "Meta": dict{"v": value}, "ParameterizedJob": dict{"Payload": "optional"},
		"Constraints": []dict{{"LTarget": "${node.unique.name}", "RTarget": "nowhere", "Operand": "="}},
		"TaskGroups": []dict{{"Name": "g", "Count": 1, "Tasks": []dict{{"Name": "t", "Driver": "raw_exec", "Config": dict{"command": "/bin/true"},
			"Resources": dict{"CPU": 10, "MemoryMB": 10}}}}}}
}

// answered fills in what the answer of an operation shows.
func answered(o *Op, a *harness.Answer) {
	read := o.Kind == opRead || o.Kind == opStale
	if a.Status == 404 {
		if read {
			o.Outcome, o.SeenOK = harness.Done, true
		}
		return
	}
	var shown struct {
		Items          dict
		ModifyIndex    uint64
		Meta           dict
		Stop           bool
		JobModifyIndex uint64
	}
	ends := o.Kind == opStop || o.Kind == opDelete
	if ends && !isJob(o.Key) || isJob(o.Key) && o.Outcome == harness.Refused {
		return // it shows no state
	}
	if err := json.Unmarshal(a.Body, &shown); err != nil {
		o.Problem = fmt.Sprintf("answer %q: %v", a.Body, err)
		return
	}
	if ends {
		o.SeenOK = shown.JobModifyIndex == 0 // there was no such job
		return
	}
	o.SeenOK = true
	value := shown.Items["v"]
	o.Index = shown.ModifyIndex
	if isJob(o.Key) {
		value, o.Index = shown.Meta["v"], shown.JobModifyIndex
		if !read {
			value = o.Value // the answer to a registration has only the index
		}
	}
	o.Seen, _ = value.(string)
	if shown.Stop {
		o.Seen += stopped
	}
	if o.Outcome == harness.Done && !read && o.Seen != o.Value {
		o.Problem = fmt.Sprintf("wrote %q, and the answer shows %q", o.Value, o.Seen)
	}
}

// parent is the job that is dispatched.
const parent = "parent"

// dispatch dispatches the parent until stop, in turn with an idempotency token, repeating it until there is an answer,
// and without. Each acknowledged child must then be found.
func (k *client) dispatch(stop <-chan struct{}) {
	for i := 0; ; i++ {
		d := Dispatch{Prefix: fmt.Sprintf("d%dx%d", k.id, i), Token: i%2 == 0}
		query := ""
		if d.Token {
			query = "?idempotency_token=" + d.Prefix
		}
		for again := true; again; again = d.Token && d.Outcome != harness.Done {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(k.r.IntN(40)) * time.Millisecond):
			}
			var a *harness.Answer
			call := k.h.now()
			a, d.Outcome = k.send(k.endpoint(), "PUT", "/v1/job/"+parent+"/dispatch"+query, dict{"IdPrefixTemplate": d.Prefix})
			d.Child = ""
			if d.Outcome == harness.Done {
				var answer struct{ DispatchedJobID string }
				_ = json.Unmarshal(a.Body, &answer)
				d.Child = answer.DispatchedJobID
				k.h.record(Op{Client: k.id, Key: "job:" + d.Child, Kind: opWrite, Value: "dispatched", Outcome: harness.Done, Call: call, Return: k.h.now()})
				k.find(d.Child)
			}
			if d.Outcome == harness.Refused {
				d.Body = string(a.Body)
			}
			k.h.mu.Lock()
			k.h.dispatches = append(k.h.dispatches, d)
			k.h.mu.Unlock()
		}
	}
}

// find reads a dispatched child.
func (k *client) find(child string) {
	o := Op{Client: k.id, Key: "job:" + child, Kind: opRead, Call: k.h.now()}
	a, out := k.send(k.endpoint(), "GET", "/v1/job/"+strings.ReplaceAll(child, "/", "%2F"), nil)
	o.Return, o.Outcome = k.h.now(), out
	switch {
	case out == harness.Done:
		o.Seen, o.SeenOK = "dispatched", true
	case out == harness.Refused && a.Status == 404:
		o.Outcome, o.SeenOK = harness.Done, true
	}
	k.h.record(o)
}

// last reads every key at the end, when all faults are over, until there is an answer.
func (k *client) last() {
	for _, s := range k.h.slots {
		for _, key := range s.keys() {
			harness.Eventually(k.h.c.t, 90*time.Second, "reading "+key, func() (bool, string) {
				k.do(Op{Client: k.id, Key: key, Kind: opRead})
				o := &k.h.ops[len(k.h.ops)-1]
				return o.Outcome == harness.Done, string(o.Outcome)
			})
		}
	}
}
