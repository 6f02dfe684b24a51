package server

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// submitters bootstraps ACLs and returns the headers of the operator and of users with tokens of their own.
func submitters(t *testing.T, s *Server, names ...string) map[string]rpc.Header {
	t.Helper()
	operator := rpc.Header{Token: call(t, s, methods.ACLBootstrap, rpc.Header{}, &methods.ACLBootstrapRequest{}).Token.Secret.String()}
	out := map[string]rpc.Header{"operator": operator}
	for _, name := range names {
		token := &structs.ACLToken{Type: structs.TokenManagement, Name: name}
		out[name] = rpc.Header{Token: call(t, s, methods.ACLTokenUpsert, operator, &methods.ACLTokenUpsertRequest{Token: token}).Token.Secret.String()}
	}
	return out
}

// userQueues has each combination of priorities of a submitter and of all, in one queue and in the one above it.
var userQueues = []*structs.Queue{{Path: structs.QueueRoot},
	{Path: "lab", PriorityMax: 60, PriorityDefault: 40, UserPriorityMax: map[string]int64{"alice": 90, "carol": 20}, UserPriorityDefault: map[string]int64{"alice": 70}},
	{Path: "lab/plain"},
	{Path: "lab/low", PriorityMax: 30, PriorityDefault: 25},
	{Path: "lab/own", UserPriorityMax: map[string]int64{"alice": 80, "bob": 100}, UserPriorityDefault: map[string]int64{"bob": 65}},
}

// TestUserPriorityMax: the nearest queue that limits the priority of a submitter's jobs decides, and in one queue the
// submitter's entry counts instead of the queue's limit, whether it is higher or lower.
func TestUserPriorityMax(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, func(c *Config) { c.ACL = true })
		by := submitters(t, s, "alice", "bob", "carol")
		call(t, s, methods.QueueUpsert, by["operator"], &methods.QueueUpsertRequest{Queues: userQueues})
		call(t, s, methods.NamespaceUpsert, by["operator"], &methods.NamespaceUpsertRequest{Namespace: &structs.Namespace{Name: "capped", MaxPriority: 85}})
		for i, c := range []struct {
			user  string
			queue structs.QueuePath
			most  int
			who   string
		}{
			{"alice", "lab", 90, `user "alice" in queue "lab"`}, {"bob", "lab", 60, `queue "lab"`}, {"carol", "lab", 20, `user "carol" in queue "lab"`},
			{"alice", "lab/plain", 90, `user "alice" in queue "lab"`}, {"bob", "lab/plain", 60, `queue "lab"`}, {"carol", "lab/plain", 20, `user "carol" in queue "lab"`},
			{"alice", "lab/low", 30, `queue "lab/low"`}, {"carol", "lab/low", 30, `queue "lab/low"`},
			{"alice", "lab/own", 80, `user "alice" in queue "lab/own"`}, {"bob", "lab/own", 100, ""}, {"carol", "lab/own", 20, `user "carol" in queue "lab"`},
		} {
			submit := func(namespace string, priority int) error {
				h := by[c.user]
				h.Namespace = namespace
				j := passJob(fmt.Sprint("job-", i), 1, func(j *structs.Job) { j.Namespace, j.Queue, j.Priority = namespace, c.queue, priority })
				_, err := callErr(s, methods.JobRegister, h, &methods.JobRegisterRequest{Job: j})
				return err
			}
			if err := submit("default", c.most); err != nil {
				t.Errorf("%s in queue %s: priority %d: %v", c.user, c.queue, c.most, err)
			}
			if c.most == 100 {
				continue
			}
			want := fmt.Sprintf("Job priority %d is above the limit of %s, which is %d", c.most+1, c.who, c.most)
			if err := submit("default", c.most+1); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s in queue %s: %v, want %q", c.user, c.queue, err, want)
			}
			change := func(priority int) error { // by the operator, of a job that stays the user's
				_, err := callErr(s, methods.JobPriority, by["operator"], &methods.JobPriorityRequest{JobID: fmt.Sprint("job-", i), Priority: priority})
				return err
			}
			if err := change(c.most + 1); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("job priority of %s in queue %s: %v, want %q", c.user, c.queue, err, want)
			}
			if err := change(c.most - 1); err != nil {
				t.Errorf("job priority %d of %s in queue %s: %v", c.most-1, c.user, c.queue, err)
			}
			if err := submit("capped", 86); c.most > 85 && (err == nil || !strings.Contains(err.Error(), `limit of namespace "capped", which is 85`)) {
				t.Errorf("%s in queue %s, namespace capped: %v", c.user, c.queue, err)
			}
		}
	})
}

// TestUserPriorityEffective: a queue shows what holds in it, also what it inherits.
func TestUserPriorityEffective(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		call(t, s, methods.QueueUpsert, rpc.Header{}, &methods.QueueUpsertRequest{Queues: userQueues})
		for path, want := range map[string]string{
			"lab":       "60 map[alice:90 carol:20], 40 map[alice:70]",
			"lab/plain": "60 map[alice:90 carol:20], 40 map[alice:70]",
			"lab/low":   "30 map[], 25 map[]",
			"lab/own":   "60 map[alice:80 bob:100 carol:20], 40 map[alice:70 bob:65]",
		} {
			q := call(t, s, methods.QueueGet, rpc.Header{}, &methods.NameRequest{Name: path}).Queue.Effective
			if got := fmt.Sprintf("%d %v, %d %v", q.PriorityMax, q.UserPriorityMax, q.PriorityDefault, q.UserPriorityDefault); got != want {
				t.Errorf("%s: %s, want %s", path, got, want)
			}
		}
		if q := s.Published().Snapshot.QueueByPath("lab/own"); len(q.UserPriorityMax) != 2 || len(q.UserPriorityDefault) != 1 {
			t.Errorf("the stored queue has %v, %v", q.UserPriorityMax, q.UserPriorityDefault)
		}
	})
}

// TestUserPriorityOfCallers: the limits of who launches or reverts the job of another user count, because the job is then theirs.
func TestUserPriorityOfCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, func(c *Config) { c.ACL = true })
		by := submitters(t, s, "alice", "bob")
		call(t, s, methods.QueueUpsert, by["operator"], &methods.QueueUpsertRequest{Queues: userQueues})
		in := func(id string, edit func(*structs.Job)) *structs.Job {
			return passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Queue, j.Priority, j.Groups[0].Reschedule = structs.JobBatch, "lab", 75, structs.Reschedule{}
				edit(j)
			})
		}
		for _, j := range []*structs.Job{
			in("template", func(j *structs.Job) { j.Parameterized = &structs.Parameterized{Payload: "optional"} }),
			in("nightly", func(j *structs.Job) {
				j.Periodic = &structs.Periodic{Enabled: true, Specs: []string{"@hourly"}, TimeZone: "UTC"}
			}),
			in("revised", func(*structs.Job) {}),
			in("revised", func(j *structs.Job) { j.Meta = map[string]string{"v": "2"} }),
		} {
			call(t, s, methods.JobRegister, by["alice"], &methods.JobRegisterRequest{Job: j})
		}
		for what, do := range map[string]func(h rpc.Header) error{
			"dispatch": func(h rpc.Header) error {
				_, err := callErr(s, methods.JobDispatch, h, &methods.JobDispatchRequest{JobID: "template"})
				return err
			},
			"launch": func(h rpc.Header) error {
				_, err := callErr(s, methods.JobPeriodic, h, &methods.JobGetRequest{JobID: "nightly"})
				return err
			},
			"revert": func(h rpc.Header) error {
				_, err := callErr(s, methods.JobRevert, h, &methods.JobRevertRequest{JobID: "revised", Version: 0})
				return err
			},
		} {
			const want = `Job priority 75 is above the limit of queue "lab", which is 60`
			if err := do(by["bob"]); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s by bob: %v, want %q", what, err, want)
			}
			if err := do(by["alice"]); err != nil {
				t.Errorf("%s by alice: %v", what, err)
			}
		}
		time.Sleep(2 * time.Hour)
		launched := 0
		for j := range s.Published().Snapshot.Jobs("default", "") {
			if j.ParentID == "nightly" {
				launched++
			}
		}
		if launched < 3 { // one by hand and two by the hour: the server launches as alice
			t.Errorf("%d launches of nightly", launched)
		}
	})
}

// TestUserPriorityDefault: a job without a priority gets its submitter's default in the nearest queue that has a default for
// the submitter or for all, lowered to what the submitter is allowed.
func TestUserPriorityDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, func(c *Config) { c.ACL = true })
		by := submitters(t, s, "alice", "bob", "carol")
		call(t, s, methods.QueueUpsert, by["operator"], &methods.QueueUpsertRequest{Queues: userQueues})
		for i, c := range []struct {
			user        string
			queue       structs.QueuePath
			asked, want int
		}{
			{"alice", "lab", 0, 70}, {"bob", "lab", 0, 40}, {"carol", "lab", 0, 20}, {"alice", "lab/plain", 0, 70}, {"bob", "lab/plain", 0, 40}, {"alice", "lab/low", 0, 25},
			{"alice", "lab/own", 0, 70}, {"bob", "lab/own", 0, 65}, {"alice", "lab", 5, 5}, {"alice", "", 0, structs.JobPriorityDefault},
		} {
			j := passJob(fmt.Sprint("job-", i), 1, func(j *structs.Job) { j.Queue, j.Priority = c.queue, c.asked })
			call(t, s, methods.JobRegister, by[c.user], &methods.JobRegisterRequest{Job: j})
			if got := s.Published().Snapshot.JobByKey(j.Key()).Priority; got != c.want {
				t.Errorf("%s in queue %q, asked for %d: priority %d, want %d", c.user, c.queue, c.asked, got, c.want)
			}
		}
	})
}
