//go:build e2e

package gang

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// TestRDMA: of two nodes one has RDMA adapters, as the kernel describes them. Work that requires GPUs near an adapter
// runs there alone, with the adapters near its GPUs; work that prefers them runs elsewhere when they are taken, and
// says so. When the adapters are gone, job why says what is missing.
func TestRDMA(t *testing.T) {
	f := harness.StartFleet(t,
		harness.FleetNode{Name: "plain", GPUs: "2xH100"},
		harness.FleetNode{Name: "fabric", GPUs: "4xH100", Adapters: []harness.Adapter{{Name: "mlx5_0", GPUs: []int{0, 2}}, {Name: "mlx5_1", GPUs: []int{1}}}})
	says := func(want string, args ...string) {
		t.Helper()
		harness.Eventually(t, 30*time.Second, strings.Join(args, " ")+" says "+want, func() (bool, string) {
			text, err := f.Muster(args...)
			return strings.Contains(text, want), fmt.Sprint(text, err)
		})
	}
	work := func(id, gpus string) harness.Work {
		locked := `ulimits = { memlock = "65536" }` // not every machine lets an agent raise it
		return harness.Work{ID: id, Driver: "exec", GPUs: gpus, Resources: locked, Script: `d=/dev/infiniband/uverbs0; opened=no; (: >$d) 2>/dev/null && opened=yes; echo "hca=$NCCL_IB_HCA ucx=$UCX_NET_DEVICES opened=$opened;"; sleep 1000`}
	}
	on := func(w harness.Work, node string) harness.Alloc {
		t.Helper()
		a := f.Running(w, 1)[0]
		if a.NodeName != node {
			t.Fatalf("%s is on %s, want %s", w.ID, a.NodeName, node)
		}
		return a
	}
	says("mlx5_0,mlx5_1", "node", "status", "-verbose", "fabric")

	three := work("three", `count = 3, rdma = "required"`)
	f.Run(three)
	on(three, "fabric")
	says("hca==mlx5_0,mlx5_1 ucx=mlx5_0:1,mlx5_1:1 opened=yes;", "alloc", "logs", "-job", "three", "main")
	f.Stop(three)

	one := work("one", `count = 1, rdma = "required"`)
	f.Run(one)
	on(one, "fabric")
	says("opened=yes;", "alloc", "logs", "-job", "one", "main")

	// Two GPUs near an adapter are left.
	first := work("first", `count = 2, rdma = "preferred"`)
	f.Run(first)
	if a := on(first, "fabric"); strings.Contains(f.Must("alloc", "status", a.ID), "prefers GPUs") {
		t.Error("GPUs near an adapter are said to be others")
	}
	more := work("more", `count = 1, rdma = "required"`)
	f.Run(more)
	says("near an RDMA adapter", "job", "why", "more")
	f.Stop(more)
	second := work("second", `count = 2, rdma = "preferred"`)
	f.Run(second)
	a := on(second, "plain")
	says("The task prefers GPUs near an RDMA adapter and was given 2 of 2 that are not", "alloc", "status", a.ID)
	says("hca= ucx= opened=no;", "alloc", "logs", "-job", "second", "main")
	f.Stop(one, first, second)

	for _, gone := range []string{"class/infiniband/mlx5_0", "class/infiniband/mlx5_1", "dev/infiniband/uverbs0", "dev/infiniband/uverbs1"} {
		if err := os.RemoveAll(filepath.Join(f.Hardware("fabric"), gone)); err != nil {
			t.Fatal(err)
		}
	}
	harness.Eventually(t, 60*time.Second, "the agent sees that the adapters are gone", func() (bool, string) {
		text, err := f.Muster("node", "status", "-json", "fabric")
		return err == nil && !strings.Contains(text, `"Adapters"`), text
	})
	none := work("none", `count = 1, rdma = "required"`)
	f.Run(none)
	says("near an RDMA adapter", "job", "why", "none")
}
