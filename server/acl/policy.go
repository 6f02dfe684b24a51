// Package acl compiles policies in Nomad's policy language and answers what a caller may do. What no policy grants is
// denied; a denial wins over every grant; of several matching globs the most specific one counts.
package acl

import (
	"fmt"
	"slices"
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
}

// NamespaceRule is a policy's rule for the namespaces that match a glob.
type NamespaceRule struct {
	Name         string
	Capabilities []string // sorted, with what they include
	Variables    []Rule   // by path glob
}

// Rule is a set of capabilities for names that match a glob.
type Rule struct {
	Name         string
	Capabilities []string // sorted, with what they include
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
		Paths []pathBlock `hcl:"path,block"`
	}
	pathBlock struct {
		Name         string   `hcl:"name,label"`
		Capabilities []string `hcl:"capabilities"`
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
	var err error
	if p.Namespaces, err = namespaceRules(fb.Namespaces); err != nil {
		return nil, bad("%v", err)
	}
	for _, x := range []struct {
		rule   string
		blocks []ruleBlock
		out    *[]Rule
	}{{"node_pool", fb.NodePools, &p.NodePools}, {"host_volume", fb.HostVolumes, &p.HostVolumes}, {"queue", fb.Queues, &p.Queues}} {
		for _, b := range x.blocks {
			r, err := newRule(x.rule, b.Name, b.Policy, b.Capabilities)
			if err != nil {
				return nil, bad("%v", err)
			}
			*x.out = append(*x.out, r)
		}
	}
	for _, x := range []struct {
		rule  string
		block *policyBlock
		out   *string
	}{{"node", fb.Node, &p.Node}, {"agent", fb.Agent, &p.Agent}, {"operator", fb.Operator, &p.Operator}, {"quota", fb.Quota, &p.Quota}} {
		if x.block == nil {
			continue
		}
		if lookup(x.rule, x.block.Policy, true) == nil {
			return nil, bad("%s: unknown policy %q%s", x.rule, x.block.Policy, oneOf(x.block.Policy, wordsOf(x.rule, true)))
		}
		*x.out = x.block.Policy
	}
	if fb.Plugin != nil {
		return nil, bad("plugin: the block would have no effect: %s; remove it", noPlugins)
	}
	return p, nil
}

func namespaceRules(blocks []namespaceBlock) ([]NamespaceRule, error) {
	var out []NamespaceRule
	for _, b := range blocks {
		r, err := newRule("namespace", b.Name, b.Policy, b.Capabilities)
		if err != nil {
			return nil, err
		}
		ns := NamespaceRule{Name: b.Name, Capabilities: r.Capabilities}
		if b.Variables != nil {
			for _, path := range b.Variables.Paths {
				if len(path.Capabilities) == 0 {
					return nil, fmt.Errorf("namespace %q: variables path %q grants nothing; set capabilities", b.Name, path.Name)
				}
				v, err := newRule("variables", path.Name, "", path.Capabilities)
				if err != nil {
					return nil, fmt.Errorf("namespace %q: %w", b.Name, err)
				}
				ns.Variables = append(ns.Variables, v)
			}
		}
		out = append(out, ns)
	}
	return out, nil
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

// newRule expands the words of one rule into its capabilities. level is "" if the rule has none.
func newRule(rule, name, level string, capabilities []string) (Rule, error) {
	fail := func(format string, args ...any) (Rule, error) {
		return Rule{}, fmt.Errorf("%s %q: "+format, append([]any{rule, name}, args...)...)
	}
	if err := checkGlob(name); err != nil {
		return Rule{}, fmt.Errorf("%s: %w", rule, err)
	}
	var all []string
	if level != "" {
		w := lookup(rule, level, true)
		if w == nil {
			return fail("unknown policy %q%s", level, oneOf(level, wordsOf(rule, true)))
		}
		all = append(all, w.Includes...)
	}
	for _, c := range capabilities {
		w := lookup(rule, c, false)
		switch why, known := withoutEffect[c]; {
		case w != nil:
			all = append(append(all, c), w.Includes...)
		case known && rule == "namespace":
			return fail("capability %q would have no effect: %s; remove it", c, why)
		default:
			return fail("unknown capability %q%s", c, oneOf(c, wordsOf(rule, false)))
		}
	}
	slices.Sort(all)
	return Rule{name, slices.Compact(all)}, nil
}
