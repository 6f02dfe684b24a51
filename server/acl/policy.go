// Package acl compiles policies in Nomad's policy language and answers what a caller may do. What no policy grants is
// denied; a denial wins over every grant; of several matching globs the most specific one counts.
package acl

import (
	"fmt"
	"sort"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	hcljson "github.com/hashicorp/hcl/v2/json"

	"github.com/muster-sched/muster/structs"
)

// Limits of a policy's text.
const (
	RulesMax   = 64 << 10 // bytes
	nestingMax = 32       // depth of nested brackets
)

// Namespace capabilities.
const (
	CapDeny             = "deny"
	CapVariableList     = "list" // for paths of variables, like the three below
	CapVariableRead     = "read"
	CapVariableWrite    = "write"
	CapVariableDestroy  = "destroy"
	CapListJobs         = "list-jobs"
	CapParseJob         = "parse-job"
	CapReadJob          = "read-job"
	CapSubmitJob        = "submit-job"
	CapPlanJob          = "plan-job"
	CapDispatchJob      = "dispatch-job"
	CapReadLogs         = "read-logs"
	CapReadFS           = "read-fs"
	CapAllocExec        = "alloc-exec"
	CapAllocNodeExec    = "alloc-node-exec"
	CapAllocLifecycle   = "alloc-lifecycle"
	CapSentinelOverride = "sentinel-override"
	CapReadJobScaling   = "read-job-scaling"
	CapScaleJob         = "scale-job"
	CapListScaling      = "list-scaling-policies"
	CapReadScaling      = "read-scaling-policy"
	CapSubmitRec        = "submit-recommendation"
	CapCSIRegister      = "csi-register-plugin"
	CapCSIWrite         = "csi-write-volume"
	CapCSIRead          = "csi-read-volume"
	CapCSIList          = "csi-list-volume"
	CapCSIMount         = "csi-mount-volume"
	CapHostVolCreate    = "host-volume-create"
	CapHostVolRegister  = "host-volume-register"
	CapHostVolRead      = "host-volume-read"
	CapHostVolWrite     = "host-volume-write"
	CapHostVolDelete    = "host-volume-delete"
)

// Capabilities of host volumes and queues.
const (
	CapMountReadOnly  = "mount-readonly"
	CapMountReadWrite = "mount-readwrite"
	CapQueueRead      = "read"
	CapQueueSubmit    = "submit"
	CapQueueWrite     = "write"
)

// Capabilities that the shorthands of a namespace rule stand for.
var (
	capsRead = []string{CapListJobs, CapParseJob, CapReadJob, CapCSIList, CapCSIRead, CapReadJobScaling, CapListScaling,
		CapReadScaling, CapHostVolRead}
	capsWrite = append(append([]string{}, capsRead...), CapScaleJob, CapSubmitJob, CapPlanJob, CapDispatchJob, CapReadLogs,
		CapReadFS, CapAllocExec, CapAllocLifecycle, CapCSIWrite, CapCSIMount, CapSubmitRec,
		CapHostVolCreate, CapHostVolRegister, CapHostVolWrite, CapHostVolDelete)
	capsScale = []string{CapListScaling, CapReadScaling, CapReadJobScaling, CapScaleJob}
)

// implied maps a capability to those that it includes.
var implied = map[string][]string{
	CapSubmitJob: {CapPlanJob},
}

var known = func() map[string]bool {
	m := map[string]bool{CapDeny: true, CapAllocNodeExec: true, CapSentinelOverride: true, CapCSIRegister: true}
	for _, c := range append(append([]string{}, capsWrite...), capsScale...) {
		m[c] = true
	}
	return m
}()

// Policy is a parsed policy.
type Policy struct {
	Namespaces  []NamespaceRule
	NodePools   []Rule
	HostVolumes []Rule
	Queues      []Rule
	Node        string // "", deny, read or write; like the next three
	Agent       string
	Operator    string
	Quota       string
	Plugin      string // "", deny, list or read
}

// NamespaceRule is a policy's rule for the namespaces that match a glob.
type NamespaceRule struct {
	Name         string
	Capabilities []string // sorted, with shorthands expanded
	Variables    []Rule   // by path glob
}

// Rule is a set of capabilities for names that match a glob.
type Rule struct {
	Name         string
	Capabilities []string // sorted
}

// HCL blocks of the policy language.
type (
	fileBlock struct {
		Namespaces  []namespaceBlock `hcl:"namespace,block"`
		NodePools   []ruleBlock      `hcl:"node_pool,block"`
		HostVolumes []ruleBlock      `hcl:"host_volume,block"`
		Queues      []ruleBlock      `hcl:"queue,block"`
		Node        *policyBlock     `hcl:"node,block"`
		Agent       *policyBlock     `hcl:"agent,block"`
		Operator    *policyBlock     `hcl:"operator,block"`
		Quota       *policyBlock     `hcl:"quota,block"`
		Plugin      *policyBlock     `hcl:"plugin,block"`
	}
	namespaceBlock struct {
		Name         string          `hcl:"name,label"`
		Policy       string          `hcl:"policy,optional"`
		Capabilities []string        `hcl:"capabilities,optional"`
		Variables    *variablesBlock `hcl:"variables,block"`
	}
	variablesBlock struct {
		Paths []ruleBlock `hcl:"path,block"`
	}
	ruleBlock struct {
		Name         string   `hcl:"name,label"`
		Policy       string   `hcl:"policy,optional"`
		Capabilities []string `hcl:"capabilities,optional"`
	}
	policyBlock struct {
		Policy string `hcl:"policy"`
	}
)

// Parse parses a policy. Its error is CodeInvalid and has line and column.
func Parse(name, rules string) (*Policy, error) {
	bad := func(format string, args ...any) error {
		return structs.Errorf(structs.CodeInvalid, "policy %q: "+format, append([]any{name}, args...)...)
	}
	if len(rules) > RulesMax {
		return nil, bad("%d bytes of rules are over the limit of %d", len(rules), RulesMax)
	}
	if strings.TrimSpace(rules) == "" {
		return nil, bad("no rules; a policy needs at least one block such as namespace \"default\" { policy = \"read\" }")
	}
	if depth := nesting(rules); depth > nestingMax {
		return nil, bad("brackets nest %d deep; the limit is %d", depth, nestingMax)
	}
	var f *hcl.File
	var diags hcl.Diagnostics
	if strings.HasPrefix(strings.TrimSpace(rules), "{") {
		f, diags = hcljson.Parse([]byte(rules), name+".json")
	} else {
		f, diags = hclsyntax.ParseConfig([]byte(rules), name+".hcl", hcl.InitialPos)
	}
	var fb fileBlock
	if !diags.HasErrors() {
		diags = gohcl.DecodeBody(f.Body, nil, &fb)
	}
	if diags.HasErrors() {
		return nil, bad("%s", diags.Error())
	}
	p := &Policy{}
	for _, b := range fb.Namespaces {
		caps, err := namespaceCaps(b.Policy, b.Capabilities)
		if err != nil {
			return nil, bad("namespace %q: %v", b.Name, err)
		}
		if err := checkGlob(b.Name); err != nil {
			return nil, bad("namespace: %v", err)
		}
		r := NamespaceRule{Name: b.Name, Capabilities: caps}
		if b.Variables != nil {
			for _, path := range b.Variables.Paths {
				for _, c := range path.Capabilities {
					switch c {
					case "deny", "list", "read", "write", "destroy":
					default:
						return nil, bad("namespace %q: variables path %q: unknown capability %q; want deny, list, read, write or destroy", b.Name, path.Name, c)
					}
				}
				if len(path.Capabilities) == 0 {
					return nil, bad("namespace %q: variables path %q grants nothing; set capabilities", b.Name, path.Name)
				}
				r.Variables = append(r.Variables, Rule{path.Name, variableCaps(path.Capabilities)})
			}
		}
		p.Namespaces = append(p.Namespaces, r)
	}
	var err error
	if p.NodePools, err = rulesOf("node_pool", fb.NodePools, map[string][]string{"read": {"read"}, "write": {"delete", "read", "write"}}, "read", "write", "delete"); err != nil {
		return nil, bad("%v", err)
	}
	if p.HostVolumes, err = rulesOf("host_volume", fb.HostVolumes, map[string][]string{"read": {"mount-readonly"}, "write": {"mount-readonly", "mount-readwrite"}}, "mount-readonly", "mount-readwrite"); err != nil {
		return nil, bad("%v", err)
	}
	if p.Queues, err = rulesOf("queue", fb.Queues, map[string][]string{"read": {"read"}, "submit": {"read", "submit"}, "write": {"read", "submit", "write"}}, "read", "submit", "write"); err != nil {
		return nil, bad("%v", err)
	}
	for _, x := range []struct {
		word string
		b    *policyBlock
		out  *string
		list bool
	}{{"node", fb.Node, &p.Node, false}, {"agent", fb.Agent, &p.Agent, false}, {"operator", fb.Operator, &p.Operator, false},
		{"quota", fb.Quota, &p.Quota, false}, {"plugin", fb.Plugin, &p.Plugin, true}} {
		if x.b == nil {
			continue
		}
		switch v := x.b.Policy; {
		case v == "deny" || v == "read" || (v == "write" && !x.list) || (v == "list" && x.list):
			*x.out = v
		default:
			return nil, bad("%s: unknown policy %q; want read, write or deny", x.word, v)
		}
	}
	return p, nil
}

// nesting returns the greatest depth of brackets. It also counts brackets in strings, because an upper bound is enough.
func nesting(s string) int {
	depth, most := 0, 0
	for i := range len(s) {
		switch s[i] {
		case '{', '[', '(':
			depth++
			most = max(most, depth)
		case '}', ']', ')':
			depth--
		}
	}
	return most
}

func checkGlob(name string) error {
	if name == "" || len(name) > 128 {
		return fmt.Errorf("a name or glob has 1 to 128 characters, %q has %d", name, len(name))
	}
	for _, r := range name {
		if r < 0x20 || r == 0x7f {
			return fmt.Errorf("%q holds a control character", name)
		}
	}
	return nil
}

func namespaceCaps(policy string, caps []string) ([]string, error) {
	var all []string
	switch policy {
	case "":
	case "deny":
		all = append(all, CapDeny)
	case "read":
		all = append(all, capsRead...)
	case "write":
		all = append(all, capsWrite...)
	case "scale":
		all = append(all, capsScale...)
	default:
		return nil, fmt.Errorf("unknown policy %q; want read, write, scale or deny", policy)
	}
	for _, c := range caps {
		if !known[c] {
			return nil, fmt.Errorf("unknown capability %q", c)
		}
		all = append(all, c)
		all = append(all, implied[c]...)
	}
	return unique(all), nil
}

func variableCaps(caps []string) []string {
	out := append([]string{}, caps...)
	for _, c := range caps {
		if c == "read" || c == "write" || c == "destroy" {
			out = append(out, "list")
		}
	}
	return unique(out)
}

func rulesOf(kind string, blocks []ruleBlock, words map[string][]string, caps ...string) ([]Rule, error) {
	var out []Rule
	for _, b := range blocks {
		if err := checkGlob(b.Name); err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		var all []string
		if b.Policy == "deny" {
			all = append(all, CapDeny)
		} else if b.Policy != "" {
			w, ok := words[b.Policy]
			if !ok {
				return nil, fmt.Errorf("%s %q: unknown policy %q; want one of %s", kind, b.Name, b.Policy, strings.Join(append(keys(words), "deny"), ", "))
			}
			all = append(all, w...)
		}
		for _, c := range b.Capabilities {
			if c != CapDeny && !contains(caps, c) {
				return nil, fmt.Errorf("%s %q: unknown capability %q; want one of %s", kind, b.Name, c, strings.Join(append(caps, CapDeny), ", "))
			}
			all = append(all, c)
		}
		out = append(out, Rule{b.Name, unique(all)})
	}
	return out, nil
}

func keys(m map[string][]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func unique(s []string) []string {
	sort.Strings(s)
	out := s[:0]
	for i, x := range s {
		if i == 0 || x != s[i-1] {
			out = append(out, x)
		}
	}
	return out
}
