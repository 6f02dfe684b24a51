package acl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/muster-sched/muster/structs"
)

func compile(t *testing.T, rules ...string) *ACL {
	t.Helper()
	var ps []*Policy
	for _, r := range rules {
		p, err := Parse("test", r)
		if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
	return Compile(ps)
}

func TestNamespaces(t *testing.T) {
	for _, c := range []struct {
		rules []string
		ns    string
		cap   string
		want  bool
	}{
		{nil, "default", CapReadJob, false},
		{[]string{`namespace "default" { policy = "read" }`}, "default", CapReadJob, true},
		{[]string{`namespace "default" { policy = "read" }`}, "default", CapSubmitJob, false},
		{[]string{`namespace "default" { policy = "read" }`}, "other", CapReadJob, false},
		{[]string{`namespace "default" { policy = "write" }`}, "default", CapAllocExec, true},
		{[]string{`namespace "default" { policy = "write" }`}, "default", CapAllocNodeExec, false},
		{[]string{`namespace "default" { policy = "scale" }`}, "default", CapScaleJob, true},
		{[]string{`namespace "default" { policy = "scale" }`}, "default", CapReadJob, false},
		{[]string{`namespace "default" { capabilities = ["submit-job"] }`}, "default", CapPlanJob, true},
		{[]string{`namespace "default" { capabilities = ["submit-job"] }`}, "default", CapReadJob, false},
		{[]string{`namespace "default" { policy = "deny" }`, `namespace "default" { policy = "write" }`}, "default", CapReadJob, false},
		{[]string{`namespace "default" { policy = "write" }`, `namespace "default" { capabilities = ["deny"] }`}, "default", CapReadJob, false},
		// Only the longest match counts.
		{[]string{`namespace "*" { policy = "write" }`}, "anything", CapSubmitJob, true},
		{[]string{`namespace "*" { policy = "write" }`, `namespace "prod-*" { policy = "read" }`}, "prod-api", CapSubmitJob, false},
		{[]string{`namespace "*" { policy = "deny" }`, `namespace "prod-*" { policy = "read" }`}, "prod-api", CapReadJob, true},
		{[]string{`namespace "prod-*" { policy = "deny" }`, `namespace "prod-api" { policy = "read" }`}, "prod-api", CapReadJob, true},
		{[]string{`namespace "prod-*" { policy = "deny" }`, `namespace "*-api" { policy = "read" }`}, "prod-api", CapReadJob, false},
		{[]string{`namespace "prod" { policy = "read" }`}, "production", CapReadJob, false},
		{[]string{`namespace "a" { policy = "read" }`}, "*", CapReadJob, true},
		{[]string{`namespace "a" { policy = "read" }`}, "*", CapSubmitJob, false},
		{[]string{`namespace "a" { policy = "deny" }`}, "*", CapReadJob, false},
		{[]string{`namespace "a" { policy = "read" }`, `namespace "a" { policy = "deny" }`}, "*", CapReadJob, false},
	} {
		t.Run(fmt.Sprintf("%s in %s by %v", c.cap, c.ns, c.rules), func(t *testing.T) {
			if got := compile(t, c.rules...).AllowNamespaceOp(c.ns, c.cap); got != c.want {
				t.Errorf("%v: %s in %q: %v, want %v", c.rules, c.cap, c.ns, got, c.want)
			}
		})
	}
}

func TestCoarseRules(t *testing.T) {
	a := compile(t, `node { policy = "read" }`, `agent { policy = "write" }`, `operator { policy = "deny" }`, `operator { policy = "write" }`, `quota { policy = "read" }`)
	for what, got := range map[string]bool{
		"node read": a.AllowNode("read"), "agent write": a.AllowAgent("write"), "agent read": a.AllowAgent("read"),
		"quota read": a.AllowQuota("read"), "quota read of an operator": compile(t, `operator { policy = "read" }`).AllowQuota("read"),
		"queue write of an operator": compile(t, `operator { policy = "write" }`).AllowQueue("q", "write"),
	} {
		t.Run(what, func(t *testing.T) {
			if !got {
				t.Errorf("%s is refused", what)
			}
		})
	}
	for what, got := range map[string]bool{
		"node write": a.AllowNode("write"), "operator read": a.AllowOperator("read"), "quota write": a.AllowQuota("write"),
		"quota of an operator, denied": compile(t, `operator { policy = "write" }`, `quota { policy = "deny" }`).AllowQuota("read"),
		"queue of an operator, denied": compile(t, `operator { policy = "write" }`, `queue "q" { policy = "deny" }`).AllowQueue("q", "write"),
		"nothing":                      compile(t, `node { policy = "read" }`).AllowOperator("read"), "nil": (*ACL)(nil).AllowNode("read"), "unknown word": a.AllowNode("destroy"),
	} {
		t.Run(what, func(t *testing.T) {
			if got {
				t.Errorf("%s is allowed", what)
			}
		})
	}
}

func TestOtherRules(t *testing.T) {
	a := compile(t, `
node_pool "gpu-*" { policy = "read" }
node_pool "gpu-x" { policy = "deny" }
host_volume "data" { capabilities = ["mount-readonly"] }
queue "research/*" { policy = "submit" }
queue "research/secret" { policy = "deny" }
namespace "default" {
  variables {
    path "app/*" { capabilities = ["read"] }
    path "app/private" { capabilities = ["deny"] }
  }
}`)
	for what, pair := range map[string][2]bool{
		"pool read":       {a.AllowNodePool("gpu-a", "read"), true},
		"pool write":      {a.AllowNodePool("gpu-a", "write"), false},
		"pool deny":       {a.AllowNodePool("gpu-x", "read"), false},
		"volume ro":       {a.AllowHostVolume("data", "mount-readonly"), true},
		"volume rw":       {a.AllowHostVolume("data", "mount-readwrite"), false},
		"queue submit":    {a.AllowQueue("research/nlp", "submit"), true},
		"queue denied":    {a.AllowQueue("research/secret", "submit"), false},
		"queue unnamed":   {a.AllowQueue("other", "submit"), true},
		"queue write":     {a.AllowQueue("other", "write"), false},
		"var read":        {a.AllowVariable("default", "app/x", "read"), true},
		"var list":        {a.AllowVariable("default", "app/x", "list"), true},
		"var write":       {a.AllowVariable("default", "app/x", "write"), false},
		"var denied":      {a.AllowVariable("default", "app/private", "read"), false},
		"var elsewhere":   {a.AllowVariable("other", "app/x", "read"), false},
		"management":      {Management.AllowVariable("x", "y", "destroy") && Management.AllowNamespaceOp("*", CapSubmitJob) && Management.AllowQueue("q", "write"), true},
		"deny everything": {Deny.AllowNamespaceOp("*", CapListJobs) || Deny.AllowQueue("q", "write") || Deny.AllowNamespace("default"), false},
	} {
		t.Run(what, func(t *testing.T) {
			if pair[0] != pair[1] {
				t.Errorf("%s: %v, want %v", what, pair[0], pair[1])
			}
		})
	}
}

func TestJSONPolicy(t *testing.T) {
	a := compile(t, `{"namespace": {"default": {"policy": "read"}}, "node": {"policy": "read"}}`)
	if !a.AllowNamespaceOp("default", CapReadJob) || !a.AllowNode("read") || a.AllowNode("write") {
		t.Error("a policy in JSON compiled to something else")
	}
}

func TestBadPolicies(t *testing.T) {
	for name, rules := range map[string]string{
		"empty":           "",
		"blank":           " \n",
		"unknown block":   `cluster { policy = "read" }`,
		"unknown word":    `namespace "x" { policy = "admin" }`,
		"unknown cap":     `namespace "x" { capabilities = ["fly"] }`,
		"node word":       `node { policy = "list" }`,
		"node no policy":  `node { }`,
		"no label":        `namespace { policy = "read" }`,
		"empty label":     `namespace "" { policy = "read" }`,
		"pool cap":        `node_pool "x" { capabilities = ["fly"] }`,
		"plugin":          `plugin { policy = "read" }`,
		"no effect":       `namespace "x" { capabilities = ["csi-mount-volume"] }`,
		"var policy":      "namespace \"x\" {\n variables {\n path \"y\" {\n policy = \"read\"\n capabilities = [\"read\"]\n }\n }\n }",
		"queue cap":       `queue "x" { capabilities = ["mount-readonly"] }`,
		"volume level":    `host_volume "x" { policy = "submit" }`,
		"var cap":         "namespace \"x\" {\n variables {\n path \"y\" { capabilities = [\"fly\"] }\n }\n }",
		"not hcl":         `namespace "x" {`,
		"binary":          "\x00\x01\x02",
		"deep":            strings.Repeat("(", 20000),
		"deep blocks":     strings.Repeat("namespace \"x\" {", 500),
		"too long":        `namespace "x" { policy = "read" }` + strings.Repeat(" ", RulesMax),
		"wrong type":      `namespace "x" { policy = ["read"] }`,
		"twice the block": "node { policy = \"read\" }\nnode { policy = \"write\" }",
		"function":        `node { policy = upper("read") }`,
		"variable":        `node { policy = x }`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse("p", rules); structs.CodeOf(err) != structs.CodeInvalid {
				t.Errorf("%s: error %v, want one of code invalid", name, err)
			}
		})
	}
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		p, s string
		want bool
	}{
		{"*", "", true}, {"*", "x", true}, {"a*", "abc", true}, {"a*c", "abc", true}, {"a*c", "abd", false}, {"?b", "ab", true}, {"?", "", false},
		{"*a*b*", "xxaxxbxx", true}, {"*a*b*", "xxbxxaxx", false}, {"abc", "abc", true}, {"abc", "ab", false}, {strings.Repeat("*a", 50), strings.Repeat("a", 2000) + "b", false},
	} {
		t.Run(fmt.Sprintf("p=%q s=%q", c.p, c.s), func(t *testing.T) {
			if got := Match(c.p, c.s); got != c.want {
				t.Errorf("Match(%.20q, %.20q) = %v", c.p, c.s, got)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`namespace "x*" { policy = "read" capabilities = ["deny"] }`)
	f.Add(`{"node": {"policy": "read"}}`)
	f.Fuzz(func(t *testing.T, rules string) {
		p, err := Parse("f", rules)
		if err == nil {
			Compile([]*Policy{p}).AllowNamespaceOp("x", CapReadJob)
		}
	})
}

// TestUnknownWords: a misspelt word is answered with the one that is meant.
func TestUnknownWords(t *testing.T) {
	for rules, want := range map[string]string{
		`namespace "x" { policy = "reed" }`:                 `unknown policy "reed"; did you mean "read"? Want one of read, `,
		`namespace "x" { capabilities = ["submit-jobs"] }`:  `unknown capability "submit-jobs"; did you mean "submit-job"?`,
		`node { policy = "reed" }`:                          `unknown policy "reed"; did you mean "read"?`,
		`namespace "x" { policy = "something quite else" }`: `unknown policy "something quite else"; want one of read, `,
	} {
		if _, err := Parse("p", rules); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", rules, err, want)
		}
	}
}
