package jobspec

import (
	"fmt"
	"testing"
)

func TestExplain(t *testing.T) {
	f := NewFile("f.hcl", []byte(`job "f" {
  type      = "batchh"
  node_pool = "gpu"
  queue     = "reserch"

  group "g" {
    count = 2
    update {
      canary = 1
    }
    task "s" {
      driver = "exec"
    }
    task "t" {
      driver = "raw_exec"
      config {
        comand = "/bin/true"
      }
      artifact {
        source = "a"
      }
      artifact {
        source = "b"
      }
      resources {
        gpu = { count = 1, model = "H10O" }
        device "nvidia/gpu" {
          count = 1
        }
      }
    }
  }

  group "h" {
    service {
      name = "db"
    }
    service {
      name = "web"
      port = "htpp"
      check {
        type = "http"
        path = ""
      }
    }
  }
}
`))
	for message, want := range map[string]string{
		`type: "batchh" is not a kind of job`:                                                       "2:15",
		`group "g", task "t", config.comand: raw_exec: unknown config key`:                          "17:18",
		`group "g", task "t", config: raw_exec: config key "command" is required`:                   "16:7",
		`group "g", update, canary: canaries are not supported`:                                     "9:16",
		`group "g", task "t", artifact 2, source: is no URL`:                                        "23:18",
		`group "g", task "t", resources, gpu.model: no node has a GPU`:                              "26:28",
		`group "g", task "t", resources, device "nvidia/gpu", count: 0`:                             "28:19",
		`group "g", task "t", vault: not supported`:                                                 "14:5",
		`group "nosuch", task "t": there is no such group`:                                          "0:0",
		`Task group "g" task "s": used task driver "exec" is not allowed in "x"`:                    "11:5",
		`Task group "g" count can't be negative`:                                                    "7:13",
		`Job "f" is in nonexistent queue "reserch" (there are research). Name it`:                   "4:15",
		`Job "f" is in nonexistent node pool "gpu"; did you mean "gpus"?`:                           "3:15",
		`group "h", service "web".port: no port "htpp"`:                                             "40:14",
		`group "h", service "web", check "service: \"web\" check".path: an http check needs a path`: "43:16",
		`namespace: "a b" is not a namespace`:                                                       "0:0",
	} {
		t.Run(message, func(t *testing.T) {
			d := f.Explain(false, []string{message})[0]
			if got := fmt.Sprintf("%d:%d", d.Line, d.Column); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
	check := f.Explain(false, []string{`group "h", service "web", check "service: \"web\" check".path: wants: a path`})[0]
	if check.Summary != `group "h", service "web", check "service: \"web\" check".path` || check.Detail != "wants: a path" {
		t.Errorf("a name with a colon: %q, %q", check.Summary, check.Detail)
	}
	if d := NewFile("f.json", []byte(`{"Job": {}}`)).Explain(true, []string{"type: x"})[0]; d.Line != 0 || !d.Warning || d.Summary != "type" || d.Detail != "x" {
		t.Errorf("%+v", d)
	}
}
