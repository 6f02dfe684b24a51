//go:build e2e

package hostile

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// job is a small job with text added at the three levels, and replacements of pairs (old, new) made.
func job(atJob, atGroup, atTask string, replace ...string) string {
	s := fmt.Sprintf(`job "hostile" {
  type = "batch"
  %s
  group "g" {
    %s
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      resources {
        cpu    = 10
        memory = 10
      }
      %s
    }
  }
}
`, atJob, atGroup, atTask)
	return strings.NewReplacer(replace...).Replace(s)
}

type fileCase struct {
	name, text string
	has        string // in the one clear error
	verb       string // validate and run when empty
}

func fileCases() []fileCase {
	deep := func(n int, open, mid, end string) string {
		return strings.Repeat(open, n) + mid + strings.Repeat(end, n)
	}
	task := `driver = "raw_exec"
 config { command = "/bin/true" }
`
	cs := []fileCase{
		{"empty", "", "job", ""},
		{"binary", "\x7fELF\x00\x01\x02\xff\xfe" + strings.Repeat("\x00\x90\xff", 5000), "", ""},
		{"100 MB", job("", "", "") + strings.Repeat("# filler that goes on\n", 100<<20/22), "", ""},
		{"parentheses", "a = " + strings.Repeat("(", 137<<10), "", ""},
		{"brackets", "a = " + strings.Repeat("[", 137<<10), "", ""},
		{"unary", "a = " + strings.Repeat("!", 200<<10) + "true", "", ""},
		{"conditionals", "a = " + strings.Repeat("true ? 1 : ", 100<<10) + "2", "", ""},
		{"templates", "a = " + deep(20000, `"${`, "1", `}"`), "", ""},
		{"nested blocks", deep(5000, "a {\n", "", "}\n"), "", ""},
		{"json depth", deep(100_000, "[", "", "]"), "", ""},
		{"json depth in an object", `{"job": ` + deep(100_000, `{"a":`, "1", "}") + "}", "", ""},
		{"bomb of loops", job("meta { a = \"${[for a in range(0,300): [for b in range(0,300): [for c in range(0,300): a*b*c]]]}\" }", "", ""), "", ""},
		{"bomb of padding", job(`meta { a = join("",[for a in range(0,1000): format("%100000d",a)]) }`, "", ""), "", ""},
		{"unknown block", job("", "", "resorces { cpu = 1 }"), `resources`, ""},
		{"unknown attribute", job("prioritty = 5", "", ""), `priority`, ""},
		{"unknown attribute of a task", job("", "", "usr = \"x\""), `user`, ""},
		{"unknown key of the driver", job("", "", "", `command =`, `comand =`), "did you mean \"command\"?", ""},
		{"string for a number", job(`priority = "urgent"`, "", ""), "priority", ""},
		{"list for a string", job(`region = ["a"]`, "", ""), "region", ""},
		{"block for a list", job(`datacenters { a = 1 }`, "", ""), "datacenters", ""},
		{"fraction for a count", job("", "count = 1.5", ""), "count", ""},
		{"bad duration", job("", "", `kill_timeout = "5 parsecs"`), "kill_timeout", ""},
		{"negative duration", job("", "", `kill_timeout = "-5s"`), "", ""},
		{"negative cpu", job("", "", "", "cpu    = 10", "cpu = -1"), "cpu", ""},
		{"negative memory", job("", "", "", "memory = 10", "memory = -1"), "memory", ""},
		{"memory beyond int64", job("", "", "", "memory = 10", "memory = 99999999999999999999"), "memory", ""},
		{"memory_max below memory", job("", "", "", "memory = 10", "memory = 10\nmemory_max = 5"), "memory", ""},
		{"cpu and cores", job("", "", "", "cpu    = 10", "cpu = 10\ncores = 1"), "cores", ""},
		{"negative disk", job("", "ephemeral_disk { size = -5 }", ""), "disk", ""},
		{"negative count", job("", "count = -1", ""), "count", ""},
		{"count of a thousand million", job("", "count = 1000000000", ""), "count", ""},
		{"count beyond int64", job("", "count = 9223372036854775808", ""), "count", ""},
		{"groups times count", "job \"hostile-groups\" {\n" + func() string {
			var b strings.Builder
			for i := range 50 {
				fmt.Fprintf(&b, "group \"g%d\" {\ncount = 90000\ntask \"t\" {\n%s}\n}\n", i, task)
			}
			return b.String()
		}() + "}\n", "", ""},
		{"no group", `job "hostile" {}`, "group", ""},
		{"group without a task", "job \"hostile\" {\ngroup \"g\" {}\n}", "task", ""},
		{"two jobs", job("", "", "") + job("", "", ""), "job", ""},
		{"two groups of a name", job("group \"g\" {\ntask \"t\" {\n"+task+"}\n}", "", ""), "g", ""},
		{"two tasks of a name", job("", "task \"t\" {\n"+task+"}", ""), "t", ""},
		{"two leaders", job("", "task \"u\" {\nleader = true\n"+task+"}", "leader = true"), "leader", ""},
		{"poststop only", job("", "", `lifecycle { hook = "poststop" }`), "", ""},
		{"unknown hook", job("", "", `lifecycle { hook = "midlife" }`), "hook", ""},
		{"lifecycle without a hook", job("", "", `lifecycle {}`), "hook", ""},
		{"leader that is prestart", job("", "", "leader = true\nlifecycle { hook = \"prestart\" }"), "", ""},
		{"priority 0", job("priority = 0", "", ""), "", "zero"},
		{"priority 101", job("priority = 101", "", ""), "priority", ""},
		{"priority -5", job("priority = -5", "", ""), "priority", ""},
		{"unknown type", job("", "", "", `"batch"`, `"btach"`), "batch", ""},
		{"no datacenter", job("datacenters = []", "", ""), "", "zero"},
		{"empty datacenter", job(`datacenters = [""]`, "", ""), "datacenter", ""},
		{"bad cron", job("periodic { cron = \"99 * * * *\" }", "", ""), "cron", ""},
		{"cron of a megabyte", job("periodic { cron = \""+strings.Repeat("* ", 200<<10)+"\" }", "", ""), "cron", ""},
		{"bad time zone", job("periodic {\ncron = \"* * * * *\"\ntime_zone = \"../../etc/passwd\"\n}", "", ""), "time_zone", ""},
		{"periodic service", job("periodic { cron = \"* * * * *\" }", "", "", `"batch"`, `"service"`), "periodic", ""},
		{"no driver", job("", "", "", `driver = "raw_exec"`, ""), "driver", ""},
		{"unknown driver", job("", "", "", `"raw_exec"`, `"raw_exce"`), "did you mean \"raw_exec\"?", ""},
		{"unknown operator", job("constraint {\nattribute = \"${attr.kernel.name}\"\noperator = \"=~~\"\nvalue = \"x\"\n}", "", ""), "operator", ""},
		{"bad regexp", job("constraint {\nattribute = \"${attr.kernel.name}\"\noperator = \"regexp\"\nvalue = \"a(((\"\n}", "", ""), "reg", ""},
		{"regexp bomb", job("constraint {\nattribute = \"${attr.kernel.name}\"\noperator = \"regexp\"\nvalue = \"((((a{1,100}){1,100}){1,100}){1,100})\"\n}", "", ""), "reg", ""},
		{"bad version", job("constraint {\nattribute = \"${attr.kernel.version}\"\noperator = \"version\"\nvalue = \">= banana\"\n}", "", ""), "version", ""},
		{"affinity of weight 1000", job("affinity {\nattribute = \"${node.class}\"\nvalue = \"x\"\nweight = 1000\n}", "", ""), "weight", ""},
		{"spread over 100 %", job("spread {\nattribute = \"${node.datacenter}\"\ntarget \"a\" { percent = 60 }\ntarget \"b\" { percent = 60 }\n}", "", ""), "100", ""},
		{"port 70000", job("", `network {
 port "p" { static = 70000 }
}`, ""), "70000", ""},
		{"port -1", job("", `network {
 port "p" { static = -1 }
}`, ""), "-1", ""},
		{"one static port twice", job("", `network {
 port "p" { static = 4000 }
 port "q" { static = 4000 }
}`, ""), "4000", ""},
		{"one label twice", job("", `network {
 port "p" {}
 port "p" {}
}`, ""), "p", ""},
		{"name of a task with slashes", job("", "", "", `task "t"`, `task "../../t"`), "../../t", ""},
		{"name of a task: alloc", job("", "", "", `task "t"`, `task "alloc"`), "alloc", ""},
		{"name of a task: ..", job("", "", "", `task "t"`, `task ".."`), "..", ""},
		{"name of a task: empty", job("", "", "", `task "t"`, `task ""`), "name", ""},
		{"name of a group with slashes", job("", "", "", `group "g"`, `group "a/../b"`), "a/../b", ""},
		{"name of a job with a newline", job("", "", "", `job "hostile"`, `job "a\nb"`), "name", ""},
		{"name of a job with NUL", job("", "", "", `job "hostile"`, `job "a\u0000b"`), "", ""},
		{"name of a job with 1,000 characters", job("", "", "", `job "hostile"`, `job "`+strings.Repeat("n", 1000)+`"`), "", ""},
		{"name of a task with an escape sequence", job("", "", "", `task "t"`, `task "\u001b[2Jt"`), "", ""},
		{"name of a task with 1,000 characters", job("", "", "", `task "t"`, `task "`+strings.Repeat("n", 1000)+`"`), "", ""},
		{"name of a job with a space", job("", "", "", `job "hostile"`, `job "hos tile"`), "hos tile", ""},
		{"meta of 2 MiB", job("meta { a = \""+strings.Repeat("m", 2<<20)+"\" }", "", ""), "", ""},
		{"env of 2 MiB", job("", "", "env { A = \""+strings.Repeat("m", 2<<20)+"\" }"), "", ""},
		{"a million env variables", job("", "", func() string {
			var b strings.Builder
			b.WriteString("env {\n")
			for i := range 1_000_000 {
				fmt.Fprintf(&b, "A%d=1\n", i)
			}
			return b.String() + "}"
		}()), "", ""},
		{"env key with =", job("", "", `env = { "A=B" = "c" }`), "A=B", ""},
		{"env with NUL", job("", "", `env = { "A" = "a\u0000b" }`), "", ""},
		{"artifact of the node's files", job("", "", `artifact { source = "file:///etc/shadow" }`), "artifact", ""},
		{"artifact to elsewhere", job("", "", "artifact {\nsource = \"http://127.0.0.1/x\"\ndestination = \"../../../../etc/cron.d/x\"\n}"), "leads out", ""},
		{"template", job("", "", "template {\ndata = \"{{ file \\\"/etc/shadow\\\" }}\"\ndestination = \"../../../../etc/cron.d/x\"\n}"), "template", ""},
		{"vault", job("", "", `vault { policies = ["root"] }`), "vault", ""},
		{"consul", job("", "consul {}", ""), "consul", ""},
		{"volume of a plugin", job("", "volume \"v\" {\ntype = \"csi\"\nsource = \"x\"\n}", ""), "only \"host\" is supported", ""},
		{"volume for nothing", job("", "volume \"v\" {\ntype = \"host\"\n}", `volume_mount {
volume = "w"
destination = "/data"
}`), "no volume", ""},
		{"multiregion", job("multiregion {\nregion \"a\" {}\n}", "", ""), "multiregion", ""},
		{"gang larger than its group", job("", "gang {\n min = 9\n}", ""), "gang", ""},
		{"undefined variable", job("region = var.nowhere", "", ""), "nowhere", ""},
		{"undefined function", job("region = system(\"id\")", "", ""), "system", ""},
		{"dispatch payload below another path", job("parameterized {}", "", `dispatch_payload { file = "../../../../etc/cron.d/x" }`), "dispatch_payload", ""},
		{"gpu negative", job("", "", "", "cpu    = 10", "device \"nvidia/gpu\" { count = -1 }"), "device", ""},
		{"gpu count huge", job("", "", "", "cpu    = 10", "device \"nvidia/gpu\" { count = 99999999999 }"), "", ""},
		{"restart mode", job("", `restart { mode = "banana" }`, ""), "banana", ""},
		{"logs of 0 files", job("", "", "logs { max_files = 0 }"), "", ""},
		{"logs beyond the disk", job("", "ephemeral_disk { size = 10 }", "logs {\nmax_files = 1000\nmax_file_size = 1000\n}"), "", ""},
		{"kill signal", job("", "", `kill_signal = "SIGBANANA"`), "SIGBANANA", ""},
		{"cgroup of nothing", job("", "", "", "cpu    = 10", "cpu = 10\nmemory_max = -7"), "memory_max", ""},
		{"namespace that is not there", job(`namespace = "nowhere"`, "", ""), "nowhere", ""},
		{"pool that is not there", job(`node_pool = "nowhere"`, "", ""), "nowhere", ""},
		{"region that is not there", job(`region = "nowhere"`, "", ""), "nowhere", ""},
	}
	return cs
}

func testJobFiles(t *testing.T, v *victim) {
	for _, c := range fileCases() {
		t.Run(c.name, func(t *testing.T) {
			p := v.file("hostile.hcl", c.text)
			verbs := [][]string{{"job", "run", "-detach", p}}
			if !strings.HasPrefix(c.name, "bomb") { // those take their seconds each time
				verbs = append(verbs, []string{"job", "validate", p}, []string{"job", "plan", p})
			}
			for _, args := range verbs {
				begin := time.Now()
				code, out := v.muster(nil, args...)
				if d := time.Since(begin); d > time.Minute {
					t.Errorf("took %s", d)
				}
				switch {
				case args[1] == "plan" && c.verb == "zero":
					if code != 0 && code != 1 { // 1: there are changes
						t.Errorf("plan: code %d: %s", code, head(out))
					}
				case c.verb == "zero":
					expect(t, code, out, 0, c.has)
				case args[1] == "plan":
					expect(t, code, out, 255, c.has)
				default:
					expect(t, code, out, 1, c.has)
				}
			}
			v.alive(t)
		})
	}
}

// testDispatch sends a parameterized job what it does not take.
func testDispatch(t *testing.T, v *victim) {
	p := v.file("dispatch.hcl", job("parameterized {\n  payload = \"forbidden\"\n  meta_required = [\"model\"]\n  meta_optional = [\"seed\"]\n}", "", "", `"hostile"`, `"dispatched"`))
	if code, out := v.muster(nil, "job", "run", "-detach", p); code != 0 {
		t.Fatalf("run: %d %s", code, out)
	}
	for _, c := range []struct{ name, body, has string }{
		{"no meta", `{}`, "model"},
		{"unknown meta", `{"Meta":{"model":"a","banana":"b"}}`, "banana"},
		{"payload forbidden", `{"Meta":{"model":"a"},"Payload":"AAAA"}`, "ayload"},
		{"payload too large", `{"Meta":{"model":"a"},"Payload":"` + strings.Repeat("AAAA", 10000) + `"}`, "ayload"},
		{"payload that is no base64", `{"Meta":{"model":"a"},"Payload":"%%%"}`, "ayload"},
		{"meta of a megabyte", `{"Meta":{"model":"` + strings.Repeat("m", 500<<10) + `"}}`, "model"},
		{"prefix template of a path", `{"Meta":{"model":"a"},"IdPrefixTemplate":"../../ x\u0000"}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out := send("PUT", "/v1/job/dispatched/dispatch", c.body, nil)
			expect(t, code, out, 400, c.has)
			v.alive(t)
		})
	}
	t.Run("allowed", func(t *testing.T) {
		code, out := send("PUT", "/v1/job/dispatched/dispatch", `{"Meta":{"model":"a"}}`, nil)
		expect(t, code, out, 200, "DispatchedJobID")
		v.alive(t)
	})
}
