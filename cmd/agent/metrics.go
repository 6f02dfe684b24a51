//go:generate go test . -run TestMetricsPage -update

package agent

import (
	"strconv"
	"time"

	"github.com/muster-sched/muster/client"
	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/internal/telemetry"
	"github.com/muster-sched/muster/internal/tlsutil"
)

var clientMetrics = telemetry.Table[*client.Client]{
	telemetry.Gauge("muster_client_allocations", "Allocations that this node keeps, ended ones included.", func(c *client.Client) int { return len(c.Allocs()) }),
}

var certMetrics = telemetry.Table[*tlsutil.Source]{
	telemetry.Gauge("muster_tls_expires_seconds", "Time until this agent's certificate, or one that signed it, expires; negative afterwards. Only with TLS.", func(s *tlsutil.Source) float64 { return time.Until(s.NotAfter()).Seconds() }),
}

// openMetrics adds the metrics of the parts that this agent has, and of the HTTP API.
func (a *Agent) openMetrics() error {
	var own telemetry.Set
	a.requests = own.Histogram("muster_http_request_seconds", "Time to answer HTTP requests, blocking queries included; status is the class, such as 2xx.", telemetry.Latency, "route", "status")
	own.Read(func(out *telemetry.Samples) {
		if a.tls != nil {
			certMetrics.Give(out, a.tls)
		}
	}, certMetrics)
	if a.client != nil {
		own.Read(func(out *telemetry.Samples) { clientMetrics.Give(out, a.client) }, clientMetrics)
		own.Read(func(out *telemetry.Samples) {
			for _, u := range a.client.GPUUses() {
				gpu.UseMetrics.Give(out, &u, u.Alloc.String(), u.Task, u.GPU, u.Backend)
			}
			if a.gpus != nil {
				a.gpus.Metrics(out, a.client.Node().Name)
			}
		}, gpu.UseMetrics, gpu.HealthMetrics, gpu.ExporterMetrics, gpu.ActivityMetrics)
	}
	if a.server != nil {
		own.Add(a.server.Metrics())
	}
	return a.tel.Add(&own)
}

// observeHTTP counts one answered request.
func (a *Agent) observeHTTP(route string, status int, took time.Duration) {
	a.requests.Observe(took.Seconds(), route, strconv.Itoa(status/100)+"xx")
}
