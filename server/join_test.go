package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/tlsutil"
	"github.com/muster-sched/muster/structs"
)

// TestServersProveThemselves: with access control and without TLS, a server that holds the gossip key but not the join
// key does not get in. The servers that hold the key form a cluster and forward calls.
func TestServersProveThemselves(t *testing.T) {
	for name, rogue := range map[string]func(*Config){
		"without a key":                      func(cfg *Config) { cfg.JoinKey = nil },
		"with another key":                   func(cfg *Config) { cfg.JoinKey = []byte("another key of thirty-two bytes!") },
		"without a key and access control":   func(cfg *Config) { cfg.ACL, cfg.JoinKey = false, nil },
		"with the id of a server and no key": func(cfg *Config) { cfg.ACL, cfg.JoinKey, cfg.ID = false, nil, serverUUID(1) },
		// What gossip says must not keep the others from founding the cluster.
		"that would found it":                func(cfg *Config) { cfg.ACL, cfg.JoinKey, cfg.BootstrapExpect = false, nil, 3 },
		"that expects others":                func(cfg *Config) { cfg.JoinKey, cfg.BootstrapExpect = []byte("another key of thirty-two bytes!"), 5 },
		"that would found it, and is silent": func(cfg *Config) { cfg.JoinKey, cfg.BootstrapExpect, cfg.Advertise = nil, 3, "nowhere:4647" },
		"that has the address of another one": func(cfg *Config) {
			cfg.ACL, cfg.JoinKey, cfg.BootstrapExpect, cfg.Advertise = false, nil, 3, hostName(1)+":4647"
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 4, func(i int, cfg *Config) {
					cfg.ACL, cfg.BootstrapExpect = true, 3
					if i == 3 {
						cfg.BootstrapExpect = 0
						rogue(cfg)
					}
				})
				lead := c.leader(3)
				token := c.bootstrapACL(lead)
				follower := (lead + 1) % 3
				call(t, c.servers[follower], methods.JobRegister, rpc.Header{Token: token.String()}, &methods.JobRegisterRequest{Job: apiJob("a", 1)})
				waitFor(t, 30*time.Second, "gossip with the stranger", func() bool {
					return slices.ContainsFunc(c.servers[lead].Members(), func(m gossip.Member) bool { return m.Name == hostName(3) && m.Status == gossip.Alive })
				})
				time.Sleep(time.Minute)
				if p := c.servers[3].Published(); p.Snapshot.ClusterMeta() != nil || c.has(3, "a") {
					t.Errorf("the stranger has the cluster's state, up to entry %d", p.Index)
				}
				c.wantRaft(lead, 0, 1, 2)
				for i := range 3 {
					if list := c.servers[i].members.Servers(); slices.Contains(list, hostName(3)+":4647") {
						t.Errorf("server %d sends agents to the stranger: %v", i, list)
					}
				}
				call(t, c.servers[follower], methods.JobRegister, rpc.Header{Token: token.String()}, &methods.JobRegisterRequest{Job: apiJob("b", 1)})
			})
		})
	}
}

// wantRaft checks which servers raft has.
func (c *cluster) wantRaft(at int, want ...int) {
	c.t.Helper()
	servers, _, err := c.servers[at].replica.Configuration()
	if err != nil {
		c.t.Fatal(err)
	}
	var have []string
	for _, x := range servers {
		have = append(have, string(x.ID))
	}
	slices.Sort(have)
	var ids []string
	for _, i := range want {
		ids = append(ids, serverUUID(i))
	}
	if !slices.Equal(have, ids) {
		c.t.Errorf("raft's servers are %v, want %v", have, ids)
	}
}

// TestServerMethodsNeedProof: with access control, a peer that does not prove to be a server may call no method of
// servers, neither at the leader nor through a follower, and gets no raft connection. A follower that forwarded such a
// call would lend its own proof to the caller.
func TestServerMethodsNeedProof(t *testing.T) {
	t.Run("join key", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			other, err := tlsutil.FromJoinKey([]byte("another key of thirty-two bytes!"), "global")
			if err != nil {
				t.Fatal(err)
			}
			c := newCluster(t, 3, func(_ int, cfg *Config) { cfg.ACL = true })
			dial := c.net.Host("evil").Dial
			c.wantServersOnly(map[string]rpc.Dialer{"in plain text": dial, "with another key": rpc.TLSDialer(dial, other.Client)})
		})
	})
	t.Run("certificates", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			src := tlsSources(t, "server", "client", "cli")
			c := newCluster(t, 3, func(_ int, cfg *Config) {
				cfg.ACL, cfg.TLSServer, cfg.TLSClient = true, src["server"].RPCServer(), src["server"].ClientTo
			})
			dial := c.net.Host("evil").Dial
			c.wantServersOnly(map[string]rpc.Dialer{"as a client": rpc.TLSDialer(dial, src["client"].Client), "as a cli": rpc.TLSDialer(dial, src["cli"].Client)})
		})
	})
}

// wantServersOnly checks that strangers get nowhere, each by its way to connect.
func (c *cluster) wantServersOnly(strangers map[string]rpc.Dialer) {
	t, lead := c.t, c.leader()
	t.Helper()
	third := (lead + 2) % 3
	body := map[string]any{"ID": serverUUID(third), "Name": hostName(third), "Address": hostName(third) + ":4647", "Op": "list"}
	for _, at := range []int{lead, (lead + 1) % 3} {
		addr := hostName(at) + ":4647"
		for who, dial := range strangers {
			pool := rpc.NewPool(rpc.PoolConfig{Dial: dial})
			defer pool.Close()
			_, unreachable := pool.Session(context.Background(), addr)
			for _, row := range methods.Table {
				if !row.Need.ServerCert {
					continue
				}
				err := call1(pool.To(addr), row, structs.SecretID{}, body)
				if code := structs.CodeOf(err); err == nil || code != structs.CodeDenied && (unreachable == nil || code != structs.CodeUnavailable) {
					t.Errorf("%s %s at server %d (leader %d): %v; want it refused", row.Name, who, at, lead, err)
				}
			}
			if conn, err := dial(context.Background(), addr); err == nil && !hungUp(conn, []byte{0x01, 0x02}) { // raft, RequestVote
				t.Errorf("%s: server %d (leader %d) keeps a raft connection", who, at, lead)
			}
		}
	}
	c.wantRaft(lead, 0, 1, 2)
}

// hungUp sends bytes and reports whether the other side closes the connection within some seconds, without a word.
func hungUp(conn net.Conn, say []byte) bool {
	defer conn.Close()
	_, _ = conn.Write(say) // it may be closed already
	conn.SetReadDeadline(time.Now().Add(8 * time.Second))
	n, err := conn.Read(make([]byte, 1))
	return n == 0 && err == io.EOF
}

// TestForgedLeave: a leave that gossip reports does not remove a server that answers and stays.
func TestForgedLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(_ int, cfg *Config) { cfg.ACL = true })
		lead := c.leader()
		victim := (lead + 1) % 3
		// A stranger with the gossip key announces the leave of a member with the victim's ID.
		tr, err := c.net.Host("evil").Gossip(4648)
		if err != nil {
			t.Fatal(err)
		}
		g, err := gossip.Start(gossip.Config{Name: "evil", Transport: tr, BindAddr: "127.0.0.1", Key: c.cfgs[0].Gossip.Key,
			Meta: gossip.Meta{Role: gossip.RoleServer, Region: "global", ID: serverUUID(victim), RPC: hostName(victim) + ":4647"}})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		if _, err := g.Join([]string{c.net.Host(hostName(lead)).IP().String() + ":4648"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if err := g.Leave(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, 30*time.Second, "the forged leave", func() bool {
			return slices.ContainsFunc(c.servers[lead].Members(), func(m gossip.Member) bool { return m.Name == "evil" && m.Status == gossip.Left })
		})
		time.Sleep(30 * time.Second)
		c.wantRaft(lead, 0, 1, 2)
	})
}

// TestLostRegionIsMetAgain: two regions that were cut off from each other for so long that memberlist forgot the other
// find each other again, and so does a server that started while the other region was away.
func TestLostRegionIsMetAgain(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%t", restart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 4, func(i int, cfg *Config) {
					cfg.Region, cfg.BootstrapExpect = []string{"east", "east", "west", "west"}[i], 2
				})
				knows := func(i int, region string) bool { return len(c.servers[i].members.ServersOf(region)) > 0 }
				met := func() bool { return knows(0, "west") && knows(1, "west") && knows(2, "east") && knows(3, "east") }
				waitFor(t, time.Minute, "the regions know each other", met)
				c.net.Partition([]string{hostName(0), hostName(1)}, []string{hostName(2), hostName(3)})
				read := func(region string) error {
					_, err := callErr(c.servers[0], methods.JobList, rpc.Header{Region: region}, &methods.ListRequest{})
					return err
				}
				time.Sleep(30 * time.Second)
				if err := read("west"); structs.CodeOf(err) != structs.CodeUnavailable {
					t.Errorf("a read in a region that does not answer: %v; want it unavailable, to be tried again", err)
				}
				if err := read("wets"); structs.CodeOf(err) != structs.CodeInvalid || !strings.Contains(err.Error(), "known are [east west]") {
					t.Errorf("a read in a region that there is not: %v", err)
				}
				time.Sleep(5 * time.Minute)
				if restart {
					for i := range 2 {
						c.stops[i]()
						c.start(i)
					}
					time.Sleep(time.Minute)
				}
				if knows(0, "west") || knows(2, "east") {
					t.Fatal("the regions are not cut off")
				}
				c.net.Heal()
				waitFor(t, time.Minute, "the regions know each other again", met)
			})
		})
	}
}
