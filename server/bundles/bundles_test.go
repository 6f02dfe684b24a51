package bundles

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/muster-sched/muster/internal/bundle"
	"github.com/muster-sched/muster/structs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestExpiry: a bundle stays for a day until a job uses it, as long as one does, and for ten minutes after that. A server
// that has only just started, or that follows no leader, removes nothing.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		var mu sync.Mutex // of jobs and led
		var jobs []*structs.Job
		led := true
		set := func(now []*structs.Job, leader bool) {
			mu.Lock()
			defer mu.Unlock()
			jobs, led = now, leader
		}
		start := func() (k *Keeper, stop func()) {
			store, err := bundle.Open(dir, 1<<20, time.Now)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			k = New(Environment{Log: hclog.NewNullLogger(), Now: time.Now, Store: store, Others: func() []string { return nil },
				Jobs: func(yield func(*structs.Job) bool) {
					mu.Lock()
					defer mu.Unlock()
					for _, j := range jobs {
						if !yield(j) {
							return
						}
					}
				}, HasLeader: func() bool { mu.Lock(); defer mu.Unlock(); return led }})
			done := make(chan struct{})
			go func() { k.Run(ctx); close(done) }()
			return k, func() { cancel(); <-done; k.Close() }
		}
		key := func(content string) bundle.Key {
			sum := sha256.Sum256([]byte(content))
			return bundle.Key{Namespace: "default", Sum: hex.EncodeToString(sum[:])}
		}
		k, stop := start()
		put := func(content string) {
			t.Helper()
			if copies, err := k.Put(t.Context(), key(content), int64(len(content)), strings.NewReader(content)); err != nil || copies != 1 {
				t.Fatal(copies, err)
			}
		}
		var names []string // of the bundles that are there, without counting as use
		want := func(when string, after time.Duration, want ...string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			var have []string
			if err := k.env.Store.Sweep(func(at bundle.Key) time.Duration {
				i := slices.IndexFunc(names, func(n string) bool { return key(n) == at })
				have = append(have, names[i])
				return 1 << 62
			}); err != nil {
				t.Fatal(err)
			}
			slices.Sort(have)
			if !slices.Equal(have, want) {
				t.Errorf("%s: have %v, want %v", when, have, want)
			}
		}
		names = []string{"never used", "used"}
		put("never used")
		put("used")
		raw, err := json.Marshal(map[string]string{"GetterSource": structs.BundleSource(key("used").Sum)})
		if err != nil {
			t.Fatal(err)
		}
		job := []*structs.Job{{ID: "j", Namespace: "default", Groups: []*structs.Group{{Tasks: []*structs.Task{{Artifacts: []structs.Artifact{{Raw: raw}}}}}}}}
		set(job, true)
		want("after 23 hours", 23*time.Hour, "never used", "used")
		want("after a day", time.Hour+2*time.Minute, "used")
		want("after a week", 7*24*time.Hour, "used")
		set(nil, true)
		want("just after its job", 9*time.Minute, "used")
		set(job, true)
		want("with its job again", time.Hour, "used")
		set(nil, false)
		want("without a leader", 48*time.Hour, "used")
		stop()
		time.Sleep(48 * time.Hour)
		set(nil, true)
		k, stop = start()
		want("right after a start", 9*time.Minute, "used")
		want("a while after it", 3*time.Minute)
		stop()
	})
}
