package member

import (
	"time"

	"github.com/hashicorp/memberlist"
)

// GossipConfig configures how servers and agents find each other (D12).
type GossipConfig struct {
	Transport     memberlist.Transport // nil: TCP and UDP on BindAddr:BindPort
	BindAddr      string               // default "0.0.0.0"
	BindPort      int                  // 0: any port
	AdvertiseAddr string               // IP that others gossip to; "": derived from the bind address
	AdvertisePort int                  // 0: BindPort
	Key           []byte               // 16, 24 or 32 bytes; required unless AllowPlain is set or the address is loopback
	Join          []string             // joined once at start; a failure is an error of Run
	RetryJoin     []string             // retried until one answers
	RetryInterval time.Duration        // longest time between attempts, which start at 250 ms; 0: 5 s
	Disabled      bool                 // no gossip: a single server
	Nodes         int                  // agents gossip in a region of at most this many nodes; 0: GossipNodesDefault; below 0: they never do
	AllowPlain    bool                 // the configuration explicitly allows gossip without a key
}
