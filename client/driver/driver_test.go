package driver

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"

	"pgregory.net/rapid"
)

var schema = Schema{
	{Name: "command", Type: String, Required: true}, {Name: "args", Type: List}, {Name: "pids_limit", Type: Int},
	{Name: "run_for", Type: Duration}, {Name: "hard", Type: Bool}, {Name: "labels", Type: Map}, {Name: "mount", Type: Blocks},
}

func TestSchemaConverts(t *testing.T) {
	v, err := schema.Decode("d", map[string]any{
		"command": "x", "args": []any{"a", 1, true, 1e6, 0.5}, "pids_limit": 3.0, "run_for": "90s", "hard": "true", "labels": []any{map[string]any{"k": 1}}, "mount": []any{map[string]any{"type": "bind"}, map[string]any{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if v.String("command") != "x" || fmt.Sprint(v.List("args")) != "[a 1 true 1000000 0.5]" || v.Int("pids_limit") != 3 || v.Duration("run_for") != 90*time.Second || !v.Bool("hard") || v.Map("labels")["k"] != "1" || len(v.Blocks("mount")) != 2 {
		t.Fatalf("%+v", v)
	}
}

func TestSchemaRefuses(t *testing.T) {
	for want, c := range map[string]map[string]any{
		`unknown config key "comand"; did you mean "command"?`:     {"command": "x", "comand": "y"},
		`(valid keys: args, command, hard, labels, mount, pids_li`: {"command": "x", "zzzzzzzz": "y"},
		`"command" (string) is required`:                           {},
		`must not be empty`:                                        {"command": ""},
		`want a number, got the string "many"`:                     {"command": "x", "pids_limit": "many"},
		`want a number, got the number 1.5`:                        {"command": "x", "pids_limit": 1.5},
		`want a list of strings, got a map`:                        {"command": "x", "args": map[string]any{}},
		`element 1: want a string, got a list`:                     {"command": "x", "args": []any{"a", []any{}}},
		`want a duration such as "90s"`:                            {"command": "x", "run_for": "soon"},
		`must not be negative`:                                     {"command": "x", "run_for": "-1s"},
		`element 0: want a block, got`:                             {"command": "x", "mount": []any{"y"}},
		`want a bool, got the number 1`:                            {"command": "x", "hard": 1},
	} {
		t.Run(want, func(t *testing.T) {
			_, err := schema.Decode("d", c)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v, want %q", c, err, want)
			} else if !errors.Is(err, ErrPermanent) || !strings.HasPrefix(err.Error(), "d: ") {
				t.Errorf("%v: %v should be permanent and name the driver", c, err)
			}
		})
	}
}

// Decoding any job returns values of the declared types or an error, and never panics.
func TestSchemaIsTotal(t *testing.T) {
	value := rapid.OneOf(rapid.Just[any](nil), rapid.Map(rapid.String(), func(s string) any { return s }), rapid.Map(rapid.Float64(), func(f float64) any { return f }),
		rapid.Map(rapid.Int(), func(i int) any { return i }), rapid.Map(rapid.Bool(), func(b bool) any { return b }),
		rapid.Map(rapid.SliceOf(rapid.String()), func(l []string) any {
			out := make([]any, len(l))
			for i := range l {
				out[i] = l[i]
			}
			return out
		}))
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.OneOf(rapid.SampledFrom([]string{"command", "args", "pids_limit", "run_for", "hard", "labels", "mount"}), rapid.String())
		cfg := rapid.MapOf(key, value).Draw(t, "config")
		v, err := schema.Decode("d", cfg)
		if (v == nil) == (err == nil) {
			t.Fatalf("values %v, error %v", v, err)
		}
		for k, x := range v {
			f, ok := schema.field(k)
			good := map[FieldType]bool{}
			_, good[String] = x.(string)
			_, good[Int] = x.(int64)
			_, good[Bool] = x.(bool)
			_, good[Duration] = x.(time.Duration)
			_, good[List] = x.([]string)
			_, good[Map] = x.(map[string]string)
			_, good[Blocks] = x.([]map[string]any)
			if !ok || !good[f.Type] {
				t.Fatalf("%q has type %T, want %s", k, x, f.Type)
			}
		}
	})
}

func TestSignals(t *testing.T) {
	for name, want := range map[string]syscall.Signal{"": syscall.SIGTERM, "SIGHUP": syscall.SIGHUP, "usr1": syscall.SIGUSR1, "INT": syscall.SIGINT} {
		if got, err := ParseSignal(name); err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", name, got, err, want)
		}
	}
	if _, err := ParseSignal("9"); !errors.Is(err, ErrPermanent) {
		t.Errorf("a number is no name: %v", err)
	}
}

func TestHowToStop(t *testing.T) {
	for _, c := range []struct {
		name, signal, own   string
		timeout, ownTimeout time.Duration
		wantSignal          syscall.Signal
		wantTimeout         time.Duration
	}{
		{name: "defaults", wantSignal: syscall.SIGTERM, wantTimeout: structs.KillTimeoutDefault},
		{name: "the task's", own: "SIGINT", ownTimeout: time.Minute, wantSignal: syscall.SIGINT, wantTimeout: time.Minute},
		{name: "the caller's", signal: "HUP", timeout: time.Second, own: "SIGINT", ownTimeout: time.Minute, wantSignal: syscall.SIGHUP, wantTimeout: time.Second},
		{name: "at once", timeout: -1, ownTimeout: time.Minute, wantSignal: syscall.SIGTERM, wantTimeout: -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			sig, timeout, err := HowToStop(c.signal, c.timeout, c.own, c.ownTimeout)
			if err != nil || sig != c.wantSignal || timeout != c.wantTimeout {
				t.Errorf("got %v, %s, error %v, want %v, %s", sig, timeout, err, c.wantSignal, c.wantTimeout)
			}
		})
	}
	if _, _, err := HowToStop("SIGNOPE", 0, "", 0); err == nil {
		t.Error("an unknown signal was accepted")
	}
}
