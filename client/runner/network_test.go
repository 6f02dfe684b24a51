package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-sched/muster/client/taskenv"
	"github.com/muster-sched/muster/structs"
)

func TestResolver(t *testing.T) {
	defer func(was []string) { resolvers = was }(resolvers)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	stub := write("stub", "search corp\nnameserver 127.0.0.53\noptions edns0\n")
	real := write("real", "nameserver 192.0.2.53\nnameserver ::1\n")
	for _, c := range []struct {
		what, got, want string
	}{
		{"on the node", look([]string{stub, real}, false), "search corp\nnameserver 127.0.0.53\noptions edns0\n"},
		{"elsewhere, behind a stub", look([]string{stub, real}, true), "nameserver 192.0.2.53\n"},
		{"elsewhere, with nothing but a stub", look([]string{stub}, true), ""},
		{"no file", look([]string{filepath.Join(dir, "none")}, false), ""},
		{"servers", resolver(&structs.DNS{Servers: []string{"192.0.2.1"}}, "search a\nnameserver 192.0.2.9\noptions x y\n"), "search a\nnameserver 192.0.2.1\noptions x y\n"},
		{"searches and options", resolver(&structs.DNS{Searches: []string{"b", "c"}, Options: []string{"ndots:2"}}, "search a\nnameserver 192.0.2.9\n"), "search b c\nnameserver 192.0.2.9\noptions ndots:2\n"},
	} {
		t.Run(c.what, func(t *testing.T) {
			if c.got != c.want {
				t.Errorf("%s: %q, want %q", c.what, c.got, c.want)
			}
		})
	}
}

func look(files []string, elsewhere bool) string {
	resolvers = files
	return nodeResolver(elsewhere)
}

func TestSite(t *testing.T) {
	a := &structs.Allocation{Ports: []structs.PortGrant{{Label: "http", Value: 20001, To: 80, HostIP: "192.0.2.1"}, {Label: "same", Value: 20002}}}
	node := &structs.Node{Resources: structs.NodeResources{Networks: []structs.NodeNetwork{{IP: "192.0.2.1"}}}}
	own := &taskenv.Network{IP: "172.26.64.2"}
	for _, c := range []struct {
		own         *taskenv.Network
		label, mode string
		host        string
		port        int
	}{
		{nil, "http", "", "192.0.2.1", 20001},
		{nil, "http", "alloc", "192.0.2.1", 20001},
		{own, "http", "", "192.0.2.1", 20001},
		{own, "http", "host", "192.0.2.1", 20001},
		{own, "http", "alloc", "172.26.64.2", 80},
		{own, "same", "alloc", "172.26.64.2", 20002},
		{own, "9090", "alloc", "172.26.64.2", 9090},
		{own, "", "alloc", "172.26.64.2", 0},
	} {
		t.Run(fmt.Sprintf("own=%t label=%q mode=%q host=%q", c.own != nil, c.label, c.mode, c.host), func(t *testing.T) {
			host, port, err := site{a, node, c.own}.place(c.label, c.mode)
			if err != nil || host != c.host || port != c.port {
				t.Errorf("own %v, port %q, mode %q: %s %d %v, want %s %d", c.own, c.label, c.mode, host, port, err, c.host, c.port)
			}
		})
	}
}
