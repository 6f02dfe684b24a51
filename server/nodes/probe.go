package nodes

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// A node that gossips is probed when there is doubt: its session ended or is silent, gossip suspects it, or it missed an
// interval. Doubt is never a verdict (ADR 0027).
//
//	doubt at any server --> leader --probe by all servers--> an agent or a listener answers: nothing
//	                                                     \--> connection refused: the agent has ended (Heartbeats.Ended)
//	                                                     \--> silence at the leader and at another server: Heartbeats.Gone
//
// The kernel of a machine answers the probe, not the agent, so a loaded machine and a stopped agent answer. A server
// trusts silence only at an address that has answered it before, and only if it was not late itself.
const (
	probeTime    = 1500 * time.Millisecond // of one probe
	probeAgain   = 300 * time.Millisecond  // between its attempts to connect
	probeGap     = 2 * time.Second         // least time between two probes of a node
	probeRateMax = 250                     // probes a second; more doubt waits
	probesMax    = 450                     // probes at a time: what begins in probeTime and askSlack, so that the rate is reached when all are silent
	probeLate    = 200 * time.Millisecond  // if this server's own timers are later, it does not trust silence
	probeStep    = 50 * time.Millisecond   // of those timers
	askSlack     = 300 * time.Millisecond  // how much longer than its own probe the leader waits for other servers

	lookEvery    = 500 * time.Millisecond // between looks at sessions
	pingEvery    = time.Second            // between pings of a session in a small fleet; two without an answer are doubt
	pingRateMax  = 1000                   // pings a second; more sessions are pinged less often
	reachAgain   = 30 * time.Second       // between attempts to reach a member for the first time
	controlsUsed = 3                      // other nodes that a single server connects to before it trusts silence
)

// Sign is what a server sees of a node.
type Sign string

// Signs, the strongest first.
const (
	SignAlive   Sign = "alive"   // the agent answers on its session
	SignListens Sign = "listens" // its address accepts a connection: a loaded or stopped agent does, too
	SignEnded   Sign = "ended"   // its machine refuses the connection: no agent runs there
	SignSilent  Sign = "silent"  // nothing answers, although it has before
	SignUnsure  Sign = "unsure"  // this server cannot know
)

// ProbeEnvironment is what a Prober needs from the server.
type ProbeEnvironment struct {
	Log      hclog.Logger
	Now      func() time.Time // the clock of Beats
	Sessions *Sessions
	Beats    *Heartbeats
	IsLeader func() bool
	Dial     rpc.Dialer
	Address  func(structs.NodeID) string // its gossip address; "" if the node does not gossip
	Lost     func(structs.NodeID) bool   // whether it is down or disconnected, so that nothing follows from a probe
	Members  func() []structs.NodeID     // the nodes that gossip and are alive
	Others   func() []string             // addresses of the other servers
	Alive    func(server string) bool    // whether gossip believes that
	Ask      func(ctx context.Context, server string, id structs.NodeID) (Sign, error)
	// AskAnswering asks another server which of the nodes' agents answer there.
	AskAnswering func(ctx context.Context, server string, ids []structs.NodeID) ([]structs.NodeID, error)
	Report       func(ctx context.Context, id structs.NodeID) error // reports doubt to the leader
}

// ProbeMetrics count doubts, probes and their results on this server, and the nodes that it has reached.
type ProbeMetrics struct{ Doubts, Probes, Gone, Ended, Unsure, Reached int64 }

// Prober follows doubt about nodes.
type Prober struct {
	env      ProbeEnvironment
	lateness func() *lateness // newLateness; tests replace it
	slots    chan struct{}
	kick     chan struct{}

	mu      sync.Mutex
	queue   []structs.NodeID
	queued  map[structs.NodeID]bool
	probed  map[structs.NodeID]time.Time // begin of the last probe; entries older than probeGap are dropped
	reached map[structs.NodeID]string    // the address at which the node answered this server
	tried   map[structs.NodeID]time.Time // when reaching it was last tried
	tokens  float64
	filled  time.Time
	counts  ProbeMetrics
}

// NewProber returns a Prober. It works while Run runs.
func NewProber(env ProbeEnvironment) *Prober {
	p := &Prober{env: env, lateness: newLateness, slots: make(chan struct{}, probesMax), kick: make(chan struct{}, 1), queued: map[structs.NodeID]bool{},
		probed: map[structs.NodeID]time.Time{}, reached: map[structs.NodeID]string{}, tried: map[structs.NodeID]time.Time{}, tokens: probeRateMax}
	env.Sessions.mu.Lock()
	env.Sessions.lost = p.Doubt
	env.Sessions.mu.Unlock()
	return p
}

// Metrics returns the counts since the server started.
func (p *Prober) Metrics() ProbeMetrics {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Reached = int64(len(p.reached))
	return p.counts
}

// Doubt reports that a node may be lost. It does not block.
func (p *Prober) Doubt(id structs.NodeID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queued[id] || p.env.Now().Sub(p.probed[id]) < probeGap {
		return
	}
	p.queued[id] = true
	p.queue = append(p.queue, id)
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// Run follows doubt until ctx ends.
func (p *Prober) Run(ctx context.Context) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	refill := time.NewTimer(0)
	defer refill.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			p.look(ctx)
		case <-p.kick:
		case <-refill.C:
		}
		for {
			id, ok := p.take()
			if !ok {
				break
			}
			select {
			case p.slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			go func() { // ends within probeTime and askSlack
				defer func() { <-p.slots }()
				p.follow(ctx, id)
			}()
		}
		p.mu.Lock()
		if len(p.queue) > 0 {
			refill.Reset(time.Second / probeRateMax)
		}
		p.mu.Unlock()
	}
}

// take returns the next node to probe, if the rate allows for it. The session of a node that is down remains silent and raises
// doubt again and again, which must not delay that about others.
func (p *Prober) take() (id structs.NodeID, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) > 0 {
		if next := p.queue[0]; p.env.Address(next) != "" && !p.env.Lost(next) { // only heartbeats count for a node that does not gossip
			break
		}
		delete(p.queued, p.queue[0])
		p.queue = p.queue[1:]
	}
	if len(p.queue) == 0 || !p.spend() {
		return id, false
	}
	id, p.queue = p.queue[0], p.queue[1:]
	delete(p.queued, id)
	p.probed[id] = p.env.Now()
	p.counts.Doubts++
	return id, true
}

// refill adds the tokens since the last call. The caller holds mu.
func (p *Prober) refill() {
	now := p.env.Now()
	p.tokens = min(probeRateMax, p.tokens+max(0, now.Sub(p.filled).Seconds())*probeRateMax)
	p.filled = now
}

// spend takes a token of the rate. The caller holds mu.
func (p *Prober) spend() bool {
	if p.refill(); p.tokens < 1 {
		return false
	}
	p.tokens--
	return true
}

// look pings sessions, and raises doubt about silent ones and about nodes that missed an interval. It connects once to
// each member, so that later silence means something.
func (p *Prober) look(ctx context.Context) {
	sessions := p.env.Sessions.open()
	every := max(pingEvery, time.Duration(len(sessions))*time.Second/pingRateMax)
	for id, s := range sessions {
		silent := s.Silent()
		if silent < every || p.env.Address(id) == "" {
			continue
		}
		s.Ping()
		if silent >= 2*every {
			p.Doubt(id)
		}
	}
	now := p.env.Now()
	for _, id := range p.env.Beats.overdue(now) {
		p.Doubt(id)
	}
	p.mu.Lock()
	for id, at := range p.probed {
		if now.Sub(at) >= probeGap {
			delete(p.probed, id)
		}
	}
	maps.DeleteFunc(p.tried, func(id structs.NodeID, _ time.Time) bool { return p.env.Address(id) == "" })
	maps.DeleteFunc(p.reached, func(id structs.NodeID, _ string) bool { return p.env.Address(id) == "" })
	p.mu.Unlock()
	for _, id := range p.env.Members() {
		p.reach(ctx, id, now)
	}
}

// reach connects to a member that this server has not reached at its address.
func (p *Prober) reach(ctx context.Context, id structs.NodeID, now time.Time) {
	addr := p.env.Address(id)
	p.mu.Lock()
	p.refill()
	due := addr != "" && p.reached[id] != addr && now.Sub(p.tried[id]) >= reachAgain && p.tokens > probeRateMax/2 // doubt goes first
	if due = due && p.spend(); due {
		p.tried[id] = now
	}
	p.mu.Unlock()
	if !due {
		return
	}
	select {
	case p.slots <- struct{}{}:
	default:
		return
	}
	go func() { // ends within probeTime
		defer func() { <-p.slots }()
		ctx, cancel := context.WithTimeout(ctx, probeTime)
		defer cancel()
		p.connect(ctx, id, addr)
	}()
}

// follow probes a node if this server leads, and otherwise reports the doubt to the leader.
func (p *Prober) follow(ctx context.Context, id structs.NodeID) {
	if !p.env.IsLeader() {
		tctx, cancel := context.WithTimeout(ctx, probeTime)
		defer cancel()
		if err := p.env.Report(tctx, id); err != nil {
			p.env.Log.Debug("could not report doubt about a node to the leader", "node", id, "error", err)
		}
		return
	}
	began := p.env.Now()
	others := p.env.Others()
	signs := make(chan Sign, len(others))
	actx, cancel := context.WithTimeout(ctx, probeTime+askSlack)
	defer cancel()
	for _, addr := range others {
		go func() {
			sign, err := p.env.Ask(actx, addr, id)
			if err != nil {
				sign = SignUnsure
			}
			signs <- sign
		}()
	}
	seen := []Sign{p.Look(ctx, id)}
	for range others {
		if settled(seen) {
			break
		}
		seen = append(seen, <-signs)
	}
	if ctx.Err() != nil {
		return
	}
	p.act(ctx, id, began, seen, len(others) == 0)
}

// settled reports whether the agent is known to live.
func settled(seen []Sign) bool {
	last := seen[len(seen)-1]
	return last == SignAlive || last == SignListens
}

// act carries out what follows from what the servers have seen.
func (p *Prober) act(ctx context.Context, id structs.NodeID, began time.Time, seen []Sign, alone bool) {
	verdict := judge(seen, alone)
	if verdict == SignSilent && alone && !p.control(ctx, id) {
		verdict = SignUnsure
	}
	done := false
	switch verdict {
	case SignSilent:
		if done = p.env.Beats.Gone(id, began); done {
			p.env.Log.Info("a node's machine does not answer", "node", id, "seen", seen)
		}
	case SignEnded:
		if done = p.env.Beats.Ended(ctx, id, began); done {
			p.env.Log.Info("a node's agent has ended", "node", id, "seen", seen)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Probes++
	switch {
	case verdict == SignUnsure:
		p.counts.Unsure++
	case done && verdict == SignSilent:
		p.counts.Gone++
	case done:
		p.counts.Ended++
	}
}

// judge returns what follows from the signs that servers see; the first is the leader's. The server that sees most is right.
// Silence needs a second witness, unless the region has one server: the leader's own link may be the one that is broken.
func judge(seen []Sign, alone bool) Sign {
	for _, want := range []Sign{SignAlive, SignListens, SignEnded} {
		for _, s := range seen {
			if s == want {
				return s
			}
		}
	}
	silent := 0
	for _, s := range seen {
		if s == SignSilent {
			silent++
		}
	}
	if seen[0] == SignSilent && (silent > 1 || alone) {
		return SignSilent
	}
	return SignUnsure
}

// control reports whether another node answers a server that has no other to ask: otherwise its own network may be broken.
func (p *Prober) control(ctx context.Context, id structs.NodeID) bool {
	p.mu.Lock()
	var others []structs.NodeID
	for o := range p.reached {
		if o != id && len(others) < controlsUsed {
			others = append(others, o)
		}
	}
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, probeAgain)
	defer cancel()
	signs := make(chan Sign, len(others))
	for _, o := range others {
		go func() { signs <- p.connect(ctx, o, p.env.Address(o)) }()
	}
	for range others {
		if s := <-signs; s == SignListens || s == SignEnded {
			return true
		}
	}
	return false
}

// Look returns what this server sees of a node.
func (p *Prober) Look(ctx context.Context, id structs.NodeID) Sign {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	late := p.lateness()
	defer late.stop()
	open, answers := p.session(ctx, id)
	addr := p.env.Address(id)
	p.mu.Lock()
	trusted := addr != "" && p.reached[id] == addr
	p.mu.Unlock()
	connected := make(chan Sign, 1)
	if addr != "" {
		go func() { connected <- p.connect(ctx, id, addr) }()
	} else {
		connected <- SignUnsure
	}
	sign := SignUnsure
	select {
	case <-answers:
		return SignAlive
	case sign = <-connected:
	}
	if open && sign != SignListens { // what the address says is not about an agent that is known to run
		select {
		case <-answers:
			return SignAlive
		case <-ctx.Done():
		}
	}
	if sign == SignSilent && (!trusted || late.most() >= probeLate) {
		return SignUnsure
	}
	return sign
}

// session pings the node's session. open is false if there is none; answers is closed when the agent answers.
func (p *Prober) session(ctx context.Context, id structs.NodeID) (open bool, answers <-chan struct{}) {
	ch := make(chan struct{})
	switch s := p.env.Sessions.Find(id).(type) {
	case nil:
		return false, ch
	case *rpc.Session:
		began := time.Now()
		s.Ping()
		go func() { // ends with ctx
			for ctx.Err() == nil && s.Err() == nil {
				if s.Silent() < time.Since(began) {
					close(ch)
					return
				}
				sleep(ctx, probeStep)
			}
		}()
	default:
		close(ch) // the agent is a part of this process
	}
	return true, ch
}

// connect tries to connect to a node's address until ctx ends. Several attempts pass a lossy network.
func (p *Prober) connect(ctx context.Context, id structs.NodeID, addr string) Sign {
	signs := make(chan Sign, probeTime/probeAgain)
	attempts := 0
	next := time.NewTimer(0)
	defer next.Stop()
	for result := SignSilent; ; {
		select {
		case <-next.C:
			attempts++
			go func() { signs <- p.dial(ctx, addr) }() // ends with ctx
			if attempts < cap(signs) {
				next.Reset(probeAgain)
			}
		case s := <-signs:
			if s == SignListens || s == SignEnded {
				p.mu.Lock()
				p.reached[id] = addr
				p.mu.Unlock()
				return s
			}
			if s == SignUnsure {
				result = s
			}
		case <-ctx.Done():
			return result
		}
	}
}

// dial returns the result of one attempt to connect.
func (p *Prober) dial(ctx context.Context, addr string) Sign {
	c, err := p.env.Dial(ctx, addr)
	var ne net.Error
	switch {
	case err == nil:
		c.Close()
		return SignListens
	case errors.Is(err, syscall.ECONNREFUSED):
		return SignEnded
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return SignSilent
	}
	return SignUnsure // for example no descriptors or no network here
}

// lateness measures how late timers of this process fire.
type lateness struct {
	end chan struct{}
	mu  sync.Mutex
	at  time.Time // when the timer should next fire
	max time.Duration
}

func newLateness() *lateness {
	l := &lateness{end: make(chan struct{}), at: time.Now().Add(probeStep)}
	go func() { // ends with stop
		t := time.NewTimer(probeStep)
		defer t.Stop()
		for {
			select {
			case <-l.end:
				return
			case <-t.C:
				l.mu.Lock()
				l.max = max(l.max, time.Since(l.at))
				l.at = time.Now().Add(probeStep)
				l.mu.Unlock()
				t.Reset(probeStep)
			}
		}
	}()
	return l
}

// most returns the longest delay so far, that of a timer that has not fired yet included.
func (l *lateness) most() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.max, time.Since(l.at))
}

func (l *lateness) stop() { close(l.end) }

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
