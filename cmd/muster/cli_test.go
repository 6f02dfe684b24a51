package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/jobspec"
	"github.com/muster-sched/muster/nomadlike/wire"
)

var update = flag.Bool("update", false, "write the golden files anew")

const jobSource = `job "example" {
  group "hello" {
    count = 2
    task "greet" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
`

const queueSource = `queue "research" {
  description = "all of research"
  weight      = 3
  limit       = { gpus = 16 }
  order       = "fair"
}

queue "research/nlp" {
  guarantee             = { gpus = 4 }
  priority_max          = 60
  user_priority_max     = { alice = 90, "bob_2" = 30 }
  user_priority_default = { alice = 70 }
}
`

const quotaSource = `quota "team" {
  description = "the team"
  limit {
    region = "global"
    region_limit {
      cpu       = 4000
      memory_mb = 8192
      device "nvidia/gpu" {
        count = 8
      }
    }
  }
}
`

const reservationSource = `reservation "course" {
  start    = "2026-12-01T08:00:00Z"
  duration = "4h"
  amount   = { gpus = 8 }
  users    = ["teacher"]
}
`

// golden compares what a command line prints and asks with a file that a person has read.
var golden = []struct {
	name  string
	args  string // separated by blanks; '_' in an argument stands for a blank
	stdin string
	code  int
}{
	{"job_status_list", "job status", "", 0},
	{"job_status_list_q", "job status -q", "", 0},
	{"job_status", "job status -evals exam", "", 0},
	{"job_status_pending", "job status train", "", 0},
	{"job_status_ambiguous", "job status tr", "", 1},
	{"job_status_none", "job status nothing", "", 1},
	{"job_status_gang", "job status pair", "", 0},
	{"job_status_gang_template", "job status -t {{range_.Gangs}}{{.Group}}={{.State}}_{{end}} pair", "", 0},
	{"job_status_template", "job status -t {{range_.}}{{.ID}}_{{end}}", "", 0},
	{"job_run", "job run -", jobSource, 1}, // one allocation of the service has failed
	{"job_run_detach", "job run - -detach -check-index 17", jobSource, 0},
	{"job_run_broken", "job run -", "job \"x\" {\n  grup \"y\" {}\n}\n", 1},
	{"job_plan", "job plan -", jobSource, 1},
	{"job_plan_waits", "job plan -", strings.Replace(jobSource, "example", "train", 1), 0},
	{"queue_list", "queue list", "", 0},
	{"queue_list_json", "queue list -json", "", 0},
	{"queue_status", "queue status research", "", 0},
	{"queue_status_missing", "queue status nothing", "", 1},
	{"queue_inspect", "queue inspect research", "", 0},
	{"queue_apply", "queue apply -", queueSource, 0},
	{"queue_apply_unknown", "queue apply -", "queue \"research\" {\n  wieght = 3\n}\n", 1},
	{"queue_apply_broken", "queue apply -", "queue \"research\" {\n", 1},
	{"queue_apply_other", "queue apply -", "quota \"research\" {\n}\n", 1},
	{"queue_delete", "queue delete research/nlp", "", 0},
	{"queue_delete_busy", "queue delete research", "", 1},
	{"quota_list", "quota list", "", 0},
	{"quota_list_q", "quota list -q", "", 0},
	{"quota_status", "quota status team", "", 0},
	{"quota_status_missing", "quota status nothing", "", 1},
	{"quota_inspect", "quota inspect team", "", 0},
	{"quota_apply", "quota apply -", quotaSource, 0},
	{"quota_apply_empty", "quota apply -", "", 1},
	{"quota_delete", "quota delete team", "", 0},
	{"quota_delete_missing", "quota delete nothing", "", 1},
	{"reservation_list", "reservation list", "", 0},
	{"reservation_inspect", "reservation inspect course", "", 0},
	{"reservation_apply", "reservation apply -", reservationSource, 0},
	{"reservation_apply_unknown", "reservation apply -", "reservation \"course\" {\n  node = [\"a\"]\n}\n", 1},
	{"reservation_delete", "reservation delete course", "", 0},
	{"reservation_delete_missing", "reservation delete nothing", "", 1},
	{"var_put", "var put app/db user=me password=\\@x", "", 0},
	{"var_put_force", "var put -force -out json app/db user=me", "", 0},
	{"var_put_stdin", "var put app/db password=@-", "from standard input", 0},
	{"var_put_spec", "var put - user=other", "path = \"app/db\"\nmodify_index = 7\nitems {\n  user = \"me\"\n  more = \"x\"\n}\n", 0},
	{"var_put_spec_unknown", "var put -", "path = \"app/db\"\nitem {\n  user = \"me\"\n}\n", 1},
	{"var_put_conflict", "var put app/taken user=me", "", 1},
	{"var_put_path", "var put nomad/x user=me", "", 1},
	{"var_put_nothing", "var put app/db", "", 1},
	{"var_get", "var get app/db", "", 0},
	{"var_get_hcl", "var get -out hcl app/db", "", 0},
	{"var_get_item", "var get -item password app/db", "", 0},
	{"var_get_item_missing", "var get -item nothing app/db", "", 1},
	{"var_get_missing", "var get app/nothing", "", 1},
	{"var_list", "var list app", "", 0},
	{"service_list", "service list", "", 0},
	{"service_list_q", "service list -q", "", 0},
	{"service_info", "service info llm", "", 0},
	{"service_info_verbose", "service info -verbose llm", "", 0},
	{"service_info_template", "service info -t {{range.}}{{.Address}}:{{.Port}};{{end}} llm", "", 0},
	{"service_info_none", "service info nobody", "", 1},
	{"service_delete", "service delete llm reg-1", "", 0},
	{"service_delete_missing", "service delete llm reg-9", "", 1},
	{"var_purge", "var purge app/db", "", 0},
	{"var_purge_conflict", "var purge -check-index 3 app/taken", "", 1},
	{"job_plan_no_diff", "job plan -diff=false -", jobSource, 1},
	{"job_validate", "job validate -", jobSource, 0},
	{"job_why", "job why train", "", 0},
	{"top_once", "top -once", "", 0},
	{"top_json", "top -json", "", 0},
	{"job_why_running", "job why example", "", 0},
	{"job_stop", "job stop example", "", 0},
	{"job_stop_flags", "job stop -detach -purge -no-shutdown-delay -eval-priority 70 example", "", 0},
	{"job_history", "job history -p example", "", 0},
	{"job_revert", "job revert -detach example known-good", "", 0},
	{"job_inspect_hcl", "job inspect -hcl example", "", 0},
	{"job_scale", "job scale -detach example 5", "", 0},
	{"job_priority", "job priority example high", "", 0},
	{"job_priority_number", "job priority example 7", "", 0},
	{"job_priority_bad", "job priority example urgent", "", 1},
	{"job_priority_range", "job priority example 101", "", 1},
	{"job_priority_ended", "job priority train 20", "", 1},
	{"job_dispatch", "job dispatch -detach -meta lr=0.1 sweep -", "payload", 0},
	{"job_eval", "job eval -detach -force-reschedule example", "", 0},
	{"job_periodic_force", "job periodic force -detach nightly", "", 0},
	{"job_checkpoint", "job checkpoint example", "", 1},
	{"job_checkpoint_detach", "job checkpoint -detach -group hello example", "", 1},
	{"job_checkpoint_none", "job checkpoint train", "", 1},
	{"scheduler_predictions", "operator scheduler predictions", "", 0},
	{"job_allocs", "job allocs -all example", "", 0},
	{"job_tag", "job tag apply -name good -version 3 example", "", 0},
	{"job_deployments", "job deployments example", "", 0},
	{"job_promote", "job promote example", "", 1},
	{"alloc_status", "alloc status -stats 8ba85cef", "", 0},
	{"alloc_status_failed", "alloc status 8ba85d00", "", 0},
	{"alloc_status_short", "alloc status -short 8ba85cef", "", 0},
	{"alloc_status_ambiguous", "alloc status 8ba85", "", 1},
	{"alloc_logs", "alloc logs -stdout 8ba85cef", "", 0},
	{"alloc_logs_tail", "alloc logs -tail -n 1 -stderr 8ba85cef greet", "", 0},
	{"alloc_logs_job", "logs -stdout -job example", "", 0},
	{"alloc_fs", "alloc fs 8ba85cef", "", 0},
	{"alloc_fs_cat", "alloc fs 8ba85cef note.txt", "", 0},
	{"alloc_stop", "alloc stop -detach 8ba85cef", "", 0},
	{"alloc_restart", "alloc restart 8ba85cef greet", "", 0},
	{"alloc_signal", "alloc signal -s SIGHUP 8ba85cef", "", 0},
	{"alloc_checks", "alloc checks 8ba85cef", "", 0},
	{"node_status", "node status -allocs", "", 0},
	{"node_status_one", "node status -verbose 46f1c6c4", "", 0},
	{"node_status_self", "node status -self -short", "", 0},
	{"node_status_name", "node status -short gpu-01", "", 0},
	{"node_drain", "node drain -yes -enable -detach -deadline 30m -m fans 46f1c6c4", "", 0},
	{"node_drain_disable", "node drain -disable -keep-ineligible -self", "", 0},
	{"node_taint", "node taint gpu-01 team=nlp:no-schedule broken:no-execute old- other:no-schedule-", "", 0},
	{"node_taint_odd", "node taint gpu-01 team=nlp", "", 1},
	{"node_eligibility", "node eligibility -disable gpu-01", "", 0},
	{"node_pool_list", "node pool list", "", 0},
	{"node_pool_apply", "node pool apply -", "node_pool \"a100\" {\n  description = \"x\"\n  meta {\n    team_name = \"v\"\n  }\n  scheduler_config {\n    scheduler_algorithm = \"spread\"\n  }\n}\n", 0},
	{"node_pool_apply_bad", "node pool apply -", "node_pool \"a100\" {\n  descripton = \"x\"\n}\n", 1},
	{"node_pool_info", "node pool info default", "", 0},
	{"node_pool_nodes", "node pool nodes default", "", 0},
	{"node_meta_read", "node meta read", "", 0},
	{"node_meta_apply", "node meta apply -node-id 46f1c6c4 rack=r8 -unset old", "", 0},
	{"eval_list", "eval list -status complete", "", 0},
	{"eval_status", "eval status 26cfd7af", "", 0},
	{"eval_monitor", "eval status -monitor 26cfd7af", "", 2},
	{"eval_delete", "eval delete -yes 26cfc69e", "", 0},
	{"queue", "queue", "", 0},
	{"acct", "acct -since 7d", "", 0},
	{"eff_unmeasured", "eff example", "", 0},
	{"eff_json", "job eff -json example", "", 0},
	{"acct_job", "acct -since 7d sweep", "", 0},
	{"acct_job_none", "acct swept", "", 1},
	{"acct_by", "acct -by user", "", 0},
	{"acct_csv", "acct -csv -queue research", "", 0},
	{"decisions", "operator decisions -job train -n 20", "", 0},
	{"decisions-wide", "operator decisions -o wide", "", 0},
	{"gpu_list", "gpu list", "", 0},
	{"server_members", "server members", "", 0},
	{"server_join", "server join 10.0.0.2", "", 0},
	{"raft_list", "operator raft list-peers", "", 0},
	{"raft_remove", "operator raft remove-peer -yes -peer-id x", "", 0},
	{"raft_transfer", "operator raft transfer-leadership -peer-address 10.0.0.2:4647", "", 0},
	{"scheduler_get", "operator scheduler get-config", "", 0},
	{"scheduler_set_other", "operator scheduler set-config -gpu-fit first -topology-levels rak", "", 0},
	{"scheduler_set", "operator scheduler set-config -scheduler-algorithm spread -preempt-batch-scheduler=true", "", 0},
	{"autopilot_get", "operator autopilot get-config", "", 0},
	{"autopilot_set", "operator autopilot set-config -cleanup-dead-servers=false -min-quorum 3", "", 0},
	{"autopilot_health", "operator autopilot health", "", 0},
	{"keyring_list", "operator gossip keyring list", "", 0},
	{"root_keyring_list", "operator root keyring list", "", 0},
	{"root_keyring_list_json", "operator root keyring list -json", "", 0},
	{"root_keyring_rotate", "operator root keyring rotate -full", "", 0},
	{"root_keyring_remove", "operator root keyring remove 0123456789abcdef0123456789abcdef", "", 0},
	{"state_hash", "operator state-hash", "", 0},
	{"upgrade_status", "operator upgrade status", "", 0},
	{"upgrade_finish", "operator upgrade finish -yes", "", 0},
	{"operator_api", "operator api /v1/namespaces", "", 0},
	{"acl_bootstrap", "acl bootstrap", "", 0},
	{"acl_policy_apply", "acl policy apply -description look readers -", "namespace \"default\" { policy = \"read\" }\n", 0},
	{"acl_policy_info", "acl policy info readers", "", 0},
	{"acl_token_create", "acl token create -name alice -policy readers -ttl 8h", "", 0},
	{"acl_token_list", "acl token list", "", 0},
	{"acl_token_info", "acl token info 5e38b4ee", "", 0},
	{"acl_role_create", "acl role create -name ops -policy readers", "", 0},
	{"acl_role_list", "acl role list", "", 0},
	{"namespace_list", "namespace list", "", 0},
	{"namespace_apply", "namespace apply -description new ml", "", 0},
	{"namespace_apply_file", "namespace apply -", "name = \"ml\"\nmeta {\n  team = \"nlp\"\n}\nqueue_config {\n  allowed = [\"research\"]\n}\ntoleration_config {\n  denied = [\"dedicated\"]\n}\n", 0},
	{"namespace_status", "namespace status ml", "", 0},
	{"system_gc", "system gc -yes", "", 0},
	{"monitor", "monitor -log-level DEBUG -node-id 46f1c6c4", "", 0},
	{"event_stream", "event stream -topic Job:example", "", 0},
	{"status", "status example", "", 0},
	{"agent_info", "agent-info", "", 0},
}

func TestGolden(t *testing.T) {
	for _, c := range golden {
		t.Run(c.name, func(t *testing.T) {
			f := newAgentFake(t)
			var args []string
			for _, a := range strings.Fields(c.args) {
				args = append(args, strings.ReplaceAll(a, "_", " "))
			}
			r := f.run(t, c.stdin, args...)
			got := fmt.Sprintf("$ muster %s\n-- exit %d\n-- stdout\n%s-- stderr\n%s-- requests\n%s\n", strings.Join(args, " "), r.code, r.out, r.errOut, f.log())
			if r.code != c.code {
				t.Errorf("exit status %d, want %d\n%s", r.code, c.code, got)
			}
			file := filepath.Join("testdata", c.name+".golden")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s differs (write it anew with -update and read the difference):\n%s", file, got)
			}
		})
	}
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(map[string]any)
		args   string
		code   int
	}{
		{"plan without changes", func(m map[string]any) {
			m["PUT /v1/job/example/plan"] = &wire.JobPlanResponse{Annotations: &wire.PlanAnnotations{DesiredTGUpdates: map[string]*wire.DesiredUpdates{"hello": {Ignore: 2, InPlaceUpdate: 1}}}}
		}, "job plan -", 0},
		{"plan with changes", nil, "job plan -", 1},
		{"plan refused", func(m map[string]any) { m["PUT /v1/job/example/plan"] = failure{403, "Permission denied"} }, "job plan -", 255},
		{"plan with an unknown flag", nil, "job plan -nonsense -", 255},
		{"plan of nothing", nil, "job plan", 255},
		{"plan of a file that is not there", nil, "job plan /does/not/exist.hcl", 255},
		{"run not placed", func(m map[string]any) { m["PUT /v1/jobs"] = map[string]any{"EvalID": evalB} }, "job run -", 2},
		{"run refused", func(m map[string]any) { m["PUT /v1/jobs"] = failure{400, "no"} }, "job run -", 1},
		{"run placed", func(m map[string]any) {
			m["GET /v1/job/example/allocations"] = []*wire.AllocationListStub{{ID: allocA, EvalID: evalA, TaskGroup: "hello", ClientStatus: "running", DesiredStatus: "run"}}
		}, "job run -", 0},
		{"evaluation failed", func(m map[string]any) {
			m["GET /v1/evaluation/"+evalA] = &wire.Evaluation{ID: evalA, Status: "failed", JobID: "example"}
		}, "job run -", 1},
		{"evaluation superseded", func(m map[string]any) {
			m["GET /v1/evaluation/"+evalA] = &wire.Evaluation{ID: evalA, Status: "canceled", Successor: evalB, JobID: "example"}
			m["GET /v1/evaluation/"+evalA+"/allocations"] = []any{}
		}, "job run -", 2},
		{"validate refused", func(m map[string]any) {
			m["PUT /v1/validate/job"] = &wire.JobValidateResponse{Error: "1 error occurred:\n\t* group hello: bad"}
		}, "job validate -", 1},
		{"no such command", nil, "jobb", 1},
		{"too many arguments", nil, "job why a b", 1},
		{"unhealthy cluster", func(m map[string]any) { m["GET /v1/operator/autopilot/health"] = &wire.OperatorHealthReply{} }, "operator autopilot health", 1},
		{"leader unknown", func(m map[string]any) { m["GET /v1/status/leader"] = failure{500, "No cluster leader"} }, "server members", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newAgentFake(t)
			if c.change != nil {
				c.change(f.answers)
			}
			r := f.run(t, jobSource, strings.Fields(c.args)...)
			if r.code != c.code {
				t.Errorf("exit status %d, want %d\n%s%s", r.code, c.code, r.out, r.errOut)
			}
			if r.code == 255 && !strings.Contains(r.errOut, "Error:") {
				t.Errorf("no reason is told: %q", r.errOut)
			}
		})
	}
}

// TestMisspelt: a word that is nearly a command or a flag is answered in one sentence that says which.
func TestMisspelt(t *testing.T) {
	for args, want := range map[string]string{
		"jbo run":            `no command "jbo"; did you mean "job"?`,
		"job sotp":           `no command "sotp" under muster job; did you mean "stop"?`,
		"job run -detatch x": `no flag -detatch; did you mean -detach?`,
		"job xyzzy":          `no command "xyzzy" under muster job (muster job -help lists all)`,
		"job run -xyzzy x":   `no flag -xyzzy (muster job run -help lists the flags)`,
	} {
		r := newAgentFake(t).run(t, "", strings.Fields(args)...)
		if r.code != 1 || !strings.Contains(r.errOut, want) || strings.Count(r.errOut, "\n") != 1 {
			t.Errorf("muster %s: exit status %d, %q; want 1 and a line with %q", args, r.code, r.errOut, want)
		}
	}
}

// Every golden command that can print JSON prints JSON, and nothing else, with -json, asking the same things.
func TestJSON(t *testing.T) {
	tried := 0
	for _, c := range golden {
		args := strings.Fields(c.args)
		root := newRoot(&env{out: new(bytes.Buffer), err: new(bytes.Buffer)})
		found, _, err := root.Find(normalize(root, args))
		if err != nil || c.code != 0 || slices.Contains(args, "-t") || slices.Contains(args, "-q") || slices.Contains(args, "-") {
			continue
		}
		name := strings.TrimPrefix(found.CommandPath(), "muster ")
		if found.Flags().Lookup("json") == nil || slices.Contains([]string{"alloc logs", "logs", "monitor", "namespace apply"}, name) {
			continue // these follow a stream, or read JSON
		}
		tried++
		f := newAgentFake(t)
		r := f.run(t, "", append(args, "-json")...)
		if r.code != 0 || !json.Valid([]byte(r.out)) || r.errOut != "" {
			t.Errorf("%s -json: exit status %d\n%s%s", c.args, r.code, r.out, r.errOut)
		}
	}
	if tried < 50 {
		t.Errorf("only %d commands were tried", tried)
	}
}

func TestAbbreviate(t *testing.T) {
	a, b, c := "813c9ba8-fbb0-4274-8f1a-9e56700f3532", "813c9ba8-fbb0-43ff-8f45-30f0a9b7d2d1", "46f1c6c4-1111-4aaa-8aaa-000000000001"
	for _, x := range []struct {
		list []string
		want string
	}{{[]string{a, c, a}, "813c9ba8"}, {[]string{a, b, c}, "813c9ba8-fbb0-4274"}, {nil, "813c9ba8"}} {
		if got := abbreviate(false, x.list)(a); got != x.want {
			t.Errorf("abbreviate(%v) = %q, want %q", x.list, got, x.want)
		}
	}
	if got := abbreviate(true, nil)(a); got != a {
		t.Errorf("verbose cuts to %q", got)
	}
}

func TestNormalize(t *testing.T) {
	root := newRoot(&env{out: new(bytes.Buffer), err: new(bytes.Buffer)})
	for _, c := range []struct{ in, want string }{
		{"job run f.hcl -detach", "job run f.hcl --detach"},
		{"job run --detach f.hcl", "job run --detach f.hcl"},
		{"job run -check-index=3 f.hcl", "job run --check-index=3 f.hcl"},
		{"job status -json -address=http://x", "job status --json --address=http://x"},
		{"job status -t {{.ID}}", "job status -t {{.ID}}"},
		{"job history -p x", "job history -p x"},
		{"job run -", "job run -"},
		{"alloc logs -f -n 10 a", "alloc logs -f -n 10 a"},
		{"alloc logs -n=10 a", "alloc logs -n=10 a"},
		{"run -time -1h f", "run --time -1h f"},
		{"alloc exec -it a sh -c ls", "alloc exec -it a -- sh -c ls"},
		{"alloc exec -task web -it a sh -json", "alloc exec --task web -it a -- sh -json"},
		{"alloc exec a -task web sh -x", "alloc exec a --task web -- sh -x"},
		{"alloc exec -it a -- sh -verbose", "alloc exec -it a -- sh -verbose"},
		{"exec -job x ls -la", "exec --job x -- ls -la"},
		{"job scale x -5", "job scale x -5"},
		{"operator api -X PUT /v1/x", "operator api -X PUT /v1/x"},
		{"-help", "--help"},
		{"job -help", "job --help"},
		{"run -var a=-b f", "run --var a=-b f"},
	} {
		t.Run(c.in, func(t *testing.T) {
			got := strings.Join(normalize(root, strings.Fields(c.in)), " ")
			if got != c.want {
				t.Errorf("normalize(%q) = %q, want %q", c.in, got, c.want)
			}
		})
	}
}

// leaves lists every command that does something.
func leaves(c *cobra.Command) []*cobra.Command {
	if !c.HasSubCommands() {
		return []*cobra.Command{c}
	}
	var out []*cobra.Command
	for _, s := range c.Commands() {
		out = append(out, leaves(s)...)
	}
	return out
}

// writesOnly are commands whose answer is an exit status, a stream of bytes or a file.
var writesOnly = []string{
	"agent", "nodesim", "fmt", "job init", "init", "node pool init", "node pool delete", "namespace delete", "acl policy apply", "acl policy delete", "acl token delete", "acl role delete",
	"server force-leave", "operator raft remove-peer", "operator raft migrate-backend", "operator root keyring remove", "operator snapshot save", "operator snapshot restore", "operator scheduler dump", "operator debug", "operator api", "system gc", "gpu release", "system reconcile summaries", "alloc exec", "alloc port-forward", "alloc cp", "exec", "job exec", "rsh", "shell", "sbatch", "srun", "squeue", "scancel", "sinfo", "sacct",
	"queue apply", "queue inspect", "queue delete", "quota apply", "quota inspect", "quota delete",
	"config validate", "context add", "context use", "context remove", "var put", "var get", "var purge", "service delete",
	"reservation apply", "reservation inspect", "reservation delete",
	"help", "reference", "completion bash", "completion zsh", "completion fish", "completion powershell",
}

func TestEveryCommand(t *testing.T) {
	root := newRoot(&env{out: new(bytes.Buffer), err: new(bytes.Buffer)})
	seen := 0
	for _, c := range leaves(root) {
		seen++
		name := strings.TrimPrefix(c.CommandPath(), "muster ")
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: short help %q: want a phrase without a full stop", name, c.Short)
		}
		if !strings.Contains(c.Example, "muster ") {
			t.Errorf("%s has no example", name)
		}
		json := c.Flags().Lookup("json") != nil
		if exempt := slices.Contains(writesOnly, name); json == exempt && !strings.HasPrefix(name, "completion") {
			t.Errorf("%s: has -json: %t, is in writesOnly: %t", name, json, exempt)
		}
	}
	if seen < 90 {
		t.Errorf("only %d commands", seen)
	}
}

// lists are commands that list objects and are not called list.
var lists = []string{"acct", "operator decisions", "operator raft list-peers", "server members", "job allocs", "job status", "node status", "alloc status", "queue"}

// TestListsHaveEveryForm: each command that lists objects has -json, -t and -q, and -q prints no line of a table.
func TestListsHaveEveryForm(t *testing.T) {
	for _, c := range leaves(newRoot(&env{out: new(bytes.Buffer), err: new(bytes.Buffer)})) {
		name := strings.TrimPrefix(c.CommandPath(), "muster ")
		if c.Name() != "list" && !slices.Contains(lists, name) || c.Parent().Name() == "keyring" && c.Parent().Parent().Name() == "gossip" { // one answer about all
			continue
		}
		for _, flag := range []string{"json", "template", "quiet"} {
			if c.Flags().Lookup(flag) == nil {
				t.Errorf("%s has no -%s", name, flag)
			}
		}
	}
	for line, want := range map[string]string{
		"acct -q": "prep\nsweep\nnever\n", "acct -q -by user": "bob\nalice\n", "gpu list -q": "H100\n", "server members -q": "s1.global\ns2.global\n", "operator raft list-peers -q": tokenID + "\n",
		"operator root keyring list -q": "abcdef0123456789abcdef0123456789\n0123456789abcdef0123456789abcdef\nfedcba9876543210fedcba9876543210\n",
	} {
		if r := newAgentFake(t).run(t, "", strings.Fields(line)...); r.code != 0 || r.out != want {
			t.Errorf("%s: exit status %d, %q, want %q", line, r.code, r.out, want)
		}
	}
}

// TestFullOutput: a command whose output did not arrive says so, once, and fails.
func TestFullOutput(t *testing.T) {
	agent := newAgentFake(t)
	t.Setenv("MUSTER_ADDR", agent.URL)
	agent.answers["GET /v1/jobs"] = []*wire.JobListStub{{ID: "x", Type: "batch", Status: "dead"}}
	for _, args := range [][]string{{"version"}, {"job", "-help"}, {"job", "status"}, {"job", "status", "-json"}} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skipf("does not apply here: %v", err)
		}
		var errOut bytes.Buffer
		e := &env{in: strings.NewReader(""), out: full, err: &errOut, now: time.Now}
		code := e.main(t.Context(), append([]string{"muster"}, args...))
		if want := "Error: write /dev/full: no space left on device\n"; code != exitError || errOut.String() != want {
			t.Errorf("%q: exit %d, %q, want %q", args, code, errOut.String(), want)
		}
		full.Close()
	}
}

// An argument that is empty, a variable of a shell that is not set, is refused by every command that takes arguments before
// anything is asked or read.
func TestEmptyArguments(t *testing.T) {
	seen := 0
	for _, c := range leaves(newRoot(&env{out: new(bytes.Buffer), err: new(bytes.Buffer)})) {
		if len(strings.Fields(c.Use)) < 2 || c.Flags().Lookup("address") == nil {
			continue
		}
		for n := 1; n <= 3; n++ {
			args := append(slices.Repeat([]string{"x"}, n-1), "")
			if name := emptyArgument(c.Use, args); name == "" {
				continue
			}
			var errOut bytes.Buffer
			e := &env{in: strings.NewReader(""), out: new(bytes.Buffer), err: &errOut, now: time.Now}
			code := e.main(context.Background(), slices.Concat(strings.Fields(c.CommandPath()), []string{"-address=http://127.0.0.1:1"}, args))
			if strings.Contains(errOut.String(), " takes ") {
				break // no more than that
			}
			if seen++; code != exitError || !strings.Contains(errOut.String(), " is empty: "+c.CommandPath()) || strings.Count(errOut.String(), "\n") != 1 {
				t.Errorf("%s %q: exit %d, %q", c.CommandPath(), args, code, errOut.String())
			}
		}
	}
	if seen < 80 {
		t.Errorf("only %d tried", seen)
	}
	for use, args := range map[string][]string{
		"list [options] [PREFIX]": {""}, "exec [options] ALLOCATION COMMAND [ARGUMENT...]": {"a", "sh", "-c", ""},
		"apply [options] FILE": {"f"}, "list [options]": {},
	} {
		if name := emptyArgument(use, args); name != "" {
			t.Errorf("%s %q: %s is said to be empty", use, args, name)
		}
	}
}

// Every line of every example parses: the command exists, its flags too, and the number of arguments fits.
func TestExamplesParse(t *testing.T) {
	for _, c := range leaves(newRoot(&env{out: new(bytes.Buffer), err: new(bytes.Buffer)})) {
		for line := range strings.SplitSeq(c.Example, "\n") {
			line, _, _ = strings.Cut(line, " #")
			i := strings.Index(line, "muster ")
			if i < 0 {
				continue
			}
			args := shellWords(line[i+len("muster "):])
			root := newRoot(&env{out: new(bytes.Buffer), err: new(bytes.Buffer)})
			args = normalize(root, args)
			found, rest, err := root.Find(args)
			if err != nil || found.HasSubCommands() {
				t.Errorf("example %q: no such command", line)
				continue
			}
			if err := found.ParseFlags(rest); err != nil {
				t.Errorf("example %q: %v", line, err)
			}
		}
	}
}

// shellWords splits a line of an example as a shell would, up to the first redirection or pipe.
func shellWords(s string) []string {
	var out []string
	var word strings.Builder
	quote, in := rune(0), false
	for _, r := range s {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\'' || r == '"':
			quote, in = r, true
		case r == ' ':
			if in {
				out = append(out, word.String())
			}
			word.Reset()
			in = false
		case r == '<' || r == '>' || r == '|':
			return out
		default:
			in = true
			word.WriteRune(r)
		}
	}
	if in {
		out = append(out, word.String())
	}
	return out
}

func TestEnvironment(t *testing.T) {
	f := newAgentFake(t)
	var got *http.Request
	f.answers["GET /v1/jobs"] = func(r *http.Request) any { got = r; return []*wire.JobListStub{{ID: "x"}} }
	for _, c := range []struct {
		set   map[string]string
		args  []string
		token string
		ns    string
	}{
		{map[string]string{"NOMAD_TOKEN": "n", "NOMAD_NAMESPACE": "nn"}, nil, "n", "nn"},
		{map[string]string{"NOMAD_TOKEN": "n", "MUSTER_TOKEN": "m", "MUSTER_NAMESPACE": "mm"}, nil, "m", "mm"},
		{map[string]string{"MUSTER_TOKEN": "m"}, []string{"-token=f", "-namespace", "fn"}, "f", "fn"},
	} {
		for _, k := range []string{"TOKEN", "NAMESPACE"} {
			t.Setenv("MUSTER_"+k, "")
			t.Setenv("NOMAD_"+k, "")
		}
		for k, v := range c.set {
			t.Setenv(k, v)
		}
		t.Setenv("MUSTER_ADDR", "")
		t.Setenv("NOMAD_ADDR", f.URL)
		var out, errOut bytes.Buffer
		e := &env{in: strings.NewReader(""), out: &out, err: &errOut, now: func() time.Time { return fixedNow }}
		if code := e.main(t.Context(), append([]string{"muster", "job", "status"}, c.args...)); code != 0 {
			t.Fatalf("exit status %d: %s", code, errOut.String())
		}
		if got.Header.Get("X-Nomad-Token") != c.token || got.URL.Query().Get("namespace") != c.ns {
			t.Errorf("%v %v: token %q, namespace %q", c.set, c.args, got.Header.Get("X-Nomad-Token"), got.URL.Query().Get("namespace"))
		}
	}
}

func TestColour(t *testing.T) {
	f := newAgentFake(t)
	t.Setenv("NO_COLOR", "")
	if r := f.run(t, "", "node", "status"); strings.Contains(r.out, "\x1b") {
		t.Errorf("colour in a pipe: %q", r.out)
	}
	if r := f.run(t, "", "node", "status", "-force-color"); !strings.Contains(r.out, "\x1b[32mready\x1b[0m") {
		t.Errorf("no colour although it is forced: %q", r.out)
	}
	t.Setenv("NO_COLOR", "1")
	if r := f.run(t, "", "node", "status", "-force-color"); strings.Contains(r.out, "\x1b") {
		t.Errorf("colour although NO_COLOR is set: %q", r.out)
	}
}

func TestConfirm(t *testing.T) {
	for _, c := range []struct {
		answer string
		sent   bool
	}{{"y\n", true}, {"n\n", false}, {"\n", false}, {"yes", true}} {
		f := newAgentFake(t)
		var out, errOut bytes.Buffer
		t.Setenv("MUSTER_ADDR", f.URL)
		e := &env{in: strings.NewReader(c.answer), out: &out, err: &errOut, asks: true, now: func() time.Time { return fixedNow }}
		code := e.main(t.Context(), []string{"muster", "node", "purge", "46f1c6c4"})
		sent := strings.Contains(f.log(), "/purge")
		if code != 0 || sent != c.sent || !strings.Contains(errOut.String(), "1 live allocation with 1 GPU of 1 job (alice)") {
			t.Errorf("answer %q: exit status %d, sent %t, asked %q", c.answer, code, sent, errOut.String())
		}
	}
}

func TestExamplesAreJobs(t *testing.T) {
	f := newAgentFake(t)
	t.Chdir(t.TempDir())
	for _, name := range templates() {
		for _, short := range []string{"-short=false", "-short=true"} {
			file := name + short + ".hcl"
			if r := f.run(t, "", "job", "init", short, "-template", name, file); r.code != 0 {
				t.Fatalf("%s: %s; want r.code = 0", name, r.errOut)
			}
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if short == "-short=true" && bytes.Contains(src, []byte("#")) {
				t.Errorf("%s: comments are left:\n%s", file, src)
			}
			var o jobFile
			job, _, err := o.read(t.Context(), &env{err: new(bytes.Buffer)}, file)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if _, p := wire.Prepare(job); p.Err() != nil || len(p.Warnings) > 0 {
				t.Errorf("%s: %v %v", file, p.Err(), p.Warnings)
			}
		}
	}
	if r := f.run(t, "", "job", "init", "example-short=true.hcl"); r.code != 1 || strings.Contains(r.errOut, "goroutine") {
		t.Error("job init must not overwrite a file")
	}
	if r := f.run(t, "", "job", "init", "batch-short=true.hcl"); r.code != 1 {
		t.Errorf("job init overwrote a file: %s", r.out)
	}
}

func TestLastLines(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int64
		want string
	}{{"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\nc", 2, "b\nc"}, {"a\n", 5, "a\n"}, {"", 1, ""}, {"\n\n", 1, "\n"}} {
		t.Run(fmt.Sprintf("%d of %q", c.n, c.in), func(t *testing.T) {
			if got := string(lastLines([]byte(c.in), c.n)); got != c.want {
				t.Errorf("lastLines(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
			}
		})
	}
}

// A few bytes can ask for a day of loops or for all memory: reading a job file ends all the same.
func TestJobFileBounded(t *testing.T) {
	src := []byte("job \"x\" {\n  meta { a = \"${join(\"\", [for a in range(0,200): join(\"\", [for b in range(0,200): format(\"%100d\", a*b)])])}\" }\n}\n")
	for _, c := range []struct {
		limit time.Duration
		heap  uint64
		want  string
	}{
		{10 * time.Millisecond, 1 << 40, "takes too long to evaluate"},
		{time.Minute, 1, "of memory to evaluate"},
		{time.Minute, 1 << 40, ""},
	} {
		job, _, err := parseBounded("x.hcl", src, jobspec.ParseOptions{SizeMax: jobFileMax}, c.limit, c.heap)
		if c.want == "" {
			if err != nil || job == nil {
				t.Errorf("within the limits: %v, %v", job, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q, have %v", c.want, err)
		}
	}
}
