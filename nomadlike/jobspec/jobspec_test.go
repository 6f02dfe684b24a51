package jobspec

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/nomadlike/wire"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files in testdata")

func TestMain(m *testing.M) {
	MaybeRunChild()
	os.Exit(m.Run())
}

func mustParse(t *testing.T, src string, opts ParseOptions) *wire.Job {
	t.Helper()
	j, d := ParseHCL("job.nomad.hcl", []byte(src), opts)
	if d.HasErrors() {
		t.Fatal(d)
	}
	return j
}

func TestExample(t *testing.T) {
	src, err := os.ReadFile("testdata/example.nomad.hcl")
	if err != nil {
		t.Fatal(err)
	}
	j := mustParse(t, string(src), ParseOptions{})
	got, err := json.MarshalIndent(j, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/example.json", string(got)+"\n")
	out, p := wire.Prepare(j)
	if p.Err() != nil {
		t.Fatal(p.Err())
	}
	g := out.Groups[0]
	if g.Networks[0].StaticPorts[0].Value != 9100 || len(g.Networks[0].DynamicPorts) != 3 || out.Queue != "research/nlp" {
		t.Errorf(`%+v; want g.Networks[0].StaticPorts[0].Value = 9100, len(g.Networks[0].DynamicPorts) = 3, out.Queue = "research/nlp"`, g.Networks)
	}
	want := `{"args":["-port","${NOMAD_PORT_db}","-id","x-${NOMAD_ALLOC_ID}-cache:7","${env[\"HOME\"]}"],"command":"/usr/bin/cache","image":"cache","mount":[{"target":"/a","type":"bind"},{"target":"/b","type":"tmpfs"}]}`
	if string(g.Tasks[0].Config) != want {
		t.Errorf("config: %s", g.Tasks[0].Config)
	}
	if s := j.TaskGroups[0].Tasks[0].Services; len(g.Tasks[0].Services)+len(g.Services) != 1 || len(s)+len(j.TaskGroups[0].Services) != 1 {
		t.Errorf("services %+v, %+v", g.Services, g.Tasks[0].Services)
	} else if x := append(g.Services, g.Tasks[0].Services...)[0]; x.Name != "cache" || x.PortLabel != "db" || !x.Checked {
		t.Errorf("service %+v", x)
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("%s differs; run with -rewrite and read the diff. Got:\n%s", file, got)
	}
}

// Every file in testdata/broken has a .want file with all of its diagnostics.
func TestBrokenFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/broken/*.hcl")
	if err != nil {
		t.Fatal(err)
	}
	more, _ := filepath.Glob("testdata/broken/*.json")
	files = append(files, more...)
	if len(files) < 40 {
		t.Errorf("%d broken files; want at least 40", len(files))
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			src, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			j, d := ParseHCL(filepath.Base(f), src, ParseOptions{})
			if !d.HasErrors() || j != nil {
				t.Fatal("accepted")
			}
			golden(t, f+".want", d.String())
		})
	}
}

const minimal = `job "a" { group "g" { task "t" { driver = "exec" } } }`

func TestBlockAndObjectAreTheSame(t *testing.T) {
	block := mustParse(t, `job "a" {
  meta {
    k = "v"
  }
  group "g" {
    gang {
      min = 2
    }
    restart {
      attempts = 1
    }
    constraint {
      attribute = "a"
      value     = "b"
    }
    network {
      port "x" {
        static = 1
      }
    }
    task "t" {
      driver = "exec"
      config {
        command = "x"
      }
      resources {
        gpu {
          count = 1
        }
      }
    }
  }
}`, ParseOptions{})
	object := mustParse(t, `job "a" {
  meta = { k = "v" }
  group "g" {
    gang       = { min = 2 }
    restart    = { attempts = 1 }
    constraint = [{ attribute = "a", value = "b" }]
    network    = { port = { x = { static = 1 } } }
    task "t" {
      driver    = "exec"
      config    = { command = "x" }
      resources = { gpu = { count = 1 } }
    }
  }
}`, ParseOptions{})
	asJSON := mustParse(t, `{"job": {"a": {"meta": {"k": "v"}, "group": {"g": {"gang": {"min": 2}, "restart": [{"attempts": 1}],
  "constraint": {"attribute": "a", "value": "b"}, "network": {"port": {"x": {"static": 1}}},
  "task": [{"t": {"driver": "exec", "config": {"command": "x"}, "resources": {"gpu": {"count": 1}}}}]}}}}}`, ParseOptions{})
	for name, j := range map[string]*wire.Job{"object": object, "json": asJSON} {
		if !reflect.DeepEqual(block, j) {
			a, _ := json.Marshal(block)
			b, _ := json.Marshal(j)
			t.Errorf("%s:\n%s\n%s", name, a, b)
		}
	}
}

// A gpu block and the object say the same; alternatives are blocks or a list.
func TestGPUShapes(t *testing.T) {
	job := func(gpu string) *wire.Job {
		return mustParse(t, "job \"a\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"exec\"\n      resources {\n"+gpu+"\n      }\n    }\n  }\n}\n", ParseOptions{})
	}
	block := job(`
        gpu {
          count   = 1
          memory  = "20GiB"
          compute = 50
          model   = "H200"
          enforce = "auto"
          constraint {
            attribute = "${device.attr.memory}"
            operator  = ">="
            value     = "80 GiB"
          }
          or {
            count = 2
            model = "H100"
          }
          or {
            share = 25
          }
        }`)
	object := job(`        gpu = { count = 1, memory = "20GiB", compute = 50, model = "H200", enforce = "auto",
          constraint = [{ attribute = "${device.attr.memory}", operator = ">=", value = "80 GiB" }],
          or = [{ count = 2, model = "H100" }, { share = 25 }] }`)
	if !reflect.DeepEqual(block, object) {
		a, _ := json.Marshal(block)
		b, _ := json.Marshal(object)
		t.Errorf("block and object differ:\n%s\n%s", a, b)
	}
	g := block.TaskGroups[0].Tasks[0].Resources.GPU
	if g == nil || len(g.Or) != 2 || g.Or[0].Model != "H100" || *g.Or[1].Share != 25 || g.Memory != "20GiB" || len(g.Constraints) != 1 {
		t.Errorf("got %+v", g)
	}
}

func TestAPIJSON(t *testing.T) {
	for _, src := range []string{
		`{"Job": {"ID": "a", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "exec", "Templates": [{"EmbeddedTmpl": "%{ ${"}]}]}]}}`,
		`{"ID": "a", "TaskGroups": [{"Name": "g"}]}`,
		`{"job": {"ID": "a", "TaskGroups": [{"Name": "g"}]}}`,
	} {
		if j := mustParse(t, src, ParseOptions{}); *j.ID != "a" || len(j.TaskGroups) != 1 {
			t.Errorf(`%s: %+v; want *j.ID = "a", len(j.TaskGroups) = 1`, src, j)
		}
	}
	_, d := ParseHCL("x.json", []byte(`{"Job": {"ID": "a", "Pririty": 3}}`), ParseOptions{})
	if d.HasErrors() || len(d) != 1 || !strings.Contains(d[0].Detail, `did you mean "Priority"?`) {
		t.Errorf("%v", d)
	}
}

func TestVariablePrecedence(t *testing.T) {
	src := `variable "v" { default = "default" }
variable "l" {
  type    = list(number)
  default = [1]
}
job "a" {
  meta = { v = var.v, l = join(",", var.l) }
}`
	file := VarFile{Name: "x.vars", Source: []byte("v = \"file\"\nl = [4]\n")}
	for _, c := range []struct {
		opts ParseOptions
		want string
	}{
		{ParseOptions{}, "default 1"},
		{ParseOptions{Env: []string{"NOMAD_VAR_v=nomad", "NOMAD_VAR_l=[2, 3]"}}, "nomad 2,3"},
		{ParseOptions{Env: []string{"MUSTER_VAR_v=muster", "NOMAD_VAR_v=nomad"}}, "muster 1"},
		{ParseOptions{Env: []string{"MUSTER_VAR_v=muster"}, VarFiles: []VarFile{file}}, "file 4"},
		{ParseOptions{VarFiles: []VarFile{file}, Vars: map[string]string{"v": "flag"}}, "flag 4"},
	} {
		j := mustParse(t, src, c.opts)
		if got := j.Meta["v"] + " " + j.Meta["l"]; got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestBareTaskAndInheritedVault(t *testing.T) {
	j := mustParse(t, `job "a" {
  vault {
    role = "r"
  }
  task "t" {
    driver = "exec"
  }
}`, ParseOptions{})
	if len(j.TaskGroups) != 1 || *j.TaskGroups[0].Name != "t" || j.TaskGroups[0].Tasks[0].Vault.Role != "r" {
		t.Errorf(`%+v; want len(j.TaskGroups) = 1, *j.TaskGroups[0].Name = "t", j.TaskGroups[0].Tasks[0].Vault.Role = "r"`, j.TaskGroups)
	}
}

func TestFilesOnlyWhenAllowed(t *testing.T) {
	src := `job "a" { meta = { x = file("testdata/../testdata/small.txt") } }`
	if _, d := ParseHCL("job.hcl", []byte(src), ParseOptions{}); !d.HasErrors() || !strings.Contains(d.String(), "only works on the command line") {
		t.Errorf("a server read a file: %v", d)
	}
	if j := mustParse(t, src, ParseOptions{AllowFS: true}); j.Meta["x"] != "small\n" {
		t.Errorf("%q; want \"small\\n\"", j.Meta["x"])
	}
}

// What killed or bloated a process with the plain parser must be refused quickly.
func TestGate(t *testing.T) {
	for name, src := range map[string]string{
		"parens":       "a = " + strings.Repeat("(", 137<<10),
		"blocks":       strings.Repeat("a {\n", 160_000),
		"brackets":     "a = " + strings.Repeat("[", 200_000),
		"templates":    "a = " + strings.Repeat("\"${", 50_000),
		"unary":        "a = " + strings.Repeat("!", 500_000) + "true",
		"conditionals": "a = " + strings.Repeat("true ? 1 : ", 80_000) + "1",
		"binary":       "a = 1" + strings.Repeat("+1", 400_000),
		"index":        "a = x" + strings.Repeat("[0]", 200_000),
		"json":         `{"job": ` + strings.Repeat("[", 190_000),
		"json text":    `{"job": {"a": {"meta": {"x": "${` + strings.Repeat("(", 137<<10) + `"}}}}`,
		"zero":         "job \"a\" {\x00}",
		"large":        strings.Repeat("# comment\n", SizeMaxServer/10+1),
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			if _, d := ParseHCL("x.hcl", []byte(src), ParseOptions{}); !d.HasErrors() {
				t.Error("accepted")
			} else if len(d.String()) > 20_000 {
				t.Errorf("%d bytes of diagnostics", len(d.String()))
			}
			if took := time.Since(start); took > time.Minute { // a hang, even on a slow machine
				t.Errorf("took %s", took)
			}
		})
	}
}

func TestChild(t *testing.T) {
	resp, err := ParseInChild(context.Background(), Request{Source: `variable "x" {}
job "a" { meta = { x = var.x, home = "${env["HOME"]}" } }`, Variables: `x = "1"`})
	if err != nil {
		t.Fatal(err)
	}
	if resp.Diagnostics.HasErrors() || resp.Job == nil || resp.Job.Meta["x"] != "1" || resp.Job.Meta["home"] != `${env["HOME"]}` {
		t.Errorf("%+v", resp)
	}
	resp, err = ParseInChild(context.Background(), Request{Source: `job "a" { prioritty = 3 }`})
	if err != nil || !strings.Contains(resp.Diagnostics.String(), `did you mean "priority"?`) {
		t.Errorf("%v %+v; want \"did you mean \\\"priority\\\"?\" in it", err, resp)
	}
}

// The evaluation bombs cost hundreds of megabytes or seconds; the child may spend them, this process may not.
func TestChildSurvivesBombs(t *testing.T) {
	for name, expr := range map[string]string{
		"nested for": `length([for a in range(0,1000): [for b in range(0,1000): [for c in range(0,1000): a*b*c]]])`,
		"format":     `join("",[for a in range(0,1000): format("%100000d",a)])`,
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			resp, err := ParseInChild(context.Background(), Request{Source: `job "a" { meta = { x = "` + "${" + expr + "}" + `" } }`})
			took := time.Since(start)
			if err == nil && !resp.Diagnostics.HasErrors() {
				t.Error("accepted")
			}
			if took > childTime+2*time.Second {
				t.Errorf("took %s", took)
			}
			t.Logf("%s: %v", took.Round(time.Millisecond), err)
		})
	}
}

func TestChildIsBounded(t *testing.T) {
	if _, err := ParseInChild(context.Background(), Request{Source: strings.Repeat("x", SizeMaxServer+1)}); err == nil {
		t.Error("a file over the limit was accepted")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := ParseInChild(ctx, Request{Source: minimal}); err == nil {
		t.Error("parsed although the caller is gone")
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/broken/*")
	for _, name := range append(files, "testdata/example.nomad.hcl") {
		if b, err := os.ReadFile(name); err == nil {
			f.Add(b)
		}
	}
	f.Add([]byte(minimal))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4096 || strings.Contains(string(b), "range") || strings.Contains(string(b), "format") || strings.Contains(string(b), "bcrypt") {
			t.Skip("evaluation is bounded by the child process only: see TestChild")
		}
		j, d := ParseHCL("fuzz.hcl", b, ParseOptions{})
		if (j == nil) != d.HasErrors() {
			t.Fatalf("job %v, diagnostics %v", j, d)
		}
		if j != nil {
			wire.Prepare(j)
		}
	})
}
