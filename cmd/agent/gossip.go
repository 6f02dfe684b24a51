package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/version"
)

// joinRetry is the time between attempts to join by gossip.
const joinRetry = 5 * time.Second

// membership is the gossip of an agent without a server part. The servers decide whether it gossips
// (methods.GossipAdvice).
type membership struct {
	cfg    gossip.Config
	log    hclog.Logger
	advice chan methods.GossipAdvice // 1 deep

	mu     sync.Mutex
	g      *gossip.Gossip // or nil
	failed string         // why it last could not start; logged once
	over   bool           // it must not start any more
}

// newMembership prepares gossip. Nothing listens before the servers, or the operator by gossip_join, ask for it.
func newMembership(cfg *Config, log hclog.Logger) (*membership, error) {
	host, port, err := splitPort(cfg.Gossip)
	if err != nil {
		return nil, fmt.Errorf("gossip address: %w", err)
	}
	m := &membership{log: log.Named("gossip"), advice: make(chan methods.GossipAdvice, 1)}
	m.cfg = gossip.Config{
		Name: cfg.Name, BindAddr: host, BindPort: port, Key: cfg.Encrypt, AllowPlain: cfg.Insecure, Log: m.log,
		Meta: gossip.Meta{Role: gossip.RoleClient, Region: cfg.Region, Datacenter: cfg.Datacenter, Version: version.Version, Build: version.NomadCompat},
	}
	if cfg.AdvertiseGossip != "" {
		if m.cfg.AdvertiseAddr, m.cfg.AdvertisePort, err = splitPort(cfg.AdvertiseGossip); err != nil {
			return nil, fmt.Errorf("advertised gossip address: %w", err)
		}
	}
	if len(cfg.Client.Join) > 0 {
		m.advise(methods.GossipAdvice{Join: cfg.Client.Join})
	}
	return m, nil
}

// advise takes the servers' advice. It does not block.
func (m *membership) advise(a methods.GossipAdvice) {
	select {
	case <-m.advice: // the newest one counts
	default:
	}
	select {
	case m.advice <- a:
	default:
	}
}

// run follows the advice until ctx ends.
func (m *membership) run(ctx context.Context) {
	var join []string
	left := false // the servers' newest advice is not to gossip
	for {
		if g := m.current(); g != nil && len(join) > 0 && g.Alone() {
			if _, err := g.Join(join); err != nil {
				m.log.Debug("could not join", "addresses", join, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case a := <-m.advice:
			switch {
			case a.Leave:
				join = nil
				if !left {
					m.log.Info("agents of this region do not gossip (server.gossip_nodes): only its heartbeats show that this node is there")
				}
				left = true
				if m.current() != nil {
					if err := m.leave(); err != nil {
						m.log.Debug("leaving", "error", err)
					}
				}
			case len(a.Join) > 0:
				join, left = a.Join, false
				m.start()
			}
		case <-time.After(joinRetry):
		}
	}
}

// start begins to listen. If it cannot, the node goes by its heartbeats alone.
func (m *membership) start() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.g != nil || m.over {
		return
	}
	g, err := gossip.Start(m.cfg)
	if err == nil {
		m.g = g
		return
	}
	if why := err.Error(); why != m.failed {
		m.failed = why
		m.log.Warn("this agent does not gossip, so that the servers notice the loss of its machine after 16 s instead of 5 s; see ports.serf and server.encrypt", "error", err)
	}
}

// current returns the running gossip, or nil.
func (m *membership) current() *gossip.Gossip {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.g
}

// leave announces to the others that this agent stops gossiping.
func (m *membership) leave() error {
	m.mu.Lock()
	g := m.g
	m.g = nil
	m.mu.Unlock()
	if g == nil {
		return nil
	}
	defer g.Close()
	return g.Leave()
}

// close ends gossip for good, without a word to the others.
func (m *membership) close() {
	m.mu.Lock()
	g := m.g
	m.g, m.over = nil, true
	m.mu.Unlock()
	if g != nil {
		g.Close()
	}
}
