package driverconf

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var schema = Schema{
	{Name: "command", Type: String, Required: true}, {Name: "args", Type: List}, {Name: "pids_limit", Type: Int},
	{Name: "run_for", Type: Duration}, {Name: "hard", Type: Bool}, {Name: "labels", Type: Map}, {Name: "mount", Type: Blocks},
}

func TestSchemaConverts(t *testing.T) {
	v, problems := schema.Decode(map[string]any{
		"command": "x", "args": []any{"a", 1, true, 1e6, 0.5}, "pids_limit": 3.0, "run_for": "90s", "hard": "true", "labels": []any{map[string]any{"k": 1}}, "mount": []any{map[string]any{"type": "bind"}, map[string]any{}},
	})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if v.String("command") != "x" || fmt.Sprint(v.List("args")) != "[a 1 true 1000000 0.5]" || v.Int("pids_limit") != 3 || v.Duration("run_for") != 90*time.Second || !v.Bool("hard") || v.Map("labels")["k"] != "1" || len(v.Blocks("mount")) != 2 {
		t.Fatalf("%+v", v)
	}
}

func TestSchemaRefuses(t *testing.T) {
	for want, c := range map[string]map[string]any{
		`unknown config key "comand"; did you mean "command"?`:     {"comand": "y"}, // and not also that command is missing
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
			_, problems := schema.Decode(c)
			if len(problems) != 1 || !strings.Contains(problems[0].Text, want) {
				t.Errorf("%v: %v, want one with %q", c, problems, want)
			}
		})
	}
}

// A block of very many keys is refused as a whole: to look for what each was meant to be would take seconds.
func TestTooManyKeysAreRefused(t *testing.T) {
	config := map[string]any{"command": "x"}
	for i := range keysMax {
		config[fmt.Sprint("key", i)] = 1
	}
	const want = "201 config keys; valid are only args, command, hard"
	if _, problems := schema.Decode(config); len(problems) != 1 || !strings.HasPrefix(problems[0].Text, want) {
		t.Errorf("%.300v", problems)
	}
	if problems := schema.check(config); len(problems) != 1 || !strings.HasPrefix(problems[0].Text, want) {
		t.Errorf("%.300v", problems)
	}
}

// A value that only a node can fill in is not judged before.
func TestUnknownValueIsNotRefused(t *testing.T) {
	for logs, want := range map[string]int{"${attr.logs}": 0, "local": 0, "": 0, "gelf": 1} {
		problems, _ := Check("docker", map[string]any{"image": "x", "auth": map[string]any{"username": "u", "email": "e"}, "logging": map[string]any{"driver": logs}})
		if len(problems) != want {
			t.Errorf("logging driver %q: %v, want %d problems", logs, problems, want)
		}
	}
}

// Decoding any job returns values of the declared types or problems, and never panics.
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
		v, _ := schema.Decode(cfg)
		for k, x := range v {
			f := schema.field(k)
			good := map[FieldType]bool{}
			_, good[String] = x.(string)
			_, good[Int] = x.(int64)
			_, good[Bool] = x.(bool)
			_, good[Duration] = x.(time.Duration)
			_, good[List] = x.([]string)
			_, good[Map] = x.(map[string]string)
			_, good[Blocks] = x.([]map[string]any)
			if f == nil || !good[f.Type] {
				t.Fatalf("%q has type %T, its field is %v", k, x, f)
			}
		}
	})
}

// A submitted block is checked without the values that only a node knows.
func TestCheck(t *testing.T) {
	type block = map[string]any
	for want, c := range map[string]struct {
		driver string
		config block
	}{
		"": {"exec", block{"command": "x", "nofile_limit": json.Number("1024"), "cap_add": []any{json.Number("1.5")}, "pids_limit": "${NOMAD_META_pids}", "args": []any{"${NOMAD_ALLOC_ID}"}}},
		`args: config key "args": want a list of strings, got the string "${NOMAD_META_args}"`:                                                                       {"exec", block{"command": "x", "args": "${NOMAD_META_args}"}},
		`comand: unknown config key "comand"; did you mean "command"? (valid keys: args, command, pids_limit, work_dir)`:                                             {"raw_exec", block{"comand": "x"}},
		`: config key "image" (string) is required`:                                                                                                                  {"docker", nil},
		`ssl: config key "ssl" is not supported: the engine knows its registries`:                                                                                    {"docker", block{"image": "x", "ssl": true}},
		`mount: mount: unknown config key "targt"; did you mean "target"? (valid keys: bind_options, readonly, source, target, tmpfs_options, type, volume_options)`: {"docker", block{"image": "x", "mount": []any{block{"targt": "/x"}}}},
	} {
		t.Run(want, func(t *testing.T) {
			problems, ok := Check(c.driver, c.config)
			var got []string
			for _, p := range problems {
				got = append(got, p.Key+": "+p.Text)
			}
			if !ok || strings.Join(got, "; ") != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
	if _, ok := Check("dokcer", nil); ok {
		t.Error("there is a driver dokcer")
	}
	if got, want := Unknown("dokcer"), `there is no driver "dokcer"; did you mean "docker"? (there are docker, exec, raw_exec)`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
