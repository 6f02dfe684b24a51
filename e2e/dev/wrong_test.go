//go:build e2e

package dev

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// wrong is something that a person types by mistake, and what the answer must have.
type wrong struct {
	name  string
	file  string   // FILE in args, without which it is wrong.hcl
	args  string   // words of the command line; FILE is the file's name
	code  int      // the exit code
	has   []string // in the answer: what is wrong, where, and the cure
	lacks string   // not in the answer
}

// part returns a job file in which one part is replaced.
func part(old, text string) string {
	const job = `job "wrong" {
  type = "batch"
  group "g" {
    count = 1
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
`
	return strings.Replace(job, old, text, 1)
}

const (
	run      = "job run -detach FILE"
	validate = "job validate FILE"
	manifest = "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: train\nspec:\n  template: {}\n"
	sbatch   = "#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --gres=gpu:2\n#SBATCH --time=01:00:00\nsrun python train.py\n"
	misnamed = `{"Job": {"ID": "x", "Nme": "x", "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}]}]}}`
)

// wrongs are the inputs that people got wrong in a study of the first hour, in its order. "sft" runs, "wait" waits, "arr" is an array
// that has ended.
var wrongs = []wrong{
	{name: "count misspelt", file: part("count = 1", "cout = 2"), args: validate, code: 1, has: []string{"line 4, column 5", "^^^^", `did you mean "count"?`}},
	{name: "gpus for gpu, with it", file: strings.Replace(part("count = 1", "cout = 2"), `driver = "raw_exec"`, "resources {\n gpus = 2\n}", 1), args: validate, code: 1,
		has: []string{`"cout"`, `"gpus"`, `did you mean "gpu"?`}},
	{name: "gang attribute", file: part("count = 1", `gang = { timout = "5m" }`), args: validate, code: 1, has: []string{"line 4, column 14", `did you mean "timeout"?`}},
	{name: "driver config", file: part("command =", "comand ="), args: run, code: 1, has: []string{"line 8, column 18", `unknown config key "comand"; did you mean "command"?`}},
	{name: "driver", file: part("raw_exec", "dokcer"), args: run, code: 1, has: []string{"line 6, column 16", `there is no driver "dokcer"; did you mean "docker"?`}},
	{name: "type", file: part(`"batch"`, `"batchh"`), args: validate, code: 1, has: []string{"line 2, column 10", `did you mean "batch"?`}},
	{name: "priority", file: part(`type = "batch"`, "type = \"batch\"\n  priority = 500"), args: validate, code: 1, has: []string{"line 3, column 14", "500", "100"}},
	{name: "count 0", file: part("count = 1", "count = 0"), args: validate, code: 0, has: []string{"The job is valid."}}, // as in Nomad: a group that is scaled up later
	{name: "size", file: part("config {", "resources {\n        gpu = { memory = \"20 Gigs\" }\n      }\n      config {"), args: validate, code: 1, has: []string{"line 8, column", "20 Gigs", "GiB"}},
	{name: "letter O in a model", file: part("config {", "resources {\n        gpu = { count = 1, model = \"H10O\" }\n      }\n      config {"), args: validate, code: 0,
		has: []string{"line 8, column", `no node has a GPU of model "H10O"; did you mean "H100"?`}},
	{name: "queue", file: part(`type = "batch"`, "type = \"batch\"\n  queue = \"reserch\""), args: run, code: 1, has: []string{"line 3, column 11", `nonexistent queue "reserch"`, "muster queue apply"}},
	{name: "reference without quotes", file: part(`"/bin/true"`, "${NOMAD_X}"), args: validate, code: 1, has: []string{"line 8, column 19", `Write "${NOMAD_X}", in quotes.`}, lacks: "Invalid"},
	{name: "canary", file: strings.Replace(part("count = 1", "update { canary = 1 }"), `"batch"`, `"service"`, 1), args: validate, code: 1, has: []string{"line 4, column", "canaries are not supported"}},
	{name: "vault", file: part("config {", "vault { policies = [\"x\"] }\n      config {"), args: validate, code: 1, has: []string{"line 7, column 7", "no Vault", "keep secrets in variables (muster var put)"}},
	{name: "cni", file: part("count = 1", `network { mode = "cni/foo" }`), args: validate, code: 1, has: []string{"line 4, column", `only "bridge", "host" and "none" are supported`}},
	{name: "Kubernetes manifest", file: manifest, args: run, code: 1, has: []string{"is a Kubernetes manifest", `driver = "docker"`, "muster job init"}},
	{name: "sbatch script", file: sbatch, args: run, code: 1, has: []string{"is a batch script of Slurm", "muster sbatch "}},
	{name: "JSON field", file: misnamed, args: run, code: 0, has: []string{`unknown field Nme; did you mean "Name"?`}},
	{name: "missing file", args: "job run nothing.hcl", code: 1, has: []string{"open nothing.hcl: no such file or directory"}},
	{name: "command", args: "jb run", code: 1, has: []string{`no command "jb"; did you mean "job"?`}},
	{name: "subcommand", args: "job runn", code: 1, has: []string{`did you mean "run"?`}},
	{name: "flag", args: "job run -dettach x.hcl", code: 1, has: []string{"no flag -dettach; did you mean -detach?"}},
	{name: "no such job", args: "job status nojob", code: 1, has: []string{`"nojob"`, "muster job status lists jobs"}},
	{name: "no such node", args: "node status nonode", code: 1, has: []string{`"nonode"`, "muster node status lists nodes"}},
	{name: "no such allocation", args: "alloc status abcdef12", code: 1, has: []string{`"abcdef12"`, "muster alloc status lists allocations"}},
	{name: "half a drain", args: "node drain vm", code: 1, has: []string{"give one of -enable, -disable or -monitor"}},
	{name: "GPUs as in -dev-gpus, the other way round", args: "run -output -gpus H100x4 -- true", code: 0, has: []string{"count", "= 4", `"H100"`}},
	{name: "one GPU more than there is", args: "run -gpus 9 -- true", code: 1, has: []string{"can never run here", "short by 1 GPU", "-wait submits it all the same"}},
	{name: "too much memory", args: "run -mem 999999999 -- true", code: 1, has: []string{"can never run here", "memory is short by", "it could with"}},
	{name: "command without --", args: "run python train.py", code: 1, has: []string{"put -- before a command: muster run -- python train.py"}},
	{name: "duration", args: "run -time 2hours -- true", code: 1, has: []string{`"2hours" is no duration`, "2h or 1h30m"}},
	{name: "priority of a job", args: "job priority sft 500", code: 1, has: []string{"a number from 1 to 100", "critical (90)"}},
	{name: "connection refused", args: "job status -address http://127.0.0.1:1", code: 1, has: []string{"connection refused", "is one running?", "MUSTER_ADDR"}},
	{name: "https to http", args: "job status -address HTTPS", code: 1, has: []string{"does not speak TLS: set MUSTER_ADDR=http://"}},
	{name: "no such namespace", args: "job status -namespace nowhere", code: 1, has: []string{`there is no namespace "nowhere"`, "muster namespace list"}},
	{name: "bogus token without ACLs", args: "job status -token 11111111-2222-3333-4444-555555555555", code: 0, has: []string{"sft"}}, // as in Nomad: there is nothing that it could be checked against
	{name: "no token", args: "ACL job status", code: 1, has: []string{"No token was sent", "-token", "MUSTER_TOKEN"}},
	{name: "missing right", args: "MEMBER job run -detach FILE", code: 1, has: []string{"Permission denied", "submit-job", `"default"`, "muster acl token self"}},
	{name: "a job for an allocation", args: "alloc logs sft", code: 1, has: []string{"-job sft"}},
	{name: "exec in a job that waits", args: "job exec wait true", code: 1, has: []string{"has no allocation", "muster job why wait"}},
	{name: "logs of a job that waits", args: "job logs wait", code: 1, has: []string{"has no allocation", "muster job why wait"}},
	{name: "rank of an array", args: "job logs -rank 3 arr", code: 1, has: []string{"has no ranks", "-index", "-all"}},
	{name: "no such queue", args: "queue status nosuch", code: 1, has: []string{`queue "nosuch" not found`, "muster queue list"}},
	{name: "no such variable", args: "var get x", code: 1, has: []string{`variable "x"`, "muster var list"}},
	{name: "no such quota", args: "namespace apply -quota nosuch ml", code: 1, has: []string{`the quota "nosuch", which does not exist`}},
	{name: "quota by model", file: "quota \"team\" {\n  limit {\n    region = \"global\"\n    region_limit {\n      device \"nvidia/gpu/H100\" { count = 4 }\n    }\n  }\n}\n", args: "quota apply FILE", code: 0, has: []string{`Quota "team" applied`}},
	{name: "time", args: "acct -since yesterday", code: 1, has: []string{`"yesterday" is no time`, "24h"}},
	{name: "stop of nothing", args: "job stop", code: 1, has: []string{"name a job", "-user", "-all"}},
	{name: "template", args: "job init -template ddp x.hcl", code: 1, has: []string{`no template "ddp": there are`, "torchrun"}},
	{name: "open agent", args: "agent -server -bind 0.0.0.0 -data-dir DIR", code: 1, has: []string{"without TLS, ACLs and a gossip key", "muster tls ca create", "insecure = true"}},
	{name: "model of -dev-gpus", args: "agent -dev -dev-gpus=8xH1000", code: 1, has: []string{"want a count and a model such as 8xH100", "B200, H100"}},
	{name: "scontrol", args: "scontrol show job x", code: 1, has: []string{"in its place:  muster job status JOB"}},
	{name: "squeue", args: "squeue --sort=P", code: 1, has: []string{"muster squeue knows the options that are used daily", "muster queue"}},
	{name: "ui", args: "ui", code: 1, has: []string{"in its place:  muster top"}},
	{name: "context alone", args: "context", code: 0, has: []string{"Usage: muster context COMMAND", "muster context use prod"}},
	{name: "a job larger than any node", file: part("config {", "resources {\n        memory = 99999999\n      }\n      config {"), args: "job run FILE", code: 2,
		has: []string{"can never be placed here", "memory is short by", "muster job why wrong"}, lacks: "stops there would cure it"},
}

// TestWrongInputs types what people get wrong, on an agent with GPUs and on one with ACLs, and reads each answer: what is wrong, where, and
// what to write. It prints the table.
func TestWrongInputs(t *testing.T) {
	if len(wrongs) != 56 {
		t.Fatalf("%d inputs; the study had 56", len(wrongs))
	}
	s := startShell(t, "-dev-gpus=8xH100")
	for _, job := range []string{"run -detach -name sft -gpus 8 -mem 64 -- /bin/sleep 600", "run -detach -wait -name wait -gpus 8 -mem 64 -- /bin/sleep 600", "run -name arr -array 0-3 -mem 64 -- /bin/true"} {
		s.want(0, "", strings.Fields(job)...)
	}
	addr, root := startACL(t, s)
	s.file("readers.hcl", "namespace \"default\" {\n  policy = \"read\"\n}\n")
	as := func(token string, args ...string) (string, int) {
		cmd := s.command(args...)
		cmd.Env = append(cmd.Env, "MUSTER_ADDR="+addr, "MUSTER_TOKEN="+token)
		out, _ := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), cmd.ProcessState.ExitCode()
	}
	if out, code := as(root, "acl", "policy", "apply", "readers", s.dir+"/readers.hcl"); code != 0 {
		t.Fatal(out)
	}
	member, code := as(root, "acl", "token", "create", "-name", "ann", "-policy", "readers", "-t", "{{.SecretID}}")
	if code != 0 {
		t.Fatal(member)
	}

	var table strings.Builder
	for _, w := range wrongs {
		text := w.file
		if text == "" {
			text = part("", "")
		}
		args := strings.Fields(strings.NewReplacer("FILE", s.file("wrong.hcl", text), "HTTPS", strings.Replace(s.addr, "http:", "https:", 1), "DIR", s.dir).Replace(w.args))
		var out string
		var code int
		switch args[0] {
		case "ACL":
			out, code = as("", args[1:]...)
		case "MEMBER":
			out, code = as(member, args[1:]...)
		default:
			stdout, stderr, c := s.run(args...)
			out, code = stdout+stderr, c
		}
		w.judge(t, &table, out, code)
	}
	t.Logf("what people typed, and the answers:\n%s", table.String())
	end(t, s.proc)
}

// judge compares an answer with what is wanted, and adds it to the table.
func (w *wrong) judge(t *testing.T, table *strings.Builder, out string, code int) {
	t.Helper()
	if code != w.code {
		t.Errorf("%s: muster %s: exit code %d, want %d:\n%s", w.name, w.args, code, w.code, out)
	}
	for _, has := range w.has {
		if !strings.Contains(out, has) {
			t.Errorf("%s: muster %s: no %q in\n%s", w.name, w.args, has, out)
		}
	}
	if w.lacks != "" && strings.Contains(out, w.lacks) {
		t.Errorf("%s: muster %s: %q in\n%s", w.name, w.args, w.lacks, out)
	}
	fmt.Fprintf(table, "| %s | muster %s | %d | %s |\n", w.name, w.args, code, oneLine(out))
}

// oneLine shortens an answer to what fits into a table.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 160 {
		s = s[:160] + "..."
	}
	return s
}

// startACL starts a second dev agent, which demands tokens, and returns its address and the token of its operator.
func startACL(t *testing.T, s *shell) (addr, token string) {
	t.Helper()
	port := harness.FreePort(t)
	conf := s.file("acl.conf.hcl", fmt.Sprintf("acl {\n  enabled = true\n}\nports {\n  http = %d\n  rpc  = %d\n  serf = %d\n}\n", port, harness.FreePort(t), harness.FreePort(t)))
	agent := harness.Start(t, nil, "acl", nil, "agent", "-dev", "-config", conf)
	t.Cleanup(func() { end(t, agent) })
	addr = fmt.Sprintf("http://127.0.0.1:%d", port)
	harness.Eventually(t, 20*time.Second, "the first token", func() (bool, string) {
		cmd := exec.Command(harness.Bin(t), "acl", "bootstrap", "-address", addr, "-t", "{{.SecretID}}")
		cmd.Env = os.Environ()
		out, err := cmd.CombinedOutput()
		token = regexp.MustCompile(`[0-9a-f-]{36}`).FindString(string(out))
		return err == nil && token != "", string(out)
	})
	return addr, token
}
