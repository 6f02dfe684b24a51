package main

import (
	"reflect"
	"testing"

	"github.com/muster-sched/muster/nomadlike"
)

// TestRecordsOf: a job's records are its own and those of its launches, not those of jobs whose ids begin alike, unless it has none.
func TestRecordsOf(t *testing.T) {
	list := []nomadlike.AcctRecord{{JobID: "train"}, {JobID: "train2"}, {JobID: "train/periodic-1"}, {JobID: "train"}, {JobID: "sweep"}}
	for job, want := range map[string][]string{"train": {"train", "train/periodic-1", "train"}, "tra": {"train", "train2", "train/periodic-1", "train"}, "train2": {"train2"}, "x": nil} {
		var got []string
		for _, r := range recordsOf(list, job) {
			got = append(got, r.JobID)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", job, got, want)
		}
	}
}
