package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-sched/muster/structs"
)

// batchScript is a script that a job runs once, on the first of its nodes, with srun and scontrol within reach.
type batchScript struct {
	file, text string // its base name, and what is in it
	ask        *slurmAsk
	array      *slurmArray
}

// slurmArray is what --array asks for. Indices of a job begin at 0; the ids of Slurm follow from them.
type slurmArray struct {
	count, first, step int
	list               []string // the ids themselves; then first and step mean nothing
	atOnce             string   // "%4", or ""
}

var arrayRange = regexp.MustCompile(`^([0-9]{1,6})-([0-9]{1,6})(?::([0-9]{1,6}))?$`)

// readArray reads 0-15, 1-10:2, 1,3,7 and each with %4.
func readArray(text string) (*slurmArray, error) {
	if text == "" {
		return nil, nil
	}
	bad := fmt.Errorf("--array %q: want ids as 0-15, 1-10:2 or 1,3,7, and after %% how many at a time", text)
	ids, atOnce, limited := strings.Cut(text, "%")
	a := &slurmArray{step: 1}
	if limited {
		if n, err := strconv.Atoi(atOnce); err != nil || n < 1 {
			return nil, bad
		}
		a.atOnce = "%" + atOnce
	}
	if m := arrayRange.FindStringSubmatch(ids); m != nil {
		a.first, _ = strconv.Atoi(m[1])
		last, _ := strconv.Atoi(m[2])
		if m[3] != "" {
			a.step, _ = strconv.Atoi(m[3])
		}
		if last < a.first || a.step < 1 {
			return nil, bad
		}
		a.count = (last-a.first)/a.step + 1
		return a, nil
	}
	a.list = strings.Split(ids, ",")
	a.count = len(a.list)
	for _, id := range a.list {
		if n, err := strconv.Atoi(id); err != nil || n < 0 {
			return nil, bad
		}
	}
	return a, nil
}

func newSbatch(e *env) *cobra.Command {
	c := e.verb("sbatch [options] SCRIPT [ARGUMENT...]", "Submit a script that was written for Slurm",
		`Submit a script with #SBATCH lines as it is, and return. Options are those of Slurm's sbatch; those of the command line win over those of the
script. The script is kept with the job, as it is now, and runs once, on the first node, in this directory or that of -D. There it finds
srun, which starts commands on all nodes of the job, "scontrol show hostnames", and the SLURM_ variables. Its output is that of
muster job logs, and also in the file of -o, if one is given. -p is the node pool, -A the queue. With --wait this command waits for the end, and
exits as the script does; --parsable prints nothing but the job's id; --test-only prints the job file and submits nothing. --as-me and --pack
are those of muster run. Options for which nothing stands are named. Of your
environment PATH, VIRTUAL_ENV and CONDA_* go along, and what --export names. MUSTER_ADDR, MUSTER_TOKEN and MUSTER_NAMESPACE, or a context,
say which cluster is meant, and so do the general options below.`, `
muster sbatch train.sh
muster sbatch -N 2 --gpus-per-node=8 -t 2:00:00 train.sh --epochs 10
muster sbatch --array=1-10%4 --wrap './sweep.sh $SLURM_ARRAY_TASK_ID'`, 0, -1, nil)
	c.DisableFlagParsing = true
	c.RunE = func(cmd *cobra.Command, args []string) error {
		options, words, err := e.slurmLine(cmd, args)
		if err != nil || words == nil && options == nil {
			return err
		}
		return (&adhoc{env: e}).sbatch(cmd.Context(), options, words)
	}
	return c
}

// slurmLine splits a command line of sbatch or srun, and takes the general options of this program out of it. It prints the help, and returns
// nothing, where that is asked for.
func (e *env) slurmLine(cmd *cobra.Command, args []string) (options []slurmOption, words []string, err error) {
	args = slices.Clone(args)
	for i, w := range args { // the general options also with one dash, as everywhere
		name, _, _ := strings.Cut(strings.TrimPrefix(w, "-"), "=")
		if strings.HasPrefix(w, "-") && len(name) > 1 && cmd.Flags().Lookup(name) != nil {
			args[i] = "-" + w
		} else if w == "--" || !strings.HasPrefix(w, "-") && (i == 0 || !strings.HasPrefix(args[i-1], "-")) {
			break
		}
	}
	all, words := slurmWords(args)
	if name := emptyArgument(cmd.Use, words); name != "" {
		return nil, nil, fmt.Errorf("%s is empty: %s", name, cmd.UseLine())
	}
	options = []slurmOption{}
	for _, opt := range all {
		f := cmd.Flags().Lookup(opt.name)
		switch {
		case opt.name == "help" || opt.name == "usage":
			return nil, nil, cmd.Help()
		case f == nil:
			options = append(options, opt)
			continue
		case f.Value.Type() == "bool" && opt.value == "":
			opt.value = "true"
		}
		if err := cmd.Flags().Set(opt.name, opt.value); err != nil {
			return nil, nil, fmt.Errorf("--%s: %w", opt.name, err)
		}
	}
	e.useContext(cmd.Flags())
	return options, words, nil
}

func (o *adhoc) sbatch(ctx context.Context, options []slurmOption, words []string) error {
	if _, err := askSlurm(options); err != nil { // before a script is read: a wrong option may have taken its name
		return err
	}
	text, file, err := batchText(options, words, o.in)
	if err != nil {
		return err
	}
	own, stray := directives(text)
	ask, err := askSlurm(append(own, options...))
	if err != nil {
		return err
	}
	if left := append(ask.left, stray...); len(left) > 0 && !has(ask.given, "quiet") {
		o.hint("Nothing stands for %s: left out", strings.Join(left, ", "))
	}
	array, err := readArray(ask.given["array"])
	if err != nil {
		return located(err, append(own, options...))
	}
	fs := pflag.NewFlagSet("sbatch", pflag.ContinueOnError)
	o.flags(fs)
	for _, r := range ask.run {
		if err := fs.Set(r[0], r[1]); err != nil {
			return err
		}
	}
	o.asMe, o.pack = has(ask.given, "as-me"), has(ask.given, "pack")
	o.title = ask.name
	if o.title == "" && len(words) > 0 {
		o.title = file // commands of --wrap have nothing in common: the history of one says nothing about another
	}
	o.name = jobName(cmp.Or(o.title, file)) + "-" + strconv.FormatInt(o.now().UnixNano()/1e6, 36)
	if array != nil {
		o.array = strconv.Itoa(array.count) + array.atOnce
	}
	if o.dir == "" && !o.pack {
		o.dir = "."
	}
	for _, l := range []*string{&o.log, &o.logError} {
		if *l != "" {
			dir, err := filepath.Abs(o.dir)
			if err != nil {
				return err
			}
			if !filepath.IsAbs(*l) {
				*l = filepath.Join(dir, *l)
			}
		}
	}
	o.batch = &batchScript{file: jobName(file), text: text, ask: ask, array: array}
	if o.ranks = ask.perNode; array != nil && o.nodes > 1 {
		return errors.New("--array and --nodes exclude each other: each id of an array runs on one node")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	var args []string
	if len(words) > 1 && !has(ask.given, "wrap") {
		args = words[1:]
	}
	src, job, err := o.prepare(ctx, a, append([]string{"/bin/sh", "-c", o.batch.around(), file}, args...))
	if err != nil {
		return err
	}
	if has(ask.given, "test-only") {
		o.show(ctx, a, src, job)
		return nil
	}
	if err := o.possible(ctx, a, job); err != nil {
		return err
	}
	if err := o.submit(ctx, a, src, job); err != nil {
		return err
	}
	switch {
	case has(ask.given, "parsable"):
		o.println(*job.ID)
	default:
		o.println("Submitted batch job " + *job.ID)
	}
	if has(ask.given, "wait") {
		return o.attend(ctx, a, job)
	}
	return nil
}

func has(given map[string]string, name string) bool {
	_, is := given[name]
	return is
}

// batchText returns the script, and its name: of --wrap, of the file, or of the standard input.
func batchText(options []slurmOption, words []string, in io.Reader) (text, name string, err error) {
	for _, opt := range options {
		if opt.name == "wrap" {
			switch {
			case len(words) > 0:
				return "", "", errors.New("--wrap takes the place of a script: give one of them")
			case strings.TrimSpace(opt.value) == "":
				return "", "", errors.New("--wrap wants a command")
			}
			return "#!/bin/sh\n" + opt.value + "\n", "wrap", nil
		}
	}
	var b []byte
	switch {
	case len(words) == 0 && isTerminal(in):
		return "", "", errors.New("sbatch takes a script: muster sbatch train.sh, or --wrap COMMAND")
	case len(words) == 0:
		name = "sbatch"
		b, err = io.ReadAll(io.LimitReader(in, scriptMax+1))
	default:
		name = filepath.Base(words[0])
		f, openErr := os.Open(words[0])
		if openErr != nil {
			return "", "", openErr
		}
		defer f.Close()
		b, err = io.ReadAll(io.LimitReader(f, scriptMax+1))
	}
	switch {
	case err != nil:
		return "", "", err
	case len(b) > scriptMax:
		return "", "", fmt.Errorf("%s: a script has at most %d KiB, because it is kept with the job; let it call what is larger", name, scriptMax>>10)
	case len(b) == 0 && len(words) == 0:
		return "", "", errors.New("standard input is empty; sbatch reads its script there, or from a file: muster sbatch train.sh")
	case len(b) == 0:
		return "", "", fmt.Errorf("%s is empty", name)
	case !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0:
		return "", "", fmt.Errorf("%s is no text in UTF-8: sbatch takes a script, which may start a program", name)
	case bytes.Contains(b, []byte("\r\n")):
		return "", "", fmt.Errorf("%s has the line ends of Windows, which its interpreter does not read: dos2unix takes them away", name)
	case !strings.HasPrefix(string(b), "#!"):
		return "", "", fmt.Errorf(`%s: this does not look like a script: the first line must begin with "#!" and the path of its interpreter, as #!/bin/bash`, name)
	}
	return string(b), name, nil
}

var notOfNames = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// jobName makes a name that a job id and a file may have.
func jobName(s string) string {
	s = strings.Trim(notOfNames.ReplaceAllString(s, "-"), "-.")
	if len(s) > 60 {
		s = s[:60]
	}
	if s == "" {
		return "sbatch"
	}
	return s
}

// around is the shell that starts the script, with its arguments. Members that only lend their node wait for the first.
func (b *batchScript) around() string {
	lines := []string{`[ "${MUSTER_NODE_RANK:-0}" = 0 ] || exec muster rsh -wait`}
	if a := b.array; a != nil {
		if a.list != nil {
			lines = append(lines, `n=$MUSTER_ARRAY_INDEX; for i in `+strings.Join(a.list, " ")+`; do [ $n = 0 ] && SLURM_ARRAY_TASK_ID=$i; n=$((n-1)); done`)
		} else {
			lines = append(lines, fmt.Sprintf(`SLURM_ARRAY_TASK_ID=$((MUSTER_ARRAY_INDEX*%d+%d))`, a.step, a.first))
		}
		// Numbers, as scripts expect: the job's, and one for each index, which no other index and no other array has.
		lines = append(lines, fmt.Sprintf(`SLURM_ARRAY_JOB_ID="${MUSTER_JOB_NUMBER:-0}" SLURM_JOB_ID=$((${MUSTER_JOB_NUMBER:-0}*%d+MUSTER_ARRAY_INDEX))`, structs.ArrayCountMax),
			`export SLURM_ARRAY_TASK_ID SLURM_ARRAY_JOB_ID SLURM_JOB_ID SLURM_JOBID="$SLURM_JOB_ID" SLURM_ARRAY_TASK_COUNT="$MUSTER_ARRAY_COUNT" SLURM_NNODES=1 SLURM_JOB_NUM_NODES=1`)
	}
	lines = append(lines, fmt.Sprintf(`export SLURM_NTASKS=%[1]d SLURM_NPROCS=%[1]d SLURM_NTASKS_PER_NODE=%[2]d SLURM_PROCID=0 SLURM_LOCALID=0`, b.ask.tasks, b.ask.perNode))
	if n := b.ask.gpusPerTask; n > 0 {
		lines = append(lines, fmt.Sprintf(`export SLURM_GPUS_PER_TASK=%d`, n))
	}
	if c := b.ask.given["cpus-per-task"]; c != "" {
		lines = append(lines, "export SLURM_CPUS_PER_TASK="+word(c))
	}
	return strings.Join(append(lines,
		`export SLURM_JOB_NAME=`+word(b.title()),
		`export MUSTER_STEP_ENV="$MUSTER_TASK_DIR/slurm.env" PATH="$MUSTER_TASK_DIR/slurm:$PATH"`,
		`env -0 >"$MUSTER_STEP_ENV"`,
		`exec "$MUSTER_TASK_DIR/`+b.file+`" "$@"`), "\n")
}

func (b *batchScript) title() string {
	if b.ask.name != "" {
		return b.ask.name
	}
	return b.file
}

// The commands of Slurm that the script finds in its PATH.
const (
	srunShim     = "#!/bin/sh\nexec muster srun \"$@\"\n"
	scontrolShim = `#!/bin/sh
case "$1 $2" in
"show hostname" | "show hostnames") echo "${3:-$SLURM_JOB_NODELIST}" | tr , '\n' ;;
*) echo "scontrol: in a job of Muster there is only: scontrol show hostnames" >&2; exit 1 ;;
esac
`
)

// templates writes the script, srun and scontrol.
func (b *batchScript) templates(t block) {
	for _, f := range [][2]string{{b.file, b.text}, {"slurm/srun", srunShim}, {"slurm/scontrol", scontrolShim}} {
		left, right := "[[", "]]" // signs that are not in the text: nothing in it is a template
		for strings.Contains(f[1], left) {
			left, right = left+"[", right+"]"
		}
		m := t.block("template")
		m.text("destination", "local/"+f[0])
		m.text("perms", "0755")
		m.text("left_delimiter", left)
		m.text("right_delimiter", right)
		m.text("data", f[1])
	}
}
