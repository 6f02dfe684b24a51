package jobspec

import (
	"bytes"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// definitionsMax limits the locals of a file, and dynamicMax the blocks that its dynamic blocks make.
const (
	definitionsMax = 2_000
	dynamicMax     = 10_000
)

// ParseOptions configures the reading of a job file.
type ParseOptions struct {
	Vars     map[string]string // -var name=value; overrides all others
	VarFiles []VarFile         // the later one wins
	Env      []string          // "NAME=value"; NOMAD_VAR_x and MUSTER_VAR_x give variable x its value
	AllowFS  bool              // file functions work, relative to the file's directory; command line only
	SizeMax  int               // bytes; 0: SizeMaxCLI with AllowFS, else SizeMaxServer
}

// ParseHCL reads a job file: HCL2, the same as JSON, or the JSON of the API ({"Job": {...}} or a bare job). It neither
// fills in defaults nor validates the job (see wire.Prepare). On errors the job is nil, and the diagnostics hold all of
// them, each with its place in the file.
func ParseHCL(filename string, src []byte, opts ParseOptions) (*wire.Job, Diagnostics) {
	p := &parser{filename: filename, src: src, opts: opts, sources: map[string][]byte{filename: src}}
	p.ctx = &hcl.EvalContext{Variables: map[string]cty.Value{}, Functions: functions(filepath.Dir(filename), opts.AllowFS)}
	var job *wire.Job
	if trimmed := bytes.TrimLeft(src, " \t\r\n\ufeff"); len(trimmed) > 0 && trimmed[0] == '{' {
		job = p.json()
	} else if d := gate(filename, src, p.sizeMax()); d != nil {
		p.add(d)
	} else {
		job = p.native()
		if d := p.recognize(); d != nil && p.diags.HasErrors() {
			p.diags = hcl.Diagnostics{d}
		}
	}
	out := finish(p.diags, p.sources)
	if out.HasErrors() {
		return nil, out
	}
	return job, out
}

type parser struct {
	filename string
	src      []byte
	opts     ParseOptions
	sources  map[string][]byte // sources of the lines that diagnostics quote
	ctx      *hcl.EvalContext
	diags    hcl.Diagnostics
	expanded int // number of blocks made by dynamic ones
}

func (p *parser) sizeMax() int {
	switch {
	case p.opts.SizeMax > 0:
		return p.opts.SizeMax
	case p.opts.AllowFS:
		return SizeMaxCLI
	}
	return SizeMaxServer
}

func (p *parser) add(ds ...*hcl.Diagnostic) {
	for _, d := range ds {
		if len(p.diags) < 10*diagnosticsMax {
			p.diags = append(p.diags, d)
		}
	}
}

func (p *parser) native() *wire.Job {
	src := bytes.TrimPrefix(p.src, []byte("\ufeff"))
	file, diags := hclsyntax.ParseConfig(src, p.filename, hcl.InitialPos)
	p.add(p.unquoted(src, diags)...)
	if diags.HasErrors() {
		return nil
	}
	body := file.Body.(*hclsyntax.Body)
	p.keepRuntime(body)
	var vars, locals, jobs []*hclsyntax.Block
	var strays []*hcl.Diagnostic
	outside := false // blocks of a job stand outside of one
	known := []string{"job", "variable", "locals"}
	for _, a := range sorted(body.Attributes) {
		strays = append(strays, problem(&a.NameRange, "Unsupported argument", "At the top of a job file stand the blocks job, variable and locals, not %q.", a.Name))
	}
	for _, b := range body.Blocks {
		switch b.Type {
		case "variable":
			vars = append(vars, b)
		case "variables": // the older spelling, a list of defaults
			for _, a := range sorted(b.Body.Attributes) {
				vars = append(vars, &hclsyntax.Block{Type: "variable", Labels: []string{a.Name}, LabelRanges: []hcl.Range{a.NameRange}, TypeRange: a.NameRange,
					Body: &hclsyntax.Body{Attributes: hclsyntax.Attributes{"default": {Name: "default", Expr: a.Expr, NameRange: a.NameRange}}}})
			}
		case "locals":
			locals = append(locals, b)
		case "job":
			jobs = append(jobs, b)
		default:
			detail := hint(b.Type, known)
			if slices.Contains(insideJob, b.Type) {
				if detail = "; it belongs into a block job \"name\" { ... }"; outside {
					continue // as the one before
				}
				outside = true
			}
			strays = append(strays, problem(&b.TypeRange, "Unsupported block", "A job file has no block %q%s", b.Type, detail))
		}
	}
	p.add(strays...)
	p.variables(vars)
	p.locals(locals)
	switch {
	case len(jobs) == 0 && len(strays) > 0: // what should be in a job, or a misspelt one, is the cause
		return nil
	case len(jobs) == 0:
		p.add(problem(nil, "No job", "%s holds no job block. Write: job \"name\" { ... }", p.filename))
		return nil
	case len(jobs) > 1:
		p.add(problem(jobs[1].DefRange().Ptr(), "Two jobs", "A file holds exactly one job; another is at %s.", jobs[0].DefRange()))
	}
	b := jobs[0]
	job := &wire.Job{}
	switch len(b.Labels) {
	case 1:
		job.ID = &b.Labels[0]
		job.Name = ptr(b.Labels[0])
	case 0:
		p.add(problem(b.DefRange().Ptr(), "Job without a name", "Write: job \"name\" { ... }"))
	default:
		p.add(problem(&b.LabelRanges[1], "Too many labels", "A job has one label, its id."))
	}
	p.body(b.Body, p.ctx, reflect.ValueOf(job).Elem())
	return job
}

// insideJob holds the blocks that people write without the job around them.
var insideJob = []string{"group", "task", "constraint", "update", "resources", "config", "service", "network"}

// Blocks that a job or group may hold for all its tasks, and (in a job) tasks without a group.
type (
	jobExtras struct {
		Tasks   []*wire.Task   `hcl:"task"`
		Vault   *wire.Vault    `hcl:"vault"`
		Secrets []*wire.Secret `hcl:"secret"`
	}
	groupExtras struct {
		Vault   *wire.Vault    `hcl:"vault"`
		Secrets []*wire.Secret `hcl:"secret"`
	}
)

func (x *jobExtras) apply(j *wire.Job) {
	for _, t := range x.Tasks {
		j.TaskGroups = append(j.TaskGroups, &wire.TaskGroup{Name: ptr(t.Name), Tasks: []*wire.Task{t}})
	}
	for _, g := range j.TaskGroups {
		(&groupExtras{x.Vault, x.Secrets}).apply(g)
	}
}

func (x *groupExtras) apply(g *wire.TaskGroup) {
	for _, t := range g.Tasks {
		if t.Vault == nil && x.Vault != nil {
			v := *x.Vault
			t.Vault = &v
		}
		t.Secrets = append(t.Secrets, x.Secrets...)
	}
}

func ptr[T any](v T) *T { return &v }
