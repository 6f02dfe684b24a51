//go:build e2e

package pages

import "github.com/muster-sched/muster/e2e/harness"

// job is a setup that submits a job of one task and waits until it runs.
func job(name, typ, group, task, script string) string {
	return `cat > ` + name + `.hcl <<'END'
job "` + name + `" {
  type = "` + typ + `"
  group "g" {
` + group + `
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "` + script + `"]
      }
` + task + `
    }
  }
}
END
muster job run ` + name + `.hcl
for i in $(seq 100); do muster job allocs ` + name + ` | grep -q running && break; sleep 0.2; done
`
}

// allocOf and nodeID are typed where a page writes an id.
func allocOf(job string) string {
	return `$(muster job allocs -t '{{range .}}{{.ID}} {{end}}' ` + job + ` | cut -c1-8)`
}

const nodeID = `$(muster node status -t '{{range .}}{{.ID}}{{end}}' | cut -c1-8)`

const sleeps = "exec sleep 600"

// guides are of the pages whose readers have more than a fresh cluster.
var guides = map[string]guide{
	"README.md": {gpus: "8xH100", early: "muster job why sft", after: "muster job run -detach sft.hcl", setup: `ln -s "$TREE/sim" .`,
		words: map[string]string{"make dev ": `make -n -C "$TREE" dev `, "make test ": `make -n -C "$TREE" test `, "muster agent -dev -dev-gpus=8xH100": "muster agent -help"}},
	"docs/tutorial/training.md": {gpus: "16xH100", below: "/var/tmp", setup: `mkdir -p "$PAGES/data/site"; cat > "$PAGES/data/site/sitecustomize.py" <<'END'
` + harness.SiteCustomize + `
END
printf '#!/bin/sh\nPYTHONPATH=%s exec /usr/bin/python3 -m torch.distributed.run "$@"\n' "$PAGES/data/site" > "$PAGES/data/torchrun"; chmod +x "$PAGES/data/torchrun"; echo 'import os, time; print("rank", os.environ["RANK"], flush=True); time.sleep(600)' > "$PAGES/data/train.py"`,
		words: map[string]string{"nvidia-smi": "/bin/true"},
		files: map[string]string{`command = "torchrun"`: `command = "$PAGES/data/torchrun"`, "= 4000": "= 100", "= 65536": "= 1024", "= 16384": "= 64", "/data/": "$PAGES/data/", `"/data`: `"$PAGES/data`}},
	"docs/gpu.md": {gpus: "8xH100", below: "/tmp", words: map[string]string{"make dev-gpu": "true", "ALLOC": allocOf("share")}},
	"docs/how-to/contexts.md": {setup: `muster namespace apply ml; muster tls ca create; mv muster-agent-ca.pem ca.pem
umask 077; cat /proc/sys/kernel/random/uuid > ~/.muster-token`,
		words: map[string]string{"https://10.0.0.1:4646": "$MUSTER_ADDR", "http://lab-01:4646": "$MUSTER_ADDR", "muster job": "env -u MUSTER_ADDR muster job"}},
	"docs/how-to/inference.md": {gpus: "8xH100"},
	"docs/how-to/sweeps.md":    {below: "/var/tmp"},
	"docs/how-to/notebooks.md": {gpus: "8xH100", words: map[string]string{"nvidia-smi": "/bin/true"}},
	"docs/scheduling.md":       {setup: `ln -s "$TREE/sim" .`},
	"docs/reference/simulator.md": {setup: `cp "$TREE"/cmd/muster/testdata/sim/*.hcl "$TREE"/cmd/muster/testdata/sim/*.csv .; cp dated.hcl maintenance.hcl; cp team.csv jobs.csv; ln -s "$TREE/sim" .`,
		words: map[string]string{"past.json": "team.csv"}},
	"docs/operate/runbooks.md":        {setup: "muster tls ca create; muster node meta apply rack=r3"},
	"docs/operate/troubleshooting.md": {setup: job("train", "batch", "", "", sleeps)},
	"docs/operate/suspend.md": {setup: job("train", "batch", "", "", sleeps),
		words: map[string]string{"8ba85cef": allocOf("train")}},
	"docs/operate/variables.md": {setup: "echo old > password.txt; echo new > new.txt",
		words: map[string]string{"remove KEY": "list"}},
	"docs/operate/queues.md": {setup: job("train", "batch", "", "", sleeps),
		words: map[string]string{"why JOB": "why train", "why -nodes JOB": "why -nodes train", "plan FILE": "plan train.hcl", "46f1c6c4": nodeID}},
	"docs/operate/logins.md": {setup: job("train", "batch", "", "", sleeps),
		words: map[string]string{"/var/lib/muster": `$(curl -s "$MUSTER_ADDR/v1/agent/self" | jq -r .config.DataDir)`}},
	"docs/operate/services.md": {setup: job("llm", "service", `    network {
      port "http" {}
    }
    service {
      name     = "llm"
      port     = "http"
      provider = "nomad"
      check {
        type     = "http"
        path     = "/"
        interval = "1s"
        timeout  = "1s"
      }
    }`, "", "mkdir -p empty; cd empty; exec python3 -m http.server $NOMAD_PORT_http"),
		words: map[string]string{"8ba85cef": allocOf("llm")}},
	"docs/reference/http-api.md": {setup: job("train", "batch", "count = 2\n    gang = { min = 2 }", "", sleeps)},
	"docs/reference/job-language.md": {setup: `cat > q.hcl <<'END'
queue "research" {}
queue "research/nlp" {}
END
muster queue apply q.hcl; muster namespace apply etl`},
}
