package server

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/structs"
)

// rulesFor is a policy with some words of one rule, about an object that all the questions of TestWords name.
func rulesFor(rule string, words ...acl.Word) string {
	level, caps := "", []string{}
	for _, w := range words {
		if w.Level {
			level = fmt.Sprintf("policy = %q\n", w.Word)
		} else {
			caps = append(caps, fmt.Sprintf("%q", w.Word))
		}
	}
	body := level
	if len(caps) > 0 {
		body += "capabilities = [" + strings.Join(caps, ", ") + "]\n"
	}
	switch rule {
	case "variables":
		return "namespace \"default\" {\nvariables {\npath \"v\" {\n" + body + "}\n}\n}"
	case "namespace", "node_pool", "host_volume", "queue":
		return fmt.Sprintf("%s %q {\n%s}", rule, map[string]string{"namespace": "default", "node_pool": "default", "host_volume": "prod", "queue": "research"}[rule], body)
	}
	return rule + " {\n" + body + "}"
}

// question is a call whose answer may depend on the caller's rights. It changes nothing.
type question struct {
	row  methods.Row
	body any
}

// questions are calls of all methods of the table, with a body that reaches the object which the rules of rulesFor are
// about and is refused after authorisation if it would change something.
func questions(alloc *structs.Allocation) []question {
	queued := apiJob("queued", 1)
	queued.Queue = "research"
	bodies := map[string][]any{
		methods.JobValidate.Name: {
			&methods.JobRegisterRequest{Job: volumeJob("x", "prod", true)}, &methods.JobRegisterRequest{Job: volumeJob("x", "prod", false)}, &methods.JobRegisterRequest{Job: queued},
		},
		methods.QueueGet.Name:    {&methods.NameRequest{Name: "research"}},
		methods.QueueDelete.Name: {&methods.NameRequest{Name: "research"}},
		methods.QueueUpsert.Name: {&methods.QueueUpsertRequest{Queues: []*structs.Queue{{Path: "research", Weight: -1}}}},
		methods.QuotaGet.Name:    {&methods.NameRequest{Name: "small"}},
		methods.QuotaDelete.Name: {&methods.NameRequest{Name: "nowhere"}},
		methods.VariableGet.Name: {&methods.VariableGetRequest{Path: "v"}}, methods.VariableDelete.Name: {&methods.VariableDeleteRequest{Path: "v", CAS: true, CASIndex: 1}},
		methods.VariableSet.Name:  {&methods.VariableSetRequest{Path: "v", CAS: true, CASIndex: 1, Items: map[string]string{"a": "b"}}},
		methods.ACLAuthorize.Name: {},
		methods.EventStream.Name:  {}, methods.SnapshotSave.Name: {}, methods.SnapshotRestore.Name: {}, methods.AgentMonitor.Name: {}, // never end
		// what they say of the token itself differs between any two tokens
		// and every capability in a namespace shows the namespace
		methods.NamespaceGet.Name: {}, methods.NamespaceList.Name: {},
		methods.ACLTokenSelf.Name: {}, methods.ACLPolicySelf.Name: {}, methods.ACLPolicyList.Name: {}, methods.ACLOneTimeCreate.Name: {},
		methods.RaftTransfer.Name: {&methods.RaftPeerRequest{ID: "nobody"}}, methods.SystemGC.Name: {},
	}
	for _, n := range methods.Local {
		for what, level := range map[string]string{"agent": n.Agent, "node": n.Node, "operator": n.Operator, "namespace": n.Namespace} {
			if level != "" {
				bodies[methods.ACLAuthorize.Name] = append(bodies[methods.ACLAuthorize.Name], &methods.ACLAuthorizeRequest{What: what, Level: level})
			}
		}
	}
	var out []question
	for _, row := range methods.Table {
		list, special := bodies[row.Name]
		if !special {
			list = []any{map[string]any{"Name": "default", "AllocID": alloc.ID, "EvalID": alloc.EvalID, "NodeID": alloc.NodeID, "Task": "t"}}
			if row.Kind == methods.AtLeader {
				list = []any{map[string]any{"Name": "default", "JobID": "nobody", "AllocID": structs.AllocID{1}, "NodeID": structs.NodeID{1}}}
			}
		}
		for _, b := range list {
			out = append(out, question{row, b})
		}
	}
	return out
}

// answer puts a question and returns what a caller learns from the reply.
func answer(to rpc.Caller, q question, token structs.SecretID) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	b, err := rpc.Encode(q.body)
	if err != nil {
		return err.Error()
	}
	if q.row.Kind == methods.KindStream {
		err := call1(to, q.row, token, q.body)
		return fmt.Sprint(structs.CodeOf(err), err)
	}
	reply, err := to.InvokeRaw(ctx, rpc.Header{Method: q.row.Name, Token: token.String()}, b)
	if err != nil {
		return fmt.Sprint(structs.CodeOf(err), err)
	}
	if q.row.Kind == methods.AtLeader {
		return "done" // the answer has the index, which moves
	}
	if i := bytes.Index(reply, []byte("LastContact")); i >= 0 { // differs between servers and from time to time
		reply = reply[:i]
	}
	return string(reply)
}

// TestWords: every word of the policy language changes the answer of a method, alone or when it is taken from a policy
// that has all the others, and it does so through the leader, a follower and an agent's session.
func TestWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(_ int, cfg *Config) { cfg.ACL = true })
		lead := c.leader()
		root := c.bootstrapACL(lead)
		h := rpc.Header{Token: root.String()}
		s := c.servers[lead]
		call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: testNode(1)})
		call(t, s, methods.QueueUpsert, h, &methods.QueueUpsertRequest{Queues: []*structs.Queue{{Path: "research"}, {Path: "research/nlp"}}})
		call(t, s, methods.QuotaUpsert, h, &methods.QuotaUpsertRequest{Quota: &structs.QuotaSpec{Name: "small"}})
		call(t, s, methods.VariableSet, h, &methods.VariableSetRequest{Path: "v", Items: map[string]string{"k": "secret"}})
		held := apiJob("held", 1)
		held.Groups[0].Scaling = &structs.Scaling{Enabled: true, Max: 5}
		held.Groups[0].Tasks[0].Driver = "raw_exec"
		node := testNode(2)
		node.Drivers["raw_exec"] = &structs.DriverInfo{Detected: true, Healthy: true}
		call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: node})
		call(t, s, methods.JobRegister, h, &methods.JobRegisterRequest{Job: held})
		key := structs.JobKey{Namespace: "default", ID: "held"}
		waitFor(t, 20*time.Second, "a placement", func() bool { return len(s.Published().Snapshot.AllocsByJob(key)) == 1 })
		asked := questions(s.Published().Snapshot.AllocsByJob(key)[0])
		policy := s.Published().Snapshot.JobByKey(key)
		asked = append(asked, question{*methods.Find(methods.ScalingGet.Name), &methods.NameRequest{Name: policy.ScalingPolicyID(policy.Groups[0])}})

		tokens := map[string]structs.SecretID{}
		token := func(rules ...string) structs.SecretID {
			all := strings.Join(append(rules, `namespace "elsewhere" { policy = "read" }`), "\x00")
			if tok, known := tokens[all]; known {
				return tok
			}
			var names []string
			for i, r := range strings.Split(all, "\x00") {
				names = append(names, fmt.Sprintf("p%d-%d", len(tokens), i))
				call(t, s, methods.ACLPolicyUpsert, h, &methods.ACLPolicyUpsertRequest{Policies: []*structs.ACLPolicy{{Name: names[i], Rules: r}}})
			}
			tokens[all] = call(t, s, methods.ACLTokenUpsert, h, &methods.ACLTokenUpsertRequest{Token: &structs.ACLToken{Type: structs.TokenClient, Policies: names}}).Token.Secret
			return tokens[all]
		}
		// pairs are two sets of rights that differ in the word alone.
		type pair struct{ with, without structs.SecretID }
		pairs := make([][]pair, len(acl.Words))
		for i, w := range acl.Words {
			var others []acl.Word
			for _, o := range acl.Words {
				if o.Rule == w.Rule && o.Word != acl.CapDeny && !o.Level && o.Word != w.Word {
					others = append(others, o)
				}
			}
			write := acl.Word{Level: true, Word: "write"}
			// What the word is measured with: submitting needs rights in the namespace; a queue that no rule mentions is open.
			base := ""
			if w.Rule == "host_volume" || w.Rule == "queue" {
				base = `namespace "default" { policy = "write" }`
			}
			bases := func(rules ...string) []string {
				if base != "" {
					rules = append(rules, base)
				}
				return slices.DeleteFunc(rules, func(r string) bool { return r == "" })
			}
			nothing := ""
			if w.Rule == "queue" {
				nothing = rulesFor("queue") // a rule without words: the queue is no longer open
			}
			switch {
			case w.Word == acl.CapDeny && (w.Level && len(others) == 0 || w.Rule == "namespace" || w.Rule == "host_volume" || w.Rule == "queue" || w.Rule == "node_pool"):
				pairs[i] = []pair{{token(bases(rulesFor(w.Rule, write), rulesFor(w.Rule, w))...), token(bases(rulesFor(w.Rule, write))...)}}
			case w.Word == acl.CapDeny:
				pairs[i] = []pair{{token(bases(rulesFor(w.Rule, append(others, w)...))...), token(bases(rulesFor(w.Rule, others...))...)}}
			case w.Level:
				pairs[i] = []pair{{token(bases(rulesFor(w.Rule, w))...), token(bases(nothing)...)}}
			default:
				pairs[i] = []pair{
					{token(bases(rulesFor(w.Rule, w))...), token(bases(nothing)...)},
					{token(bases(rulesFor(w.Rule, append(others, w)...))...), token(bases(rulesFor(w.Rule, others...))...)},
				}
			}
		}
		c.converge()
		entries := c.entries(t)
		answers := map[string]string{}
		ask := func(through string, q int, tok structs.SecretID) string {
			k := fmt.Sprint(through, q, tok)
			if _, known := answers[k]; !known {
				answers[k] = answer(entries[through], asked[q], tok)
			}
			return answers[k]
		}
		// differ reports whether the answers differ because of the callers; some of them change with time.
		differ := func(through string, q int, p pair) bool {
			for range 2 {
				if answer(entries[through], asked[q], p.with) == answer(entries[through], asked[q], p.without) {
					return false
				}
			}
			return answer(entries[through], asked[q], p.with) == answer(entries[through], asked[q], p.with)
		}
		for i, w := range acl.Words {
			name, witnesses := fmt.Sprintf("%s: %q (a level: %v)", w.Rule, w.Word, w.Level), map[string]bool{}
			for _, p := range pairs[i] {
				for q := range asked {
					if ask("leader", q, p.with) == ask("leader", q, p.without) || !differ("leader", q, p) {
						continue
					}
					witnesses[asked[q].row.Name] = true
					for through := range entries {
						if !differ(through, q, p) {
							t.Errorf("%s changes an answer of %s, but not through the %s", name, asked[q].row.Name, through)
						}
					}
					break
				}
			}
			if len(witnesses) == 0 {
				t.Errorf("%s changes no answer", name)
			}
			t.Log(name, "is seen by", slices.Sorted(maps.Keys(witnesses)))
		}
		t.Logf("%d words, %d questions, %d answers", len(acl.Words), len(asked), len(answers))
	})
}
