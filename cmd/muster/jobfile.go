package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/metrics"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/jobspec"
	"github.com/muster-sched/muster/nomadlike/wire"
)

const jobFileMax = 1 << 20 // bytes

// jobFile holds the flags of commands that read a job file.
type jobFile struct {
	vars     []string
	varFiles []string
	json     bool
	source   *jobspec.File // the file that was read
}

func (o *jobFile) flags(c *cobra.Command) {
	c.Flags().StringArrayVar(&o.vars, "var", nil, "set a variable of the job file, as name=value; may be repeated")
	c.Flags().StringArrayVar(&o.varFiles, "var-file", nil, "read variables from a file; may be repeated, later ones win")
	c.Flags().BoolVar(&o.json, "json", false, "the job file is JSON: a job, or an object with a job under \"Job\" (recognized without this flag)")
	files(c, "hcl", "nomad", "json")
}

// read parses a job file; "-" is standard input. The job has no defaults filled in: the server does that.
func (o *jobFile) read(_ context.Context, e *env, path string) (*wire.Job, *wire.JobSubmission, error) {
	var src []byte
	var err error
	if path == "-" {
		src, err = io.ReadAll(io.LimitReader(e.in, jobFileMax+1))
	} else {
		var f *os.File
		if f, err = os.Open(path); err == nil {
			src, err = io.ReadAll(io.LimitReader(f, jobFileMax+1))
			f.Close()
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read job file: %w", err)
	}
	if len(src) > jobFileMax {
		return nil, nil, fmt.Errorf("job file %s is larger than %d bytes", path, jobFileMax)
	}
	if len(bytes.TrimSpace(src)) == 0 {
		return nil, nil, fmt.Errorf("job file %s is empty (muster job init writes an example)", path)
	}
	sub := &wire.JobSubmission{Source: string(src), Format: "hcl2"}
	if bytes.TrimSpace(src)[0] == '{' {
		sub.Format = "json"
	} else if o.json {
		return nil, nil, fmt.Errorf("job file %s is not JSON: it does not begin with {; leave -json out", path)
	}
	opts := jobspec.ParseOptions{Env: os.Environ(), AllowFS: true, SizeMax: jobFileMax}
	if opts.Vars, err = varMap("-var", o.vars); err != nil {
		return nil, nil, err
	}
	sub.VariableFlags = opts.Vars
	for _, name := range o.varFiles {
		b, err := readBounded(name)
		if err != nil {
			return nil, nil, fmt.Errorf("read variable file: %w", err)
		}
		opts.VarFiles = append(opts.VarFiles, jobspec.VarFile{Name: name, Source: b})
		sub.Variables += string(b) + "\n"
	}
	name := path
	if path == "-" {
		name = "<stdin>"
	}
	job, diags, err := parseBounded(name, src, opts, jobFileTime, jobFileHeap)
	if err != nil {
		return nil, nil, err
	}
	o.source = jobspec.NewFile(name, src)
	if len(diags) > 0 {
		e.hint("%s", diags.String())
	}
	if job == nil {
		return nil, nil, exitCode(exitError) // the diagnostics were printed
	}
	if job.Namespace == nil && e.namespace != "" && e.namespace != "*" {
		job.Namespace = &e.namespace
	}
	if job.Region == nil && e.region != "" {
		job.Region = &e.region
	}
	if job.ID == nil || *job.ID == "" {
		if job.Name != nil && *job.Name != "" {
			job.ID = job.Name
		} else {
			return nil, nil, fmt.Errorf("job file %s: the job has no id", path)
		}
	}
	return job, sub, nil
}

// refused prints what an agent found wrong with the job, each with its line in the file, and returns the error that is
// left to say. Other errors are returned as they are.
func (o *jobFile) refused(e *env, err error) error {
	var status *apiError
	if !errors.As(err, &status) || status.Status != http.StatusBadRequest {
		return err
	}
	list, ok := entries(status.Msg, "occurred:\n\t* ", "\n\t* ")
	if !ok {
		return err
	}
	e.hint("%s", o.source.Explain(false, list))
	return fmt.Errorf("the job is not valid (%s)", plural(int64(len(list)), "error"))
}

// warn prints an agent's warnings about the job, each with its line in the file.
func (o *jobFile) warn(e *env, text string) {
	list, ok := entries(text, ":\n\n* ", "\n* ")
	if !ok {
		e.warn(text)
		return
	}
	e.hint("%s", o.source.Explain(true, list))
}

// entries takes an agent's list of errors or warnings apart: "2 errors occurred:", then one a line.
func entries(text, begin, next string) ([]string, bool) {
	head, list, ok := strings.Cut(strings.TrimSpace(text), begin)
	if !ok || strings.Contains(head, "\n") {
		return nil, false
	}
	return strings.Split(list, next), true
}

// Limits of evaluating a job file: a few bytes may compute anything.
const (
	jobFileTime = 10 * time.Second
	jobFileHeap = 1 << 30 // bytes
)

// parseBounded parses a job file in this process, with its variables and files, and gives up beyond the limits. An
// abandoned parse ends with the process.
func parseBounded(name string, src []byte, opts jobspec.ParseOptions, limit time.Duration, heapMax uint64) (*wire.Job, jobspec.Diagnostics, error) {
	type result struct {
		job   *wire.Job
		diags jobspec.Diagnostics
	}
	done := make(chan result, 1)
	go func() {
		job, diags := jobspec.ParseHCL(name, src, opts)
		done <- result{job, diags}
	}()
	over := time.NewTimer(limit)
	defer over.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	for {
		select {
		case r := <-done:
			return r.job, r.diags, nil
		case <-over.C:
			return nil, nil, fmt.Errorf("job file %s takes too long to evaluate (over %s); write out what its expressions compute", name, limit)
		case <-look.C:
			if metrics.Read(heap); heap[0].Value.Uint64() > heapMax {
				return nil, nil, fmt.Errorf("job file %s needs over %d MiB of memory to evaluate; write out what its expressions compute", name, heapMax>>20)
			}
		}
	}
}

// readBounded reads a file of limited size.
func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, jobFileMax+1))
	if err == nil && len(b) > jobFileMax {
		err = fmt.Errorf("%s is larger than %d bytes", name, jobFileMax)
	}
	return b, err
}

// varMap parses name=value pairs.
func varMap(what string, pairs []string) (map[string]string, error) {
	out := map[string]string{}
	for _, p := range pairs {
		k, v, ok := strings.Cut(p, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("%s %q: want name=value", what, p)
		}
		out[k] = v
	}
	return out, nil
}
