package jobspec

import (
	"encoding/json"
	"strings"
	"testing"
)

// Every block that Nomad does not have is written as an object or as a block, with the same meaning.
// TestPriorityNames: a priority has a number or one of five names, and nothing else.
func TestPriorityNames(t *testing.T) {
	for _, c := range []struct {
		text, says string
		want       int
	}{{`"critical"`, "", 90}, {`"high"`, "", 70}, {`"normal"`, "", 50}, {`"low"`, "", 30}, {`"scavenger"`, "", 10}, {`65`, "", 65}, {`"65"`, "", 65}, {`"urgent"`, `"urgent" is no priority`, 0}, {`true`, "Want a number", 0}} {
		t.Run(c.text, func(t *testing.T) {
			j, d := ParseHCL("a.hcl", []byte("job \"a\" {\n  priority = "+c.text+"\n}\n"), ParseOptions{})
			switch {
			case c.says != "":
				if !d.HasErrors() || !strings.Contains(d[0].Detail, c.says) {
					t.Errorf("%s: %v", c.text, d)
				}
			case d.HasErrors() || j.Priority == nil || *j.Priority != c.want:
				t.Errorf("%s: %v, %v", c.text, j, d)
			}
		})
	}
}

func TestOwnBlocksBothWays(t *testing.T) {
	object := `job "j" {
  type = "batch"
  runtime = { expected = "1h", limit = "2h" }
  requeue = { on = ["preempt"], max = 3, avoid_failed_nodes = true }
  array = { count = 2, concurrency = 1, params = { LR = ["1", "2"] } }
  toleration = [{ key = "a", value = "b", effect = "no-schedule" }]
  depends_on = { prep = { when = "started", timeout = "1h", on_timeout = "run", group = "x", at_least = 1, job = "p", namespace = "n" } }
  group "g" {
    gang = { min = 1, timeout = "1m", on_failure = "continue", standby = 1 }
    elastic = { min = 1, max = 2 }
    topology = { inside = "nvlink", across = "leaf", mode = "required" }
    launch = { mode = "rank", ranks = 2, compat = ["slurm"], port = 1 }
    checkpoint = { signal = "SIGUSR1", command = ["a"], url = "http://x", to = "ranks", on = ["limit"], before = "1m", grace = "1s", dir = "/d", cost = "2s" }
    task "t" {
      driver = "exec"
      resources {
        shm = 8
        gpu = { count = 1, mig = "1g.10gb", rdma = "preferred" }
      }
    }
  }
}`
	// The same with a block for each object: one argument a line.
	var b strings.Builder
	for _, line := range strings.Split(object, "\n") {
		name, rest, ok := strings.Cut(line, " = {")
		switch n := strings.TrimSpace(name); {
		case ok && n == "depends_on":
			b.WriteString("depends_on \"prep\" {\n")
			rest = rest[strings.Index(rest, "{")+1:]
			rest = strings.TrimSuffix(strings.TrimSpace(rest), "} }") + "}"
		case strings.Contains(line, "toleration"):
			b.WriteString("toleration {\nkey = \"a\"\nvalue = \"b\"\neffect = \"no-schedule\"\n}\n")
			continue
		case ok:
			b.WriteString(n + " {\n")
		default:
			b.WriteString(line + "\n")
			continue
		}
		depth := 0
		for _, c := range strings.TrimSuffix(strings.TrimSpace(rest), "}") {
			if c == '[' || c == '{' {
				depth++
			}
			if c == ']' || c == '}' {
				depth--
			}
			if c == ',' && depth == 0 {
				c = '\n'
			}
			b.WriteRune(c)
		}
		b.WriteString("\n}\n")
	}
	text := func(src string) string {
		out, err := json.MarshalIndent(mustParse(t, src, ParseOptions{}), "", " ")
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	want, got := text(object), text(b.String())
	if want != got {
		t.Errorf("as objects:\n%s\nas blocks:\n%s", want, got)
	}
	for _, name := range []string{`"Array"`, `"Tolerations"`, `"DependsOn"`, `"Checkpoint"`, `"Elastic"`, `"ShmMB"`} {
		if !strings.Contains(want, name) {
			t.Errorf("%s is missing in\n%s", name, want)
		}
	}
}
