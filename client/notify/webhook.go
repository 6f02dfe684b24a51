package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/muster-sched/muster/client/egress"
)

// SignatureHeader carries "t=UNIX,v1=HEX": the HMAC-SHA256, under the webhook's secret, of the time, a dot and the body.
const SignatureHeader = "Muster-Signature"

// Webhook is a Target that sends each notice as a POST of JSON. A 2xx answer is success. After 408, 429, 5xx or a
// failure to connect it is retried with growing pauses; any other answer ends the delivery. Redirects are not followed:
// the secret headers are for the configured host only.
type Webhook struct {
	Label    string
	URL      string
	Headers  map[string]string
	Secret   []byte        // signs the body; nil: it is not signed
	Timeout  time.Duration // of one attempt; 0 is 5 s
	Attempts int           // 0 is 5
	OfJob    bool          // a job names the URL, which Egress restricts
	Egress   *egress.Filter
	Pause    time.Duration // before the second attempt, doubled for each further one up to 30 s; 0 is 1 s
}

// Name implements Target. It leaves out the address, which may hold a secret.
func (w *Webhook) Name() string { return "webhook " + w.Label }

const pauseMax = 30 * time.Second

var client = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 1, IdleConnTimeout: 30 * time.Second},
}

// Deliver implements Target.
func (w *Webhook) Deliver(ctx context.Context, n Notice) error {
	body, err := json.Marshal(n)
	if err != nil {
		return err
	}
	attempts, pause := w.Attempts, w.Pause
	if attempts <= 0 {
		attempts = 5
	}
	if pause <= 0 {
		pause = time.Second
	}
	for i := 1; ; i++ {
		again, err := w.post(ctx, n.ID, body)
		if err == nil {
			return nil
		}
		if !again || i >= attempts {
			return fmt.Errorf("attempt %d: %w", i, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, pauseMax)
	}
}

func (w *Webhook) post(ctx context.Context, id string, body []byte) (again bool, err error) {
	limit := w.Timeout
	if limit <= 0 {
		limit = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(body))
	if err != nil {
		return false, errors.New("the address is not valid")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "muster")
	req.Header.Set("Muster-Notice", id)
	for k, v := range w.Headers {
		req.Header.Set(k, v)
	}
	if w.Secret != nil {
		req.Header.Set(SignatureHeader, Sign(w.Secret, time.Now(), body))
	}
	c := client
	if w.OfJob {
		t := w.Egress.Local().Transport(true)
		defer t.CloseIdleConnections()
		c = &http.Client{CheckRedirect: client.CheckRedirect, Transport: t}
	}
	resp, err := c.Do(req)
	if err != nil {
		var at *url.Error
		if errors.As(err, &at) {
			err = at.Err // without the address
		}
		return !errors.Is(err, egress.ErrRefused), err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection can be reused
	switch s := resp.StatusCode; {
	case s >= 200 && s < 300:
		return false, nil
	default:
		return s == http.StatusRequestTimeout || s == http.StatusTooManyRequests || s >= 500, fmt.Errorf("the answer was %s", resp.Status)
	}
}

// Sign returns the value of SignatureHeader.
func Sign(secret []byte, at time.Time, body []byte) string {
	t := strconv.FormatInt(at.Unix(), 10)
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(t + "."))
	m.Write(body)
	return "t=" + t + ",v1=" + hex.EncodeToString(m.Sum(nil))
}
