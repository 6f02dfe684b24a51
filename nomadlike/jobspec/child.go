package jobspec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"time"

	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// The child process is the same binary, started with a hidden verb and an environment variable. It reads a Request as
// JSON from its standard input and writes a Response.
const (
	childVerb    = "parse-job"
	childEnv     = "MUSTER_PARSE_CHILD=1"
	childMemory  = 512 << 20        // bytes beyond what the process has when it starts
	childCPU     = 5                // seconds
	childTime    = 10 * time.Second // wall-clock limit, without the wait for a free slot
	childrenMax  = 2                // at once; more wait
	responseMax  = 16 << 20         // bytes
	childStack   = 64 << 20         // bytes
	exitTooLarge = 3
)

// Request is what ParseInChild parses.
type Request struct {
	Filename  string // for messages, "" for "job.nomad.hcl"
	Source    string
	Variables string            // the content of a variable file
	Vars      map[string]string // single values, which win
	SizeMax   int               // 0: SizeMaxServer
}

// Response is a job, or the errors of its file.
type Response struct {
	Job         *wire.Job
	Diagnostics Diagnostics
}

var children = make(chan struct{}, childrenMax)

// ParseInChild parses a job file from an untrusted user in a process with limits on memory, processor and time, and
// without the files, environment and secrets of this one. An error is about the attempt (limit exceeded, no process);
// mistakes in the file are in the response.
func ParseInChild(ctx context.Context, req Request) (*Response, error) {
	if req.SizeMax == 0 {
		req.SizeMax = SizeMaxServer
	}
	if req.Filename == "" {
		req.Filename = "job.nomad.hcl"
	}
	if n := len(req.Source) + len(req.Variables); n > req.SizeMax {
		return nil, structs.Errorf(structs.CodeTooLarge, "the job file has %d bytes; at most %d are read", n, req.SizeMax)
	}
	select {
	case children <- struct{}{}:
		defer func() { <-children }()
	case <-ctx.Done():
		return nil, structs.Errorf(structs.CodeBusy, "too many job files are being parsed; try again")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own binary to parse a job file: %w", err)
	}
	in, err := json.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("encode a job file to parse: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, childTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, childVerb)
	cmd.Env = []string{childEnv, "GOMAXPROCS=1", "GOTRACEBACK=none", "TZ=UTC"}
	cmd.Dir = "/"
	cmd.Stdin = bytes.NewReader(in)
	out := &bounded{max: responseMax}
	cmd.Stdout = out
	cmd.WaitDelay = time.Second
	limitProcess(cmd)
	err = cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, structs.Errorf(structs.CodeUnprocessable, "the job file takes too long to evaluate (over %s); write out what its expressions compute", childTime)
	case err != nil:
		var exit *exec.ExitError
		if !errors.As(err, &exit) && !out.full {
			return nil, fmt.Errorf("run a process to parse a job file: %w", err)
		}
		return nil, structs.Errorf(structs.CodeUnprocessable, "the job file needs too much to evaluate (over %d s of processor time, %d MiB of memory or %d MiB of result); write out what its expressions compute",
			childCPU, childMemory>>20, responseMax>>20)
	}
	resp := &Response{}
	dec := json.NewDecoder(&out.buf)
	dec.UseNumber()
	if err := dec.Decode(resp); err != nil {
		return nil, fmt.Errorf("read the result of parsing a job file: %w", err)
	}
	return resp, nil
}

// bounded collects output and fails when there is too much. The buffer is not embedded: its ReadFrom would bypass
// Write.
type bounded struct {
	buf  bytes.Buffer
	max  int
	full bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.buf.Len()+len(p) > b.max {
		b.full = true
		return 0, errors.New("too much output")
	}
	return b.buf.Write(p)
}

// MaybeRunChild belongs in the first line of main, and of TestMain: in a child process it parses and exits, elsewhere
// it does nothing.
func MaybeRunChild() {
	if len(os.Args) != 2 || os.Args[1] != childVerb || os.Getenv("MUSTER_PARSE_CHILD") != "1" {
		return
	}
	os.Exit(runChild(os.Stdin, os.Stdout))
}

func runChild(in io.Reader, out io.Writer) int {
	debug.SetMaxStack(childStack)
	debug.SetMemoryLimit(childMemory * 3 / 4)
	if err := limitSelf(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	var req Request
	if err := json.NewDecoder(io.LimitReader(in, 8*SizeMaxCLI)).Decode(&req); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	opts := ParseOptions{Vars: req.Vars, SizeMax: req.SizeMax}
	if req.Variables != "" {
		opts.VarFiles = []VarFile{{Name: "variables", Source: []byte(req.Variables)}}
	}
	job, diags := ParseHCL(req.Filename, []byte(req.Source), opts)
	if err := json.NewEncoder(out).Encode(Response{Job: job, Diagnostics: diags}); err != nil {
		return exitTooLarge
	}
	return 0
}
