package nomadlike

import (
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/nomadlike/edge"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// fleet is a backend with many nodes or namespaces, which it lists in pages as servers do.
type fleet struct {
	rpc.Caller
	nodes   int
	fits    int // rows that fit into a message
	failAt  int // row whose page cannot be read
	refuse  int // pages after the first that are refused as busy, once each
	pages   int
	entered int
}

func (f *fleet) Invoke(_ context.Context, _ rpc.Header, req, resp any) error {
	r := req.(*methods.ListRequest)
	from, _ := strconv.Atoi(r.NextToken)
	size := 1000
	if r.PerPage > 0 {
		size = min(r.PerPage, size)
	}
	to := min(from+size, f.nodes)
	switch {
	case f.fits > 0 && to-from > f.fits: // PageMax is halved until it fits
		return structs.Errorf(structs.CodeTooLarge, "the answer is too large")
	case f.failAt > 0 && to > f.failAt:
		return structs.Errorf(structs.CodeDenied, "the token was deleted")
	case from > 0 && f.refuse > 0:
		f.refuse--
		return structs.Errorf(structs.CodeBusy, "try again")
	}
	f.pages++
	meta := methods.Meta{Index: 9}
	if to < f.nodes {
		meta.NextToken = strconv.Itoa(to)
	}
	switch out := resp.(type) {
	case *methods.NodeListResponse:
		out.Meta = meta
		for i := from; i < to; i++ {
			n := &structs.Node{Name: "node"}
			binary.BigEndian.PutUint64(n.ID[:], uint64(i+1))
			out.Nodes = append(out.Nodes, n)
		}
	case *methods.NamespaceListResponse:
		out.Meta, out.Namespaces = meta, slices.Repeat([]*structs.Namespace{{Name: "n"}}, to-from)
	}
	return nil
}

func fleetServer(f *fleet) *Server {
	return New(Config{Backend: f, Agent: open{}, Log: hclog.NewNullLogger(), Site: edge.NewSite(nil, []string{"example.com"}), Enter: func(ctx context.Context, _ bool) (context.Context, func(), error) {
		f.entered++
		return ctx, func() {}, nil
	}})
}

// nodesIn reads a list and checks that each node is there once, in order.
func nodesIn(t *testing.T, body io.Reader) int {
	t.Helper()
	var stubs []*wire.NodeListStub
	if err := json.NewDecoder(body).Decode(&stubs); err != nil {
		t.Fatal(err)
	}
	for i, s := range stubs {
		var id structs.NodeID
		binary.BigEndian.PutUint64(id[:], uint64(i+1))
		if s.ID != id.String() {
			t.Fatalf("row %d is node %s, want %s", i, s.ID, id)
		}
	}
	return len(stubs)
}

func TestAListWithoutPerPageIsWhole(t *testing.T) {
	for _, tc := range []struct {
		name, target string
		fleet        fleet
		want         int
		next         string
	}{
		{name: "one page", target: "/v1/nodes", fleet: fleet{nodes: 12}, want: 12},
		{name: "none", target: "/v1/nodes", fleet: fleet{}, want: 0},
		{name: "many pages", target: "/v1/nodes", fleet: fleet{nodes: 3_017}, want: 3_017},
		{name: "pages larger than a message", target: "/v1/nodes", fleet: fleet{nodes: 3_017, fits: 300}, want: 3_017},
		{name: "a server that is busy", target: "/v1/nodes", fleet: fleet{nodes: 3_017, refuse: 2}, want: 3_017},
		{name: "pretty", target: "/v1/nodes?pretty", fleet: fleet{nodes: 3_017}, want: 3_017},
		{name: "per_page=0", target: "/v1/nodes?per_page=0", fleet: fleet{nodes: 3_017}, want: 3_017},
		{name: "per_page", target: "/v1/nodes?per_page=7", fleet: fleet{nodes: 3_017}, want: 7, next: "7"},
		{name: "a larger per_page", target: "/v1/nodes?per_page=900", fleet: fleet{nodes: 3_017}, want: 900, next: "900"},
		{name: "blocking", target: "/v1/nodes?index=3&wait=1s", fleet: fleet{nodes: 3_017}, want: 3_017},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := do(fleetServer(&tc.fleet), "GET", tc.target, "")
			if got := nodesIn(t, r.Body); got != tc.want || r.StatusCode != 200 {
				t.Errorf("%d nodes with status %d, want %d", got, r.StatusCode, tc.want)
			}
			if got := r.Header.Get("X-Nomad-NextToken"); got != tc.next {
				t.Errorf("the next token is %q, want %q", got, tc.next)
			}
			if got := r.Header.Get("X-Nomad-Index"); got != "9" {
				t.Errorf("the index is %q, want that of the first page", got)
			}
		})
	}
}

func TestALongListIsCompressed(t *testing.T) {
	r := do(fleetServer(&fleet{nodes: 3_017}), "GET", "/v1/nodes", "", "Accept-Encoding", "gzip")
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got := nodesIn(t, z); got != 3_017 {
		t.Errorf("%d nodes", got)
	}
}

// TestAListThatIsCutOffFails checks that a client sees that a later page could not be read: its status has been sent.
func TestAListThatIsCutOffFails(t *testing.T) {
	s := httptest.NewServer(fleetServer(&fleet{nodes: 3_017, failAt: 2_200}))
	defer s.Close()
	r, err := http.Get(s.URL + "/v1/nodes")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if n, err := io.Copy(io.Discard, r.Body); err == nil {
		t.Errorf("%d bytes of a part of the list look like all of it", n)
	}
	r = do(fleetServer(&fleet{nodes: 5, failAt: 2}), "GET", "/v1/nodes", "")
	if r.StatusCode != http.StatusForbidden {
		t.Errorf("a failure on the first page: %d", r.StatusCode)
	}
}

// stuck is a client that has stopped reading when the answer begins.
type stuck struct {
	*httptest.ResponseRecorder
	atFirst func()
}

func (s *stuck) Write(b []byte) (int, error) {
	if s.atFirst != nil {
		s.atFirst()
		s.atFirst = nil
	}
	return s.ResponseRecorder.Write(b)
}

// TestALongListWaitsForItsReader checks that a page is read when the client has taken the one before.
func TestALongListWaitsForItsReader(t *testing.T) {
	f := &fleet{nodes: 9_500}
	seen := 0
	w := &stuck{httptest.NewRecorder(), func() { seen = f.pages }}
	fleetServer(f).ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1/v1/namespaces", nil))
	if seen != 1 || f.pages != 10 {
		t.Errorf("%d pages were read for a client that took none, %d in all", seen, f.pages)
	}
	if f.entered != 10 {
		t.Errorf("%d pages took a place, want each", f.entered)
	}
}
