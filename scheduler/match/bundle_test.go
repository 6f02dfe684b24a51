package match

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// TestBundlesWantAnAgentThatFetchesThem: during an upgrade a job with a bundle waits for an agent of this version, instead of failing
// on an older one.
func TestBundlesWantAnAgentThatFetchesThem(t *testing.T) {
	older := &structs.Node{Attributes: map[string]string{"muster.version": "0.0.9"}, Drivers: map[string]*structs.DriverInfo{"exec": {Detected: true, Healthy: true}}}
	newer := *older
	newer.Attributes = map[string]string{structs.BundlesAttribute: "1"}
	for source, bundled := range map[string]bool{structs.BundleSource(strings.Repeat("0", 64)): true, "https://example.com/x.tgz": false} {
		raw, err := json.Marshal(map[string]string{"GetterSource": source})
		if err != nil {
			t.Fatal(err)
		}
		a := CompileAsk(&structs.Job{}, &structs.Group{Tasks: []*structs.Task{{Name: "t", Driver: "exec", Artifacts: []structs.Artifact{{Raw: raw}}}}}, "")
		if r, bad := a.Refuses(&newer); bad {
			t.Errorf("%s: an agent that fetches bundles is refused: %+v", source, r)
		}
		r, bad := a.Refuses(older)
		if bad != bundled || bad && !strings.Contains(r.Text(), structs.BundlesAttribute) {
			t.Errorf("%s: an older agent is refused: %t, %q", source, bad, r.Text())
		}
	}
}
