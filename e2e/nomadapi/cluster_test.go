package nomadapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"
)

func events(t *testing.T, a *agent, _ *api.NodeListStub) {
	_, wm, err := a.Jobs().Register(shell("event", "batch", "true"), nil)
	ok(t, err)
	a.wait(t, "event", "complete")
	// From before the registration on, the stream replays it; from after, it does not.
	find := func(from uint64, topics map[api.Topic][]string) (types []string, last uint64) {
		t.Helper()
		ch, err := a.EventStream().Stream(t.Context(), topics, from, nil)
		ok(t, err)
		quiet := time.After(3 * time.Second)
		for {
			select {
			case e := <-ch:
				ok(t, e.Err)
				check(t, e.Index >= last, "the index went back")
				last = e.Index
				for _, ev := range e.Events {
					types = append(types, string(ev.Topic)+"/"+ev.Type)
					if ev.Topic == api.TopicAllocation {
						al, err := ev.Allocation()
						ok(t, err)
						if al.JobID == "event" && al.ClientStatus == "complete" {
							return types, last
						}
					}
				}
			case <-quiet:
				return types, last
			}
		}
	}
	types, last := find(wm.LastIndex-1, map[api.Topic][]string{api.TopicJob: {"event"}, api.TopicEvaluation: {"event"}, api.TopicAllocation: {"event"}})
	for _, want := range []string{"Job/JobRegistered", "Allocation/PlanResult", "Allocation/AllocationUpdated"} {
		check(t, slices.Contains(types, want), "no %s among %v", want, types)
	}
	types, _ = find(last, map[api.Topic][]string{api.TopicJob: {"event"}, api.TopicAllocation: {"event"}})
	check(t, !slices.Contains(types, "Job/JobRegistered"), "the stream told old events again: %v", types)
	types, _ = find(1, map[api.Topic][]string{api.TopicNode: {"*"}, api.TopicAllocation: {"event"}})
	check(t, slices.Contains(types, "Node/NodeRegistration"), "no registration of the node among %v", types)
}

func searches(t *testing.T, a *agent, node *api.NodeListStub) {
	r, qm, err := a.Search().PrefixSearch("ev", contexts.Jobs, nil)
	ok(t, err)
	check(t, slices.Contains(r.Matches[contexts.Jobs], "event") && qm.LastIndex > 0, "matches %v", r.Matches)
	r, _, err = a.Search().PrefixSearch(node.ID[:6], contexts.All, nil)
	ok(t, err)
	check(t, slices.Contains(r.Matches[contexts.Nodes], node.ID), "matches %v", r.Matches)
	f, _, err := a.Search().FuzzySearch("ven", contexts.All, nil)
	ok(t, err)
	check(t, len(f.Matches[contexts.Jobs]) == 1 && f.Matches[contexts.Jobs][0].ID == "event", "fuzzy matches %v", f.Matches)
	check(t, len(f.Matches[contexts.Commands]) == 0, "commands %v", f.Matches[contexts.Commands])
	f, _, err = a.Search().FuzzySearch("bin/s", contexts.All, nil)
	ok(t, err)
	check(t, len(f.Matches[contexts.Commands]) > 0, "no command among %v", f.Matches)
}

func namespaces(t *testing.T, a *agent, _ *api.NodeListStub) {
	ns := a.Client.Namespaces()
	_, err := ns.Register(&api.Namespace{Name: "team-a", Description: "of A"}, nil)
	ok(t, err)
	info, _, err := ns.Info("team-a", nil)
	ok(t, err)
	equal(t, "description", info.Description, "of A")
	list, _, err := ns.PrefixList("team", nil)
	ok(t, err)
	equal(t, "namespaces by prefix", len(list), 1)
	job := shell("same-id", "batch", "true")
	job.Namespace = ptr("team-a")
	_, _, err = a.Jobs().Register(job, &api.WriteOptions{Namespace: "team-a"})
	ok(t, err)
	_, _, err = a.Jobs().Info("same-id", nil)
	equal(t, "the job in the default namespace", status(err), 404)
	all, _, err := a.Jobs().List(&api.QueryOptions{Namespace: "*", Prefix: "same-id"})
	ok(t, err)
	check(t, len(all) == 1 && all[0].Namespace == "team-a", "jobs of all namespaces: %d", len(all))
	_, err = ns.Delete("team-a", nil)
	check(t, err != nil, "a namespace with a job was deleted")
	_, _, err = a.Jobs().Deregister("same-id", true, &api.WriteOptions{Namespace: "team-a"})
	ok(t, err)
	eventually(t, "the namespace to be empty", func() error {
		if err := a.System().GarbageCollect(); err != nil {
			return err
		}
		_, err := ns.Delete("team-a", nil)
		return err
	})
	job.Namespace = ptr("nowhere")
	_, _, err = a.Jobs().Register(job, &api.WriteOptions{Namespace: "nowhere"})
	check(t, err != nil, "a job was registered in a namespace that does not exist")
}

func pools(t *testing.T, a *agent, node *api.NodeListStub) {
	np := a.Client.NodePools()
	_, err := np.Register(&api.NodePool{Name: "gpu", Description: "with GPUs"}, nil)
	ok(t, err)
	list, _, err := np.List(nil)
	ok(t, err)
	var names []string
	for _, p := range list {
		names = append(names, p.Name)
	}
	check(t, slices.Equal(names, []string{"all", "default", "gpu"}), "pools %v", names)
	in, _, err := np.ListNodes("default", nil)
	ok(t, err)
	check(t, len(in) == 1 && in[0].ID == node.ID, "nodes of the default pool: %d", len(in))
	_, err = np.Delete("default", nil)
	check(t, err != nil, "the default pool was deleted")
	_, err = np.Delete("gpu", nil)
	ok(t, err)
}

func operator(t *testing.T, a *agent, _ *api.NodeListStub) {
	op := a.Client.Operator()
	rc, err := op.RaftGetConfiguration(nil)
	ok(t, err)
	check(t, len(rc.Servers) == 1 && rc.Servers[0].Leader && rc.Servers[0].Voter, "raft configuration %+v", rc)
	sc, _, err := op.SchedulerGetConfiguration(nil)
	ok(t, err)
	next := *sc.SchedulerConfig
	next.SchedulerAlgorithm = api.SchedulerAlgorithmSpread
	next.ModifyIndex += 99
	r, _, err := op.SchedulerCASConfiguration(&next, nil)
	ok(t, err)
	check(t, !r.Updated, "a stale check-and-set was accepted")
	next.ModifyIndex = sc.SchedulerConfig.ModifyIndex
	r, _, err = op.SchedulerCASConfiguration(&next, nil)
	ok(t, err)
	check(t, r.Updated, "a check-and-set was refused")
	now, _, err := op.SchedulerGetConfiguration(nil)
	ok(t, err)
	equal(t, "algorithm", now.SchedulerConfig.SchedulerAlgorithm, api.SchedulerAlgorithmSpread)
	ap, _, err := op.AutopilotGetConfiguration(nil)
	ok(t, err)
	ap.CleanupDeadServers = false
	done, _, err := op.AutopilotCASConfiguration(ap, nil)
	ok(t, err)
	check(t, done, "autopilot check-and-set was refused")
	health, _, err := op.AutopilotServerHealth(nil)
	ok(t, err)
	check(t, health.Healthy && len(health.Servers) == 1, "autopilot health %+v", health)
	ok(t, a.System().GarbageCollect())
	ok(t, a.System().ReconcileSummaries())
	leader, err := a.Status().Leader()
	ok(t, err)
	peers, err := a.Status().Peers()
	ok(t, err)
	check(t, len(peers) == 1 && peers[0] == leader, "leader %q, peers %v", leader, peers)
	regions, err := a.Regions().List()
	ok(t, err)
	check(t, slices.Equal(regions, []string{"global"}), "regions %v", regions)
}

func agentSelf(t *testing.T, a *agent, node *api.NodeListStub) {
	self, err := a.Agent().Self()
	ok(t, err)
	check(t, self.Member.Status == "alive" && self.Stats["client"]["node_id"] == node.ID, "self %+v", self.Member)
	m, err := a.Agent().Members()
	ok(t, err)
	check(t, len(m.Members) == 1 && m.Members[0].Tags["role"] == "nomad", "members %+v", m)
	h, err := a.Agent().Health()
	ok(t, err)
	check(t, h.Server.Ok && h.Client.Ok, "health %+v", h)
	host, err := a.Nodes().Stats(node.ID, nil)
	ok(t, err)
	check(t, host.Memory.Total > 0 && host.Uptime > 0, "host statistics %+v", host)
	sum, _, err := a.Client.Operator().MetricsSummary(nil)
	ok(t, err)
	check(t, len(sum.Gauges)+len(sum.Counters) > 0, "no metrics")
	prom, err := a.Client.Operator().Metrics(&api.QueryOptions{Params: map[string]string{"format": "prometheus"}})
	ok(t, err)
	check(t, bytes.Contains(prom, []byte("# TYPE ")), "not the Prometheus format: %.80s", prom)
	check(t, bytes.Contains(prom, []byte(`muster_rpc_request_seconds_count{code="",method="`)), "no calls are measured")
	meta, err := a.Nodes().Meta().Apply(&api.NodeMetaApplyRequest{NodeID: node.ID, Meta: map[string]*string{"rack": ptr("r2"), "new": ptr("x")}}, nil)
	ok(t, err)
	check(t, meta.Meta["rack"] == "r2" && meta.Static["rack"] == "r1", "meta %+v", meta)
	eventually(t, "the node's new metadata", func() error {
		n, _, err := a.Nodes().Info(node.ID, nil)
		if err != nil {
			return err
		}
		if n.Meta["new"] != "x" {
			return fmt.Errorf("%v", n.Meta)
		}
		return nil
	})
	stop := make(chan struct{})
	defer close(stop)
	frames, errs := a.Agent().Monitor(stop, &api.QueryOptions{Params: map[string]string{"log_level": "debug"}})
	if _, err := a.Agent().Self(); err != nil {
		t.Error(err)
	}
	deadline := time.After(5 * time.Second)
	for {
		select {
		case f := <-frames:
			if f != nil && bytes.Contains(f.Data, []byte("[DEBUG]")) {
				return
			}
			_, _ = a.Agent().Self()
		case err := <-errs:
			t.Fatal(err)
		case <-deadline:
			t.Fatal("no line of the log")
		}
	}
}

func nodes(t *testing.T, a *agent, node *api.NodeListStub) {
	n := a.Nodes()
	_, err := n.ToggleEligibility(node.ID, false, nil)
	ok(t, err)
	info, _, err := n.Info(node.ID, nil)
	ok(t, err)
	equal(t, "eligibility", info.SchedulingEligibility, "ineligible")
	_, _, err = a.Jobs().Register(shell("waits", "service", "sleep 300"), nil)
	ok(t, err)
	stubs, _, err := a.Jobs().Allocations("waits", true, nil)
	ok(t, err)
	equal(t, "allocations on an ineligible node", len(stubs), 0)
	_, err = n.ToggleEligibility(node.ID, true, nil)
	ok(t, err)
	a.wait(t, "waits", "running")

	_, err = n.UpdateDrainOpts(node.ID, &api.DrainOptions{DrainSpec: &api.DrainSpec{Deadline: 5 * time.Second}, Meta: map[string]string{"why": "test"}}, nil)
	ok(t, err)
	eventually(t, "the drain to end", func() error {
		info, _, err := n.Info(node.ID, nil)
		if err != nil {
			return err
		}
		if info.Drain || info.LastDrain == nil || info.LastDrain.Status != api.DrainStatusComplete {
			return fmt.Errorf("drain %v, last %+v", info.Drain, info.LastDrain)
		}
		return nil
	})
	as, _, err := n.Allocations(node.ID, nil)
	ok(t, err)
	for _, al := range as {
		check(t, al.ClientStatus != "running", "%s still runs on the drained node", al.Name)
	}
	_, err = n.UpdateDrain(node.ID, nil, true, nil)
	ok(t, err)
	a.wait(t, "waits", "running")
	_, _, err = a.Jobs().Deregister("waits", true, nil)
	ok(t, err)

	// A purged node whose agent lives comes back.
	_, _, err = n.Purge(node.ID, nil)
	ok(t, err)
	equal(t, "the node that came back", a.ready(t).ID, node.ID)
}

// snapshot saves, changes, restores, and looks whether the change is gone.
func snapshot(t *testing.T, a *agent, _ *api.NodeListStub) {
	_, _, err := a.Jobs().Register(shell("kept", "batch", "true"), nil)
	ok(t, err)
	a.wait(t, "kept", "complete")
	r, err := a.Client.Operator().Snapshot(nil)
	ok(t, err)
	b, err := io.ReadAll(r)
	ok(t, err)
	r.Close()
	check(t, len(b) > 100, "the snapshot has %d bytes", len(b))
	_, _, err = a.Jobs().Register(shell("gone", "batch", "true"), nil)
	ok(t, err)
	spoiled := bytes.Clone(b)
	spoiled[len(spoiled)/2] ^= 0xff
	if _, err = a.Client.Operator().SnapshotRestore(bytes.NewReader(spoiled), nil); err == nil {
		t.Error("a spoiled snapshot was restored")
	}
	_, err = a.Client.Operator().SnapshotRestore(bytes.NewReader(b), nil)
	ok(t, err)
	eventually(t, "the restored state", func() error {
		if _, _, err := a.Jobs().Info("kept", nil); err != nil {
			return err
		}
		if _, _, err := a.Jobs().Info("gone", nil); status(err) != 404 {
			return fmt.Errorf("the job registered after the snapshot: %v", err)
		}
		return nil
	})
}

// TestACL drives an agent that demands tokens.
func TestACL(t *testing.T) {
	a := start(t, map[string]any{"acl": map[string]any{"enabled": true}})
	var root *api.ACLToken
	eventually(t, "the bootstrap", func() error {
		var err error
		root, _, err = a.ACLTokens().Bootstrap(nil)
		return err
	})
	check(t, root.Type == "management" && root.SecretID != "" && root.Global, "bootstrap token %+v", root)
	_, _, err := a.ACLTokens().Bootstrap(nil)
	check(t, err != nil && strings.Contains(err.Error(), "reset index"), "a second bootstrap: %v", err)
	_, _, err = a.Nodes().List(nil)
	equal(t, "nodes without a token", status(err), 403)
	check(t, strings.Contains(err.Error(), api.PermissionDeniedErrorContent), "text of a refusal: %v", err)

	a.SetSecretID(root.SecretID)
	a.ready(t)
	_, err = a.ACLPolicies().Upsert(&api.ACLPolicy{Name: "reader", Rules: `namespace "default" { policy = "read" }`}, nil)
	ok(t, err)
	_, err = a.ACLPolicies().Upsert(&api.ACLPolicy{Name: "broken", Rules: `namespace "default" { policy = "reed" }`}, nil)
	equal(t, "a policy with a mistake", status(err), 400)
	_, err = a.ACLPolicies().Upsert(&api.ACLPolicy{Name: "writer", Rules: "namespace \"default\" { policy = \"write\" }\nnode { policy = \"read\" }"}, nil)
	ok(t, err)
	role, _, err := a.ACLRoles().Create(&api.ACLRole{Name: "dev", Policies: []*api.ACLRolePolicyLink{{Name: "writer"}}}, nil)
	ok(t, err)
	byName, _, err := a.ACLRoles().GetByName("dev", nil)
	ok(t, err)
	equal(t, "role by name", byName.ID, role.ID)
	reader, _, err := a.ACLTokens().Create(&api.ACLToken{Name: "r", Type: "client", Policies: []string{"reader"}}, nil)
	ok(t, err)
	writer, _, err := a.ACLTokens().Create(&api.ACLToken{Name: "w", Type: "client", Roles: []*api.ACLTokenRoleLink{{ID: role.ID}}, ExpirationTTL: time.Hour}, nil)
	ok(t, err)
	check(t, writer.ExpirationTime != nil, "no expiration time")
	as := func(token string) *api.Client {
		c, err := api.NewClient(&api.Config{Address: a.addr, SecretID: token})
		ok(t, err)
		return c
	}
	r, w := as(reader.SecretID), as(writer.SecretID)
	_, _, err = r.Jobs().Register(shell("acl", "batch", "true"), nil)
	equal(t, "registration by a reader", status(err), 403)
	_, _, err = w.Jobs().Register(shell("acl", "batch", "true"), nil)
	ok(t, err)
	_, _, err = r.Jobs().Info("acl", nil)
	ok(t, err)
	_, _, err = r.Nodes().List(nil)
	equal(t, "nodes for a reader of jobs", status(err), 403)
	_, _, err = w.ACLIdentity().CreateClientIntroductionToken(&api.ACLIdentityClientIntroductionTokenRequest{TTL: time.Minute}, nil)
	equal(t, "an introduction token for a reader of nodes", status(err), 403)
	intro, _, err := a.ACLIdentity().CreateClientIntroductionToken(&api.ACLIdentityClientIntroductionTokenRequest{TTL: time.Minute, NodeName: "n", NodePool: "default"}, nil)
	ok(t, err)
	check(t, len(intro.JWT) > 40, "introduction token %+v", intro)
	_, _, err = w.Nodes().List(nil)
	ok(t, err)
	_, err = w.Operator().RaftGetConfiguration(nil)
	equal(t, "operator for a writer of jobs", status(err), 403)
	_, _, err = w.ACLTokens().List(nil)
	equal(t, "tokens for a writer of jobs", status(err), 403)
	self, _, err := r.ACLTokens().Self(nil)
	ok(t, err)
	equal(t, "self", self.AccessorID, reader.AccessorID)
	_, _, err = as("00000000-0000-4000-8000-000000000000").Jobs().List(nil)
	equal(t, "an unknown token", status(err), 403)

	once, _, err := r.ACLTokens().UpsertOneTimeToken(nil)
	ok(t, err)
	got, _, err := as("").ACLTokens().ExchangeOneTimeToken(once.OneTimeSecretID, nil)
	ok(t, err)
	equal(t, "exchanged token", got.SecretID, reader.SecretID)
	_, _, err = as("").ACLTokens().ExchangeOneTimeToken(once.OneTimeSecretID, nil)
	check(t, err != nil, "a one-time token worked twice")

	_, err = a.ACLTokens().Delete(reader.AccessorID, nil)
	ok(t, err)
	eventually(t, "the deleted token to be refused", func() error {
		if _, _, err := r.Jobs().List(nil); status(err) != 403 {
			return errors.New("still accepted")
		}
		return nil
	})
	// Health and public keys need no token. Unlike in Nomad, metrics and status do.
	for path, want := range map[string]int{"/v1/agent/health": 200, "/.well-known/jwks.json": 200, "/v1/metrics": 403, "/v1/status/leader": 403, "/v1/status/peers": 403, "/v1/regions": 403} {
		resp, err := http.Get(a.addr + path)
		ok(t, err)
		resp.Body.Close()
		equal(t, path, resp.StatusCode, want)
	}
}
