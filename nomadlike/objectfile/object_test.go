package objectfile

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// TestErrors: what is wrong in a file of objects is named as it is written there, with its line.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		kind, file string
		want       []string
	}{
		{"queue", "queue \"q\" {\n  weight = 2\n  gpu_hours_max = 1.5\n}\n", []string{"line 3", "gpu_hours_max wants a whole number, not 1.5."}},
		{"queue", "queue \"q\" {\n  weight = \"two\"\n}\n", []string{"line 2", "weight wants a whole number, not a string."}},
		{"queue", "queue \"q\" {\n  user_limit = 8\n}\n", []string{"line 2", "user_limit wants an object, not a number."}},
		{"queue", "queue \"q\" {\n  user_priority_max = { alice_b = 90, bob = \"high\" }\n}\n", []string{"line 2", "user_priority_max wants a whole number, not a string."}},
		{"queue", "queue \"q\" {\n  user_limit = {\n    gpus = \"all\"\n  }\n}\n", []string{"line 3", "user_limit.gpus wants a number, not a string."}},
		{"queue", "queue \"q\" {\n  user_limit {\n    gpuss = 1\n  }\n  gpu_hour_max = 7\n}\n", []string{"line 3", `no user_limit.gpuss; did you mean "gpus"?`, "line 5", `no gpu_hour_max; did you mean "gpu_hours_max"?`}},
		{"quota", "quota \"q\" {\n  limit {\n    gpus = 4\n  }\n}\n", []string{"line 3", "A quota has no limit.gpus. What is limited stands in region_limit { ... }"}},
		{"quota", "quota \"q\" {\n  limit {\n    region_limit {\n      cpu = \"much\"\n    }\n  }\n}\n", []string{"line 4", "limit.region_limit.cpu wants a whole number"}},
		{"quota", "quota \"q\" {\n  limit {\n    region = \"a\"\n  }\n  limit {\n    region_limit {\n      memory = 1\n      memry = 1\n    }\n  }\n}\n", []string{"line 8", "A quota has no limit.region_limit.memry"}},
		{"quota", "quota \"q\" {\n  limit {\n    region_limit {\n      memory = \"x\"\n    }\n  }\n}\n", []string{"line 4", "limit.region_limit.memory wants"}},
		{"quota", "quota \"q\" {\n  limit {\n    region_limit {\n      gpu = 4\n    }\n  }\n}\n", []string{"line 4", "device \"nvidia/gpu\" { count = 4 }"}},
		{"quota", "name = \"q\"\nqouta {\n  gpu = 3\n}\n", []string{"line 2", "Unknown block qouta", `quota "NAME" { limit { ... } }`, `did you mean "quota"?`}},
		{"quota", "quota \"q\" {\n  limt {\n  }\n}\n", []string{"line 2", `did you mean "limit"?`}},
		{"quota", "quota \"q\" {\n  limit {\n    region_limits {\n    }\n  }\n}\n", []string{"line 3", `did you mean "region_limit"?`}},
		{"node_pool", "nod_pool \"p\" {\n}\n", []string{"line 1", "Unknown block nod_pool", `did you mean "node_pool"?`}},
		{"queue", "queue \"q\" {\n  weight = 2\n  max_wait = \"1 day\"\n}\n", []string{"line 3", `max_wait: "1 day" is not a duration: want a number with a unit`}},
		{"reservation", "reservation \"r\" {\n  duration = \"4h\"\n  start = \"tomorrow\"\n}\n", []string{"line 3", `start: "tomorrow" is no time: want one such as 2026-12-01T08:00:00Z`}},
		{"node_pool", "node_pool \"p\" {\n  scheduler_config {\n    scheduler_algoritm = \"spread\"\n  }\n}\n", []string{"line 3", `A node pool has no scheduler_config.scheduler_algoritm; did you mean "scheduler_algorithm"?`}},
		{"queue", `{"Name": "q", "Weigth": 1}`, []string{`unknown field Weigth; did you mean "Weight"?`}},
	} {
		var err error
		var specs []Object
		switch c.kind {
		case "quota":
			specs, err = Quotas([]byte(c.file), "-")
			if err == nil {
				err = specs[0].Decode(c.kind, &wire.QuotaSpec{})
			}
		case "queue", "reservation":
			specs, err = Blocks([]byte(c.file), "-", c.kind)
			if err == nil && c.kind == "queue" {
				err = specs[0].Decode(c.kind, &wire.Queue{})
			} else if err == nil {
				err = specs[0].Decode(c.kind, &wire.Reservation{})
			}
		default:
			err = Single([]byte(c.file), "-", c.kind, false, &wire.NodePool{})
		}
		for _, w := range c.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s\n%v\nlacks %q", c.file, err, w)
			}
		}
	}
	for name, want := range map[string]string{"GPUHoursMax": "gpu_hours_max", "GPUs": "gpus", "MemoryMB": "memory_mb", "Weight": "weight", "NodePoolConfiguration": "node_pool_config", "AllowedUsers": "allowed_users", "CPU": "cpu"} {
		if got := snake(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// TestDeepFiles: what would overflow the stack of the parser is refused.
func TestDeepFiles(t *testing.T) {
	deep := []byte("queue \"q\" {\n  weight = " + strings.Repeat("(", 200_000))
	for name, read := range map[string]func() error{
		"blocks":     func() error { _, err := Blocks(deep, "-", "queue"); return err },
		"quotas":     func() error { _, err := Quotas(deep, "-"); return err },
		"single":     func() error { return Single(deep, "-", "node_pool", false, &wire.NodePool{}) },
		"attributes": func() error { _, err := Attributes(deep, "-"); return err },
	} {
		if err := read(); err == nil || !strings.Contains(err.Error(), "Nested too deep") || len(err.Error()) > 1000 {
			t.Errorf("%s: %.1000v", name, err)
		}
	}
}
