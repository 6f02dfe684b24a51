package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// slow is a target that takes an hour for each notice.
type slow struct {
	mu  sync.Mutex
	got []string
}

func (s *slow) Name() string { return "slow" }

func (s *slow) Deliver(ctx context.Context, n Notice) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Hour):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, n.ID)
	return errors.New("and then it fails")
}

type quick struct{ slow }

func (q *quick) Deliver(_ context.Context, n Notice) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.got = append(q.got, n.ID)
	return nil
}

// A target that hangs holds up neither the sender nor the others, and keeps the newest notices.
func TestSlowTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		a, b := &slow{}, &quick{}
		s := New(hclog.New(&hclog.LoggerOptions{Output: &log}), a, b)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		s.Send(Notice{ID: "first"})
		synctest.Wait()
		from := time.Now()
		for i := range 200 {
			s.Send(Notice{ID: strconv.Itoa(i)})
			synctest.Wait()
		}
		if time.Since(from) != 0 || len(b.got) != 201 {
			t.Errorf("201 notices took %s, and %d of them arrived where nothing is slow", time.Since(from), len(b.got))
		}
		time.Sleep(100 * time.Hour)
		synctest.Wait()
		if len(a.got) != 1+QueueMax || a.got[0] != "first" || a.got[1] != strconv.Itoa(200-QueueMax) || a.got[QueueMax] != "199" {
			t.Errorf("%d arrived late: %v", len(a.got), a.got)
		}
		if !strings.Contains(log.String(), "notices=136") {
			t.Errorf("the log does not say how many were dropped:\n%s", log.String())
		}
		cancel()
		<-done
	})
}

// TestWebhook answers attempts as listed, and wants so many.
func TestWebhook(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []int
		want    int
		ok      bool
	}{
		{"taken at once", []int{204}, 1, true},
		{"taken at the third attempt", []int{500, 429, 200}, 3, true},
		{"refused for good", []int{401, 200}, 1, false},
		{"sent elsewhere", []int{302, 200}, 1, false},
		{"never taken", []int{503, 503, 503, 503}, 3, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := 0
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				var got Notice
				if err := json.Unmarshal(body, &got); err != nil || got.GPU != "G" || r.Header.Get("X-Token") != "s3cret" || r.Header.Get("Muster-Notice") != "id" || r.Method != "POST" {
					t.Errorf("it got %s with %v", body, r.Header)
				}
				at, sum, _ := strings.Cut(strings.TrimPrefix(r.Header.Get(SignatureHeader), "t="), ",")
				unix, _ := strconv.ParseInt(at, 10, 64)
				if want := Sign([]byte("key"), time.Unix(unix, 0), body); !hmac.Equal([]byte("t="+at+","+sum), []byte(want)) || time.Since(time.Unix(unix, 0)) > time.Minute {
					t.Errorf("the signature is %q, want %q", r.Header.Get(SignatureHeader), want)
				}
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(c.answers[n])
				n++
			}))
			defer srv.Close()
			w := &Webhook{Label: "x", URL: srv.URL + "/path-secret", Headers: map[string]string{"X-Token": "s3cret"}, Secret: []byte("key"), Attempts: 3, Pause: time.Millisecond}
			err := w.Deliver(t.Context(), Notice{ID: "id", GPU: "G"})
			if n != c.want || (err == nil) != c.ok {
				t.Errorf("%d attempts, %v; want %d, %t", n, err, c.want, c.ok)
			}
		})
	}
}

// Errors are logged: they must not contain the address, which may hold a secret.
func TestWebhookKeepsItsAddress(t *testing.T) {
	hang := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer hang.Close()
	for _, u := range []string{"http://127.0.0.1:1/path-secret", hang.URL + "/path-secret", "http://user:path-secret@[::bad/"} {
		from := time.Now()
		err := (&Webhook{Label: "x", URL: u, Timeout: 50 * time.Millisecond, Attempts: 2, Pause: time.Millisecond}).Deliver(t.Context(), Notice{})
		if err == nil || strings.Contains(err.Error(), "path-secret") || time.Since(from) > 5*time.Second {
			t.Errorf("after %s: %v", time.Since(from), err)
		}
	}
}
