package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"
)

// TestListsOfAJobAndANodeAreFiltered: the lists below a job, a node and an evaluation take the filters of the lists of everything, and
// refuse what is no filter.
func TestListsOfAJobAndANodeAreFiltered(t *testing.T) {
	addr := startAgent(t, devConfig(t, ""))
	type row struct{ ID, EvalID, NodeID, ClientStatus, Status string }
	list := func(path, filter string) (rows []row) {
		t.Helper()
		status, b := ask(t, 5*time.Second, addr, "GET", path+"?filter="+url.QueryEscape(filter), "", "")
		if status != http.StatusOK || json.Unmarshal(b, &rows) != nil {
			t.Fatalf("GET %s with filter %s: status %d, %s", path, filter, status, b)
		}
		return rows
	}
	wait(t, "a node", func() bool { return len(list("/v1/nodes", `Status == "ready"`)) == 1 })
	const groups = `{"Name": %q, "Count": %d, "RestartPolicy": {"Attempts": 0, "Mode": "fail"}, "Tasks": [{"Name": "t", "Driver": "fake", "Config": {"run_for": %q, "exit_code": %d}, "Resources": {"CPU": 20, "MemoryMB": 16}}]}`
	job := `{"Job": {"ID": "mixed", "Type": "batch", "Datacenters": ["dc1"], "Reschedule": {"Attempts": 0}, "TaskGroups": [` +
		fmt.Sprintf(groups, "long", 2, "1h", 0) + "," + fmt.Sprintf(groups, "bad", 1, "10ms", 3) + `]}}`
	if status, b := ask(t, 5*time.Second, addr, "PUT", "/v1/jobs", "", job); status != http.StatusOK {
		t.Fatalf("PUT /v1/jobs: status %d, %s", status, b)
	}
	var all []row
	wait(t, "two that run and one that failed", func() bool {
		all = list("/v1/allocations", "")
		n := map[string]int{}
		for _, a := range all {
			n[a.ClientStatus]++
		}
		return len(all) == 3 && n["running"] == 2 && n["failed"] == 1
	})
	for _, path := range []string{"/v1/job/mixed/allocations", "/v1/node/" + all[0].NodeID + "/allocations", "/v1/evaluation/" + all[0].EvalID + "/allocations"} {
		if got := list(path, `ClientStatus == "failed" and NextAllocation == ""`); len(got) != 1 || got[0].ClientStatus != "failed" {
			t.Errorf("%s, the failed ones: %+v", path, got)
		}
		if got := list(path, ""); len(got) != 3 {
			t.Errorf("%s: %d allocations, want 3", path, len(got))
		}
		if status, _ := ask(t, 5*time.Second, addr, "GET", path+"?filter="+url.QueryEscape("Banana == 1"), "", ""); status != http.StatusBadRequest {
			t.Errorf("%s with a filter of an unknown field: status %d, want 400", path, status)
		}
	}
	if got := list("/v1/job/mixed/evaluations", `Status == "nosuch"`); len(got) != 0 {
		t.Errorf("evaluations of a status that does not exist: %+v", got)
	}
}
