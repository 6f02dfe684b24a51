package main

import (
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// What the server refuses and warns of stands at its line of the job file.
func TestServersErrorsHaveLines(t *testing.T) {
	agent := newAgentFake(t)
	file := filepath.Join(t.TempDir(), "a.hcl")
	src := "job \"a\" {\n  type  = \"batch\"\n  queue = \"reserch\"\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n      config {\n        comand = \"x\"\n      }\n    }\n  }\n}\n"
	if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	list := []string{`group "g", task "t", config.comand: raw_exec: unknown config key "comand"`, `Job "a" is in nonexistent queue "reserch"`}
	text := "2 errors occurred:\n\t* " + strings.Join(list, "\n\t* ") + "\n"
	agent.answers["PUT /v1/jobs"] = failure{400, text}
	agent.answers["PUT /v1/job/a/plan"] = failure{400, text}
	agent.answers["PUT /v1/validate/job"] = wire.JobValidateResponse{ValidationErrors: list, Error: text, Warnings: "1 warning:\n\n* group \"g\", task \"t\", driver: no node has it"}
	for _, line := range []string{"job run " + file, "job plan " + file, "job validate " + file} {
		r := agent.run(t, "", strings.Fields(line)...)
		for _, want := range []string{"line 8, column 18:", `comand = "x"`, `unknown config key "comand"`, "line 3, column 11:", `nonexistent queue "reserch"`} {
			if r.code == 0 || !strings.Contains(r.errOut, want) {
				t.Errorf("%s: exit %d, no %q in\n%s", line, r.code, want, r.errOut)
			}
		}
		if strings.Contains(line, "validate") != strings.Contains(r.errOut, "line 6, column 16:") {
			t.Errorf("%s: a warning without its line:\n%s", line, r.errOut)
		}
	}
}

// A list of a namespace that does not exist is an error, not an empty list.
func TestListsOfNoNamespace(t *testing.T) {
	agent := newAgentFake(t)
	for _, path := range []string{"/v1/jobs", "/v1/queue", "/v1/services", "/v1/vars", "/v1/evaluations", "/v1/deployments", "/v1/acct"} {
		agent.answers["GET "+path] = []any{}
	}
	agent.answers["GET /v1/namespace/nlpp"] = failure{404, "Namespace not found"}
	agent.answers["GET /v1/namespace/nlp"] = map[string]any{"Name": "nlp"}
	agent.answers["GET /v1/namespaces"] = []map[string]any{{"Name": "default"}, {"Name": "nlp"}}
	for _, line := range []string{"job status", "queue", "service list", "var list", "eval list", "deployment list", "acct"} {
		r := agent.run(t, "", append(strings.Fields(line), "-namespace", "nlpp")...)
		if want := `there is no namespace "nlpp"; did you mean "nlp"?`; r.code != 1 || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: exit %d, %s; want %s", line, r.code, r.errOut, want)
		}
		if r := agent.run(t, "", append(strings.Fields(line), "-namespace", "nlp")...); r.code != 0 {
			t.Errorf("%s of an empty namespace: exit %d, %s", line, r.code, r.errOut)
		}
	}
}

// Mistakes of people who come from elsewhere are answered with what to write.
func TestErrorsSayTheCure(t *testing.T) {
	agent := newAgentFake(t)
	agent.answers["GET /v1/var/x"] = failure{404, "variable not found"}
	for line, want := range map[string]string{
		"salloc":                   "muster shell",
		"ps":                       "in its place:  muster job status",
		"submit x.hcl":             "in its place:  muster job run FILE",
		"seff x":                   "muster eff JOB",
		"job list":                 "in its place:  muster job status",
		"run python train.py":      "put -- before a command: muster run -- python train.py",
		"run -time 2hours -- true": `-time "2hours" is no duration: want a number with its unit (s, m or h), such as 90s, 2h or 1h30m`,
		"alloc logs sweep":         "-job sweep",
		"var get x":                "muster var list",
	} {
		if r := agent.run(t, "", strings.Fields(line)...); r.code != 1 || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: exit %d, %s; want %s", line, r.code, r.errOut, want)
		}
	}
}

// The second certificate of a server goes to its own file, and the hint says which name the configuration has.
func TestSecondCertificateIsNamed(t *testing.T) {
	agent := newAgentFake(t)
	t.Chdir(t.TempDir())
	for _, line := range []string{"tls ca create", "tls cert create -server"} {
		if r := agent.run(t, "", strings.Fields(line)...); r.code != 0 || strings.Contains(r.errOut, "Copy it") {
			t.Errorf("%s: exit %d, %s", line, r.code, r.errOut)
		}
	}
	if r := agent.run(t, "", "tls", "cert", "create", "-server"); r.code != 0 || !strings.Contains(r.errOut, "as global-server-muster.pem, the name in the configuration") {
		t.Errorf("the second: exit %d, %s", r.code, r.errOut)
	}
}

// TestLongArgumentsAreNotEchoed: an id of 120 kB is shortened in the error about it, whichever command it was given to.
func TestLongArgumentsAreNotEchoed(t *testing.T) {
	word := "begin" + strings.Repeat("a", 120_000) + "end"
	words := "begin" + strings.Repeat(" é\"", 40_000) + "end"
	for _, long := range []string{word, words} {
		for _, command := range []string{"job status", "job why", "alloc status", "alloc logs", "alloc stop -job", "eval status", "node status", "node drain -enable", "queue status", "quota status", "namespace status",
			"var get", "service info", "node pool info", "reservation inspect", "job run", "help", "deployment", "job status -namespace", "job priority example", "acct -since", "acct", "run -gpus 1 -memory"} {
			r := newAgentFake(t).run(t, "", append(strings.Fields(command), long)...)
			if all := r.out + r.errOut; len(all) > 8_000 || r.code == 0 && command != "job status -namespace" && !strings.HasPrefix(command, "acct") && command != "help" {
				t.Errorf("%s with an argument of %d bytes: exit status %d, %d bytes of output: %.300s", command, len(long), r.code, len(all), all)
			}
		}
	}
	r := newAgentFake(t).run(t, "", "job", "status", word)
	if want := "\"begin" + strings.Repeat("a", 34) + "...("; !strings.Contains(r.errOut, want) || !strings.Contains(r.errOut, "aend\"") {
		t.Errorf("it is not said which: %s", r.errOut)
	}
}

// TestForbiddenNamesNamespaces: a token of another namespace hears which ones it may use, and of no other.
func TestForbiddenNamesNamespaces(t *testing.T) {
	const hint = "The token in use may use namespace "
	f := newAgentFake(t)
	f.answers["GET /v1/jobs"] = failure{403, "Permission denied"}
	f.answers["GET /v1/namespaces"] = []*wire.Namespace{{Name: "vision"}, {Name: "ml"}}
	if r := f.run(t, "", "job", "status", "-token", "x"); r.code != 1 || !strings.Contains(r.errOut, hint+"ml, vision: add -namespace, or set MUSTER_NAMESPACE.\n") {
		t.Errorf("in the default namespace: %d %s", r.code, r.errOut)
	}
	if r := f.run(t, "", "job", "status", "-token", "x", "-namespace", "ml"); strings.Contains(r.errOut, hint) {
		t.Errorf("in its own namespace: %s", r.errOut)
	}
	f.answers["GET /v1/namespaces"] = failure{403, "Permission denied"}
	if r := f.run(t, "", "job", "status", "-token", "x"); strings.Contains(r.errOut, hint) || !strings.Contains(r.errOut, "muster acl policy self") {
		t.Errorf("without any: %s", r.errOut)
	}
}

// The ports for agents do not speak HTTP.
func TestPortOfAgents(t *testing.T) {
	for port, want := range map[string]string{"4647": "the API has 4646", "4646": "is one running?"} {
		a := &api{base: "http://10.0.0.1:" + port}
		if err := a.unreachable(&url.Error{Op: "Get", URL: a.base, Err: io.EOF}); !strings.Contains(err.Error(), want) {
			t.Errorf("port %s: %v; want %q", port, err, want)
		}
	}
}

// A token may name a policy that is made later, but its maker hears of it.
func TestTokenOfNoPolicy(t *testing.T) {
	agent := newAgentFake(t)
	agent.answers["PUT /v1/acl/token"] = wire.ACLToken{AccessorID: "a", SecretID: "s", Type: "client"}
	agent.answers["GET /v1/acl/policy/readers"] = wire.ACLPolicy{Name: "readers"}
	agent.answers["GET /v1/acl/policy/nopol"] = failure{404, "ACL policy not found"}
	r := agent.run(t, "", "acl", "token", "create", "-policy", "readers", "-policy", "nopol")
	if want := `There is no policy "nopol"`; r.code != 0 || !strings.Contains(r.errOut, want) || strings.Contains(r.errOut, "readers") {
		t.Errorf("exit %d, %s; want %s", r.code, r.errOut, want)
	}
}
