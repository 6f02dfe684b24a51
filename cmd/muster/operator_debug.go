package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/internal/version"
)

// The defaults and limits of a bundle.
const (
	debugDuration   = 10 * time.Second
	debugInterval   = 5 * time.Second
	debugSamplesMax = 1000             // samples of the metrics; more are refused
	debugPatience   = 10 * time.Second // for one answer; a request that takes longer is noted as failed
	debugAnswerMax  = 64 << 20         // bytes of one answer; a longer one is cut, and noted
	debugRowsMax    = 10_000           // rows of one list; a longer one is cut, and noted
	debugPageRows   = 1000             // rows of a list that are asked for at a time
	debugLogLevel   = "DEBUG"
)

// debugSource is a request whose answer a bundle holds.
type debugSource struct {
	file  string // below the bundle's directory; its ending says how it is redacted
	path  string
	query string
	list  bool // an array in pages
	bad   int  // a status with which the agent answers in full when something is wrong, or 0
}

// debugSources is what a bundle holds besides metrics and log, in the order in which it is asked for. Nothing here has
// variables, tokens or job files: lists of jobs have neither tasks nor templates.
var debugSources = []debugSource{
	{file: "agent/self.json", path: "/v1/agent/self"},
	{file: "agent/health.json", path: "/v1/agent/health", bad: http.StatusInternalServerError},
	{file: "agent/members.json", path: "/v1/agent/members"},
	{file: "cluster/leader.json", path: "/v1/status/leader"},
	{file: "cluster/raft-configuration.json", path: "/v1/operator/raft/configuration", query: "stale=true"},
	{file: "cluster/autopilot-health.json", path: "/v1/operator/autopilot/health", bad: http.StatusTooManyRequests},
	{file: "cluster/scheduler-configuration.json", path: "/v1/operator/scheduler/configuration", query: "stale=true"},
	{file: "cluster/upgrade.json", path: "/v1/operator/upgrade", query: "stale=true"},
	{file: "cluster/state-hash.json", path: "/v1/operator/state-hash"},
	{file: "cluster/nodes.json", path: "/v1/nodes", query: "resources=true&stale=true", list: true},
	{file: "cluster/jobs.json", path: "/v1/jobs", query: "namespace=*&stale=true", list: true},
	{file: "cluster/queue.json", path: "/v1/queue", query: "namespace=*&stale=true", list: true},
	{file: "cluster/queues.json", path: "/v1/queues", query: "stale=true"},
	{file: "profiles/goroutine.txt", path: "/v1/agent/pprof/goroutine", query: "debug=1"},
	{file: "profiles/heap.pprof", path: "/v1/agent/pprof/heap"},
}

// debugEntry is a line of a bundle's index: a request, and what came of it.
type debugEntry struct {
	File     string // empty if there is none
	Request  string
	Bytes    int    `json:",omitempty"`
	Redacted int    `json:",omitempty"` // values that were left out
	Error    string `json:",omitempty"`
}

// debugIndex is index.json of a bundle.
type debugIndex struct {
	Time     time.Time
	Muster   string // the version of the program that made the bundle
	Duration string
	Interval string
	Rule     string // how values were left out
	Requests []debugEntry
}

type debugOptions struct {
	*env
	duration, interval time.Duration
	given              func(flag string) bool
	output             string

	api   *api
	red   redactor
	dir   string // of all files in the archive
	tar   *tar.Writer
	index debugIndex
	okay  int   // requests that were answered
	first error // of the first that was not, or nil
}

func newOperatorDebug(e *env) *cobra.Command {
	o := &debugOptions{env: e}
	c := e.verb("debug [options]", "Collect what a report about a problem needs, without secrets",
		"Ask an agent for what a report about a problem needs, and write it to an archive: the agent, the servers and their health, settings of the\nscheduler, lists of nodes, jobs and the queue, metrics, profiles and the log for a time. Requests that are refused or fail are noted in its\nindex.json. Variables, tokens, environments and job files are not asked for, and values whose name has secret, token, password, key or env\nin it are left out; read the archive before you pass it on. Only its owner may read the file, and no file is overwritten.", `
muster operator debug
muster operator debug -duration 2m -interval 10s -output slow.tar.gz
muster operator debug -address http://10.0.0.2:4646   # another server's log and profiles`, 0, 0, o.run)
	f := c.Flags()
	f.DurationVar(&o.duration, "duration", debugDuration, "how long the log is followed and metrics are read")
	f.DurationVar(&o.interval, "interval", debugInterval, "time between two samples of the metrics; with a shorter -duration, half of that")
	f.StringVar(&o.output, "output", "", "the archive, which must not exist; muster-debug-TIME.tar.gz if none is named")
	o.given = f.Changed
	return c
}

func (o *debugOptions) run(ctx context.Context, _ []string) error {
	now := o.now().UTC()
	if o.output == "" {
		o.output = "muster-debug-" + now.Format("20060102-150405") + ".tar.gz"
	}
	if err := o.check(); err != nil {
		return err
	}
	var err error
	if o.api, err = o.env.api(); err != nil {
		return err
	}
	o.red.literal = o.token
	o.dir = "muster-debug-" + now.Format("20060102-150405")
	o.index = debugIndex{Time: now, Muster: version.Version, Duration: o.duration.String(), Interval: o.interval.String(), Rule: redactRule}

	// The file gets its name only when it is complete and on disk. A temporary file is its owner's alone.
	tmp, err := os.CreateTemp(filepath.Dir(o.output), ".muster-debug-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // the temporary name; on success the file has its own by then
	defer tmp.Close()
	zip := gzip.NewWriter(tmp)
	o.tar = tar.NewWriter(zip)
	if err := o.collect(ctx); err != nil {
		return err
	}
	if err := errors.Join(o.tar.Close(), zip.Close(), tmp.Sync()); err != nil {
		return fmt.Errorf("write %s: %w", o.output, err)
	}
	if err := os.Link(tmp.Name(), o.output); err != nil { // unlike a rename, a link never replaces a file that appeared meanwhile
		return fmt.Errorf("write %s: %w", o.output, err)
	}
	o.report(tmp)
	return nil
}

// check refuses options before time is spent on them.
func (o *debugOptions) check() error {
	if !o.given("interval") && o.interval > o.duration {
		o.interval = o.duration / 2
	}
	switch {
	case o.duration <= 0 || o.interval <= 0:
		return errors.New("-duration and -interval must be above 0")
	case o.interval > o.duration:
		return fmt.Errorf("-interval %s is longer than -duration %s", o.interval, o.duration)
	case o.duration/o.interval >= debugSamplesMax:
		return fmt.Errorf("-duration %s with -interval %s is more than %d samples: give a longer interval", o.duration, o.interval, debugSamplesMax)
	}
	if _, err := os.Lstat(o.output); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists already; move it away or give another name", o.output)
	}
	return nil
}

// collect writes the files of the bundle and its index. It fails if nothing was answered.
func (o *debugOptions) collect(ctx context.Context) error {
	logged := make(chan debugAnswer, 1)
	followed, stop := context.WithCancel(ctx)
	defer stop()
	go func() { logged <- o.follow(followed) }() // ends with followed

	for i, a := range o.fetchAll(ctx) {
		if err := o.add(debugSources[i].file, a); err != nil {
			return err
		}
	}
	if o.okay == 0 { // every agent answers about its health: do not wait for the rest
		return o.first
	}
	start := time.Now()
	wait := func(d time.Duration) error { // until d after the start
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(start.Add(d))):
			return nil
		}
	}
	for i := time.Duration(0); i*o.interval <= o.duration; i++ {
		if err := wait(i * o.interval); err != nil {
			return err
		}
		file := fmt.Sprintf("metrics/%03d.json", i)
		if err := o.add(file, o.fetch(ctx, debugSource{file: file, path: "/v1/metrics"})); err != nil {
			return err
		}
	}
	if err := wait(o.duration); err != nil {
		return err
	}
	stop()
	if err := o.add("log/agent.log", <-logged); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	b, err := json.MarshalIndent(&o.index, "", "    ")
	if err != nil {
		return err
	}
	return o.write("index.json", b)
}

// debugAnswer is what came of a request: an answer, an error, or both if the answer is only a part.
type debugAnswer struct {
	request string
	body    []byte
	err     error
}

// add writes an answer without its secrets, and its line of the index.
func (o *debugOptions) add(file string, a debugAnswer) error {
	before := o.red.count
	body, err := o.red.file(file, a.body)
	if a.err == nil {
		a.err = err
	}
	e := debugEntry{Request: a.request, Redacted: o.red.count - before}
	if a.err != nil {
		e.Error = o.red.text(a.err.Error())
		if o.first == nil {
			o.first = a.err
		}
	}
	if body != nil {
		o.okay++
		e.File, e.Bytes = file, len(body)
		if err := o.write(file, body); err != nil {
			return err
		}
	}
	o.index.Requests = append(o.index.Requests, e)
	return nil
}

func (o *debugOptions) write(file string, b []byte) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: o.dir + "/" + file, Mode: 0o600, Size: int64(len(b)), ModTime: o.index.Time}
	if err := o.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err := o.tar.Write(b)
	return err
}

// fetchAll asks for all sources at once: without a leader an agent takes seconds to refuse each.
func (o *debugOptions) fetchAll(ctx context.Context) []debugAnswer {
	all := make([]debugAnswer, len(debugSources))
	var wg sync.WaitGroup
	for i, s := range debugSources {
		wg.Go(func() { all[i] = o.fetch(ctx, s) })
	}
	wg.Wait()
	return all
}

// fetch asks for a source, all pages of a list in one array.
func (o *debugOptions) fetch(ctx context.Context, s debugSource) debugAnswer {
	ctx, cancel := context.WithTimeout(ctx, debugPatience)
	defer cancel()
	out := debugAnswer{request: "GET " + s.path}
	q, err := url.ParseQuery(s.query)
	if err != nil {
		out.err = err
		return out
	}
	if s.query != "" {
		out.request += "?" + s.query
	}
	one := *o.api
	one.accept = s.bad
	if !s.list {
		out.body, _, out.err = debugRead(ctx, &one, s.path, q)
		return out
	}
	q.Set("per_page", strconv.Itoa(debugPageRows))
	rows := []json.RawMessage{}
	for {
		b, m, err := debugRead(ctx, &one, s.path, q)
		var page []json.RawMessage
		if err == nil {
			err = json.Unmarshal(b, &page)
		}
		rows = append(rows, page...)
		switch {
		case err != nil:
			out.err = err
		case m.NextToken != "" && len(rows) >= debugRowsMax:
			out.err = fmt.Errorf("only the first %d rows", len(rows))
		case m.NextToken != "":
			q.Set("next_token", m.NextToken)
			continue
		}
		if len(rows) > 0 || out.err == nil {
			b, err := json.Marshal(rows)
			out.body, out.err = b, errors.Join(out.err, err)
		}
		return out
	}
}

// debugRead returns an answer up to the limit. A longer one is an error besides.
func debugRead(ctx context.Context, a *api, path string, q url.Values) ([]byte, meta, error) {
	start := time.Now()
	rc, m, err := a.stream(ctx, http.MethodGet, path, q, nil)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = fmt.Errorf("no answer within %s", time.Since(start).Round(time.Second/10))
	}
	if err != nil {
		return nil, m, err
	}
	defer rc.Close()
	b, err := io.ReadAll(io.LimitReader(rc, debugAnswerMax+1))
	if err == nil && len(b) > debugAnswerMax {
		b, err = b[:debugAnswerMax], fmt.Errorf("only the first %s", bytesText(debugAnswerMax))
	}
	return b, m, err
}

// follow reads the agent's log until ctx ends.
func (o *debugOptions) follow(ctx context.Context) debugAnswer {
	const path = "/v1/agent/monitor"
	q := url.Values{"log_level": {debugLogLevel}, "plain": {"true"}}
	b, _, err := debugRead(ctx, o.api, path, q)
	if errors.Is(err, context.Canceled) && b != nil {
		err = nil // it was followed to the end
	}
	return debugAnswer{"GET " + path + "?log_level=" + debugLogLevel + "&plain=true", b, err}
}

// report prints what the bundle holds and what is missing, samples of metrics in one line.
func (o *debugOptions) report(f *os.File) {
	rows := [][]string{}
	samples, bytes := 0, 0
	for _, e := range o.index.Requests {
		switch {
		case e.File == "":
			rows = append(rows, []string{"-", "-", e.Request + ": " + e.Error})
		case strings.HasPrefix(e.File, "metrics/") && e.Error == "":
			samples, bytes = samples+1, bytes+e.Bytes
		default:
			rows = append(rows, []string{e.File, bytesText(uint64(e.Bytes)), orDash(e.Error)})
		}
	}
	if samples > 0 {
		rows = append(rows, []string{"metrics/*.json", bytesText(uint64(bytes)), plural(int64(samples), "sample")})
	}
	o.table("File|Size|Note", rows)
	size := "of unknown size"
	if st, err := f.Stat(); err == nil {
		size = bytesText(uint64(st.Size()))
	}
	o.printf("\nBundle written to %s (%s), with %s left out. Read it before you pass it on\n", o.output, size, plural(int64(o.red.count), "value"))
}
