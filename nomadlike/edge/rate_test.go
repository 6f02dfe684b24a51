package edge

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/gcra"
	"github.com/muster-sched/muster/structs"
)

func from(addr string) *http.Request {
	r := httptest.NewRequest("GET", "/v1/jobs", nil)
	r.RemoteAddr = addr + ":1000"
	return r
}

func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := NewRates(RateLimits{PerClient: 10, PerToken: 5}, hclog.New(&hclog.LoggerOptions{Output: &log}))
		take := func(addr, token string, n int) (ok int, wait time.Duration, last error) {
			for range n {
				w, err := r.Take(from(addr), token)
				if err == nil {
					ok++
				} else {
					wait, last = w, err
				}
			}
			return ok, wait, last
		}
		if ok, wait, err := take("192.0.2.1", "", 100); ok != 40 || wait <= 0 || structs.CodeOf(err) != structs.CodeBusy || !strings.Contains(err.Error(), "http_max_rate_per_client") {
			t.Errorf("a client's burst: %d of 100 requests, wait %s, %v; want four seconds' worth", ok, wait, err)
		}
		if ok, _, _ := take("192.0.2.2", "", 1); ok != 1 {
			t.Error("another client is refused")
		}
		time.Sleep(time.Second)
		if ok, _, _ := take("192.0.2.1", "", 100); ok != 10 {
			t.Errorf("after a second: %d requests, want 10", ok)
		}
		// One token from many clients has its own limit, and other tokens do not notice.
		ok := 0
		for i := range 100 {
			n, _, err := take(fmt.Sprintf("198.51.100.%d", i), "a", 1)
			if ok += n; err != nil && !strings.Contains(err.Error(), "http_max_rate_per_token") {
				t.Errorf("a token's limit: %v", err)
			}
		}
		if ok != 20 {
			t.Errorf("a token's burst: %d of 100 requests, want 20", ok)
		}
		if ok, _, _ := take("192.0.2.3", "b", 1); ok != 1 {
			t.Error("another token is refused")
		}
		if n := strings.Count(log.String(), "were refused"); n != 1 {
			t.Errorf("%d lines, want one:\n%s", n, log.String())
		}
		// Clients are forgotten, so that memory is bounded.
		for i := range 2 * gcra.KeysMax {
			take(fmt.Sprintf("2001:db8::%x", i), "", 1)
		}
		if n := r.taken.Keys(); n > gcra.KeysMax {
			t.Errorf("%d clients and tokens are remembered", n)
		}
		if ok, _, _ := func() (int, time.Duration, error) {
			r.limits = RateLimits{}
			return take("192.0.2.1", "a", 1000)
		}(); ok != 1000 {
			t.Errorf("without limits %d of 1000", ok)
		}
	})
}

// TestWrongTokens: an answer to a wrong token takes a while, and few of a client are delayed at a time.
func TestWrongTokens(t *testing.T) {
	const wrongDelay = 100 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		r := NewRates(RateLimits{WrongToken: wrongDelay}, hclog.NewNullLogger())
		begin := time.Now()
		var delayed, refused atomic.Int64
		for range 100 {
			go func() {
				if err := r.Wrong(from("192.0.2.1")); err == nil {
					delayed.Add(1)
				} else if structs.CodeOf(err) == structs.CodeBusy {
					refused.Add(1)
				}
			}()
		}
		synctest.Wait()
		if err := r.Wrong(from("192.0.2.2")); err != nil || time.Since(begin) != wrongDelay {
			t.Errorf("another client: %v after %s", err, time.Since(begin))
		}
		synctest.Wait()
		if delayed.Load() != wrongAtOnce || refused.Load() != 100-wrongAtOnce || len(r.wrong) != 0 {
			t.Errorf("%d delayed, %d refused, %d counted", delayed.Load(), refused.Load(), len(r.wrong))
		}
	})
}
