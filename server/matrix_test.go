package server

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/tlsutil"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/server/events"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// tlsSources makes certificates of one CA, one for each role.
func tlsSources(t *testing.T, roles ...tlsutil.Role) map[tlsutil.Role]*tlsutil.Source {
	t.Helper()
	issue := tlsAuthority(t)
	out := map[tlsutil.Role]*tlsutil.Source{}
	for _, r := range roles {
		out[r] = issue(r, "")
	}
	return out
}

// tlsAuthority makes a CA, and returns what issues certificates of roles in regions ("": the default one).
func tlsAuthority(t *testing.T) func(role tlsutil.Role, region string) *tlsutil.Source {
	t.Helper()
	dir := t.TempDir()
	ca, err := tlsutil.NewCA(tlsutil.CAOptions{})
	if err != nil {
		t.Fatal(err)
	}
	caFile := filepath.Join(dir, "ca.pem")
	if err := ca.Write(caFile, filepath.Join(dir, "ca-key.pem")); err != nil {
		t.Fatal(err)
	}
	return func(role tlsutil.Role, region string) *tlsutil.Source {
		t.Helper()
		pair, err := tlsutil.NewCert(ca, tlsutil.CertOptions{Role: role, Region: region})
		if err != nil {
			t.Fatal(err)
		}
		name := string(role) + region
		f := tlsutil.Files{CA: caFile, Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+"-key.pem")}
		if err := pair.Write(f.Cert, f.Key); err != nil {
			t.Fatal(err)
		}
		src, err := tlsutil.Load(f, region)
		if err != nil {
			t.Fatal(err)
		}
		return src
	}
}

// caller is one identity of the matrix: a certificate, with a token or a node's secret.
type caller struct {
	name  string
	role  tlsutil.Role
	token structs.SecretID
	node  bool // sends a registered node's ID and secret
	wrong bool // sends a wrong secret
	// may reports whether the caller meets a need.
	may func(n methods.Need) bool
}

// TestAuthorisationMatrix calls every method of the table over TLS as every identity, at the leader and through a
// follower. Denied means CodeDenied. Any other result (not found, invalid, success) means that the call was permitted.
func TestAuthorisationMatrix(t *testing.T) {
	synctest.Test(t, authorisationMatrix)
}

func authorisationMatrix(t *testing.T) {
	src := tlsSources(t, "server", "client", "cli")
	cl := newCluster(t, 3, func(_ int, cfg *Config) {
		cfg.ACL, cfg.TLSServer, cfg.TLSClient = true, src["server"].RPCServer(), src["server"].ClientTo
	})
	h, s := cl.net.Host("evil"), cl.servers[cl.leader()]
	ctx := context.Background()
	apply := func(body structs.CommandBody) {
		t.Helper()
		if _, err := cl.servers[cl.leader()].apply(ctx, replica.LaneUser, structs.Command{Body: body}); err != nil {
			t.Fatal(err)
		}
	}
	token := func(typ, policy string, expires structs.LogTime) structs.SecretID {
		tok := &structs.ACLToken{Accessor: endpoint.NewID[structs.AccessorID](), Secret: endpoint.NewID[structs.SecretID](), Type: typ, ExpiresAt: expires}
		if policy != "" {
			tok.Policies = []string{policy}
		}
		apply(&structs.TokenUpsertCommand{Tokens: []*structs.ACLToken{tok}})
		return tok.Secret
	}
	apply(&structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "other"}}})
	apply(&structs.PolicyUpsertCommand{Policies: []*structs.ACLPolicy{
		{Name: "other", Rules: `namespace "other" { policy = "write" }`},
		{Name: "reader", Rules: "namespace \"default\" { policy = \"read\" }\nnode { policy = \"read\" }\nagent { policy = \"read\" }\noperator { policy = \"read\" }\nnode_pool \"*\" { policy = \"read\" }"},
		{Name: "operator", Rules: `operator { policy = "write" }`},
		{Name: "quota", Rules: `quota { policy = "write" }`},
	}})
	node := testNode(1)
	apply(&structs.NodeRegisterCommand{Node: node})
	apply(&structs.NodeStatusCommand{ID: node.ID, Status: structs.NodeReady})
	apply(&structs.JobRegisterCommand{Job: preparedJob("held"), Eval: true})
	held := structs.JobKey{Namespace: "default", ID: "held"}
	waitFor(t, 10*time.Second, "placement", func() bool { return len(s.Published().Snapshot.AllocsByJob(held)) == 1 })
	alloc := s.Published().Snapshot.AllocsByJob(held)[0]
	readCaps := map[string]bool{"list-jobs": true, "parse-job": true, "read-job": true, "read-job-scaling": true, "list-scaling-policies": true, "read-scaling-policy": true}
	nothing := func(methods.Need) bool { return false }
	anyToken := func(n methods.Need) bool { return n.AnyToken || n.Queue == "read" } // a queue that no rule mentions is open
	callers := []caller{
		{name: "none", role: "cli", may: nothing},
		{name: "wrong namespace", role: "cli", token: token("client", "other", 0), may: anyToken},
		{name: "read-only", role: "cli", token: token("client", "reader", 0), may: func(n methods.Need) bool {
			return anyToken(n) || readCaps[n.Namespace] || n.Node == "read" || n.Agent == "read" || n.Operator == "read" || n.NodePool == "read"
		}},
		{name: "operator", role: "cli", token: token("client", "operator", 0), may: func(n methods.Need) bool {
			return anyToken(n) || n.Operator != "" || n.Queue != "" || n.Quota != ""
		}},
		{name: "writer of quotas", role: "cli", token: token("client", "quota", 0), may: func(n methods.Need) bool { return anyToken(n) || n.Quota != "" }},
		{name: "node secret", role: "client", node: true, may: func(n methods.Need) bool { return n.NodeSecret }},
		{name: "node secret with a cli certificate", role: "cli", node: true, may: nothing},
		{name: "wrong node secret", role: "client", node: true, wrong: true, may: nothing},
		{name: "client certificate alone", role: "client", may: nothing},
		{name: "server certificate alone", role: "server", may: func(n methods.Need) bool { return n.ServerCert }},
		{name: "expired", role: "cli", token: token("client", "reader", s.Published().Time+1), may: nothing},
		{name: "unknown token", role: "cli", token: endpoint.NewID[structs.SecretID](), may: nothing},
		{name: "management", role: "cli", token: token("management", "", 0), may: func(n methods.Need) bool { return !n.NodeSecret && !n.ServerCert }},
	}
	// Methods whose handler refuses the empty request of this test.
	byHandler := map[string]bool{
		methods.ACLTokenGet.Name: true, methods.ACLTokenSelf.Name: true, methods.ACLOneTimeCreate.Name: true, methods.ACLPolicyGet.Name: true, methods.ACLRoleGet.Name: true, methods.ACLOneTimeUse.Name: true,
		methods.NamespaceGet.Name: true, methods.EventStream.Name: true, methods.ACLAuthorize.Name: true, methods.PoolNodes.Name: true,
		methods.QuotaGet.Name: true,
	}
	pools := map[tlsutil.Role]*rpc.Pool{}
	for _, r := range []tlsutil.Role{"server", "client", "cli"} {
		p := rpc.NewPool(rpc.PoolConfig{Dial: rpc.TLSDialer(h.Dial, src[r].Client)})
		defer p.Close()
		pools[r] = p
	}
	checks := 0
	run := func(c caller, anonymous bool) {
		for _, row := range methods.Table {
			want := row.Need.Anonymous || c.may(row.Need)
			if anonymous && c.token.IsZero() && !c.node {
				want = want || row.Need.Namespace != "" && readCaps[row.Need.Namespace] || anyToken(row.Need)
			}
			if want && byHandler[row.Name] && c.name != "management" {
				continue
			}
			if row.Name == methods.ACLOneTimeUse.Name || row.Name == methods.EventStream.Name && c.name == "management" {
				continue // refused because of its content, or never ends
			}
			body := map[string]any{"Name": "default", "AllocID": alloc.ID, "EvalID": alloc.EvalID, "Task": "t"}
			if c.node {
				secret := node.SecretID
				if c.wrong {
					secret[3] ^= 1
				}
				body = map[string]any{"NodeID": node.ID, "Secret": secret, "Status": "ready", "MaxWait": 1}
				if row.Name == methods.NodeRegister.Name {
					bad := *node
					bad.SecretID = secret
					body = map[string]any{"Node": &bad}
				}
			}
			lead := cl.leader() // a method of the operator may just have moved it
			for _, at := range []int{(lead + 1) % 3, lead} {
				to := pools[c.role].To(hostName(at) + ":4647")
				err := call1(to, row, c.token, body)
				denied := structs.CodeOf(err) == structs.CodeDenied && err != nil
				checks++
				if denied && row.Name != methods.ACLOneTimeUse.Name && !strings.Contains(err.Error(), "needs ") && !strings.Contains(err.Error(), "ACL token") && !strings.Contains(err.Error(), "secret") {
					t.Errorf("%s as %q: %v; the refusal does not name what is missing", row.Name, c.name, err)
				}
				if !want && !denied && c.name == "wrong namespace" {
					// An object of a namespace that the caller may not read looks like one that does not exist.
					unknown := map[string]any{"Name": "default", "AllocID": structs.AllocID{1}, "EvalID": structs.EvalID{1}, "Task": "t"}
					hidden := func(e error) string {
						return strings.NewReplacer(alloc.ID.String(), "ID", structs.AllocID{1}.String(), "ID").Replace(fmt.Sprint(e))
					}
					if again := call1(to, row, c.token, unknown); row.Need.Namespace == "" || hidden(err) != hidden(again) {
						t.Errorf("%s as %q: %v; want what is said about an object that does not exist: %v", row.Name, c.name, err, again)
					}
					continue
				}
				if denied == want {
					t.Errorf("%s as %q at server %d (leader %d, anonymous policy: %v): %v; want it %s", row.Name, c.name, at, lead, anonymous, err, map[bool]string{true: "let through", false: "denied"}[want])
				}
			}
		}
	}
	cl.converge()
	for _, c := range callers {
		run(c, false)
	}
	// With an anonymous policy, callers without a token may do what it grants, and no other caller may do more.
	apply(&structs.PolicyUpsertCommand{Policies: []*structs.ACLPolicy{{Name: "anonymous", Rules: `namespace "default" { policy = "read" }`}}})
	cl.converge()
	for _, c := range callers {
		if c.name == "none" || c.name == "client certificate alone" || c.name == "expired" || c.name == "wrong namespace" {
			run(c, true)
		}
	}
	if checks < 2*6*len(methods.Table) {
		t.Fatalf("only %d checks for %d methods", checks, len(methods.Table))
	}
	t.Logf("%d checks over %d methods", checks, len(methods.Table))
}

// call1 calls a method with an arbitrary body.
func call1(to rpc.Caller, row methods.Row, token structs.SecretID, body any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	h := rpc.Header{Method: row.Name, Token: token.String()}
	b, err := rpc.Encode(body)
	if err != nil {
		return err
	}
	if row.Kind != methods.KindStream {
		_, err = to.InvokeRaw(ctx, h, b)
		return err
	}
	st, err := to.Open(ctx, h, rpc.Raw(b))
	if err != nil {
		return err
	}
	defer st.Close(nil)
	st.CloseWrite()
	_, err = st.Recv()
	return err
}

// TestSecretsStayInside plants secrets and looks for them in every answer to a reader who may read everything except
// tokens.
func TestSecretsStayInside(t *testing.T) {
	s := testServer(t, nil)
	node := testNode(7)
	call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: node})
	_, signing, err := s.keys.Signing(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	secrets := map[string]string{"a node's secret": string(node.SecretID[:]), "a node's secret in text": node.SecretID.String(), "the key of identities": string(signing.D.Bytes()), "a variable": "CANARY-variable"}
	setVariable(t, s, "", "a", map[string]string{"k": "CANARY-variable"})
	seal, err := s.keys.Get(s.Published().Snapshot.ActiveSealKey())
	if err != nil {
		t.Fatal(err)
	}
	secrets["the key of variables"] = string(seal)
	tok := &structs.ACLToken{Accessor: structs.AccessorID{8}, Secret: structs.SecretID{8, 8, 8, 8, 8, 8, 8, 8, 1, 2, 3, 4, 5, 6, 7, 8}, Type: structs.TokenManagement}
	mustApply(t, s, &structs.TokenUpsertCommand{Tokens: []*structs.ACLToken{tok}})
	mustApply(t, s, &structs.OneTimeUpsertCommand{Token: &structs.OneTimeToken{Secret: structs.SecretID{7, 7, 7, 7, 7, 7, 7, 7, 1, 2, 3, 4, 5, 6, 7, 8}, Accessor: tok.Accessor, ExpiresAt: s.replica.Now().Add(time.Hour)}})
	for what, id := range map[string]structs.SecretID{"a token": tok.Secret, "a one-time token": {7, 7, 7, 7, 7, 7, 7, 7, 1, 2, 3, 4, 5, 6, 7, 8}} {
		secrets[what], secrets[what+" in text"] = string(id[:]), id.String()
	}
	for _, row := range methods.Table {
		if row.Kind != methods.KindRead || row.Side != methods.SideServer {
			continue
		}
		b, err := rpc.Encode(map[string]any{"NodeID": node.ID, "Name": "all"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		out, err := s.Caller(rpc.Peer{}).InvokeRaw(ctx, rpc.Header{Method: row.Name}, b)
		cancel()
		if err != nil {
			continue
		}
		for what, secret := range secrets {
			if strings.Contains(string(out), secret) {
				t.Errorf("%s answers with %s", row.Name, what)
			}
		}
	}
	for _, ev := range events.Of(structs.Delta{Nodes: []structs.Changed[structs.Node]{{After: node}}, Tokens: []structs.Changed[structs.ACLToken]{{After: &structs.ACLToken{Secret: structs.SecretID{9}}}}}) {
		if ev.Node != nil && !ev.Node.SecretID.IsZero() || ev.Token != nil && !ev.Token.Secret.IsZero() {
			t.Errorf("event %s carries a secret", fmt.Sprint(ev.Topic))
		}
	}
}
