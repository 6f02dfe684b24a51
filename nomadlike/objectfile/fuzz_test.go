package objectfile

import (
	"testing"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// FuzzObjectFiles reads any bytes as a file of queues, quotas, reservations or a namespace: objects or a sentence.
func FuzzObjectFiles(f *testing.F) {
	f.Add([]byte("queue \"a\" {\n  weight = 2\n  limit { gpus = 8 }\n}\n"))
	f.Add([]byte("name = \"q\"\nlimit {\n  region = \"global\"\n  region_limit {\n    cpu = 1\n    device \"nvidia/gpu\" { count = 1 }\n  }\n}\n"))
	f.Add([]byte("name = \"n\"\nquota = \"q\"\nqueue_config {\n  allowed = [\"a\"]\n}\nmeta { a = \"b\" }\n"))
	f.Add([]byte(`[{"Name": "a", "Weight": 1}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4<<10 { // longer ones find nothing else, and take most of the time
			return
		}
		for _, kind := range []string{"queue", "reservation"} {
			list, err := Blocks(b, "-", kind)
			if err == nil && list == nil {
				t.Fatalf("%s: neither objects nor an error", kind)
			}
			for _, s := range list {
				_ = s.Decode(kind, &wire.Queue{})
			}
		}
		list, err := Quotas(b, "-")
		if err == nil && list == nil {
			t.Fatal("quota: neither objects nor an error")
		}
		for _, s := range list {
			_ = s.Decode("quota", &wire.QuotaSpec{})
		}
		_ = Single(b, "-", "namespace", false, &wire.Namespace{})
	})
}
