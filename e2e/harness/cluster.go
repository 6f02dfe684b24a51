package harness

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Cluster is servers (s1, s2, ...) and agents (n1, n2, ...) without access control, each on a host of one network.
type Cluster struct {
	Dir   string // shared by all hosts, as a shared file system is
	Net   *Net
	Procs map[string]*Proc
	API   *API // of the servers

	t *testing.T
}

// NewCluster starts a cluster and waits until every agent is ready. settings are added to the servers' server block.
func NewCluster(t *testing.T, servers, agents int, settings string) *Cluster {
	t.Helper()
	NeedNamespaces(t)
	dir, err := os.MkdirTemp("/var/tmp", "muster-cluster-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { KillBelow(t, dir); os.RemoveAll(dir) })
	c := &Cluster{Dir: dir, Procs: map[string]*Proc{}, t: t}
	var names, ips, addrs []string
	for i := range servers {
		names = append(names, fmt.Sprintf("s%d", i+1))
	}
	for i := range agents {
		names = append(names, fmt.Sprintf("n%d", i+1))
	}
	c.Net = NewNet(t, names...)
	for _, h := range c.Net.Hosts[:servers] {
		ips, addrs = append(ips, fmt.Sprintf("%q", h.IP)), append(addrs, "http://"+h.IP+":4646")
	}
	list := "[" + strings.Join(ips, ", ") + "]"
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	gossip := base64.StdEncoding.EncodeToString(key)
	for i, h := range c.Net.Hosts {
		conf := fmt.Sprintf("name = %q\ndata_dir = %q\nbind_addr = %q\ninsecure = true\n", h.Name, filepath.Join(dir, "data-"+h.Name), h.IP)
		if i < servers {
			conf += fmt.Sprintf("server {\n  enabled = true\n  bootstrap_expect = %d\n  encrypt = %q\n  %s\n  server_join {\n    retry_join = %s\n  }\n}\n", servers, gossip, settings, list)
		} else {
			conf += fmt.Sprintf("client {\n  enabled = true\n  servers = %s\n}\nserver {\n  encrypt = %q\n}\nplugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n", list, gossip)
		}
		if err := os.WriteFile(filepath.Join(dir, h.Name+".hcl"), []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.API = NewAPI(t, c.Net.Dial, "", addrs...)
	for _, h := range c.Net.Hosts {
		c.Start(h.Name)
	}
	c.Ready(agents)
	return c
}

// Start starts the server or agent of a host.
func (c *Cluster) Start(name string) {
	c.Procs[name] = Start(c.t, c.Net.Host(name), name, nil, "agent", "-config", filepath.Join(c.Dir, name+".hcl"))
}

// Ready waits until that many nodes are ready.
func (c *Cluster) Ready(want int) {
	c.t.Helper()
	c.API.Ready(c.t, want)
}

// Nodes returns the status of each node by name; none if no server answers.
func (c *Cluster) Nodes() map[string]string { return c.API.Nodes() }
