package lint

import (
	"go/ast"
	"go/constant"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

type number struct{ page, sentence, constant, unit string }

// numbers are the defaults and limits that pages written by hand state, each with the constant that has it: in a sentence {} stands for the
// value, in the unit. Generated pages (docs/reference/agent.md, metrics.md, cli) need no rows, and what was measured has the command that
// measures it on its page.
var numbers = []number{
	{"docs/operate/queues.md", "(`reserve_depth` jobs of a queue at a time); {}.", "scheduler/contend.maxWaitDefault", "h"},
	{"docs/operate/queues.md", "under any rule of those that have waited for `max_wait`; {} |", "scheduler/contend.reserveDepthDefault", ""},
	{"docs/operate/queues.md", "`weighted-fair` forgets nothing; 7 days ({}) |", "structs.HalfLifeDefault", "h"},
	{"docs/operate/queues.md", "waiting that raises the priority by one, under `priority`; {} |", "scheduler/contend.agingDefault", "m"},
	{"docs/operate/queues.md", "where it gains more than it loses](../reference/job-language.md#gangs); {} |", "scheduler/contend.minRuntimeDefault", "m"},
	{"docs/operate/queues.md", "after which it is left alone, under every `preempt` rule; {} |", "scheduler/contend.preemptMaxDefault", ""},
	{"docs/operate/queues.md", "Where only the operator's switch for a kind of job allows preemption: {} |", "scheduler/contend.preemptDelta", ""},
	{"docs/operate/queues.md", "else of the servers (`job_default_priority`, {})", "structs.JobPriorityDefault", ""},
	{"docs/operate/queues.md", "The cluster keeps {} rows", "structs.DecisionsKept", ""},
	{"docs/operate/identities.md", "Tokens are valid for `ttl`, {} minute to", "structs.IdentityTTLMin", "minutes"},
	{"docs/operate/identities.md", "1 minute to {} days", "structs.IdentityTTLMax", "days"},
	{"docs/operate/identities.md", "7 days, by default {} hours", "structs.IdentityTTLDefault", "hours"},
	{"docs/operate/identities.md", "stay valid until they expire, at most {} days", "structs.IdentityTTLMax", "days"},
	{"docs/operate/lost-nodes.md", "if the agent has not returned {} s after its last heartbeat (`server.restart_grace`)", "server/nodes.RestartGraceDefault", "seconds"},
	{"docs/operate/lost-nodes.md", "`ready`; `down` {} s after its last heartbeat (`server.restart_grace`)", "server/nodes.RestartGraceDefault", "seconds"},
	{"docs/operate/lost-nodes.md", "lost at once {} a second are probed", "server/nodes.probeRateMax", ""},
	{"docs/operate/lost-nodes.md", "A server with more than {} agents pings", "server/nodes.pingRateMax", ""},
	{"docs/operate/lost-nodes.md", "if the region has at most {} nodes (`server.gossip_nodes`)", "server/member.GossipNodesDefault", ""},
	{"docs/operate/sizing.md", "lost machines are noticed in seconds, up to {} nodes a region", "server/member.GossipNodesDefault", ""},
	{"docs/operate/sizing.md", "Elections begin after {} ms of silence", "server/replica.QuietDefault", "milliseconds"},
	{"docs/operate/security.md", "writes are charged by what they make, {} allocations at once", "structs.JobCountMax", ""},
	{"docs/operate/security.md", "allocations at once and {} a second", "structs.AllocRateDefault", ""},
	{"docs/operate/services.md", "letters, digits and hyphens, at most {};", "structs.ServiceNameMax", ""},
	{"docs/reference/files.md", "A template has at most {} KiB", "client/template.SourceMax", "KiB"},
	{"docs/reference/files.md", "look up at most {} names, services included", "client/runner.lookupsMax", ""},
	{"docs/reference/job-language.md", "to save its state when it is told to, {} s unless it says so", "structs.CheckpointGrace", "seconds"},
	{"docs/reference/job-language.md", "up to {} like tasks", "structs.ArrayCountMax", ""},
	{"docs/reference/http-api.md", "A page has at most {} objects", "internal/methods.PageMax", ""},
	{"docs/reference/http-api.md", "The API measures at most {} nodes", "nomadlike.TopNodesMax", ""},
	{"docs/reference/http-api.md", "64 nodes and {} allocations for one answer", "nomadlike.TopAllocsMax", ""},
	{"docs/operate/raft-log.md", "files of {} MiB that are appended to", "server/raftlog.SegmentBytes", "MiB"},
	{"docs/operate/troubleshooting.md", "and for {} s (`-duration`) its log", "cmd/muster.debugDuration", "seconds"},
	{"docs/operate/troubleshooting.md", "its metrics every {} s (`-interval`)", "cmd/muster.debugInterval", "seconds"},
	{"docs/gpu.md", "it is written down every {} seconds", "client/gpuwatch.keepEvery", "seconds"},
	{"docs/reference/files.md", "becomes at most {} MiB", "client/template.ResultMax", "MiB"},
	{"docs/how-to/sweeps.md", "A sweep of {} is one record", "structs.ArrayCountMax", ""},
	{"CHANGELOG.md", "arrays of up to {} tasks", "structs.ArrayCountMax", ""},
	{"CHANGELOG.md", "sends the directory along, up to {} MiB packed", "structs.BundleMax", "MiB"},
	{"CHANGELOG.md", "in regions of up to {} nodes", "server/member.GossipNodesDefault", ""},
	{"CHANGELOG.md", "is replaced only after {} s (`server.restart_grace`)", "server/nodes.RestartGraceDefault", "seconds"},
}

// limit is how pages state a default or limit.
var limit = regexp.MustCompile(`\b(?:by default|at most|up to|no more than) (?:about )?[0-9][0-9,]*`)

// unbound is how many defaults and limits on pages written by hand have no row, because no constant of the code has them: they were
// measured, follow from several, or are Nomad's. It may only fall.
const unbound = 10

// TestLimitsOnPagesHaveRows counts what pages state and no row of numbers covers.
func TestLimitsOnPagesHaveRows(t *testing.T) {
	var pages, left []string
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/how-to/*.md", "docs/operate/*.md", "docs/tutorial/*.md", "docs/reference/*.md"} {
		list, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, list...)
	}
	for _, path := range pages {
		name, _ := filepath.Rel(root, path)
		name = filepath.ToSlash(name)
		if name == "docs/reference/agent.md" || name == "docs/reference/metrics.md" || name == "docs/reference/job-support.md" {
			continue // generated
		}
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range limit.FindAllStringIndex(string(page), -1) {
			covered := slices.ContainsFunc(numbers, func(n number) bool {
				before, _, _ := strings.Cut(n.sentence, "{}")
				i := strings.Index(string(page), before)
				return n.page == name && i >= 0 && i < at[1] && i+len(before) >= at[0]
			})
			if !covered {
				left = append(left, name+": "+string(page[at[0]:at[1]]))
			}
		}
	}
	if len(left) != unbound {
		t.Errorf("%d defaults and limits on pages have no row in numbers; %d were known. Add a row with the constant, or, for fewer, lower unbound:\n%s",
			len(left), unbound, strings.Join(left, "\n"))
	}
}

// TestNumbersOnPages compares what pages say of defaults and limits with the constants of the code.
func TestNumbersOnPages(t *testing.T) {
	exprs := map[string]ast.Expr{} // by directory and name
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		for _, d := range s.file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, spec := range g.Specs {
				v := spec.(*ast.ValueSpec)
				for i, name := range v.Names {
					if i < len(v.Values) {
						exprs[s.dir+"."+name.Name] = v.Values[i]
					}
				}
			}
		}
	}
	for _, n := range numbers {
		page, err := os.ReadFile(filepath.Join(root, n.page))
		if err != nil {
			t.Fatal(err)
		}
		dir, _, _ := strings.Cut(n.constant, ".")
		e := exprs[n.constant]
		if e == nil {
			t.Errorf("%s: there is no constant %s", n.page, n.constant)
			continue
		}
		v, ok := constant.Int64Val(constant.ToInt(valueOf(e, dir, exprs)))
		if !ok {
			t.Errorf("%s: the value of %s is not known", n.page, n.constant)
			continue
		}
		if want := strings.Replace(n.sentence, "{}", written(v, n.unit), 1); !strings.Contains(string(page), want) {
			t.Errorf("%s does not say %q, as %s has it (internal/lint/numbers_test.go)", n.page, want, n.constant)
		}
	}
}

// units are the divisors of what pages write; those without a name in it ("h") are written behind the number.
var units = map[string]int64{"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "milliseconds": int64(time.Millisecond), "seconds": int64(time.Second), "minutes": int64(time.Minute),
	"hours": int64(time.Hour), "days": 24 * int64(time.Hour), "m": int64(time.Minute), "h": int64(time.Hour)}

// written formats a value as pages do: thousands with a comma.
func written(v int64, unit string) string {
	v /= units[unit]
	s := strconv.FormatInt(v, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if len(unit) == 1 {
		s += unit
	}
	return s
}

// valueOf evaluates a constant expression of the package in dir: numbers, durations and other constants of the package.
func valueOf(e ast.Expr, dir string, exprs map[string]ast.Expr) constant.Value {
	switch e := e.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(e.Value, e.Kind, 0)
	case *ast.ParenExpr:
		return valueOf(e.X, dir, exprs)
	case *ast.Ident:
		if x := exprs[dir+"."+e.Name]; x != nil {
			return valueOf(x, dir, exprs)
		}
	case *ast.SelectorExpr:
		if d, ok := map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}[e.Sel.Name]; ok {
			return constant.MakeInt64(int64(d))
		}
	case *ast.BinaryExpr:
		x, y := valueOf(e.X, dir, exprs), valueOf(e.Y, dir, exprs)
		if x.Kind() == constant.Unknown || y.Kind() == constant.Unknown {
			return constant.MakeUnknown()
		}
		if n, ok := constant.Uint64Val(y); ok && e.Op == token.SHL {
			return constant.Shift(x, e.Op, uint(n))
		}
		return constant.BinaryOp(x, e.Op, y)
	}
	return constant.MakeUnknown()
}
