package member

import (
	"time"

	"github.com/hashicorp/memberlist"
)

// GossipConfig is how servers and agents find each other (D12).
type GossipConfig struct {
	Transport     memberlist.Transport // or nil: TCP and UDP on BindAddr:BindPort
	BindAddr      string               // "0.0.0.0"
	BindPort      int                  // 0: any port
	AdvertiseAddr string               // IP that others gossip to; "" is found from the bind address
	AdvertisePort int                  // 0: the bind port
	Key           []byte               // 16, 24 or 32 bytes; required unless Dev or bound to loopback
	Keyring       [][]byte             // further keys that are accepted
	Join          []string             // joined once at start; failing is an error of Run
	RetryJoin     []string             // joined until it works
	RetryInterval time.Duration        // 0: 5 s at most, growing from 250 ms
	Disabled      bool                 // no gossip at all: a single server
	AllowPlain    bool                 // the configuration spells out that it is insecure
}
