package main

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"github.com/muster-sched/muster/client/taskenv"
	"github.com/muster-sched/muster/nomadlike/jobspec"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// block is one block of a job file. Zero values are left out: a job file says what differs from the defaults.
type block struct{ *hclwrite.Body }

func (b block) block(typ string, labels ...string) block {
	if len(b.Attributes())+len(b.Blocks()) > 0 {
		b.AppendNewline()
	}
	return block{b.AppendNewBlock(typ, labels).Body()}
}

func (b block) text(key, v string) {
	if v != "" {
		b.SetAttributeValue(key, cty.StringVal(v))
	}
}

// template writes text whose references, as ${NOMAD_TASK_DIR}, are replaced on the node.
func (b block) template(key, v string) {
	b.SetAttributeRaw(key, hclwrite.Tokens{{Type: hclsyntax.TokenOQuote, Bytes: []byte(`"`)}, {Type: hclsyntax.TokenQuotedLit, Bytes: []byte(v)}, {Type: hclsyntax.TokenCQuote, Bytes: []byte(`"`)}})
}

func (b block) number(key string, v int) {
	if v != 0 {
		b.SetAttributeValue(key, cty.NumberIntVal(int64(v)))
	}
}

func (b block) texts(key string, list []string) {
	if len(list) == 0 {
		return
	}
	vs := make([]cty.Value, len(list))
	for i, s := range list {
		vs[i] = cty.StringVal(s)
	}
	b.SetAttributeValue(key, cty.TupleVal(vs))
}

// job returns the job file of a command, as a user would keep it, and the job in it.
func (o *adhoc) job(words []string) (string, *wire.Job, error) {
	src, err := o.file(words)
	if err != nil {
		return "", nil, err
	}
	job, diags := jobspec.ParseHCL(o.name, src, jobspec.ParseOptions{SizeMax: jobFileMax})
	if job == nil {
		return "", nil, fmt.Errorf("the command makes no job: %s", diags)
	}
	if o.namespace != "" {
		job.Namespace = &o.namespace
	}
	return string(src), job, nil
}

func (o *adhoc) file(words []string) ([]byte, error) {
	f := hclwrite.NewEmptyFile()
	j := block{f.Body()}.block("job", o.name)
	j.text("name", o.title)
	j.text("type", "batch")
	j.text("queue", o.queue)
	j.text("node_pool", o.pool)
	if n, err := strconv.Atoi(o.priority); err == nil {
		j.number("priority", n)
	} else {
		j.text("priority", o.priority)
	}
	if o.preemptible {
		j.SetAttributeValue("preemptible", cty.True)
	}
	begin, err := beginAt(o.begin, o.now())
	if err != nil {
		return nil, err
	}
	j.text("begin", begin)
	if o.limit > 0 {
		j.block("runtime").text("limit", strings.Replace(strings.Replace(o.limit.String(), "m0s", "m", 1), "h0m", "h", 1))
	}
	if o.requeue > 0 {
		j.block("requeue").number("max", o.requeue)
	}
	if err := o.dependencies(j); err != nil {
		return nil, err
	}
	if o.tasks, err = o.indices(j); err != nil {
		return nil, err
	}
	g := j.block("group", "run")
	gang := o.nodes > 1 || o.batch != nil && o.array == ""
	if gang {
		g.number("count", o.nodes)
		g.block("gang")
	}
	if o.nodes > 1 {
		g.block("constraint").text("operator", structs.OperandDistinctHosts) // distinct nodes, not only places
	}
	launch := g.block("launch")
	if launch.text("mode", "node"); o.ranks > 0 {
		if o.batch == nil {
			launch.text("mode", "rank")
		}
		launch.number("ranks", o.ranks)
	}
	if o.batch != nil && gang {
		launch.texts("compat", []string{"slurm", "mpi"})
	}
	for _, name := range []string{"restart", "reschedule"} { // a command runs once
		b := g.block(name)
		b.SetAttributeValue("attempts", cty.NumberIntVal(0))
		if name == "restart" {
			b.text("mode", "fail")
		} else {
			b.SetAttributeValue("unlimited", cty.False)
		}
	}
	if o.diskMiB > 0 {
		g.block("ephemeral_disk").number("size", o.diskMiB)
	}
	err = o.task(g.block("task", "main"), words)
	return f.Bytes(), err
}

// task writes the command, its place and what it needs.
func (o *adhoc) task(t block, words []string) error {
	words = slices.Clone(words)
	for i := range words {
		words[i] = taskenv.Verbatim(words[i]) // text between ${ and } belongs to the command itself
	}
	t.text("driver", o.driver)
	if err := o.person(t); err != nil {
		return err
	}
	c := t.block("config")
	c.text("image", o.image)
	c.text("command", words[0])
	c.texts("args", words[1:])
	if o.bundle != nil {
		a := t.block("artifact")
		a.text("source", structs.BundleSource(o.bundle.sum))
		a.text("destination", "local/"+o.bundle.name())
	}
	if o.batch != nil {
		o.batch.templates(t)
	}
	env, err := o.environment()
	if err != nil {
		return err
	}
	if len(env) > 0 {
		e := t.block("env")
		for _, name := range sortedKeys(env) {
			e.SetAttributeValue(name, cty.StringVal(taskenv.Verbatim(env[name])))
		}
	}
	r := t.block("resources")
	if r.number("cores", o.cores); o.cores == 0 {
		r.number("cpu", o.cpu)
	}
	r.number("memory", o.memory)
	r.number("shm", o.shm)
	if o.rdma {
		r.SetAttributeValue("rdma", cty.True)
	}
	if o.gpu.count > 0 {
		b := r.block("gpu")
		b.number("count", o.gpu.count)
		b.text("model", o.gpu.model)
	}
	if len(o.ulimits) > 0 {
		limits := map[string]cty.Value{}
		for _, l := range o.ulimits {
			name, value, ok := strings.Cut(l, "=")
			if !ok {
				return fmt.Errorf("-ulimit %q: want NAME=LIMIT, as memlock=unlimited", l)
			}
			limits[name] = cty.StringVal(value)
		}
		r.SetAttributeValue("ulimits", cty.ObjectVal(limits))
	}
	return nil
}

// check checks the flags and reads those that have a grammar of their own.
func (o *adhoc) check() (err error) {
	if o.nodes < 1 || o.ranks < 0 || o.limit < 0 || o.shm < 0 || o.cpu < 0 || o.cores < 0 || o.requeue < 0 {
		return errors.New("-nodes wants 1 or more; -ranks, -time, -shm, -cpu, -cores and -requeue want nothing negative")
	}
	if o.name == "" {
		o.name = "run-" + strconv.FormatInt(o.now().UnixNano(), 36)
	}
	if o.cpu > 0 && o.cores > 0 {
		return errors.New("-cpu and -cores exclude each other: whole cores, or a part of the processor in MHz")
	}
	if o.priority != "" {
		if _, err := priorityOf(o.priority); err != nil {
			return fmt.Errorf("-priority %w", err)
		}
	}
	if o.memory, err = parseMiB("-mem", o.mem); err != nil {
		return err
	}
	if o.diskMiB, err = parseMiB("-disk", o.disk); err != nil {
		return err
	}
	if o.image != "" && o.driver != "" && o.driver != structs.DockerDriver {
		return fmt.Errorf("-image wants the driver docker, not %s", o.driver)
	}
	if o.nodes > 1 && o.array != "" {
		return errors.New("-array and -nodes exclude each other: each index of an array runs on one node")
	}
	o.gpu, err = parseGPUs(o.gpus)
	return err
}

// gpuAsk is a number of GPUs on each node, and their model or "".
type gpuAsk struct {
	count int
	model string
}

var gpuTimes = regexp.MustCompile(`^(?:([0-9]+)[xX](.+)|(.+)[xX]([0-9]+))$`)

// parseGPUs reads 8, H100, H100:8, and 8xH100, which is how the agent's -dev-gpus is written.
func parseGPUs(s string) (ask gpuAsk, err error) {
	if s == "" {
		return ask, nil
	}
	parts := strings.Split(s, ":")
	if m := gpuTimes.FindStringSubmatch(s); m != nil {
		parts = []string{m[1] + m[4], m[2] + m[3]}
	}
	for _, part := range parts {
		if n, err := strconv.Atoi(part); err == nil && n > 0 && ask.count == 0 {
			ask.count = n
		} else if err == nil || ask.model != "" || part == "" {
			return ask, fmt.Errorf("-gpus %q: want a number, a model, or both, as H100:8", s)
		} else {
			ask.model = part
		}
	}
	ask.count = max(ask.count, 1)
	return ask, nil
}

// parseMiB reads an amount of memory or disk: MiB, or with a unit. 0 is "", not given.
func parseMiB(flag, s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	digits := strings.TrimRight(strings.ToUpper(s), "KMGTIB ")
	n, err := strconv.ParseFloat(digits, 64)
	factor, ok := map[string]float64{"": 1, "M": 1, "G": 1 << 10, "T": 1 << 20}[strings.TrimSuffix(strings.TrimSuffix(strings.TrimSpace(strings.ToUpper(s)[len(digits):]), "B"), "I")]
	if err != nil || !ok || n*factor < 1 || n*factor > 1<<40 {
		return 0, fmt.Errorf("%s %q: want MiB, or a unit: 512M, 64G, 1.5T", flag, s)
	}
	return int(n * factor), nil
}

// beginAt reads a time: RFC 3339, a time of day, or a duration from now. The answer is RFC 3339, or "".
func beginAt(s string, now time.Time) (string, error) {
	if s == "" {
		return "", nil
	}
	if d, err := time.ParseDuration(strings.TrimPrefix(strings.TrimPrefix(s, "now"), "+")); err == nil && d > 0 {
		return now.Add(d).UTC().Truncate(time.Second).Format(time.RFC3339), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04"} {
		if at, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return at.UTC().Format(time.RFC3339), nil
		}
	}
	if at, err := time.ParseInLocation("15:04", s, now.Location()); err == nil {
		at = time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), 0, 0, now.Location())
		if !at.After(now) {
			at = at.AddDate(0, 0, 1)
		}
		return at.UTC().Format(time.RFC3339), nil
	}
	return "", fmt.Errorf("-begin %q: want a time such as 2026-12-01T08:00, 08:00 (its next time), or 2h from now", s)
}

// dependencies writes what the job waits for: JOB or JOB:WHEN, with commas between them.
func (o *adhoc) dependencies(j block) error {
	if o.depends == "" {
		return nil
	}
	for d := range strings.SplitSeq(o.depends, ",") {
		name, when, _ := strings.Cut(d, ":")
		switch when {
		case "", structs.WhenSuccess, structs.WhenFailed, structs.WhenCompleted, structs.WhenStarted, structs.WhenCheckpointed:
		default:
			name = ""
		}
		if name == "" {
			return fmt.Errorf("-depends %q: want JOB or JOB:WHEN with commas between them; WHEN is success, failed, completed, started or checkpointed", o.depends)
		}
		j.block("depends_on", name).text("when", when)
	}
	return nil
}

var arrayText = regexp.MustCompile(`^(?:0-([0-9]{1,6})|([0-9]{1,6}))(?:%([0-9]{1,6}))?$`)

// indices writes the array, and returns how many allocations the job has.
func (o *adhoc) indices(j block) (int, error) {
	if o.array == "" {
		return o.nodes, nil
	}
	m := arrayText.FindStringSubmatch(o.array)
	if m == nil {
		return 0, fmt.Errorf("-array %q: want how many, as 100 or 0-99, and after %% how many at a time, as 0-99%%4; indices begin at 0", o.array)
	}
	n, _ := strconv.Atoi(m[2])
	if m[1] != "" {
		n, _ = strconv.Atoi(m[1])
		n++
	}
	if n == 0 {
		return 0, fmt.Errorf("-array %q: want at least one index", o.array)
	}
	atOnce, _ := strconv.Atoi(m[3])
	if m[3] != "" && atOnce == 0 {
		return 0, fmt.Errorf("-array %q: with 0 at a time nothing would ever run; give 1 or more after %%, or leave it out for all at once", o.array)
	}
	a := j.block("array")
	a.number("count", n)
	a.number("concurrency", atOnce)
	return n, nil
}

// travels are the variables that a command needs to find the caller's programs on the node.
func travels(name string) bool {
	return name == "PATH" || name == "VIRTUAL_ENV" || strings.HasPrefix(name, "CONDA_")
}

var (
	envName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	secretName = regexp.MustCompile(`(?i)secret|passw|passphrase|credential|apikey|(^|_)tokens?($|_)|(^|_)(key|pat)$`)
)

// environment returns the variables of the task: those of travels, unless a container has its own programs, and those
// that the caller names.
func (o *adhoc) environment() (map[string]string, error) {
	env := map[string]string{}
	if o.image == "" && !o.noEnv && runtime.GOOS == "linux" { // elsewhere programs have other paths than on the nodes
		for _, kv := range os.Environ() {
			if name, value, _ := strings.Cut(kv, "="); travels(name) && value != "" && !secretName.MatchString(name) {
				env[name] = value
			}
		}
	}
	for _, kv := range o.vars {
		name, value, given := strings.Cut(kv, "=")
		if !envName.MatchString(name) {
			return nil, fmt.Errorf("-env %q: want NAME, or NAME=VALUE; a name has letters, digits and _", kv)
		}
		if secretName.MatchString(name) {
			return nil, fmt.Errorf(`-env %s: the name looks like a secret, and everyone who may read a job can read its environment.
Keep it in a variable, and let a template of the job file (muster run -output prints one) read it:

  muster var put nomad/jobs/%s %s=@FILE

  template {
    destination = "secrets/env"
    env         = true
    data        = "%s={{ with nomadVar \"nomad/jobs/%s\" }}{{ .%s }}{{ end }}"
  }`, name, o.name, name, name, o.name, name)
		}
		if !given {
			if value, given = os.LookupEnv(name); !given {
				return nil, fmt.Errorf("-env %s: it is not set here; give a value as %s=VALUE", name, name)
			}
		}
		env[name] = value
	}
	return env, nil
}

// person writes the user, directory, umask and log of the task.
func (o *adhoc) person(t block) error {
	u, mask := o.user, o.umask
	if o.asMe {
		if u == "" {
			me, err := user.Current()
			if err != nil {
				return fmt.Errorf("-as-me: %w", err)
			}
			u = me.Username
		}
		if mask == "" {
			mask = umask()
		}
	}
	t.text("user", u)
	if o.bundle != nil {
		t.template("work_dir", "${NOMAD_TASK_DIR}/"+o.bundle.name())
	} else {
		t.text("work_dir", taskenv.Verbatim(o.dir))
	}
	t.text("umask", mask)
	t.text("log_path", o.log)
	t.text("log_error_path", o.logError)
	return nil
}

// place makes the directory absolute. Without -dir it is the caller's, if the command names a file in it by a relative path, or
// runs as the caller.
func (o *adhoc) place(words []string) error {
	here := slices.ContainsFunc(words, func(w string) bool {
		if filepath.IsAbs(w) || w == "" {
			return false
		}
		st, err := os.Stat(w)
		return err == nil && !st.IsDir() && (w != words[0] || strings.Contains(w, "/"))
	})
	if o.dir == "" && !o.pack && (!o.asMe && !here || o.image != "") {
		return nil
	}
	abs, err := filepath.Abs(o.dir)
	if err != nil {
		return fmt.Errorf("-dir: %w", err)
	}
	o.dir = abs
	return nil
}

// inTemp reports whether the command or its directory is below /tmp, of which tasks of the driver exec have one of their own.
func (o *adhoc) inTemp(words []string) string {
	places := []string{words[0]}
	if o.bundle == nil {
		places = append(places, o.dir)
	}
	for _, p := range places {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			p = real
		}
		if strings.HasPrefix(p+"/", "/tmp/") {
			return p
		}
	}
	return ""
}
