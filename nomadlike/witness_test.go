package nomadlike

import (
	"context"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/nomadlike/edge"
	"github.com/muster-sched/muster/structs"
)

// scaling is a backend that knows one job.
type scaling struct {
	rpc.Caller
	job *structs.Job
}

func (s scaling) Invoke(_ context.Context, _ rpc.Header, _, resp any) error {
	if r, is := resp.(*methods.ScalingGetResponse); is {
		r.Job, r.Group = s.job, "g"
	}
	return nil
}

// TestAutoscalersReadPolicies: what a scaling block says to an autoscaler can be read from the API. Servers themselves
// only heed its min and max.
func TestAutoscalersReadPolicies(t *testing.T) {
	read := func(p structs.Scaling) string {
		job := &structs.Job{ID: "w", Namespace: "default", Groups: []*structs.Group{{Name: "g", Scaling: &p}}}
		s := New(Config{Backend: scaling{job: job}, Agent: open{}, Log: hclog.NewNullLogger(), Region: "global", Site: edge.NewSite(nil, []string{"example.com"})})
		r := do(s, "GET", "/v1/scaling/policy/x", "")
		body := text(t, r)
		if r.StatusCode != 200 {
			t.Fatalf("%s: %s", r.Status, body)
		}
		return body
	}
	before := read(structs.Scaling{Max: 3})
	for name, p := range map[string]structs.Scaling{
		"Scaling.Enabled": {Max: 3, Enabled: true},
		"Scaling.Policy":  {Max: 3, Policy: structs.RawConfig(`{"cooldown":"1m"}`)},
		"Scaling.Type":    {Max: 3, Type: "vertical_cpu"},
	} {
		if after := read(p); after == before {
			t.Errorf("%s is not shown: %s", name, after)
		}
	}
}
