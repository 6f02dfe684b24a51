package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/template"
	"github.com/muster-sched/muster/nomadlike/jobspec"
	"github.com/muster-sched/muster/nomadlike/wire"
)

// TestAskSlurm: what scripts and command lines of Slurm ask for, as options of run, and what nothing stands for.
func TestAskSlurm(t *testing.T) {
	for script, want := range map[string]string{
		"#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH -N 2\n#SBATCH --gpus-per-node=h100:8\n#SBATCH -t 1-02:00:00\n#SBATCH --mem=64G   # a lot\n\nsrun x\n#SBATCH -p late\n": "[[nodes 2] [gpus h100:8] [mem 65536] [time 26h]] 2 tasks []",
		"#!/bin/sh\n#SBATCH --gres=gpu:2 -c4 --mail-user me@x --exclusive\n#SBATCH -a 0-9%2 -p gpu -A ml -o %j.out\n":                                                          "[[pool gpu] [queue ml] [log %j.out] [gpus 2] [cores 4]] 1 tasks [--mail-user --exclusive]",
		"#SBATCH --dependency=afterok:prep:fetch,afterany:x\n#SBATCH -G 1\n#SBATCH -n 4\n#SBATCH --requeue\n":                                                                  "[[gpus 1] [depends prep,fetch,x:completed] [requeue 10]] 4 tasks []",
		"#SBATCH --nodes=4 --ntasks=4\n#SBATCH --gpus-per-task=1 --cpus-per-task=4\n":                                                                                          "[[nodes 4] [gpus 1] [cores 4]] 4 tasks []",
		"#SBATCH --ntasks-per-node=4 -N2 -G 16 --mem-per-gpu=10G --cpus-per-gpu=2 -vv\n":                                                                                       "[[nodes 2] [gpus 8] [cores 16] [mem 81920]] 8 tasks []",
		"#SBATCH -n 6 --ntasks-per-node=4 --mem-per-cpu=512 -J a\n#SBATCH --gres=disk:1 stray\n":                                                                               "[[nodes 2] [cores 4] [mem 2048]] 6 tasks [--gres=disk:1 stray]",
		"#SBATCH -N 2-4 --export=NONE,A=1 --time=UNLIMITED --mem=0 -N 3\n":                                                                                                     "[[nodes 3] [no-env true] [env A=1]] 3 tasks []",
		"#SBATCH -n8 -N1 -d singleton\n":                       `line 1: --dependency "singleton": there are afterok, afterany, afternotok and after, each as afterok:JOB, with commas between them; all must hold`,
		"#SBATCH --gres=gpu:a100:two\n":                        `line 1: --gres "gpu:a100:two": want gpu:number or gpu:model:number`,
		"#SBATCH -N2 -G 3\n":                                   `line 1: --gpus 3 on 2 nodes: every node gets as many, so the number must be a multiple; or give --gpus-per-node`,
		"#SBATCH -N two\n#SBATCH -t soon --mem=much\n":         "line 1: --nodes \"two\": want a number, 1 or more\nline 2: --mem \"much\": want MiB, or a unit: 512M, 64G, 1.5T\nline 2: --time \"soon\": want minutes, or as 1:30:00 or 2-12:00:00 (days, hours, minutes, seconds)",
		"#SBATCH --gpu=2 --tme 5 -y\n#SBATCH --export=ALL,B\n": "line 1: Slurm has no option --gpu; did you mean \"--gpus\"?\nline 1: Slurm has no option --tme; did you mean \"--time\"?\nline 1: Slurm has no option -y",
		"#SBATCH --export=ALL,B\n":                             "[[env B]] 1 tasks [--export=ALL (name the variables: --export=A,B)]",
		"#SBATCH -N\n":                                         "line 1: --nodes wants a value",
		"#SBATCHX -N 2\n##SBATCH -N 2\necho\n":                 "[] 1 tasks []",
		"":                                                     "[] 1 tasks []",
	} {
		options, stray := directives(script)
		a, err := askSlurm(options)
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprintf("%v %d tasks %v", a.run, a.tasks, append(a.left, stray...))
		}
		if got != want {
			t.Errorf("%q:\ngot  %s\nwant %s", script, got, want)
		}
	}
}

// TestArrayOfSlurm: the ids of an array begin anywhere; the shell around the script computes them from the index.
func TestArrayOfSlurm(t *testing.T) {
	for text, want := range map[string]string{
		"0-3": "0 1 2 3", "1-10:4%2": "1 5 9", "7": "7", "1,3,42": "1 3 42", "5-5": "5",
		"": "none", "3-1": "refused", "1-4:0": "refused", "a": "refused", "1,x": "refused", "0-3%0": "refused", "-1": "refused", "1-3,7": "refused",
	} {
		a, err := readArray(text)
		got := ""
		switch {
		case err != nil:
			got = "refused"
		case a == nil:
			got = "none"
		default:
			ask, err := askSlurm(nil)
			if err != nil {
				t.Fatal(err)
			}
			b := &batchScript{file: "print", ask: ask, array: a}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "print"), []byte("#!/bin/sh\nprintf %s \"$SLURM_ARRAY_TASK_ID\"\n[ \"$SLURM_ARRAY_JOB_ID $SLURM_JOB_ID $SLURM_JOBID\" = \"41 $((4100000+MUSTER_ARRAY_INDEX)) $((4100000+MUSTER_ARRAY_INDEX))\" ] || exit 1\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			var ids []string
			for i := range a.count {
				cmd := exec.Command("/bin/sh", "-c", b.around())
				cmd.Env = append(os.Environ(), fmt.Sprintf("MUSTER_ARRAY_INDEX=%d", i), "MUSTER_TASK_DIR="+dir, "MUSTER_JOB_NUMBER=41")
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%q: %v %s", text, err, out)
				}
				ids = append(ids, string(out))
			}
			got = strings.Join(ids, " ")
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestTasksOfSteps: how srun spreads tasks over the nodes of its job.
func TestTasksOfSteps(t *testing.T) {
	var ms []ranked
	for _, n := range []string{"a", "b", "c"} {
		ms = append(ms, ranked{id: n, name: n})
	}
	t.Setenv("SLURM_NTASKS", "6")
	t.Setenv("SLURM_NTASKS_PER_NODE", "2")
	t.Setenv("SLURM_JOB_NODELIST", "a,b,c")
	for line, want := range map[string]string{
		"":                         "a0 a1 b2 b3 c4 c5",
		"-n 4":                     "a0 a1 b2 c3",
		"-n 1":                     "a0",
		"-N 2":                     "a0 a1 b2 b3",
		"-N1 -n1 -w b":             "b0",
		"-w c,a":                   "c0 c1 a2 a3",
		"-N 3 -n 3":                "a0 b1 c2",
		"--ntasks-per-node=1":      "a0 b1 c2",
		"-N 2 --ntasks-per-node=3": "a0 a1 a2 b3 b4 b5",
		"-N 4":                     "-N 4: there are 3",
		"-w d":                     "-w d: the job has no such node; it has a,b,c",
		"-n 9 --ntasks-per-node 2": "9 tasks do not fit: 2 on each of 3 nodes",
	} {
		options, _ := slurmWords(strings.Fields(line))
		ask, err := askSlurm(options)
		if err != nil {
			t.Fatal(err)
		}
		tasks, err := stepTasks(ms, ask)
		var got []string
		for _, p := range tasks {
			got = append(got, p.member.name+strconv.Itoa(p.task))
		}
		if err != nil {
			got = []string{err.Error()}
		}
		if g := strings.Join(got, " "); g != want {
			t.Errorf("%q: %s, want %s", line, g, want)
		}
	}
}

func TestSlurmTime(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"90": 90 * time.Minute, "10:30": 10*time.Minute + 30*time.Second, "00:10:00": 10 * time.Minute, "2-12": 60 * time.Hour, "1-00:30": 24*time.Hour + 30*time.Minute,
		"": 0, "x": 0, "1:2:3:4": 0, "0": 0, "-1": 0, "1-": 0,
	} {
		if got, ok := slurmTime(s); got != want && ok || ok != (want > 0) {
			t.Errorf("%q is %v (%v), want %v", s, got, ok, want)
		}
	}
}

// TestSbatch: a script is kept with the job as it is, options of the command line win, and what nothing stands for is named.
func TestSbatch(t *testing.T) {
	dir, err := os.MkdirTemp("/var/tmp", "muster-sbatch-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Chdir(dir)
	const text = "#!/bin/bash\n#SBATCH -J my:train -N 2 --gpus-per-node=4\n#SBATCH -t 00:10:00\n#SBATCH --mail-user me\n[[ -n ${X} ]] && echo {{ $Y }} [[[\n"
	if err := os.WriteFile("job.sbatch", []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	f := newAgentFake(t)
	f.answers["GET /v1/nodes"] = runNodes("exec", "exec")
	r := f.run(t, "", "sbatch", "--test-only", "-t", "5", "-o", "out-%j", "job.sbatch", "-x", "a b")
	job, diags := jobspec.ParseHCL("x", []byte(r.out), jobspec.ParseOptions{})
	if r.code != 0 || job == nil || !strings.Contains(r.errOut, "Nothing stands for --mail-user: left out") {
		t.Fatalf("%d %s\n%s\n%s", r.code, r.errOut, diags, r.out)
	}
	if _, p := wire.Prepare(job); len(p.Errors) > 0 {
		t.Errorf("%v\n%s", p.Errors, r.out)
	}
	g := job.TaskGroups[0]
	task := g.Tasks[0]
	if got := fmt.Sprint(strings.HasPrefix(val(job.ID), "my-train-"), val(job.Name), val(g.Count), g.Gang != nil, job.Runtime != nil, task.Resources.GPU != nil, task.WorkDir, task.LogPath); got != fmt.Sprint("true", "my:train", 2, true, true, true, dir, dir+"/out-%j") && !strings.Contains(r.out, `limit = "5m"`) {
		t.Errorf("%s\n%s", got, r.out)
	}
	m := task.Templates[0]
	if val(m.EmbeddedTmpl) != text || val(m.DestPath) != "local/job.sbatch" || val(m.Perms) != "0755" {
		t.Errorf("%q", val(m.EmbeddedTmpl))
	}
	if out, err := template.Render(template.Input{Source: val(m.EmbeddedTmpl), Left: val(m.LeftDelim), Right: val(m.RightDelim)}); err != nil || string(out) != text {
		t.Errorf("rendered: %q, %v", out, err)
	}
	if args := fmt.Sprint(task.Config["args"]); !strings.HasSuffix(args, " job.sbatch -x a b]") {
		t.Error(args)
	}

	if r := f.run(t, "", "sbatch", "-Q", "--parsable", "job.sbatch"); r.code != 0 || !strings.HasPrefix(r.out, "my-train-") || strings.Contains(r.errOut, "mail") || !strings.Contains(f.log(), "PUT /v1/jobs") {
		t.Errorf("%d %s %s\n%s", r.code, r.out, r.errOut, f.log())
	}
	if r := f.run(t, "", "sbatch", "--test-only", "--wrap", "'a b' \"c\""); r.code != 0 || !strings.Contains(r.out, `#!/bin/sh\n'a b' \"c\"\n`) {
		t.Errorf("quotes of a command: %d %s %s", r.code, r.out, r.errOut)
	}
	if r := f.run(t, "#!/bin/sh\n# a\n#SBATCH --mem=much\n#SBATCH -a x\n", "sbatch", "-t", "soon"); r.code != 1 || strings.Contains(r.errOut, "line") || !strings.Contains(r.errOut, "--time") {
		t.Errorf("a wrong option of the command line: %d %s", r.code, r.errOut)
	}
	for script, want := range map[string]string{"#SBATCH --mem=much\n": "line 3: --mem", "#SBATCH -a x\n": "line 3: --array"} {
		if r := f.run(t, "#!/bin/sh\n# a\n"+script, "sbatch"); r.code != 1 || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: %d %s, want %s", script, r.code, r.errOut, want)
		}
	}
	if r := f.run(t, "", "sbatch"); r.code != 1 || !strings.Contains(r.errOut, "standard input is empty") {
		t.Errorf("no script: %d %s", r.code, r.errOut)
	}
	if r := f.run(t, "#!/bin/sh\necho\n", "sbatch"); r.code != 0 || !strings.HasPrefix(r.out, "Submitted batch job sbatch-") {
		t.Errorf("%d %s %s", r.code, r.out, r.errOut)
	}
	for line, want := range map[string]string{
		"absent.sh": "no such file", "-N": "--nodes wants a value", "--nosuch x": "Slurm has no option --nosuch", "--wrap=": "--wrap wants a command",
		"noise": "noise is no text in UTF-8", "dos": "dos has the line ends of Windows", "empty": "empty is empty", "job.yaml": `the first line must begin with "#!"`, "--wrap true job.sbatch": "--wrap takes the place of a script",
		"--array=1-4 job.sbatch": "--array and --nodes exclude each other", "--array=x job.sbatch": "want ids as 0-15",
	} {
		for name, text := range map[string]string{"job.yaml": "a: b\n", "noise": "#!/bin/sh\n\x00\xff", "dos": "#!/bin/sh\r\ntrue\r\n", "empty": ""} {
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if r := f.run(t, "", append([]string{"sbatch"}, strings.Fields(line)...)...); r.code != 1 || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: %d %s, want %s", line, r.code, r.errOut, want)
		}
	}
}

// TestRunOfSbatchScript: who gives a script of Slurm to run hears of sbatch.
func TestRunOfSbatchScript(t *testing.T) {
	script := filepath.Join(t.TempDir(), "job.sbatch")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n#SBATCH --gres=gpu:2\necho\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := newAgentFake(t)
	if r := f.run(t, "", "run", "-detach", "--", script, "a b"); !strings.Contains(r.errOut, "has #SBATCH lines, which run does not read. This does:  muster sbatch "+script+" 'a b'\n") {
		t.Errorf("%d %s", r.code, r.errOut)
	}
	if r := f.run(t, "", "run", "-time", "00:10:00", "--", script); !strings.Contains(r.errOut, "did you mean 10m?") {
		t.Error(r.errOut)
	}
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if r := f.run(t, "", "run", "-detach", "--", script); strings.Contains(r.errOut, "SBATCH") {
		t.Errorf("a script without such lines: %s", r.errOut)
	}
}
