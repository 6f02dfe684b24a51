package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// strain is what the servers have counted of their own trouble since they started, all of them together.
type strain struct {
	elections float64 // leaderships that began
	downs     float64 // nodes that missed their heartbeats
	late      float64 // times a server's watchdog was late by stallLate
	stalls    map[string]stall
}

// stall sums the stalls of one cause.
type stall struct{ count, seconds float64 }

// stallLate is the bucket of muster_server_stall_seconds above which a watchdog is late: about 200 ms.
const stallLate = "0.2048"

// strain asks every server that runs. Of one that does not answer within the patience of the cluster's HTTP client, the
// figures are missing, and ok is false.
func (c *cluster) strain() (s strain, ok bool) {
	s.stalls = map[string]stall{}
	ok = true
	for i := range c.procs {
		if c.procs[i].ProcessState != nil {
			continue
		}
		resp, err := c.http.Get(c.url(i, "/v1/metrics?format=prometheus"))
		if err != nil {
			return s, false
		}
		page, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		ok = ok && err == nil && resp.StatusCode == 200
		for line := range strings.Lines(string(page)) {
			s.add(line)
		}
	}
	return s, ok
}

// add counts one line of a page of metrics.
func (s *strain) add(line string) {
	name, figure, ok := strings.Cut(strings.TrimSpace(line), " ")
	v, err := strconv.ParseFloat(figure, 64)
	if !ok || err != nil {
		return
	}
	name, labels, _ := strings.Cut(name, "{")
	_, cause, _ := strings.Cut(labels, `cause="`)
	cause, _, _ = strings.Cut(cause, `"`)
	is := s.stalls[cause]
	switch name {
	case "muster_server_leaderships_total":
		s.elections += v
	case "muster_server_heartbeats_missed_total":
		s.downs += v
	case "muster_server_stall_seconds_count":
		is.count += v
		if cause == "process" {
			s.late += v
		}
	case "muster_server_stall_seconds_sum":
		is.seconds += v
	case "muster_server_stall_seconds_bucket":
		if cause == "process" && strings.Contains(labels, `le="`+stallLate+`"`) {
			s.late -= v
		}
		return
	}
	if is.count > 0 {
		s.stalls[cause] = is
	}
}

// since returns what was counted after b.
func (s strain) since(b strain) strain {
	s.elections, s.downs, s.late = s.elections-b.elections, s.downs-b.downs, s.late-b.late
	s.stalls = maps.Clone(s.stalls)
	for cause, x := range b.stalls {
		s.stalls[cause] = stall{s.stalls[cause].count - x.count, s.stalls[cause].seconds - x.seconds}
	}
	return s
}

// causes lists the stalls of at least 100 ms by cause.
func (s strain) causes() string {
	var out []string
	for _, cause := range slices.Sorted(maps.Keys(s.stalls)) {
		if x := s.stalls[cause]; x.count > 0 {
			out = append(out, fmt.Sprintf("%s %.0f (%.0f ms on average)", cause, x.count, x.seconds/x.count*1000))
		}
	}
	if out == nil {
		return "none"
	}
	return strings.Join(out, ", ")
}

// watchdog measures whether this machine lets a process run that has almost nothing to do.
type watchdog struct{ worst atomic.Int64 } // nanoseconds that a timer was late, since take

// run measures until the program ends.
func (w *watchdog) run() {
	const look = 20 * time.Millisecond
	for {
		began := time.Now()
		time.Sleep(look)
		late := int64(time.Since(began) - look)
		for old := w.worst.Load(); late > old && !w.worst.CompareAndSwap(old, late); old = w.worst.Load() {
		}
	}
}

// take returns the worst lateness since the last call.
func (w *watchdog) take() time.Duration { return time.Duration(w.worst.Swap(0)) }
