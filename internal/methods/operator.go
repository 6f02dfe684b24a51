package methods

import (
	"time"

	"github.com/muster-sched/muster/structs"
)

type (
	// SchedulerInputResponse is everything that the newest pass of a node pool depended on, as scheduler.Load reads it.
	SchedulerInputResponse struct {
		Index  structs.Index // of the state that the pass saw
		Pool   string
		Policy string
		Input  []byte
	}
	// ACLBootstrapRequest makes the first management token; a non-zero Secret is the operator's own.
	ACLBootstrapRequest struct{ Secret structs.SecretID }
	// ACLTokenResponse is one token, secret included only when it was just made or is the caller's own.
	ACLTokenResponse struct {
		Meta
		Index structs.Index
		Token *structs.ACLToken
	}
	// ACLTokenUpsertRequest creates (zero Accessor) or updates a token.
	ACLTokenUpsertRequest struct{ Token *structs.ACLToken }
	// ACLTokenDeleteRequest deletes tokens.
	ACLTokenDeleteRequest struct{ Accessors []structs.AccessorID }
	// ACLTokenGetRequest names a token.
	ACLTokenGetRequest struct {
		Query
		Accessor structs.AccessorID
	}
	// ACLTokenListResponse lists tokens without secrets.
	ACLTokenListResponse struct {
		Meta
		Tokens []*structs.ACLToken
	}
	// ACLPolicyUpsertRequest writes policies.
	ACLPolicyUpsertRequest struct{ Policies []*structs.ACLPolicy }
	// ACLPolicyResponse is a policy; nil when absent.
	ACLPolicyResponse struct {
		Meta
		Policy *structs.ACLPolicy
	}
	// ACLPolicyListResponse lists policies.
	ACLPolicyListResponse struct {
		Meta
		Policies []*structs.ACLPolicy
	}
	// ACLRoleUpsertRequest creates (zero ID) or updates a role.
	ACLRoleUpsertRequest struct{ Role *structs.ACLRole }
	// ACLRoleGetRequest names a role by id or name.
	ACLRoleGetRequest struct {
		Query
		ID   structs.RoleID
		Name string
	}
	// ACLRoleResponse is a role; nil when absent.
	ACLRoleResponse struct {
		Meta
		Index structs.Index
		Role  *structs.ACLRole
	}
	// ACLRoleListResponse lists roles.
	ACLRoleListResponse struct {
		Meta
		Roles []*structs.ACLRole
	}
	// ACLOneTimeResponse is a one-time token.
	ACLOneTimeResponse struct {
		Index structs.Index
		Token *structs.OneTimeToken
	}
	// ACLOneTimeRequest exchanges a one-time token.
	ACLOneTimeRequest struct{ Secret structs.SecretID }
	// ACLAuthorizeRequest asks whether the token of the header may do something that the asking agent answers itself.
	ACLAuthorizeRequest struct {
		What  string // "agent", "node", "operator", or "namespace" (that of the header)
		Level string // "read" or "write"; of a namespace a capability such as "parse-job"
	}
	// ACLPeerLoginRequest asks for a short token for a user whom the agent saw at its unix socket.
	ACLPeerLoginRequest struct {
		NodeAuth
		UID, GID int64
		User     string
		Groups   []string
	}
	// ACLPeerLoginResponse is a token that lives for TTL.
	ACLPeerLoginResponse struct {
		Secret   structs.SecretID
		Accessor structs.AccessorID
		TTL      time.Duration
	}

	// RaftServer is one raft peer.
	RaftServer struct {
		ID, Name, Address string
		Leader, Voter     bool
		Protocol          string
	}
	// RaftConfigurationResponse lists raft peers.
	RaftConfigurationResponse struct {
		Meta
		Index   structs.Index
		Servers []RaftServer
	}
	// RaftPeerRequest names a peer by id or address.
	RaftPeerRequest struct{ ID, Address string }
	// SchedulerConfigRequest writes the configuration.
	SchedulerConfigRequest struct {
		Config   *structs.SchedulerConfig
		CAS      bool
		CASIndex structs.Index
	}
	// SchedulerConfigResponse is the configuration.
	SchedulerConfigResponse struct {
		Meta
		Config *structs.SchedulerConfig
	}
	// AutopilotConfigRequest writes the configuration.
	AutopilotConfigRequest struct {
		Config   *structs.AutopilotConfig
		CAS      bool
		CASIndex structs.Index
	}
	// AutopilotConfigResponse is the configuration.
	AutopilotConfigResponse struct {
		Meta
		Config *structs.AutopilotConfig
	}
	// AutopilotServer is the health of one server.
	AutopilotServer struct {
		ID, Name, Address, SerfStatus, Version string
		Leader, Healthy, Voter                 bool
		LastContact                            time.Duration
		LastTerm, LastIndex                    uint64
		StableSince                            structs.LogTime
	}
	// PredictionsResponse tells how right predicted run times were, of the work that ended last.
	PredictionsResponse struct {
		Ended, Predicted int64 // pieces of batch work, and those of which a run time had been predicted
		Under            int64 // of these: it ran longer
		MedianFactor     int64 // by which the median was off, either way, in thousandths; 0: none
		MeanAbsolute     time.Duration
		Relative         int64 // sum of absolute errors over the sum of run times, in thousandths
	}
	// AutopilotHealthResponse is the health of all servers.
	AutopilotHealthResponse struct {
		Meta
		Healthy          bool
		FailureTolerance int
		Leader           string
		Voters           []string
		Servers          []AutopilotServer
	}
	// StatusLeaderResponse is the leader's RPC address, "" when none is known.
	StatusLeaderResponse struct{ Leader string }
	// StatusPeersResponse lists raft addresses.
	StatusPeersResponse struct{ Peers []string }
	// StatusRegionsResponse lists regions, sorted.
	StatusRegionsResponse struct{ Regions []string }
	// StatusHashResponse is this server's state hash at its applied index (D8).
	StatusHashResponse struct {
		Server       string
		Index        structs.Index
		Hash         string // hex
		StateVersion uint64
	}
	// SigningKeysResponse lists the public signing keys.
	SigningKeysResponse struct {
		Meta
		Keys []*structs.SigningKey // without Private
	}
	// SearchRequest looks names up by prefix (or, fuzzily, by substring). Context is Nomad's word: "jobs", "allocs",
	// "evals", "nodes", "node_pools", "namespaces", "all".
	SearchRequest struct {
		Query
		Context string
		Text    string
	}
	// SearchResponse maps a context to at most 20 ids.
	SearchResponse struct {
		Meta
		Matches     map[string][]string
		Truncations map[string]bool
	}
	// FuzzyMatch is one hit with the ids of what it lies in.
	FuzzyMatch struct {
		ID    string
		Scope []string
	}
	// SearchFuzzyResponse maps a context to at most 20 hits.
	SearchFuzzyResponse struct {
		Meta
		Matches     map[string][]FuzzyMatch
		Truncations map[string]bool
	}

	// EventStreamRequest follows the event stream. Topics maps a topic (or "*") to keys (or "*").
	EventStreamRequest struct {
		Index  structs.Index // events after it, as far as the window reaches; 0: from now
		Topics map[string][]string
	}
	// Event is one thing that happened to one object. Exactly one of the pointers is set; it is the object after.
	Event struct {
		Topic, Type, Key, Namespace string
		FilterKeys                  []string
		Index                       structs.Index
		Job                         *structs.Job
		Alloc                       *structs.Allocation
		Eval                        *structs.Evaluation
		Node                        *structs.Node
		Pool                        *structs.NodePool
		Token                       *structs.ACLToken // without secret
		Policy                      *structs.ACLPolicy
		Role                        *structs.ACLRole
		NamespaceObject             *structs.Namespace
		Service                     *structs.ServiceRegistration
	}
	// EventBatch is the events of one index; no events is a heartbeat; Gap says that events were lost and the reader
	// must list again.
	EventBatch struct {
		Index  structs.Index
		Events []Event
		Gap    bool
	}

	// ServerInfoResponse tells the other servers about one.
	ServerInfoResponse struct {
		ID, Name, Address, Version, Region string
		Bootstrapped                       bool
		LastIndex, LastTerm                uint64
		Cluster                            structs.ClusterID
		LastContact                        time.Duration   // since it heard from the leader; 0 on the leader
		Now                                structs.LogTime // its wall clock
	}
	// StateMark is a server's state hash after every command up to Index.
	StateMark struct {
		Index structs.Index
		Hash  string // hex
	}
	// ServerHashesResponse is the newest marks of a server, oldest first (D8).
	ServerHashesResponse struct {
		Server       string // raft id
		StateVersion uint64
		Marks        []StateMark
	}
	// ServerKeyringRequest is an operation on the gossip keys of one server: list, install, use, remove.
	ServerKeyringRequest struct {
		Op  string
		Key []byte
	}
	// ServerKeyringResponse is the keys it has then, the one it writes with first.
	ServerKeyringResponse struct {
		Server string
		Keys   [][]byte
	}
	// ServerHasNodeRequest asks whether a node holds a session to this server.
	ServerHasNodeRequest struct{ NodeID structs.NodeID }
	// ServerHasNodeResponse answers it.
	ServerHasNodeResponse struct{ Has bool }
	// ServerAuthenticateRequest asks the leader whether it knows a caller: the node if its ID is set, else the token.
	ServerAuthenticateRequest struct {
		Token string
		Node  NodeAuth
	}
	// ServerAuthenticateResponse says that it does; a caller that the leader refuses is an error.
	ServerAuthenticateResponse struct{}
	// ServerJoinRequest asks the leader to add a server to raft.
	ServerJoinRequest struct{ ID, Name, Address string }
)
