package main

import (
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// TestCancelSurvivesADoubledSignal: timeout(1) sends a signal twice, and the job is canceled all the same.
func TestCancelSurvivesADoubledSignal(t *testing.T) {
	f := newAgentFake(t)
	canceled := make(chan bool, 1)
	f.answers["DELETE /v1/job/run-x"] = func(r *http.Request) any {
		select {
		case <-r.Context().Done():
		case <-time.After(200 * time.Millisecond):
			canceled <- true
		}
		return wire.JobDeregisterResponse{}
	}
	o := &adhoc{env: &env{err: t.Output(), addr: f.URL, now: time.Now}}
	a, err := o.api()
	if err != nil {
		t.Fatal(err)
	}
	id := "run-x"
	x := &attendance{adhoc: o, api: a, job: &wire.Job{ID: &id}, sig: &caught{ch: make(chan os.Signal, 4)}}
	x.sig.ch <- syscall.SIGTERM
	if !x.cancelOnce() || len(canceled) != 1 {
		t.Error("the second signal ended the request")
	}
}
