package nomadlike

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/muster-sched/muster/internal/identity"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

func operatorRoutes() []route {
	return []route{
		{methods: "GET", pattern: "/v1/operator/raft/configuration", rpc: methods.RaftConfiguration.Name, handle: raftConfiguration},
		{methods: "DELETE", pattern: "/v1/operator/raft/peer", rpc: methods.RaftRemovePeer.Name, handle: raftRemovePeer},
		{methods: "PUT,POST", pattern: "/v1/operator/raft/transfer-leadership", rpc: methods.RaftTransfer.Name, handle: raftTransfer},
		{methods: "GET", pattern: "/v1/operator/snapshot", rpc: methods.SnapshotSave.Name, handle: snapshotSave},
		{methods: "PUT,POST", pattern: "/v1/operator/snapshot", rpc: methods.SnapshotRestore.Name, handle: snapshotRestore},
		{methods: "GET", pattern: "/v1/operator/scheduler/configuration", rpc: methods.SchedulerConfigGet.Name, handle: schedulerGet},
		{methods: "PUT,POST", pattern: "/v1/operator/scheduler/configuration", rpc: methods.SchedulerConfigSet.Name, handle: schedulerSet},
		{methods: "GET", pattern: "/v1/operator/scheduler/input", rpc: methods.SchedulerInput.Name, handle: schedulerInput},
		{methods: "GET", pattern: "/v1/operator/autopilot/configuration", rpc: methods.AutopilotGet.Name, handle: autopilotGet},
		{methods: "PUT,POST", pattern: "/v1/operator/autopilot/configuration", rpc: methods.AutopilotSet.Name, handle: autopilotSet},
		{methods: "GET", pattern: "/v1/operator/scheduler/predictions", rpc: methods.PredictionsGet.Name, handle: predictions},
		{methods: "GET", pattern: "/v1/operator/autopilot/health", rpc: methods.AutopilotHealth.Name, handle: autopilotHealth},
		{methods: "GET", pattern: "/v1/operator/keyring/keys", rpc: methods.SealKeyList.Name, handle: rootKeys},
		{methods: "PUT,POST", pattern: "/v1/operator/keyring/rotate", rpc: methods.SealKeyRotate.Name, handle: rootKeyRotate},
		{methods: "DELETE", pattern: "/v1/operator/keyring/key/{id}", rpc: methods.SealKeyDelete.Name, handle: rootKeyDelete},
		{methods: "GET", pattern: "/v1/operator/upgrade", rpc: methods.UpgradeStatus.Name, handle: upgradeStatus},
		{methods: "PUT,POST", pattern: "/v1/operator/upgrade/finish", rpc: methods.UpgradeFinish.Name, handle: upgradeFinish},
		{methods: "GET", pattern: "/v1/operator/state-hash", rpc: methods.StatusHash.Name, handle: stateHash},
		{methods: "PUT,POST", pattern: "/v1/system/gc", rpc: methods.SystemGC.Name, handle: systemGC},
		{methods: "PUT,POST", pattern: "/v1/system/reconcile/summaries", rpc: methods.SystemReconcile.Name, handle: systemReconcile},
		{methods: "GET", pattern: "/v1/status/leader", rpc: methods.StatusLeader.Name, handle: statusLeader},
		{methods: "GET", pattern: "/v1/status/peers", rpc: methods.StatusPeers.Name, handle: statusPeers},
		{methods: "GET", pattern: "/v1/regions", rpc: methods.StatusRegions.Name, handle: regions},
		{methods: "PUT,POST", pattern: "/v1/search", rpc: methods.Search.Name, handle: search},
		{methods: "PUT,POST", pattern: "/v1/search/fuzzy", rpc: methods.SearchFuzzy.Name, handle: searchFuzzy},
		{methods: "GET", pattern: "/v1/event/stream", rpc: methods.EventStream.Name, handle: eventStream},
		{methods: "GET", pattern: "/.well-known/jwks.json", rpc: methods.SigningKeys.Name, handle: jwks},
		{methods: "GET", pattern: "/.well-known/openid-configuration", rpc: methods.SigningKeys.Name, handle: openIDConfiguration},
		{methods: "GET", pattern: "/v1/scaling/policies", rpc: methods.ScalingList.Name, handle: scalingPolicies},
		{methods: "GET", pattern: "/v1/scaling/policy/{id}", rpc: methods.ScalingGet.Name, handle: scalingPolicy},
		{methods: "GET", pattern: "/v1/volumes", rpc: methods.JobList.Name, handle: listAs("volumes")},
		{methods: "GET", pattern: "/v1/plugins", rpc: methods.JobList.Name, handle: listAs("plugins")},
		{methods: "GET,PUT,POST", pattern: "/v1/operator/license", handle: license},
	}
}

func raftConfiguration(c *call) (any, error) {
	resp, err := invoke(c, methods.RaftConfiguration, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	out := &wire.RaftConfiguration{Servers: []*wire.RaftServer{}, Index: uint64(resp.Index)}
	for _, s := range resp.Servers {
		out.Servers = append(out.Servers, raftServer(s))
	}
	return out, nil
}

func raftServer(s methods.RaftServer) *wire.RaftServer {
	return &wire.RaftServer{ID: s.ID, Node: s.Name, Address: s.Address, Leader: s.Leader, Voter: s.Voter, RaftProtocol: s.Protocol}
}

func (c *call) peer() (*methods.RaftPeerRequest, error) {
	q := c.r.URL.Query()
	req := &methods.RaftPeerRequest{ID: q.Get("id"), Address: q.Get("address")}
	if (req.ID == "") == (req.Address == "") {
		return nil, structs.Errorf(structs.CodeInvalid, "must specify either ?id with the server's ID or ?address with IP:port of the peer, not both")
	}
	return req, nil
}

func raftRemovePeer(c *call) (any, error) {
	req, err := c.peer()
	if err != nil {
		return nil, err
	}
	return c.written(invoke(c, methods.RaftRemovePeer, req))
}

func raftTransfer(c *call) (any, error) {
	req, err := c.peer()
	if err != nil {
		return nil, err
	}
	if err := c.allow("operator:write"); err != nil {
		return nil, err
	}
	before, err := invoke(c, methods.RaftConfiguration, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	out := &wire.LeadershipTransferResponse{}
	for _, s := range before.Servers {
		if s.Leader {
			out.From = *raftServer(s)
		}
		if (req.ID != "" && s.ID == req.ID) || (req.Address != "" && s.Address == req.Address) {
			out.To = *raftServer(s)
		}
	}
	if out.To.ID == "" {
		return nil, structs.Errorf(structs.CodeNotFound, "no raft peer has id %q or address %q; see operator raft list-peers", clip(req.ID, 60), clip(req.Address, 60))
	}
	if out.To.ID == out.From.ID {
		out.Noop = true
		return out, nil
	}
	resp, err := invoke(c, methods.RaftTransfer, req)
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return out, nil
}

// snapshotSave sends a snapshot as a file. Clients expect its digest in a header, so it is first spooled to an unnamed
// file.
func snapshotSave(c *call) (any, error) {
	st, err := rpc.OpenStream(c.r.Context(), c.cfg.Backend, methods.SnapshotSave, c.hdr, &methods.EmptyRequest{Query: c.query})
	if err != nil {
		return nil, err
	}
	defer st.Close(nil)
	spool, err := os.CreateTemp("", "muster-snapshot-*")
	if err != nil {
		return nil, fmt.Errorf("spool a snapshot: %w", err)
	}
	defer spool.Close()
	if err := os.Remove(spool.Name()); err != nil {
		return nil, fmt.Errorf("spool a snapshot: %w", err)
	}
	sum := sha256.New()
	size := int64(0)
	for {
		frame, err := st.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		sum.Write(frame)
		size += int64(len(frame))
		if _, err := spool.Write(frame); err != nil {
			return nil, fmt.Errorf("spool a snapshot: %w", err)
		}
	}
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("spool a snapshot: %w", err)
	}
	h := c.w.Header()
	h.Set("Content-Type", "application/x-gzip")
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	h.Set("Digest", "sha-256="+base64.StdEncoding.EncodeToString(sum.Sum(nil)))
	c.w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(c.w)
	buf := make([]byte, 256<<10)
	for {
		n, err := spool.Read(buf)
		if n > 0 {
			_ = rc.SetWriteDeadline(time.Now().Add(streamWriteTime))
			if _, werr := c.w.Write(buf[:n]); werr != nil {
				return nil, errWritten
			}
		}
		if errors.Is(err, io.EOF) {
			return nil, errWritten
		}
		if err != nil {
			c.cfg.Log.Error("a snapshot could not be read back", "error", err)
			panic(http.ErrAbortHandler) // the client must not take a part for the whole
		}
	}
}

func snapshotRestore(c *call) (any, error) {
	st, err := rpc.OpenStream(c.r.Context(), c.cfg.Backend, methods.SnapshotRestore, c.hdr, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	defer st.Close(nil)
	var resp methods.WriteResponse
	if err := c.upload(st, SnapshotMax, "snapshot", &resp); err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return nil, nil
}

func schedulerGet(c *call) (any, error) {
	resp, err := invoke(c, methods.SchedulerConfigGet, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	config := wire.SchedulerConfigFromStructs(resp.Config, resp.FollowsDefault)
	config.TopologyLevelsInForce = resp.Levels
	for i := range resp.Storages {
		x := &resp.Storages[i]
		config.CheckpointStorageInForce = append(config.CheckpointStorageInForce, wire.CheckpointStorage{Name: x.Name, Most: x.Most, Limit: x.Limit, Measured: x.Saves,
			AloneMiBps: x.Alone >> 20, TogetherMiBps: x.Together >> 20, Saving: x.Saving, Waiting: x.Waiting})
	}
	return &wire.SchedulerConfigurationResponse{SchedulerConfig: config, Warnings: resp.Warnings, QueryMeta: wire.QueryMeta{LastIndex: uint64(resp.Config.ModifyIndex), KnownLeader: resp.KnownLeader}}, nil
}

// schedulerInput sends the input of the newest decision about a node pool, for `muster operator scheduler replay`.
func schedulerInput(c *call) (any, error) {
	resp, err := invoke(c, methods.SchedulerInput, &methods.NameRequest{Name: c.r.URL.Query().Get("pool")})
	if err != nil {
		return nil, err
	}
	c.w.Header().Set("Content-Type", "application/octet-stream")
	c.w.Header().Set("X-Nomad-Index", strconv.FormatUint(uint64(resp.Index), 10))
	_, err = c.w.Write(resp.Input)
	return nil, err
}

// cas reads the check-and-set index of a write.
func (c *call) cas() (on bool, index structs.Index, err error) {
	if !c.r.URL.Query().Has("cas") {
		return false, 0, nil
	}
	n, _, err := c.uint("cas")
	return true, structs.Index(n), err
}

func schedulerSet(c *call) (any, error) {
	var body wire.SchedulerConfiguration
	if err := c.body(&body); err != nil {
		return nil, err
	}
	on, index, err := c.cas()
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.SchedulerConfigSet, &methods.SchedulerConfigRequest{Config: body.ToStructs(), FollowsDefault: body.AlgorithmFollowsDefault, CAS: on, CASIndex: index})
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return &wire.SchedulerSetConfigurationResponse{Updated: resp.Updated, Index: uint64(resp.Index), Warnings: resp.Warnings}, nil
}

func autopilotGet(c *call) (any, error) {
	resp, err := invoke(c, methods.AutopilotGet, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	return wire.AutopilotFromStructs(resp.Config), nil
}

func autopilotSet(c *call) (any, error) {
	var body wire.AutopilotConfiguration
	if err := c.body(&body); err != nil {
		return nil, err
	}
	on, index, err := c.cas()
	if err != nil {
		return nil, err
	}
	conf, err := body.ToStructs()
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.AutopilotSet, &methods.AutopilotConfigRequest{Config: conf, CAS: on, CASIndex: index})
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return rawAnswer{"application/json", fmt.Appendf(nil, "%t", resp.Updated)}, nil
}

// predictions reports the accuracy of predicted run times.
func predictions(c *call) (any, error) {
	r, err := invoke(c, methods.PredictionsGet, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	out := Predictions{Ended: r.Ended, Predicted: r.Predicted, MedianFactor: float64(r.MedianFactor) / 1000, MeanAbsolute: int64(r.MeanAbsolute), RelativeError: float64(r.Relative) / 1000}
	if r.Ended > 0 {
		out.PredictedShare = float64(r.Predicted) / float64(r.Ended)
	}
	if r.Predicted > 0 {
		out.UnderestimatedShare = float64(r.Under) / float64(r.Predicted)
	}
	return out, nil
}

func autopilotHealth(c *call) (any, error) {
	resp, err := invoke(c, methods.AutopilotHealth, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	out := &wire.OperatorHealthReply{Healthy: resp.Healthy, FailureTolerance: resp.FailureTolerance, Leader: resp.Leader, Voters: resp.Voters, Servers: []wire.ServerHealth{}}
	for _, s := range resp.Servers {
		out.Servers = append(out.Servers, wire.ServerHealth{
			ID: s.ID, Name: s.Name, Address: s.Address, SerfStatus: s.SerfStatus, Version: s.Version, Formats: s.Formats, Leader: s.Leader,
			LastContact: wire.TextDuration(s.LastContact), LastTerm: s.LastTerm, LastIndex: s.LastIndex, Healthy: s.Healthy,
			Voter: s.Voter, StableSince: s.StableSince.Time(), Problem: s.Problem,
		})
	}
	if !out.Healthy {
		// Nomad answers 429 for an unhealthy cluster, with the same body.
		c.w.WriteHeader(http.StatusTooManyRequests)
		return nil, newLines(c.w).send2(out)
	}
	return out, nil
}

// send2 writes one value and returns errWritten.
func (l *lines) send2(v any) error {
	_ = l.send(v)
	return errWritten
}

func upgradeStatus(c *call) (any, error) {
	r, err := invoke(c, methods.UpgradeStatus, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	out := &wire.UpgradeStatus{Format: uint64(r.Format), By: r.By, Next: uint64(r.Next), Why: r.Why, Servers: []wire.UpgradeServer{}, Gates: []wire.UpgradeGate{}}
	for _, s := range r.Servers {
		out.Servers = append(out.Servers, wire.UpgradeServer{ID: s.ID, Name: s.Name, Address: s.Address, Muster: s.Speaks.Muster,
			Formats: s.Speaks.Formats(), RPC: s.Speaks.RPC, Voter: s.Voter, Leader: s.Leader, Error: s.Error})
	}
	for _, g := range r.Gates {
		out.Gates = append(out.Gates, wire.UpgradeGate{Name: g.Name, Allows: g.Allows, Format: uint64(g.Format), Open: g.Open})
	}
	return out, nil
}

func upgradeFinish(c *call) (any, error) {
	resp, err := invoke(c, methods.UpgradeFinish, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	return &wire.UpgradeFinish{Format: uint64(resp.Format), Index: uint64(resp.Index)}, nil
}

func stateHash(c *call) (any, error) {
	resp, err := invoke(c, methods.StatusHash, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	return map[string]any{"Server": resp.Server, "Index": uint64(resp.Index), "Hash": resp.Hash, "Format": uint64(resp.Format)}, nil
}

func systemGC(c *call) (any, error) {
	return c.written(invoke(c, methods.SystemGC, &methods.EmptyRequest{}))
}

func systemReconcile(c *call) (any, error) {
	return c.written(invoke(c, methods.SystemReconcile, &methods.EmptyRequest{}))
}

func statusLeader(c *call) (any, error) {
	resp, err := invoke(c, methods.StatusLeader, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	if resp.Leader == "" {
		return nil, structs.ErrNoLeader
	}
	return resp.Leader, nil
}

func statusPeers(c *call) (any, error) {
	resp, err := invoke(c, methods.StatusPeers, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	return append([]string{}, resp.Peers...), nil
}

func regions(c *call) (any, error) {
	resp, err := invoke(c, methods.StatusRegions, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	return append([]string{}, resp.Regions...), nil
}

func search(c *call) (any, error) {
	var body wire.SearchRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.Search, &methods.SearchRequest{Context: body.Context, Text: body.Prefix})
	if err != nil {
		return nil, err
	}
	return &wire.SearchResponse{Matches: resp.Matches, Truncations: resp.Truncations, QueryMeta: metaBody(&resp.Meta)}, nil
}

func metaBody(m *methods.Meta) wire.QueryMeta {
	return wire.QueryMeta{LastIndex: uint64(m.Index), LastContact: m.LastContact, KnownLeader: m.KnownLeader}
}

func searchFuzzy(c *call) (any, error) {
	var body wire.FuzzySearchRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.SearchFuzzy, &methods.SearchRequest{Context: body.Context, Text: body.Text})
	if err != nil {
		return nil, err
	}
	out := &wire.FuzzySearchResponse{Matches: map[string][]wire.FuzzyMatch{}, Truncations: resp.Truncations, QueryMeta: metaBody(&resp.Meta)}
	for k, list := range resp.Matches {
		for _, m := range list {
			out.Matches[k] = append(out.Matches[k], wire.FuzzyMatch{ID: m.ID, Scope: m.Scope})
		}
	}
	return out, nil
}

// eventStream follows the event stream, one JSON object a line. A reader that fell behind gets an error line, and the
// stream ends: it must list again and resume from the index of its list.
func eventStream(c *call) (any, error) {
	req := &methods.EventStreamRequest{Index: c.query.MinIndex, Topics: map[string][]string{}}
	for _, t := range c.r.URL.Query()["topic"] {
		topic, key, ok := strings.Cut(t, ":")
		if !ok {
			key = "*" // a topic alone is all of it
		}
		if topic == "" || key == "" || strings.HasPrefix(key, ":") {
			return nil, structs.Errorf(structs.CodeInvalid, "Invalid key value pair for topic, topic: %s; want TOPIC:KEY, such as Job:web or Allocation:*", clip(t, 80))
		}
		req.Topics[topic] = append(req.Topics[topic], key)
	}
	if len(req.Topics) == 0 {
		req.Topics["*"] = []string{"*"}
	}
	st, err := rpc.OpenStream(c.r.Context(), c.cfg.Backend, methods.EventStream, c.hdr, req)
	if err != nil {
		return nil, err
	}
	defer st.Close(nil)
	var b methods.EventBatch
	if err := st.RecvMsg(&b); err != nil { // the first batch, possibly empty, confirms that the stream is allowed
		return nil, err
	}
	c.w.Header().Set("Content-Type", "application/json")
	c.w.Header().Set("Cache-Control", "no-cache")
	c.w.WriteHeader(http.StatusOK)
	out := newLines(c.w)
	for {
		var err error
		switch {
		case b.Gap:
			_ = out.send(map[string]any{"Error": "events were lost: list again and resume from the index of the list", "Index": uint64(b.Index)})
			return nil, errWritten
		case len(b.Events) == 0:
			err = out.send(struct{}{})
		default:
			err = out.send(eventsOf(&b))
		}
		if err != nil {
			return nil, errWritten
		}
		b = methods.EventBatch{}
		if st.RecvMsg(&b) != nil {
			return nil, errWritten
		}
	}
}

func eventsOf(b *methods.EventBatch) *wire.Events {
	out := &wire.Events{Index: uint64(b.Index)}
	for i := range b.Events {
		e := &b.Events[i]
		w := wire.Event{Topic: e.Topic, Type: e.Type, Key: e.Key, Namespace: e.Namespace, FilterKeys: e.FilterKeys, Index: uint64(e.Index), Payload: map[string]any{}}
		if w.FilterKeys == nil {
			w.FilterKeys = []string{}
		}
		switch {
		case e.Job != nil:
			w.Payload["Job"] = wire.JobFromStructs(e.Job)
		case e.Alloc != nil:
			a := wire.AllocFromStructs(e.Alloc, nil)
			a.Job = nil
			w.Payload["Allocation"] = a
		case e.Eval != nil:
			w.Payload["Evaluation"] = wire.EvalFromStructs(e.Eval, "", nil)
		case e.Node != nil:
			w.Payload["Node"] = wire.NodeFromStructs(e.Node)
		case e.Pool != nil:
			w.Payload["NodePool"] = wire.PoolFromStructs(e.Pool)
		case e.Token != nil:
			t := wire.TokenFromStructs(e.Token)
			t.SecretID = ""
			w.Payload["ACLToken"] = t
		case e.Policy != nil:
			w.Payload["ACLPolicy"] = wire.PolicyFromStructs(e.Policy)
		case e.Role != nil:
			w.Payload["ACLRole"] = wire.RoleFromStructs(e.Role)
		case e.NamespaceObject != nil:
			w.Payload["Namespace"] = wire.NamespaceFromStructs(e.NamespaceObject)
		case e.Service != nil:
			w.Payload["Service"] = wire.ServiceFromStructs(e.Service)
		case e.Queue != nil:
			w.Payload["Queue"] = wire.QueueFromStructs(e.Queue)
		case e.Quota != nil:
			w.Payload["Quota"] = wire.QuotaFromStructs(e.Quota)
		case e.Reservation != nil:
			w.Payload["Reservation"] = wire.ReservationFromStructs(e.Reservation)
		case e.SchedulerConfig != nil:
			w.Payload["SchedulerConfiguration"] = wire.SchedulerConfigFromStructs(e.SchedulerConfig, false)
		}
		if e.By != nil {
			w.By = actorOf(e.By)
		}
		out.Events = append(out.Events, w)
	}
	return out
}

func actorOf(by *structs.Submitter) *wire.EventActor {
	a := &wire.EventActor{Name: by.Name}
	if !by.Accessor.IsZero() {
		a.AccessorID = by.Accessor.String()
	}
	if by.UID >= 0 {
		a.UID = &by.UID
	}
	return a
}

// keysCached is how long verifiers may keep the keys. A key is in use only after every server has it, so an older copy
// lacks at most the newest one; verifiers ask again about a key that they do not know.
const keysCached = "max-age=300"

// jwks answers with the keys that verify workload identities.
func jwks(c *call) (any, error) {
	resp, err := invoke(c, methods.SigningKeys, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{}}
	for _, k := range resp.Keys {
		pub, err := x509.ParsePKIXPublicKey(k.Public)
		if err != nil {
			return nil, fmt.Errorf("signing key %s: %w", k.ID, err)
		}
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: pub, KeyID: k.ID, Algorithm: k.Algorithm, Use: "sig"})
	}
	c.w.Header().Set("Cache-Control", keysCached)
	return set, nil
}

// openIDConfiguration answers with what a verifier of OpenID Connect needs to find the keys.
func openIDConfiguration(c *call) (any, error) {
	resp, err := invoke(c, methods.SigningKeys, &methods.EmptyRequest{})
	if err != nil {
		return nil, err
	}
	if resp.Issuer == "" {
		return nil, structs.Errorf(structs.CodeNotFound, "this cluster is no OpenID Connect issuer: server.oidc_issuer is not set on the servers")
	}
	c.w.Header().Set("Cache-Control", keysCached)
	return &wire.OpenIDConfiguration{
		Issuer: resp.Issuer, JWKSURI: strings.TrimSuffix(resp.Issuer, "/") + "/.well-known/jwks.json",
		IDTokenSigningAlgs: []string{identity.Algorithm}, ResponseTypes: []string{"code"}, SubjectTypes: []string{"public"},
	}, nil
}

// listAs answers with an empty list for a kind of object that this build does not have, to callers who may list jobs.
func listAs(string) handler {
	return func(c *call) (any, error) {
		c.query.Filter, c.query.PerPage, c.query.MinIndex = "", 1, 0
		if _, err := invoke(c, methods.JobList, &methods.ListRequest{}); err != nil {
			return nil, err
		}
		c.w.Header().Del("X-Nomad-NextToken")
		return []any{}, nil
	}
}

func scalingPolicyOf(j *structs.Job, g *structs.Group) *wire.ScalingPolicyListStub {
	return &wire.ScalingPolicyListStub{
		ID: j.ScalingPolicyID(g), Enabled: g.Scaling.Enabled, Type: cmp.Or(g.Scaling.Type, "horizontal"),
		Target:      map[string]string{"Namespace": j.Namespace, "Job": j.ID, "Group": string(g.Name)},
		CreateIndex: uint64(j.CreateIndex), ModifyIndex: uint64(j.SpecIndex),
	}
}

// scalingPolicies lists scaling policies; job= and type= select some.
func scalingPolicies(c *call) (any, error) {
	q := c.r.URL.Query()
	return invokeList(c, methods.ScalingList, &methods.ListRequest{}, func(resp *methods.ScalingListResponse) []*wire.ScalingPolicyListStub {
		out := []*wire.ScalingPolicyListStub{}
		for _, job := range resp.Jobs {
			if j := q.Get("job"); j != "" && j != job.ID {
				continue
			}
			for _, g := range job.Groups {
				if g.Scaling == nil || q.Get("type") != "" && q.Get("type") != cmp.Or(g.Scaling.Type, "horizontal") {
					continue
				}
				out = append(out, scalingPolicyOf(job, g))
			}
		}
		return out
	})
}

func scalingPolicy(c *call) (any, error) {
	resp, err := invoke(c, methods.ScalingGet, &methods.NameRequest{Name: c.params["id"]})
	if err != nil {
		return nil, err
	}
	if resp.Job == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "policy not found")
	}
	at := slices.IndexFunc(resp.Job.Groups, func(g *structs.Group) bool { return g.Name == resp.Group })
	stub := scalingPolicyOf(resp.Job, resp.Job.Groups[at])
	p := wire.JobFromStructs(resp.Job).TaskGroups[at].Scaling
	p.ID, p.Namespace, p.Type, p.Target = stub.ID, resp.Job.Namespace, stub.Type, stub.Target
	p.CreateIndex, p.ModifyIndex = stub.CreateIndex, stub.ModifyIndex
	return p, nil
}

func license(c *call) (any, error) {
	if c.r.Method == http.MethodGet {
		c.w.WriteHeader(http.StatusNoContent)
		return nil, errWritten
	}
	return nil, structs.Errorf(structs.CodeUnsupported, "Muster has no licence keys")
}

const profileMax = 600 // seconds, the longest profile

// pprof serves profiles: to everyone with Debug, else to tokens that may write to agents.
func (s *Server) pprof(w http.ResponseWriter, r *http.Request) {
	if !s.cfg.Debug {
		if err := s.cfg.Agent.Authorize(r.Context(), tokenOf(r), "agent", "write"); err != nil {
			http.Error(w, err.Error(), structs.CodeOf(err).Status())
			return
		}
	}
	if v := r.URL.Query().Get("seconds"); v != "" {
		if n, err := strconv.ParseFloat(v, 64); err != nil || !(n > 0 && n <= profileMax) {
			http.Error(w, fmt.Sprintf("Invalid seconds %q: want a number above 0, at most %d", clip(v, 40), profileMax), http.StatusBadRequest)
			return
		}
	}
	switch strings.TrimPrefix(r.URL.Path, "/debug/pprof/") {
	case "cmdline":
		pprof.Cmdline(w, r)
	case "profile":
		pprof.Profile(w, r)
	case "symbol":
		pprof.Symbol(w, r)
	case "trace":
		pprof.Trace(w, r)
	default:
		pprof.Index(w, r)
	}
}
