package main

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func TestCompletion(t *testing.T) {
	f := newAgentFake(t)
	if r := f.run(t, "", "__complete", "job", "status", "ex"); r.code != 0 || !strings.HasPrefix(r.out, "example\n") {
		t.Errorf("%d %q; want r.code = 0, r.out to begin with \"example\\n\"", r.code, r.out)
	}
	f.answers["GET /v1/nodes"] = []*wire.NodeListStub{{ID: "7", Name: "gpu-2"}, {ID: "8", Name: "gpu-1"}, {ID: "9", Name: "cpu-1"}}
	if r := f.run(t, "", "__complete", "node", "status", "gpu"); r.code != 0 || !strings.HasPrefix(r.out, "gpu-1\ngpu-2\n:") {
		t.Errorf("nodes: %d %q", r.code, r.out)
	}
	f.answers["PUT /v1/search"] = wire.SearchResponse{Matches: map[string][]string{"namespaces": {"nlp"}}}
	if r := f.run(t, "", "__complete", "job", "status", "--namespace", "n"); r.code != 0 || !strings.HasPrefix(r.out, "nlp\n") {
		t.Errorf("a namespace: %d %q", r.code, r.out)
	}
	f.Close()
	if r := f.run(t, "", "__complete", "job", "status", "ex"); r.code != 0 || strings.Contains(r.out, "rror") || !strings.HasPrefix(r.out, ":") {
		t.Errorf("without a server: %d %q", r.code, r.out)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if r := f.run(t, "", "completion", shell); r.code != 0 || len(r.out) < 500 {
			t.Errorf("%s: %d, %d bytes", shell, r.code, len(r.out))
		}
	}
}

// TestCompletionOfValues: arguments and values of flags are completed with what the cluster has.
func TestCompletionOfValues(t *testing.T) {
	f := newAgentFake(t)
	namespace := ""
	found := map[string][]string{"allocs": {allocA, allocB}, "node_pools": {"default"}, "namespaces": {"ml"}, "jobs": {"example", "train"}, "evals": {evalA}}
	f.answers["PUT /v1/search"] = func(r *http.Request) any {
		namespace = r.URL.Query().Get("namespace")
		return wire.SearchResponse{Matches: found}
	}
	for line, want := range map[string]string{
		"queue status res":               "research",
		"queue delete r":                 "research",
		"queue -queue r":                 "research",
		"job stop -queue r":              "research",
		"run -queue=r":                   "research",
		"run -pool d":                    "default",
		"node pool nodes d":              "default",
		"namespace status m":             "ml",
		"quota status t":                 "team",
		"namespace apply -quota t":       "team",
		"reservation delete c":           "course",
		"service info l":                 "llm",
		"service list l":                 "llm",
		"var get app/":                   "app/db",
		"acl policy info r":              "readers",
		"acl token create -policy r":     "readers",
		"acl role info ":                 tokenID,
		"acl token info ":                tokenID,
		"alloc status 8ba85d0":           allocB,
		"alloc status 8":                 allocA + "," + allocB,
		"alloc status x":                 "",
		"alloc logs 8ba85cef g":          "greet",
		"alloc logs -task g":             "",
		"alloc restart 8ba85cef -task g": "greet",
		"alloc logs -job ex":             "example",
		"alloc logs -job example g":      "greet",
		"job logs example g":             "greet",
		"job logs example -task g":       "greet",
		"job scale example h":            "hello",
		"job revert example ":            "2,3,known-good",
		"job stop exa":                   "example",
		"job stop example ":              "train",
		"job wait train ":                "example",
		"eval status 2":                  evalA,
		"eval list -job ex":              "example",
		"job init -template torch":       "torchrun",
		"node meta read -node-id gpu-0":  "gpu-01,gpu-02",
		"node drain gpu-0":               "gpu-01,gpu-02",
		"job status -namespace ml exa":   "example",
		"job hold example ":              "",
		"sim -policy d":                  "",
		"acl policy apply -job ex":       "example",
	} {
		namespace = ""
		words := strings.Split(line, " ")
		r := f.run(t, "", append([]string{"__complete"}, words...)...)
		offers := strings.Split(r.out[:strings.LastIndex(r.out, ":")], "\n")
		if got := strings.Join(offers[:len(offers)-1], ","); r.code != 0 || got != want {
			t.Errorf("%q offers %q, want %q", line, got, want)
		}
		if slices.Contains(words, "ml") && words[0] == "job" && namespace != "ml" {
			t.Errorf("%q looks in namespace %q", line, namespace)
		}
	}
}

// TestCompletionIsShort: an agent that does not answer keeps no shell waiting.
func TestCompletionIsShort(t *testing.T) {
	f := newAgentFake(t)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	for _, path := range []string{"GET /v1/queues", "PUT /v1/search", "GET /v1/nodes", "GET /v1/job/example"} {
		f.answers[path] = func(r *http.Request) any {
			select {
			case <-release:
			case <-r.Context().Done():
			}
			return failure{status: 500}
		}
	}
	for _, line := range []string{"queue status r", "job status e", "node status g", "job logs example t"} {
		began := time.Now()
		r := f.run(t, "", append([]string{"__complete"}, strings.Split(line, " ")...)...)
		if took := time.Since(began); took > 10*completionTime || !strings.HasPrefix(r.out, ":") {
			t.Errorf("%q: %q after %s", line, r.out, took)
		}
	}
}
