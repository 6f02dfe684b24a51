package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/tasktoken"
	"github.com/muster-sched/muster/structs"
)

func bundleSum(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

func putBundle(s *Server, ns, sum, content string) (*methods.BundleResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	st, err := rpc.OpenStream(ctx, s.Caller(rpc.Peer{}), methods.BundlePut, rpc.Header{Namespace: ns}, &methods.BundlePutRequest{Sum: sum, Size: int64(len(content))})
	if err != nil {
		return nil, err
	}
	defer st.Close(nil)
	_, _ = io.Copy(rpc.Writer{Stream: st}, strings.NewReader(content)) // the answer says what is wrong
	_ = st.CloseWrite()
	var resp methods.BundleResponse
	return &resp, st.RecvMsg(&resp)
}

func getBundle(s *Server, h rpc.Header, sum string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	st, err := rpc.OpenStream(ctx, s.Caller(rpc.Peer{}), methods.BundleGet, h, &methods.BundleRequest{Sum: sum})
	if err != nil {
		return "", err
	}
	defer st.Close(nil)
	var info methods.BundleResponse
	if err := st.RecvMsg(&info); err != nil {
		return "", err
	}
	b, err := io.ReadAll(&rpc.Reader{Stream: st})
	if err == nil && int64(len(b)) != info.Size {
		return "", io.ErrUnexpectedEOF
	}
	return string(b), err
}

// bundled returns a job that fetches a bundle.
func bundled(id, sum string) *structs.Job {
	j := apiJob(id, 1)
	raw, _ := json.Marshal(map[string]any{"GetterSource": structs.BundleSource(sum), "RelativeDest": "local/x"})
	j.Groups[0].Tasks[0].Artifacts = []structs.Artifact{{Raw: raw}}
	return j
}

// TestBundles: a bundle that one server received is at all of them, also at those that were away; it is refused where it
// is not what its name says.
func TestBundles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(_ int, cfg *Config) { cfg.DataDir = t.TempDir() })
		lead := c.leader()
		follower := (lead + 1) % 3
		content := strings.Repeat("a directory, packed. ", 50_000) // several frames
		sum := bundleSum(content)
		register := func(j *structs.Job) error {
			_, err := callErr(c.servers[c.leader()], methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: j})
			return err
		}
		if err := register(bundled("early", sum)); structs.CodeOf(err) != structs.CodeInvalid || !strings.Contains(err.Error(), "run -pack") {
			t.Errorf("a job whose bundle was never sent: %v", err)
		}
		valid, err := callErr(c.servers[follower], methods.JobValidate, rpc.Header{}, &methods.JobRegisterRequest{Job: bundled("early", sum)})
		if err != nil || !strings.Contains(strings.Join(valid.Errors, ""), "run -pack") {
			t.Errorf("validated without its bundle: %+v, %v", valid, err)
		}
		plan, err := callErr(c.servers[follower], methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: bundled("early", sum)})
		if err != nil || !strings.Contains(plan.Warnings, "run -pack") {
			t.Errorf("planned without its bundle: %+v, %v", plan, err)
		}
		if _, err := putBundle(c.servers[follower], "default", sum, content+"!"); structs.CodeOf(err) != structs.CodeInvalid {
			t.Errorf("other bytes: %v", err)
		}
		if _, err := putBundle(c.servers[follower], "nowhere", sum, content); structs.CodeOf(err) != structs.CodeNotFound {
			t.Errorf("a namespace that does not exist: %v", err)
		}
		if r, err := putBundle(c.servers[follower], "default", sum, content); err != nil || r.Copies != 3 {
			t.Fatalf("sent: %+v, %v", r, err)
		}
		if n := c.servers[lead].bundles.Bytes(); n != int64(len(content)) {
			t.Errorf("the leader keeps %d bytes, want %d", n, len(content))
		}
		if _, err := callErr(c.servers[lead], methods.BundleStat, rpc.Header{Namespace: "other"}, &methods.BundleRequest{Sum: sum}); structs.CodeOf(err) != structs.CodeNotFound {
			t.Errorf("in another namespace: %v", err)
		}
		if err := register(bundled("train", sum)); err != nil {
			t.Fatal(err)
		}
		if valid, err := callErr(c.servers[follower], methods.JobValidate, rpc.Header{}, &methods.JobRegisterRequest{Job: bundled("train", sum)}); err != nil || len(valid.Errors) > 0 {
			t.Errorf("validated with its bundle: %+v, %v", valid, err)
		}

		// One server is replaced by an empty one, which has the bundle after its first look; and one that is asked before
		// that gets it at once.
		third := 3 - lead - follower
		c.stops[third]()
		c.cfgs[third].DataDir = t.TempDir()
		c.start(third)
		c.converge()
		if got, err := getBundle(c.servers[third], rpc.Header{}, sum); err != nil || got != content {
			t.Errorf("from a new server: %d bytes, %v", len(got), err)
		}

		// With most servers away it is not accepted, and the error says so.
		c.stops[third]()
		c.stops[follower]()
		if _, err := putBundle(c.servers[lead], "default", bundleSum("x"), "x"); structs.CodeOf(err) != structs.CodeUnavailable || !strings.Contains(err.Error(), "1 of 3 servers") {
			t.Errorf("with two servers away: %v", err)
		}
		c.start(third)
		c.start(follower)
	})
}

// TestBundlesOfReaders: a caller who may only read jobs does not make a server fetch a bundle by validating a job that names it.
func TestBundlesOfReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(_ int, cfg *Config) { cfg.ACL, cfg.DataDir = true, t.TempDir() })
		root := call(t, c.servers[c.leader()], methods.ACLBootstrap, rpc.Header{}, &methods.ACLBootstrapRequest{}).Token.Secret
		reader := c.tokenWith(root, "reader", `namespace "default" { policy = "read" }`)
		writer := c.tokenWith(root, "writer", `namespace "default" { policy = "write" }`)
		lead, content := c.leader(), "packed"
		lacks := (lead + 1) % 3
		st, err := rpc.OpenStream(t.Context(), c.servers[lead].Caller(rpc.Peer{}), methods.BundlePut, rpc.Header{Token: root.String()}, &methods.BundlePutRequest{Sum: bundleSum(content), Size: int64(len(content))})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(rpc.Writer{Stream: st}, strings.NewReader(content))
		_ = st.CloseWrite()
		if err := st.RecvMsg(&methods.BundleResponse{}); err != nil {
			t.Fatal(err)
		}
		st.Close(nil)
		c.stops[lacks]() // an empty server comes in its place
		c.cfgs[lacks].DataDir = t.TempDir()
		c.start(lacks)
		c.converge()
		before := c.servers[lacks].bundles.Bytes()
		h := rpc.Header{Token: reader.String()}
		valid, err := callErr(c.servers[lacks], methods.JobValidate, h, &methods.JobRegisterRequest{Job: bundled("j", bundleSum(content))})
		if err != nil || len(valid.Errors) > 0 || !strings.Contains(valid.Warnings, "submit-job") || c.servers[lacks].bundles.Bytes() != before {
			t.Errorf("a reader: %+v, %v; %d bytes, %d before", valid, err, c.servers[lacks].bundles.Bytes(), before)
		}
		h.Token = writer.String()
		valid, err = callErr(c.servers[lacks], methods.JobValidate, h, &methods.JobRegisterRequest{Job: bundled("j", bundleSum(content))})
		if err != nil || len(valid.Errors) > 0 || valid.Warnings != "" || c.servers[lacks].bundles.Bytes() == before {
			t.Errorf("a writer: %+v, %v; %d bytes, %d before", valid, err, c.servers[lacks].bundles.Bytes(), before)
		}
	})
}

// TestBundlesOfTasks: a task gets the bundles that its own job names, and no others of its namespace.
func TestBundlesOfTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, func(cfg *Config) { cfg.ACL, cfg.DataDir = true, t.TempDir() })
		management := call(t, s, methods.ACLBootstrap, rpc.Header{}, &methods.ACLBootstrapRequest{}).Token.Secret
		as := rpc.Header{Token: management.String()}
		put := func(content string) string {
			st, err := rpc.OpenStream(t.Context(), s.Caller(rpc.Peer{}), methods.BundlePut, as, &methods.BundlePutRequest{Sum: bundleSum(content), Size: int64(len(content))})
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close(nil)
			_, _ = io.Copy(rpc.Writer{Stream: st}, bytes.NewReader([]byte(content)))
			_ = st.CloseWrite()
			if err := st.RecvMsg(&methods.BundleResponse{}); err != nil {
				t.Fatal(err)
			}
			return bundleSum(content)
		}
		mine, other := put("mine"), put("another job's")
		n := testNode(1)
		call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: n, Introduction: call(t, s, methods.NodeIntroduce, as, &methods.NodeIntroduceRequest{}).Token})
		call(t, s, methods.JobRegister, as, &methods.JobRegisterRequest{Job: bundled("j", mine)})
		call(t, s, methods.JobRegister, as, &methods.JobRegisterRequest{Job: bundled("k", other)})
		key := structs.JobKey{Namespace: "default", ID: "j"}
		waitFor(t, 10*time.Second, "a placement", func() bool { return len(s.Published().Snapshot.AllocsByJob(key)) == 1 })
		a := s.Published().Snapshot.AllocsByJob(key)[0]
		h := rpc.Header{Token: tasktoken.New(n.SecretID, a.ID, "t", time.Now())}
		if got, err := getBundle(s, h, mine); err != nil || got != "mine" {
			t.Errorf("its own: %q, %v", got, err)
		}
		if _, err := getBundle(s, h, other); structs.CodeOf(err) != structs.CodeDenied {
			t.Errorf("another job's: %v", err)
		}
		if _, err := getBundle(s, rpc.Header{}, mine); structs.CodeOf(err) != structs.CodeDenied {
			t.Errorf("without a token: %v", err)
		}
		if _, err := putBundle(s, "default", mine, "mine"); structs.CodeOf(err) != structs.CodeDenied {
			t.Errorf("sent without a token: %v", err)
		}
	})
}
