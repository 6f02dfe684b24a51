package server

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/tasktoken"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

func setVariable(t *testing.T, s *Server, ns, path string, items map[string]string) *methods.Variable {
	t.Helper()
	r := call(t, s, methods.VariableSet, rpc.Header{Namespace: ns}, &methods.VariableSetRequest{Path: path, Items: items})
	if !r.Updated {
		t.Fatalf("%s was not written", path)
	}
	return r.Variable
}

func getVariable(t *testing.T, s *Server, ns, path string) *methods.Variable {
	t.Helper()
	return call(t, s, methods.VariableGet, rpc.Header{Namespace: ns}, &methods.VariableGetRequest{Path: path}).Variable
}

func TestVariables(t *testing.T) {
	s := testServer(t, nil)
	if v := getVariable(t, s, "", "a"); v != nil {
		t.Fatalf("%+v, and nothing was written", v)
	}
	first := setVariable(t, s, "", "a", map[string]string{"k": "one"})
	again := setVariable(t, s, "", "a", map[string]string{"k": "two", "l": ""})
	if again.CreateIndex != first.CreateIndex || again.ModifyIndex <= first.ModifyIndex || again.CreateTime != first.CreateTime || first.CreateTime == 0 {
		t.Errorf("written as %+v, then %+v", first.VariableMeta, again.VariableMeta)
	}
	if v := getVariable(t, s, "", "a"); !maps.Equal(v.Items, map[string]string{"k": "two", "l": ""}) || v.VariableMeta != again.VariableMeta {
		t.Errorf("read %+v, written %+v", v, again)
	}
	swap := func(at structs.Index) *methods.VariableWriteResponse {
		return call(t, s, methods.VariableSet, rpc.Header{}, &methods.VariableSetRequest{Path: "a", Items: map[string]string{"k": "three"}, CAS: true, CASIndex: at})
	}
	for _, at := range []structs.Index{0, first.ModifyIndex, 1 << 40} {
		if r := swap(at); r.Updated || r.Variable.ModifyIndex != again.ModifyIndex || r.Variable.Items["k"] != "two" {
			t.Errorf("check-and-set at %d: %+v", at, r)
		}
	}
	if r := swap(again.ModifyIndex); !r.Updated || r.Variable.Items["k"] != "three" {
		t.Errorf("check-and-set: %+v", r)
	}
	if r := call(t, s, methods.VariableDelete, rpc.Header{}, &methods.VariableDeleteRequest{Path: "a", CAS: true, CASIndex: first.ModifyIndex}); r.Updated || r.Variable.Items["k"] != "three" {
		t.Errorf("deleted with an old index: %+v", r)
	}
	if r := call(t, s, methods.VariableDelete, rpc.Header{}, &methods.VariableDeleteRequest{Path: "a"}); !r.Updated || getVariable(t, s, "", "a") != nil {
		t.Errorf("not deleted: %+v", r)
	}
	if r := call(t, s, methods.VariableDelete, rpc.Header{}, &methods.VariableDeleteRequest{Path: "a", CAS: true, CASIndex: 7}); r.Updated || r.Variable.ModifyIndex != 0 {
		t.Errorf("deleted what is not there: %+v", r)
	}
	big := map[string]string{"k": strings.Repeat("x", structs.VariableSizeMax-1)}
	setVariable(t, s, "", "big", big)
	big["l"] = ""
	for want, req := range map[string]*methods.VariableSetRequest{
		"limited to 64 KiB":               {Path: "big", Items: big},
		"missing required Items":          {Path: "a"},
		"invalid variable path":           {Path: "nomad/x", Items: map[string]string{"k": "v"}},
		"variable requires a path":        {Items: map[string]string{"k": "v"}},
		"the keys of a variable have 1 t": {Path: "a", Items: map[string]string{"": "v"}},
	} {
		t.Run(want, func(t *testing.T) {
			_, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.VariableSet, rpc.Header{}, req)
			if structs.CodeOf(err) != structs.CodeInvalid || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
	if _, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.VariableSet, rpc.Header{Namespace: "nope"}, &methods.VariableSetRequest{Path: "a", Items: map[string]string{"k": "v"}}); structs.CodeOf(err) != structs.CodeInvalid {
		t.Errorf("written in a namespace that does not exist: %v", err)
	}
	// A namespace with variables cannot be deleted.
	call(t, s, methods.NamespaceUpsert, rpc.Header{}, &methods.NamespaceUpsertRequest{Namespace: &structs.Namespace{Name: "other"}})
	setVariable(t, s, "other", "a", map[string]string{"k": "v"})
	if _, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.NamespaceDelete, rpc.Header{}, &methods.NameRequest{Name: "other"}); structs.CodeOf(err) != structs.CodeConflict {
		t.Errorf("a namespace with variables was deleted: %v", err)
	}
	list := call(t, s, methods.VariableList, rpc.Header{Namespace: "*"}, &methods.ListRequest{})
	if len(list.Variables) != 2 || list.Variables[0].Path != "big" || list.Variables[1].Namespace != "other" {
		t.Errorf("listed %+v", list.Variables)
	}
}

// Waiting readers are woken by a change of their variable, including its creation and its end.
func TestVariablesBlock(t *testing.T) {
	s := testServer(t, nil)
	wait := func(min structs.Index) <-chan *methods.VariableGetResponse {
		ch := make(chan *methods.VariableGetResponse, 1)
		go func() {
			r, err := rpc.Invoke(context.Background(), s.Caller(rpc.Peer{}), methods.VariableGet, rpc.Header{}, &methods.VariableGetRequest{Path: "a", Query: methods.Query{MinIndex: min, MaxWait: time.Minute}})
			if err != nil {
				t.Error(err)
			}
			ch <- r
		}()
		return ch
	}
	none := call(t, s, methods.VariableGet, rpc.Header{}, &methods.VariableGetRequest{Path: "a"})
	ch := wait(none.Index)
	setVariable(t, s, "", "b", map[string]string{"k": "v"})
	v := setVariable(t, s, "", "a", map[string]string{"k": "v"})
	r := <-ch
	if r.Variable == nil { // it began to wait after b was written
		r = <-wait(r.Index)
	}
	if r.Variable == nil || r.Index != v.ModifyIndex {
		t.Fatalf("woken with %+v, written at %d", r, v.ModifyIndex)
	}
	ch = wait(r.Index)
	call(t, s, methods.VariableDelete, rpc.Header{}, &methods.VariableDeleteRequest{Path: "a"})
	if gone := <-ch; gone.Variable != nil || gone.Index <= r.Index {
		t.Errorf("after the end: %+v", gone)
	}
}

// Permissions: policies on paths, and what tasks may read without a policy.
func TestVariableRights(t *testing.T) {
	s := testServer(t, func(c *Config) { c.ACL = true })
	apply := func(body structs.CommandBody) {
		t.Helper()
		if _, err := s.apply(t.Context(), replica.LaneUser, structs.Command{Body: body}); err != nil {
			t.Fatal(err)
		}
	}
	apply(&structs.PolicyUpsertCommand{Policies: []*structs.ACLPolicy{{Name: "p", Rules: `namespace "default" {
  variables {
    path "app/*" { capabilities = ["read", "write"] }
    path "app/sealed" { capabilities = ["list", "write"] }
    path "app/none" { capabilities = ["deny"] }
  }
}`}}})
	user := &structs.ACLToken{Accessor: endpoint.NewID[structs.AccessorID](), Secret: endpoint.NewID[structs.SecretID](), Type: structs.TokenClient, Policies: []string{"p"}}
	boss := &structs.ACLToken{Accessor: endpoint.NewID[structs.AccessorID](), Secret: endpoint.NewID[structs.SecretID](), Type: structs.TokenManagement}
	apply(&structs.TokenUpsertCommand{Tokens: []*structs.ACLToken{user, boss}})
	do := func(token, verb, path string) bool {
		t.Helper()
		h := rpc.Header{Token: token, Namespace: "default"}
		var err error
		switch verb {
		case "read":
			_, err = rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.VariableGet, h, &methods.VariableGetRequest{Path: path})
		case "write":
			_, err = rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.VariableSet, h, &methods.VariableSetRequest{Path: path, Items: map[string]string{"k": "v"}})
		case "destroy":
			_, err = rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.VariableDelete, h, &methods.VariableDeleteRequest{Path: path})
		}
		if err != nil && structs.CodeOf(err) != structs.CodeDenied {
			t.Errorf("%s %s: %v", verb, path, err)
		}
		return err == nil
	}
	listed := func(token string) (paths []string) {
		t.Helper()
		for _, v := range call(t, s, methods.VariableList, rpc.Header{Token: token, Namespace: "default"}, &methods.ListRequest{}).Variables {
			paths = append(paths, v.Path)
		}
		return paths
	}
	apply(&structs.JobRegisterCommand{Job: preparedJob("web")})
	node := testNode(1)
	apply(&structs.NodeRegisterCommand{Node: node})
	apply(&structs.NodeStatusCommand{ID: node.ID, Status: structs.NodeReady})
	apply(&structs.EvalUpsertCommand{Evals: []*structs.Evaluation{{Namespace: "default", JobID: "web", Type: structs.JobService, Trigger: structs.TriggerJobRegister, Priority: 50, Status: structs.EvalPending}}})
	k := structs.JobKey{Namespace: "default", ID: "web"}
	waitFor(t, 10*time.Second, "placement", func() bool { return len(s.Published().Snapshot.AllocsByJob(k)) == 1 })
	a := s.Published().Snapshot.AllocsByJob(k)[0]
	g, name := string(a.Group), a.Job.Group(a.Group).Tasks[0].Name
	for _, p := range []string{"nomad/jobs", "nomad/jobs/web", "nomad/jobs/web/" + g, "nomad/jobs/web/" + g + "/" + name, "nomad/jobs/web/" + g + "/other", "nomad/jobs/other", "app/x", "app/sealed", "app/none", "else"} {
		if !do(boss.Secret.String(), "write", p) {
			t.Fatal(p)
		}
	}
	task := tasktoken.New(node.SecretID, a.ID, name, time.Now())
	whole := tasktoken.New(node.SecretID, a.ID, "", time.Now())
	stranger := tasktoken.New(structs.SecretID{9}, a.ID, name, time.Now())
	for _, c := range []struct {
		who, token, verb, path string
		want                   bool
	}{
		{"user", user.Secret.String(), "read", "app/x", true}, {"user", user.Secret.String(), "write", "app/x", true}, {"user", user.Secret.String(), "destroy", "app/x", false},
		{"user", user.Secret.String(), "read", "app/sealed", false}, {"user", user.Secret.String(), "write", "app/sealed", true},
		{"user", user.Secret.String(), "read", "app/none", false}, {"user", user.Secret.String(), "write", "app/none", false}, {"user", user.Secret.String(), "read", "else", false},
		{"user", user.Secret.String(), "read", "nomad/jobs/web", false}, {"nobody", "", "read", "app/x", false},
		{"task", task, "read", "nomad/jobs", true}, {"task", task, "read", "nomad/jobs/web", true}, {"task", task, "read", "nomad/jobs/web/" + g, true},
		{"task", task, "read", "nomad/jobs/web/" + g + "/" + name, true}, {"task", task, "read", "nomad/jobs/web/" + g + "/other", false}, {"task", task, "read", "nomad/jobs/other", false},
		{"task", task, "read", "app/x", false}, {"task", task, "write", "nomad/jobs/web", false}, {"task", task, "destroy", "nomad/jobs/web", false},
		{"allocation", whole, "read", "nomad/jobs/web", true}, {"allocation", whole, "read", "nomad/jobs/web/" + g + "/" + name, false},
		{"stranger", stranger, "read", "nomad/jobs", false},
	} {
		t.Run(fmt.Sprintf("who=%q token=%q verb=%q path=%q", c.who, c.token, c.verb, c.path), func(t *testing.T) {
			if got := do(c.token, c.verb, c.path); got != c.want {
				t.Errorf("%s: %s %s allowed: %v, want %v", c.who, c.verb, c.path, got, c.want)
			}
		})
	}
	if got := listed(user.Secret.String()); !slices.Equal(got, []string{"app/sealed", "app/x"}) {
		t.Errorf("the user lists %v", got)
	}
	if got := listed(task); !slices.Equal(got, []string{"nomad/jobs", "nomad/jobs/web", "nomad/jobs/web/" + g, "nomad/jobs/web/" + g + "/" + name}) {
		t.Errorf("the task lists %v", got)
	}
	// A caller that may write and not read learns of a conflict, but not the items.
	r := call(t, s, methods.VariableSet, rpc.Header{Token: user.Secret.String(), Namespace: "default"}, &methods.VariableSetRequest{Path: "app/sealed", Items: map[string]string{"k": "v"}, CAS: true, CASIndex: 1})
	if r.Updated || r.Variable.ModifyIndex == 0 || r.Variable.Items != nil {
		t.Errorf("conflict: %+v", r.Variable)
	}
}

// A server's files on disk do not contain items in plain text, and after a restart the items can be read again.
func TestVariablesAreSealedOnDisk(t *testing.T) {
	dir := t.TempDir()
	const secret = "PLANTED-SECRET-VALUE"
	edit := func(c *Config) { c.InMemory, c.DataDir, c.ID = false, dir, "00000000-0000-4000-8000-000000000001" }
	s := testServer(t, edit)
	setVariable(t, s, "", "app/db", map[string]string{"PLANTED-KEY": secret})
	takeSnapshot(t, s)
	setVariable(t, s, "", "app/db2", map[string]string{"k": secret})
	var snap bytes.Buffer
	if err := s.Published().Snapshot.Write(&snap); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(snap.Bytes(), []byte(secret)) || !bytes.Contains(snap.Bytes(), []byte("app/db")) {
		t.Error("a snapshot has the items in the open, or not at all")
	}
	s.Close()
	keys, files := 0, 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.Contains(b, []byte(secret)) || bytes.Contains(b, []byte("PLANTED-KEY")) {
			t.Errorf("%s has the items in the open", path)
		}
		if filepath.Base(filepath.Dir(path)) == "keystore" {
			keys++
			if st, err := d.Info(); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v %v; want st.Mode().Perm() = 0o600", path, st.Mode(), err)
			}
		}
		return nil
	})
	if err != nil || keys != 1 || files < 4 {
		t.Fatalf("%d files with %d keys: %v", files, keys, err)
	}
	s = testServer(t, edit)
	for _, p := range []string{"app/db", "app/db2"} {
		v := getVariable(t, s, "", p)
		if v == nil || !slices.Contains(slices.Collect(maps.Values(v.Items)), secret) {
			t.Errorf("%s after a restart: %+v", p, v)
		}
	}
	// Without the key nothing can be read, and later writes use a new key.
	s.Close()
	old, _ := filepath.Glob(filepath.Join(dir, "keystore", "*"))
	away := filepath.Join(t.TempDir(), filepath.Base(old[0]))
	if err := os.Rename(old[0], away); err != nil {
		t.Fatal(err)
	}
	s = testServer(t, edit)
	_, err = rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.VariableGet, rpc.Header{}, &methods.VariableGetRequest{Path: "app/db"})
	if structs.CodeOf(err) != structs.CodeUnavailable || !strings.Contains(err.Error(), "keystore") {
		t.Errorf("read without its key: %v", err)
	}
	setVariable(t, s, "", "app/new", map[string]string{"k": "new"})
	if err := os.Rename(away, old[0]); err != nil {
		t.Fatal(err)
	}
	if v := getVariable(t, s, "", "app/db"); v.Items["PLANTED-KEY"] != secret || getVariable(t, s, "", "app/new").Items["k"] != "new" {
		t.Errorf("after the key came back: %+v", v)
	}
}

// Variables outlive the leader that made their key: every server gets the key, even one that was away when it was made.
func TestVariablesOutliveTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead := c.leader()
		away, follower := (lead+1)%3, (lead+2)%3
		c.net.Isolate(hostName(away))
		set := func(i int, path, value string) {
			t.Helper()
			err := c.call(i, func(ctx context.Context, to rpc.Caller) error {
				r, err := rpc.Invoke(ctx, to, methods.VariableSet, rpc.Header{}, &methods.VariableSetRequest{Path: path, Items: map[string]string{"k": value}})
				if err == nil && (!r.Updated || r.Variable.Items["k"] != value) {
					t.Errorf("%+v", r)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		get := func(i int, path string, stale bool) string {
			t.Helper()
			value := "(none)"
			err := c.call(i, func(ctx context.Context, to rpc.Caller) error {
				r, err := rpc.Invoke(ctx, to, methods.VariableGet, rpc.Header{}, &methods.VariableGetRequest{Path: path, Query: methods.Query{Stale: stale}})
				if err == nil && r.Variable != nil {
					value = r.Variable.Items["k"]
				}
				return err
			})
			if err != nil {
				t.Fatalf("read at server %d: %v", i, err)
			}
			return value
		}
		set(follower, "a", "one")
		if ids := c.servers[away].keys.IDs(); len(ids) != 0 {
			t.Errorf("a server that is cut off has the key: got %v, want 0", len(ids))
		}
		c.net.Heal()
		time.Sleep(time.Minute)
		c.converge()
		for i := range c.servers {
			if got := get(i, "a", true); got != "one" {
				t.Errorf("server %d reads %q", i, got)
			}
			if n := len(c.servers[i].keys.IDs()); n != 1 {
				t.Errorf("server %d has %d keys, want the one", i, n)
			}
		}
		set(lead, "b", "two")
		now := c.leader()
		c.net.Kill(hostName(now))
		c.stops[now]()
		next := c.leader(now)
		for _, p := range []struct{ path, want string }{{"a", "one"}, {"b", "two"}} {
			if got := get(next, p.path, false); got != p.want {
				t.Errorf("after the leader's death %s is %q, want %q", p.path, got, p.want)
			}
		}
		set(next, "a", "three")
		if got := get(next, "a", false); got != "three" {
			t.Errorf("written after the leader's death: %q", got)
		}
		n := 0
		for range c.servers[next].Published().Snapshot.SealKeys() {
			n++
		}
		if n != 1 {
			t.Errorf("%d keys were made, want 1", n)
		}
	})
}
