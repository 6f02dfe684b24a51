package jobspec

import (
	"bytes"
	"regexp"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// foreign are kinds of files that people give to a scheduler and that are no job files. The first that matches counts.
var foreign = []struct {
	sign        *regexp.Regexp
	what, write string
}{
	{regexp.MustCompile(`(?m)^#SBATCH\b`), "a batch script of Slurm", "This submits it, with its #SBATCH lines:\nmuster sbatch FILE"},
	{regexp.MustCompile(`(?m)^#(PBS|BSUB|\$) `), "a batch script of another scheduler", "Options in its comments are not read. Give them on the command line and run the script:\nmuster run -gpus 1 -- ./script.sh"},
	{regexp.MustCompile(`\A#!`), "a script", "Run it as a job:\nmuster run -gpus 1 -- ./script"},
	{regexp.MustCompile(`(?m)^apiVersion:`), "a Kubernetes manifest", "Job files are HCL or JSON. What a manifest calls a container is a task with driver = \"docker\" and its image in config; this writes an example:\nmuster job init"},
	{regexp.MustCompile(`(?m)^services:\s*$`), "a Compose file", "Job files are HCL or JSON. What Compose calls a service is a task with driver = \"docker\" and its image in config; this writes an example:\nmuster job init"},
	{regexp.MustCompile(`(?m)\A(\s*#.*\n|\s*\n)*(---\s*$|[A-Za-z_][\w-]*:(\s|$))`), "YAML", "Job files are HCL or JSON; this writes an example:\nmuster job init"},
	{regexp.MustCompile(`(?m)\A(\s*#.*\n|\s*\n)*FROM \S`), "a Dockerfile", "Build the image and run it as a job:\nmuster run -image IMAGE -- COMMAND"},
	{regexp.MustCompile(`(?m)^(import \w|from \w[\w.]* import )`), "a Python program", "Run it as a job:\nmuster run -gpus 1 -- python3 program.py"},
}

var jobBlock = regexp.MustCompile(`(?m)^\s*job\s+"`)

// recognize returns the one problem of a file that is no job file but something that is known; nil for others. Its parse
// errors would be about a language that its author did not write.
func (p *parser) recognize() *hcl.Diagnostic {
	src := bytes.TrimPrefix(p.src, []byte("\ufeff"))
	if jobBlock.Match(src) {
		return nil
	}
	for _, f := range foreign {
		if f.sign.Match(src) {
			return problem(nil, "Not a job file", "%s is %s. %s", p.filename, f.what, strings.ReplaceAll(f.write, "FILE", p.filename))
		}
	}
	return nil
}

var reference = regexp.MustCompile(`\A\$\{([^{}"\n]*)\}`)

// unquoted replaces what the parser says about a reference outside of a string, several errors about characters, by one
// error with the cure.
func (p *parser) unquoted(src []byte, diags hcl.Diagnostics) hcl.Diagnostics {
	lines := map[int]*hcl.Diagnostic{}
	for _, d := range diags {
		if d.Subject == nil || d.Subject.Start.Byte >= len(src) {
			continue
		}
		m := reference.FindSubmatch(src[d.Subject.Start.Byte:])
		if m == nil || lines[d.Subject.Start.Line] != nil {
			continue
		}
		r := *d.Subject
		r.End = r.Start
		r.End.Column += len(m[0])
		r.End.Byte += len(m[0])
		lines[r.Start.Line] = problem(&r, "Reference without quotes", "Write \"%s\", in quotes.", m[0])
	}
	if len(lines) == 0 {
		return diags
	}
	var out hcl.Diagnostics
	for _, d := range diags {
		if d.Subject == nil || lines[d.Subject.Start.Line] == nil {
			out = append(out, d)
		}
	}
	for _, d := range lines {
		out = append(out, d) // finish sorts them
	}
	return out
}
