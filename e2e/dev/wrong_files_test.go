//go:build e2e

package dev

import (
	"strings"
	"testing"
)

// agentFile returns the configuration of an agent with one part more.
func agentFile(text string) string {
	return "data_dir  = \"DIR\"\nbind_addr = \"127.0.0.1\"\nports {\n  http = 1\n}\nserver {\n  enabled          = true\n  bootstrap_expect = 1\n}\n" + text
}

func script(lines ...string) string { return "#!/bin/bash\n" + strings.Join(lines, "\n") + "\ntrue\n" }

const (
	start  = "agent -config FILE"
	queues = "queue apply FILE"
	quotas = "quota apply FILE"
	sb     = "sbatch FILE"
)

// wrongFiles are more of what people get wrong: configuration of agents, files of operators, scripts of Slurm, flags
// that do not go together.
var wrongFiles = []wrong{
	{name: "setting of an agent", file: agentFile("client {\n  server = [\"10.0.0.1\"]\n}\n"), args: start, code: 1, has: []string{":11:3: server: there is no such setting in client", `did you mean "servers"?`}},
	{name: "duration of an agent", file: agentFile("telemetry {\n  collection_interval = \"10 seconds\"\n}\n"), args: start, code: 1, has: []string{":11:3: telemetry.collection_interval: want a duration", "30s"}},
	{name: "number of an agent", file: agentFile("client {\n  reserved {\n    cpu = \"two\"\n  }\n}\n"), args: start, code: 1, has: []string{":12:5: client.reserved.cpu: want a whole number"}},
	{name: "YAML for an agent", file: "data_dir: /var/lib/muster\nserver:\n  enabled: true\n", args: start, code: 1, has: []string{"this is YAML; settings are HCL or JSON", "server { enabled = true }"}, lacks: "Argument or block"},
	{name: "certificate of an agent", file: agentFile("tls {\n  http    = true\n  ca_file = \"/nonexistent/ca.pem\"\n}\n"), args: start, code: 1, has: []string{":12:3: tls.ca_file: /nonexistent/ca.pem: no such file", "muster tls cert create"}},
	{name: "port of an agent", file: "data_dir = \"DIR\"\nports {\n  http = 99999\n}\nclient {\n  enabled = true\n}\n", args: start, code: 1, has: []string{":3:3: ports.http: 99999: want 0 to 65535", "a client needs at least one server's RPC address"}},
	{name: "option of a driver", file: agentFile("plugin \"docker\" {\n  config {\n    allow_priviledged = true\n  }\n}\n"), args: start, code: 1, has: []string{":12:5: allow_priviledged", `did you mean "allow_privileged"?`}},
	{name: "no configuration", args: "agent -config nofile.hcl", code: 1, has: []string{"nofile.hcl: no such file or directory"}},
	{name: "agent of nothing", args: "agent", code: 1, has: []string{"data_dir: is required", "-dev"}},

	{name: "setting of a queue", file: "queue \"r\" {\n  wieght = 2\n}\n", args: queues, code: 1, has: []string{"line 2", `did you mean "weight"?`}},
	{name: "queue without its parent", file: "queue \"nope/child\" {\n  weight = 2\n}\n", args: queues, code: 1, has: []string{`its parent "nope" does not exist; make it first`}},
	{name: "order of a queue", file: "queue \"r\" {\n  order = \"fifo\"\n}\n", args: queues, code: 1, has: []string{"line 1", `order "fifo" is not known`, "fcfs"}},
	{name: "duration of a queue", file: "queue \"r\" {\n  max_wait = \"1 day\"\n}\n", args: queues, code: 1, has: []string{"line 2", "max_wait:", `"1 day" is not a duration`, "1h30m"}},
	{name: "limit of a queue", file: "queue \"r\" {\n  limit = { gpu = 8 }\n}\n", args: queues, code: 1, has: []string{"line 2", `no limit.gpu; did you mean "gpus"?`}},
	{name: "priority of a user", file: "queue \"r\" {\n  user_priority_max = { alice = 101 }\n}\n", args: queues, code: 1, has: []string{"line 1", `user_priority_max 101 of user "alice"; give 1 to 100`}},
	{name: "default priority of a user", file: "queue \"r\" {\n  priority_max = 60\n  user_priority_default = { alice = 70 }\n}\n", args: queues, code: 1, has: []string{`user_priority_default 70 of user "alice" is above 60`}},
	{name: "negative limit", file: "queue \"r\" {\n  limit = { gpus = -1 }\n}\n", args: queues, code: 1, has: []string{`queue "r"`, "-1 GPUs: give 0 to"}},
	{name: "queue that every cluster has", args: "queue delete default", code: 1, has: []string{`queue "default" is built in and cannot be deleted`}, lacks: "not found"},
	{name: "deep file", file: "queue \"q\" { weight = " + strings.Repeat("(", 200_000), args: queues, code: 1, has: []string{"Nested too deep"}, lacks: "goroutine"},
	{name: "GPUs of a quota", file: "quota \"t\" {\n  limit {\n    region = \"global\"\n    region_limit {\n      gpu = 4\n    }\n  }\n}\n", args: quotas, code: 1, has: []string{"line 5", `device "nvidia/gpu" { count = 4 }`}, lacks: `mean "cpu"`},
	{name: "region of a quota", file: "quota \"t\" {\n  limit {\n    region = \"europe\"\n    region_limit {\n      cpu = 2000\n    }\n  }\n}\n", args: quotas, code: 0, has: []string{`nothing is limited here by what is for region "europe": this is region "global"`}},
	{name: "no quota", args: "quota delete nosuch", code: 1, has: []string{`quota "nosuch" not found`, "muster quota list"}},
	{name: "setting of a namespace", file: "name = \"ml\"\nnode_pool_config {\n  allow = [\"gpu-*\"]\n}\n", args: "namespace apply FILE", code: 1, has: []string{"line 3", `no node_pool_config.allow; did you mean "allowed"?`}},
	{name: "priority of a namespace", file: "name = \"ml\"\nmax_priority = 700\n", args: "namespace apply FILE", code: 1, has: []string{"max_priority is 700; want 1 to 100"}},
	{name: "policy of a pool", file: "node_pool \"gpu\" {\n  scheduler_config {\n    scheduler_algorithm = \"bin-pack\"\n  }\n}\n", args: "node pool apply FILE", code: 1, has: []string{`no placement policy is called "bin-pack"`, "binpack"}},
	{name: "start of a reservation", file: "reservation \"m\" {\n  nodes    = [\"x\"]\n  start    = \"tomorrow\"\n  duration = \"4h\"\n}\n", args: "reservation apply FILE", code: 1, has: []string{"line 3", `"tomorrow" is no time`, "2026-12-01T08:00:00Z"}, lacks: "Z07:00"},
	{name: "length of a reservation", file: "reservation \"m\" {\n  nodes    = [\"x\"]\n  duration = \"4\"\n}\n", args: "reservation apply FILE", code: 1, has: []string{"line 3", "duration:", `"4" is not a duration`}},

	{name: "option of sbatch", file: script("#SBATCH --gpu=2"), args: sb, code: 1, has: []string{`Slurm has no option --gpu; did you mean "--gpus"?`}},
	{name: "gres of sbatch", file: script("#SBATCH --gres=gpu:a100:two"), args: sb, code: 1, has: []string{`--gres "gpu:a100:two": want gpu:number or gpu:model:number`}},
	{name: "memory of sbatch", file: script("#SBATCH --mem=16gigs"), args: sb, code: 1, has: []string{`--mem "16gigs"`, "64G"}},
	{name: "array of sbatch", file: script("#SBATCH --array=1-10%"), args: sb, code: 1, has: []string{`--array "1-10%"`, "how many at a time"}},
	{name: "dependency of sbatch", file: script("#SBATCH --dependency=afterok:nojob"), args: sb, code: 0, has: []string{`depends on job "nojob", which namespace "default" does not have`}},
	{name: "partition of sbatch", file: script("#SBATCH --partition=batch"), args: sb, code: 1, has: []string{`nonexistent node pool "batch"`, "muster node pool list"}},
	{name: "script without an interpreter", file: "#SBATCH --gpus=1\ntrue\n", args: sb, code: 1, has: []string{"the first line must begin with", "#!/bin/bash"}},
	{name: "GPUs of sbatch", file: script("#SBATCH --gres=gpu:9"), args: sb, code: 1, has: []string{"can never run here", "8 GPUs instead of 9"}},

	{name: "array of nodes", args: "run -nodes 2 -array 0-3 -- true", code: 1, has: []string{"-array and -nodes exclude each other"}},
	{name: "image without docker", args: "run -image ubuntu -driver exec -- true", code: 1, has: []string{"-image wants the driver docker, not exec"}},
	{name: "none at a time", args: "run -array 0-3%0 -- true", code: 1, has: []string{"with 0 at a time nothing would ever run"}},
	{name: "priority of a command", args: "run -priority urgent -- true", code: 1, has: []string{"-priority", `"urgent" is no priority`, "high (70)"}, lacks: "line 3"},
	{name: "dependency of a command", args: "run -detach -depends nojob -- true", code: 0, has: []string{`depends on job "nojob", which namespace "default" does not have`}},
	{name: "pool of a command", args: "run -pool nosuch -- true", code: 1, has: []string{`nonexistent node pool "nosuch"`, "muster node pool list"}},
	{name: "variable that is not set", args: "run -env MUSTER_TEST_UNSET -- true", code: 1, has: []string{"it is not set here", "MUSTER_TEST_UNSET=VALUE"}},
	{name: "time of day", args: "run -begin 25:00 -- true", code: 1, has: []string{"want a time such as", "2h from now"}},
	{name: "selection and names", args: "job stop -all -user bob nojob", code: 1, has: []string{"exclude each other"}},
	{name: "both ways", args: "node drain -enable -disable vm", code: 1, has: []string{"give one of -enable, -disable or -monitor"}},
	{name: "effect of a taint", args: "node taint vm broken:no-run", code: 1, has: []string{`effect "no-run" is not known`, "no-schedule"}},
}

// TestWrongFiles types them as TestWrongInputs does.
func TestWrongFiles(t *testing.T) {
	s := startShell(t, "-dev-gpus=8xH100")
	var table strings.Builder
	for _, w := range wrongFiles {
		text := strings.ReplaceAll(w.file, "DIR", t.TempDir())
		args := strings.Fields(strings.ReplaceAll(w.args, "FILE", s.file("wrong.hcl", text)))
		stdout, stderr, code := s.run(args...)
		out := stdout + stderr
		w.judge(t, &table, out, code)
	}
	t.Logf("what people typed, and the answers:\n%s", table.String())
	end(t, s.proc)
}
