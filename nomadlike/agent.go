package nomadlike

import (
	"context"

	"github.com/muster-sched/muster/structs"
)

// Member is one member of the gossip pool.
type Member struct {
	Name   string
	Addr   string
	Port   uint16
	Status string // alive, leaving, left, failed
	Tags   map[string]string
}

// Agent is what only this process can answer. Handlers authorise first, through Authorize.
type Agent interface {
	// Authorize checks whether a token may read or write something of this agent ("agent", "read" or "write"). It
	// resolves the token with the servers, and allows everything when ACLs are off.
	Authorize(ctx context.Context, token, what, level string) error
	// Self returns the agent's configuration and statistics, without secrets.
	Self() (config map[string]any, stats map[string]map[string]string, member Member)
	// Members lists the gossip pool, sorted by name.
	Members() []Member
	// Join makes gossip contact addresses and returns how many answered.
	Join(addrs []string) (int, error)
	// ForceLeave marks a failed member as left.
	ForceLeave(name string, prune bool) error
	// Health returns "" for a healthy server (client) part, else the problem; hasServer and hasClient report whether
	// the parts exist.
	Health() (server, client string, hasServer, hasClient bool)
	// Servers returns the RPC addresses this agent's client part uses.
	Servers() []string
	// SetServers replaces them.
	SetServers(addrs []string) error
	// Keyring operations on the gossip keys: list, install, use, remove.
	Keyring(op, key string) (keys map[string]int, primary map[string]int, members int, err error)
	// Monitor sends log lines of at least a level until ctx ends. The first call of out is empty and confirms that it
	// listens.
	Monitor(ctx context.Context, level string, json bool, out func([]byte) error) error
	// MayReadMetrics checks whether a token may read the metrics of this agent.
	MayReadMetrics(ctx context.Context, token string) error
	// Metrics returns the metrics in the form asked for: "" for Nomad's JSON, "prometheus" for the text exposition.
	Metrics(format string) (contentType string, body []byte, err error)
	// Reload reads the configuration file again.
	Reload() error
	// Host returns facts about the machine for debugging.
	Host() map[string]any
	// LocalNode returns the node this agent runs, or zero.
	LocalNode() structs.NodeID
	// LocalServer returns the name of the server this agent runs, or "".
	LocalServer() string
	// Workers describes the scheduling passes of this server.
	Workers() []map[string]any
}
