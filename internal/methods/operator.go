package methods

import (
	"time"

	"github.com/muster-sched/muster/structs"
)

type (
	// SchedulerInputResponse is the whole input of the newest pass of a node pool, in the format of scheduler.Load.
	SchedulerInputResponse struct {
		Index  structs.Index // of the state that the pass saw
		Pool   string
		Policy string
		Input  []byte
	}
	// ACLBootstrapRequest makes the first management token; a non-zero Secret was chosen by the operator.
	ACLBootstrapRequest struct{ Secret structs.SecretID }
	// ACLTokenResponse is one token, with its secret only if it was just created or is the caller's own.
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
	// ACLAuthorizeRequest asks whether the header's token permits something that the calling agent answers itself.
	ACLAuthorizeRequest struct {
		Query        // Stale: the server that receives the request decides, even without a leader
		What  string // "agent", "node", "operator", or "namespace" (the header's)
		Level string // "read" or "write"; for a namespace, a capability such as "parse-job"
	}
	// ACLPeerLoginRequest asks for a short-lived token for a local user who connects to the agent's unix socket.
	ACLPeerLoginRequest struct {
		NodeAuth
		UID, GID int64
		User     string
		Groups   []string
	}
	// ACLPeerLoginResponse is a token that is valid for TTL.
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
		Config         *structs.SchedulerConfig
		FollowsDefault bool // an algorithm that is the default was not chosen by anybody
		CAS            bool
		CASIndex       structs.Index
	}
	// SchedulerConfigResponse is the configuration.
	SchedulerConfigResponse struct {
		Meta
		Config         *structs.SchedulerConfig // with the algorithm in force
		FollowsDefault bool                     // no user chose the algorithm
		Levels         []string                 // of the topology, that are in force, from near to far
		Warnings       []string                 // about these levels
		Storages       []SaveStorage            // those that limit saves, by name
	}
	// SaveStorage is what is known of a storage that limits saves (SchedulerConfig.CheckpointStorage).
	SaveStorage struct {
		Name            string
		Most            int64 // saves at a time, as configured
		Limit           int64 // in force, by the measured bandwidth
		Saves           int64 // that were measured
		Alone, Together int64 // measured bytes per second of a save alone, and of all at a time; 0: unknown
		Saving, Waiting int64 // allocations that have their turn, and that wait for it
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
		Formats                                string // that it speaks
		Leader, Healthy, Voter                 bool
		LastContact                            time.Duration
		LastTerm, LastIndex                    uint64
		StableSince                            structs.LogTime
		Problem                                string // in its own words, or ""
	}
	// PredictionsResponse measures how accurate the predicted run times of recently ended work were.
	PredictionsResponse struct {
		Ended, Predicted int64 // pieces of batch work; those that had a prediction
		Under            int64 // predicted ones that ran longer than predicted
		MedianFactor     int64 // median factor by which predictions were off, in either direction, in thousandths; 0: none
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
	// UpgradeServer is what one server speaks.
	UpgradeServer struct {
		ID, Name, Address string
		Speaks            structs.Speaks
		Voter, Leader     bool
		Error             string // why the server did not answer, or ""
	}
	// UpgradeGate is something that works from a format on.
	UpgradeGate struct {
		Name, Allows string
		Format       structs.Format
		Open         bool
	}
	// UpgradeStatusResponse says which format is in force and which all servers could have.
	UpgradeStatusResponse struct {
		Meta
		Format  structs.Format // in force
		By      string         // release of the leader that put it in force
		Next    structs.Format // what finishing would put in force; equal to Format: there is nothing to finish
		Why     string         // why the upgrade cannot be finished now, or ""
		Servers []UpgradeServer
		Gates   []UpgradeGate // that the leader knows
	}
	// UpgradeFinishResponse is the format that is now in force.
	UpgradeFinishResponse struct {
		Index  structs.Index
		Format structs.Format
	}
	// StatusLeaderResponse is the leader's RPC address, "" when none is known.
	StatusLeaderResponse struct{ Leader string }
	// StatusPeersResponse lists raft addresses.
	StatusPeersResponse struct{ Peers []string }
	// StatusRegionsResponse lists regions, sorted.
	StatusRegionsResponse struct{ Regions []string }
	// StatusHashResponse is this server's state hash at its applied index (D8).
	StatusHashResponse struct {
		Server string
		Index  structs.Index
		Hash   string         // hex
		Format structs.Format // in force
	}
	// SigningKeysResponse lists the keys that verify identities. Issuer is "" if none is configured.
	SigningKeysResponse struct {
		Meta
		Issuer string
		Keys   []*structs.SigningKey
	}
	// SearchRequest finds names by prefix (or, fuzzily, by substring). Context is Nomad's term: "jobs", "allocs",
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
	// FuzzyMatch is one hit with the ids of the objects that contain it.
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
		Index  structs.Index // events after it, as far as they are kept; 0: from now
		Topics map[string][]string
	}
	// Event is one change of one object. Exactly one of the pointers is set: the object after the change.
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
		Queue                       *structs.Queue
		Quota                       *structs.QuotaSpec
		Reservation                 *structs.Reservation
		SchedulerConfig             *structs.SchedulerConfig
		By                          *structs.Submitter // who sent the command; nil when unknown
	}
	// EventBatch is the events of one index. Without events it is a heartbeat. With Gap, events were lost and the
	// reader must list again.
	EventBatch struct {
		Index  structs.Index
		Events []Event
		Gap    bool
	}

	// ServerInfoResponse describes a server to the other servers.
	ServerInfoResponse struct {
		ID, Name, Address, Version, Region string
		Bootstrapped                       bool
		Leaving                            bool // it is about to leave the cluster for good
		LastIndex, LastTerm                uint64
		Cluster                            structs.ClusterID
		LastContact                        time.Duration   // since it heard from the leader; 0 on the leader
		Now                                structs.LogTime // its wall clock
		Speaks                             structs.Speaks
		Problem                            string // why it is not healthy, or ""
		Raft                               string // its raft address
		Expect                             int    // bootstrap_expect, 0 for a server that joins later
		// Founders are the raft IDs of the servers that wait with it for the cluster to be created, as it sees them.
		Founders []string
	}
	// StateMark is a server's state hash after every command up to Index.
	StateMark struct {
		Index  structs.Index
		Format structs.Format // in force at Index
		Hash   string         // hex
	}
	// ServerHashesResponse is the newest marks of a server, oldest first (D8).
	ServerHashesResponse struct {
		Server string // raft id
		Marks  []StateMark
	}
	// ServerSilenceRequest asks a server whether it hears the leader of a term.
	ServerSilenceRequest struct{ Term uint64 }
	// ServerSilenceResponse answers ServerSilenceRequest.
	ServerSilenceResponse struct {
		Silent bool   // it has no leader, or has heard nothing of it for too long
		Stands bool   // it may become the leader itself
		Last   uint64 // index of its newest log entry
	}
	// ServerKeyringRequest is an operation on the gossip keys of one server: list, install, use, remove.
	ServerKeyringRequest struct {
		Op  string
		Key []byte
	}
	// ServerKeyringResponse is the server's gossip keys after the operation, the primary key first.
	ServerKeyringResponse struct {
		Server string
		Keys   [][]byte
	}
	// ServerHasNodeRequest asks whether a node holds a session to this server.
	ServerHasNodeRequest struct{ NodeID structs.NodeID }
	// ServerHasNodeResponse answers ServerHasNodeRequest.
	ServerHasNodeResponse struct{ Has bool }
	// ServerNodeRequest names a node: ServerNodeSign asks what a server sees of it, and ServerNodeDoubt reports to the
	// leader that it may be lost.
	ServerNodeRequest struct{ NodeID structs.NodeID }
	// ServerNodeSignResponse answers ServerNodeSign.
	ServerNodeSignResponse struct{ Sign string } // nodes.Sign
	// ServerAnsweringRequest asks which of the nodes' agents answer on a session to this server.
	ServerAnsweringRequest struct{ NodeIDs []structs.NodeID }
	// ServerAnsweringResponse answers ServerAnsweringRequest.
	ServerAnsweringResponse struct{ NodeIDs []structs.NodeID }
	// ServerAuthenticateRequest asks the leader to authenticate a caller: the node if its ID is set, otherwise the
	// token.
	ServerAuthenticateRequest struct {
		Token        string
		Node         NodeAuth
		Register     bool   // Node wants to register
		Introduction string // with Register: the token that it sends, or ""
		Rights       bool   // asks only for the version of the rights
	}
	// ServerAuthenticateResponse confirms the caller. If the leader refuses the caller, the call fails. With Rights, it has
	// the version of tokens, policies and roles; see auth.Rights.
	ServerAuthenticateResponse struct {
		Epoch uint64
		Index structs.Index
	}
	// ServerAuthorizeRequest asks the leader whether a caller may make a call that a node or an agent answers. The IDs and
	// the task are those of the call; zero if it has none.
	ServerAuthorizeRequest struct {
		Method, Token, Namespace string
		AllocID                  structs.AllocID
		NodeID                   structs.NodeID
		Task                     string
	}
	// ServerAuthorizeResponse permits the call. Node answers it; zero if an agent does. If the caller may not make the
	// call, this one fails.
	ServerAuthorizeResponse struct{ Node structs.NodeID }
	// ServerJoinRequest asks the leader to add a server to raft.
	ServerJoinRequest struct{ ID, Name, Address string }
)
