package server

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// TestPeerLogin plays an agent that names users and groups: at a login node, and at a node in the wrong hands.
func TestPeerLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, compute := testNode(1), testNode(2)
		gate.Datacenter = "gates" // so that jobs run on the other node
		s := testServer(t, func(c *Config) {
			c.ACL, c.Logins = true, endpoint.LoginNodes{Nodes: []structs.NodeID{gate.ID}}
		})
		apply := func(body structs.CommandBody) {
			t.Helper()
			if _, err := s.apply(context.Background(), replica.LaneUser, structs.Command{Body: body}); err != nil {
				t.Fatal(err)
			}
		}
		apply(&structs.PolicyUpsertCommand{Policies: []*structs.ACLPolicy{
			{Name: "login", Rules: `namespace "default" { policy = "read" }`}, {Name: "login-group-admins", Rules: `operator { policy = "write" }`},
		}})
		apply(&structs.NodeRegisterCommand{Node: gate})
		apply(&structs.NodeRegisterCommand{Node: compute})
		apply(&structs.NodeStatusCommand{ID: compute.ID, Status: structs.NodeReady})
		login := func(n *structs.Node, uid int64, user string) ([]string, error) {
			req := &methods.ACLPeerLoginRequest{NodeAuth: methods.NodeAuth{NodeID: n.ID, Secret: n.SecretID}, UID: uid, GID: 100, User: user, Groups: []string{"admins", "none"}}
			resp, err := callErr(s, methods.ACLPeerLogin, rpc.Header{}, req)
			if err != nil {
				return nil, err
			}
			return s.Published().Snapshot.TokenBySecret(resp.Secret).Policies, nil
		}
		want := func(what string, n *structs.Node, uid int64, user string, policies ...string) {
			t.Helper()
			got, err := login(n, uid, user)
			if err == nil && !slices.Equal(got, policies) || err != nil && len(policies) > 0 {
				t.Errorf("%s: got policies %q, %v; want %q", what, got, err, policies)
			}
			if len(policies) == 0 && (structs.CodeOf(err) != structs.CodeDenied || !strings.Contains(err.Error(), "login_nodes")) {
				t.Errorf("%s: got %v, want a denial that names the setting", what, err)
			}
		}
		want("any user at a login node", gate, 1001, "alice", "login", "login-group-admins")
		want("a user who runs nothing on a compute node", compute, 1001, "alice")
		want("root of a compute node", compute, 0, "root")

		own := preparedJob("own")
		own.Submitter = structs.Submitter{UID: 1001, GID: 100, Name: "alice"}
		as := preparedJob("as")
		as.Groups[0].Tasks[0].User = "bob"
		for _, j := range []*structs.Job{own, as} {
			if _, err := s.apply(context.Background(), replica.LaneUser, structs.Command{By: j.Submitter, Body: &structs.JobRegisterCommand{Job: j, Eval: true}}); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, 10*time.Second, "placements", func() bool { return len(s.Published().Snapshot.AllocsByNode(compute.ID)) == 2 })
		want("the submitter of a job that runs there", compute, 1001, "alice", "login")
		want("a user whom another user's job names for its task", compute, 1002, "bob")
		want("another user with the submitter's name", compute, 4242, "alice")
		want("another name with the submitter's number", compute, 1001, "mallory")
		want("a third user", compute, 1003, "carol")

		report := &methods.NodeObserveRequest{NodeAuth: methods.NodeAuth{NodeID: compute.ID, Secret: compute.SecretID}}
		for _, a := range s.Published().Snapshot.AllocsByNode(compute.ID) {
			report.Updates = append(report.Updates, structs.AllocObserved{ID: a.ID, Client: structs.ClientComplete})
		}
		call(t, s, methods.NodeObserve, rpc.Header{}, report)
		want("the submitter after the end", compute, 1001, "alice")
	})
}
