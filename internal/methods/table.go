package methods

import (
	"reflect"

	"github.com/muster-sched/muster/internal/rpc"
)

// Side is the kind of process that answers a method.
type Side uint8

// Servers answer most methods. Nodes answer methods about running allocations, over their session to a server. Agents
// answer methods about themselves.
const (
	SideServer Side = iota
	SideNode
	SideAgent
)

// Kind is how a server handles a call.
type Kind uint8

// The kinds of calls.
const (
	KindRead   Kind = iota // the leader answers, or the server that received the call if the caller accepts stale data
	AtLeader               // the leader answers: writes, and reads of data that only the leader has
	KindAny                // the server that received the call answers
	KindStream             // the server that received the call answers with a stream; snapshots come from the leader
)

// Need is the permission that a caller needs. Exactly one field is set; Anonymous is never combined with another.
type Need struct {
	Namespace  string // a namespace capability: "read-job", "submit-job", ... in the namespace of the header
	Node       string // "read" or "write" on nodes
	NodePool   string // "read", "write" or "delete" on the named pool
	Queue      string // "read" or "write" on the queues that the request names (QueueRequest)
	Quota      string // "write" on quotas
	Variable   string // "read", "write" or "destroy" on the variable that the request names
	Agent      string // "read" or "write" on agents
	Operator   string // "read" or "write" on the operator API
	Management bool   // a management token
	NodeSecret bool   // the node's own secret, and with TLS a client certificate
	ServerCert bool   // another server
	Anonymous  bool   // any caller
	AnyToken   bool   // any valid token; the handler filters what it returns
}

// Row declares one method.
type Row struct {
	Name string
	Side Side
	Kind Kind
	Need Need
}

// Table lists every method in order of declaration. Servers refuse a method that is not in it.
var Table []Row

// bodies are all request and response types, for the test that checks that the codec can carry them.
var bodies []reflect.Type

var byName = map[string]*Row{}

// Find returns the row of a method, or nil.
func Find(name string) *Row { return byName[name] }

func add(name string, side Side, kind Kind, need Need) {
	if byName[name] != nil {
		panic("methods: " + name + " declared twice")
	}
	Table = append(Table, Row{Name: name, Side: side, Kind: kind, Need: need})
}

func init() {
	for i := range Table {
		byName[Table[i].Name] = &Table[i]
	}
}

func method[Req, Resp any](name string, side Side, kind Kind, need Need) rpc.Method[Req, Resp] {
	add(name, side, kind, need)
	bodies = append(bodies, reflect.TypeFor[Req](), reflect.TypeFor[Resp]())
	return rpc.Method[Req, Resp]{Name: name}
}

func stream[Req any](name string, side Side, need Need) rpc.StreamMethod[Req] {
	add(name, side, KindStream, need)
	bodies = append(bodies, reflect.TypeFor[Req]())
	return rpc.StreamMethod[Req]{Name: name}
}

// Local lists what agents ask by ACLAuthorize, for requests that they answer themselves.
var Local = []Need{{Agent: "read"}, {Agent: "write"}, {Node: "read"}, {Operator: "write"}, {Namespace: "parse-job"}}

func ns(capability string) Need { return Need{Namespace: capability} }

// The methods. Names have the form "Noun.Verb".
var (
	// Jobs.
	JobRegister    = method[JobRegisterRequest, JobRegisterResponse]("Job.Register", SideServer, AtLeader, ns("submit-job"))
	JobValidate    = method[JobRegisterRequest, JobValidateResponse]("Job.Validate", SideServer, KindAny, ns("read-job"))
	JobPlan        = method[JobPlanRequest, JobPlanResponse]("Job.Plan", SideServer, AtLeader, ns("plan-job"))
	JobDeregister  = method[JobDeregisterRequest, JobRegisterResponse]("Job.Deregister", SideServer, AtLeader, ns("submit-job"))
	JobGet         = method[JobGetRequest, JobGetResponse]("Job.Get", SideServer, KindRead, ns("read-job"))
	JobList        = method[ListRequest, JobListResponse]("Job.List", SideServer, KindRead, ns("list-jobs"))
	JobVersions    = method[JobGetRequest, JobVersionsResponse]("Job.Versions", SideServer, KindRead, ns("read-job"))
	JobSubmission  = method[JobSubmissionRequest, JobSubmissionResponse]("Job.Submission", SideServer, KindRead, ns("read-job"))
	JobSummary     = method[JobGetRequest, JobSummaryResponse]("Job.Summary", SideServer, KindRead, ns("read-job"))
	JobAllocs      = method[JobAllocsRequest, AllocListResponse]("Job.Allocations", SideServer, KindRead, ns("read-job"))
	JobEvals       = method[JobGetRequest, EvalListResponse]("Job.Evaluations", SideServer, KindRead, ns("read-job"))
	JobEvaluate    = method[JobEvaluateRequest, JobRegisterResponse]("Job.Evaluate", SideServer, AtLeader, ns("read-job"))
	JobWorkload    = method[JobWorkloadRequest, JobRegisterResponse]("Job.Workload", SideServer, AtLeader, ns("submit-job"))
	JobPriority    = method[JobPriorityRequest, JobRegisterResponse]("Job.Priority", SideServer, AtLeader, ns("submit-job"))
	JobSuspend     = method[JobSuspendRequest, SuspendResponse]("Job.Suspend", SideServer, AtLeader, ns("alloc-lifecycle"))
	JobCheckpoint  = method[JobCheckpointRequest, JobCheckpointResponse]("Job.Checkpoint", SideServer, AtLeader, ns("alloc-lifecycle"))
	JobRevert      = method[JobRevertRequest, JobRegisterResponse]("Job.Revert", SideServer, AtLeader, ns("submit-job"))
	JobStable      = method[JobStableRequest, WriteResponse]("Job.Stable", SideServer, AtLeader, ns("submit-job"))
	JobTag         = method[JobTagRequest, WriteResponse]("Job.Tag", SideServer, AtLeader, ns("submit-job"))
	JobDispatch    = method[JobDispatchRequest, JobDispatchResponse]("Job.Dispatch", SideServer, AtLeader, ns("dispatch-job"))
	JobPeriodic    = method[JobGetRequest, JobRegisterResponse]("Job.PeriodicForce", SideServer, AtLeader, ns("submit-job"))
	JobScale       = method[JobScaleRequest, JobRegisterResponse]("Job.Scale", SideServer, AtLeader, ns("scale-job"))
	JobScaleStatus = method[JobGetRequest, JobScaleStatusResponse]("Job.ScaleStatus", SideServer, KindRead, ns("read-job-scaling"))
	ScalingList    = method[ListRequest, ScalingListResponse]("Scaling.List", SideServer, KindRead, ns("list-scaling-policies"))
	ScalingGet     = method[NameRequest, ScalingGetResponse]("Scaling.Get", SideServer, KindRead, ns("read-scaling-policy")) // by id, in any namespace
	JobDeployments = method[JobGetRequest, DeploymentListResponse]("Job.Deployments", SideServer, KindRead, ns("read-job"))
	JobGangs       = method[JobGetRequest, JobGangsResponse]("Job.Gangs", SideServer, KindRead, ns("read-job"))
	JobWhy         = method[JobGetRequest, JobWhyResponse]("Job.Why", SideServer, KindRead, ns("read-job"))
	QueueList      = method[ListRequest, QueueListResponse]("Queue.List", SideServer, KindRead, ns("list-jobs"))

	BundlePut           = stream[BundlePutRequest]("Bundle.Put", SideServer, ns("submit-job"))                                             // frames: the bundle; then a BundleResponse
	BundleStat          = method[BundleRequest, BundleResponse]("Bundle.Stat", SideServer, KindAny, ns("submit-job"))                      // a server that lacks it gets it from another
	BundleGet           = stream[BundleRequest]("Bundle.Get", SideServer, ns("read-fs"))                                                   // frames: a BundleResponse, then the bundle
	ServerBundle        = stream[ServerBundleRequest]("Server.Bundle", SideServer, Need{ServerCert: true})                                 // as BundleGet, of what the server itself has
	ServerBundleCollect = method[ServerBundleRequest, BundleResponse]("Server.BundleCollect", SideServer, KindAny, Need{ServerCert: true}) // gets it from another server

	AcctList     = method[AcctRequest, AcctResponse]("Acct.List", SideServer, KindRead, ns("list-jobs"))
	DecisionList = method[DecisionsRequest, DecisionsResponse]("Decision.List", SideServer, KindRead, ns("list-jobs"))

	// Allocations. Handlers check the allocation's namespace after the lookup.
	AllocGet        = method[AllocGetRequest, AllocGetResponse]("Alloc.Get", SideServer, KindRead, ns("read-job"))
	AllocList       = method[ListRequest, AllocListResponse]("Alloc.List", SideServer, KindRead, ns("read-job"))
	AllocStop       = method[AllocStopRequest, JobRegisterResponse]("Alloc.Stop", SideServer, AtLeader, ns("alloc-lifecycle"))
	AllocSuspend    = method[AllocSuspendRequest, SuspendResponse]("Alloc.Suspend", SideServer, AtLeader, ns("alloc-lifecycle"))
	AllocTransition = method[AllocTransitionRequest, WriteResponse]("Alloc.Transition", SideServer, AtLeader, Need{Management: true})

	// Evaluations.
	EvalGet    = method[EvalGetRequest, EvalGetResponse]("Eval.Get", SideServer, KindRead, ns("read-job"))
	EvalList   = method[ListRequest, EvalListResponse]("Eval.List", SideServer, KindRead, ns("read-job"))
	EvalCount  = method[ListRequest, CountResponse]("Eval.Count", SideServer, KindRead, ns("read-job"))
	EvalAllocs = method[EvalGetRequest, AllocListResponse]("Eval.Allocations", SideServer, KindRead, ns("read-job"))
	EvalDelete = method[EvalDeleteRequest, CountResponse]("Eval.Delete", SideServer, AtLeader, Need{Management: true})

	// Deployments: the rolling updates of services, derived from the versions of jobs. Handlers check the namespace after the lookup.
	DeploymentList   = method[ListRequest, DeploymentListResponse]("Deployment.List", SideServer, KindRead, ns("read-job"))
	DeploymentGet    = method[DeploymentGetRequest, DeploymentGetResponse]("Deployment.Get", SideServer, KindRead, ns("read-job"))
	DeploymentAllocs = method[DeploymentGetRequest, AllocListResponse]("Deployment.Allocations", SideServer, KindRead, ns("read-job"))
	DeploymentFail   = method[DeploymentGetRequest, DeploymentFailResponse]("Deployment.Fail", SideServer, AtLeader, ns("submit-job"))

	// Nodes, as users see them.
	NodeGet         = method[NodeGetRequest, NodeGetResponse]("Node.Get", SideServer, KindRead, Need{Node: "read"})
	NodeList        = method[ListRequest, NodeListResponse]("Node.List", SideServer, KindRead, Need{Node: "read"})
	NodeAllocs      = method[NodeGetRequest, AllocListResponse]("Node.Allocations", SideServer, KindRead, Need{Node: "read"})
	NodeDrain       = method[NodeDrainRequest, NodeWriteResponse]("Node.Drain", SideServer, AtLeader, Need{Node: "write"})
	NodeEligibility = method[NodeEligibilityRequest, NodeWriteResponse]("Node.Eligibility", SideServer, AtLeader, Need{Node: "write"})
	NodeTaint       = method[NodeTaintRequest, NodeWriteResponse]("Node.Taint", SideServer, AtLeader, Need{Node: "write"})
	NodeEvaluate    = method[NodeGetRequest, NodeWriteResponse]("Node.Evaluate", SideServer, AtLeader, Need{Node: "write"})
	NodeIntroduce   = method[NodeIntroduceRequest, NodeIntroduceResponse]("Node.Introduce", SideServer, AtLeader, Need{Node: "write"})
	NodePurge       = method[NodeGetRequest, NodeWriteResponse]("Node.Purge", SideServer, AtLeader, Need{Node: "write"})

	// Nodes, as their agents call them.
	NodeRegister  = method[NodeRegisterRequest, NodeRegisterResponse]("Node.Register", SideServer, AtLeader, Need{NodeSecret: true})
	NodeHeartbeat = method[NodeHeartbeatRequest, NodeHeartbeatResponse]("Node.Heartbeat", SideServer, AtLeader, Need{NodeSecret: true})
	NodePoll      = method[NodePollRequest, NodePollResponse]("Node.Poll", SideServer, KindAny, Need{NodeSecret: true})
	NodeObserve   = method[NodeObserveRequest, WriteResponse]("Node.Observe", SideServer, AtLeader, Need{NodeSecret: true})
	NodeEvent     = method[NodeEventRequest, WriteResponse]("Node.Event", SideServer, AtLeader, Need{NodeSecret: true})
	NodeLeave     = method[NodeLeaveRequest, NodeWriteResponse]("Node.Leave", SideServer, AtLeader, Need{NodeSecret: true})
	NodeSaveTurn  = method[NodeSaveTurnRequest, SaveTurn]("Node.SaveTurn", SideServer, KindAny, Need{NodeSecret: true})
	NodeIdentity  = method[NodeIdentityRequest, NodeIdentityResponse]("Node.Identity", SideServer, AtLeader, Need{NodeSecret: true})
	NodeServers   = method[NodeServersRequest, NodeServersResponse]("Node.Servers", SideServer, KindAny, Need{NodeSecret: true})

	// Node pools and namespaces.
	PoolGet         = method[NameRequest, PoolGetResponse]("Pool.Get", SideServer, KindRead, Need{NodePool: "read"})
	PoolList        = method[ListRequest, PoolListResponse]("Pool.List", SideServer, KindRead, Need{AnyToken: true})
	PoolNodes       = method[NamedListRequest, NodeListResponse]("Pool.Nodes", SideServer, KindRead, Need{NodePool: "read"})
	PoolJobs        = method[NamedListRequest, JobListResponse]("Pool.Jobs", SideServer, KindRead, Need{NodePool: "read"})
	PoolUpsert      = method[PoolUpsertRequest, WriteResponse]("Pool.Upsert", SideServer, AtLeader, Need{NodePool: "write"})
	PoolDelete      = method[NameRequest, WriteResponse]("Pool.Delete", SideServer, AtLeader, Need{NodePool: "delete"})
	NamespaceGet    = method[NameRequest, NamespaceGetResponse]("Namespace.Get", SideServer, KindRead, Need{AnyToken: true})
	NamespaceList   = method[ListRequest, NamespaceListResponse]("Namespace.List", SideServer, KindRead, Need{AnyToken: true})
	NamespaceUpsert = method[NamespaceUpsertRequest, WriteResponse]("Namespace.Upsert", SideServer, AtLeader, Need{Management: true})
	NamespaceDelete = method[NameRequest, WriteResponse]("Namespace.Delete", SideServer, AtLeader, Need{Management: true})

	// ACL.
	ACLBootstrap   = method[ACLBootstrapRequest, ACLTokenResponse]("ACL.Bootstrap", SideServer, AtLeader, Need{Anonymous: true})
	ACLTokenUpsert = method[ACLTokenUpsertRequest, ACLTokenResponse]("ACL.TokenUpsert", SideServer, AtLeader, Need{Management: true})
	ACLTokenDelete = method[ACLTokenDeleteRequest, WriteResponse]("ACL.TokenDelete", SideServer, AtLeader, Need{Management: true})
	// tokens of others need management rights
	ACLTokenGet      = method[ACLTokenGetRequest, ACLTokenResponse]("ACL.TokenGet", SideServer, KindRead, Need{AnyToken: true})
	ACLTokenSelf     = method[EmptyRequest, ACLTokenResponse]("ACL.TokenSelf", SideServer, KindRead, Need{AnyToken: true})
	ACLTokenList     = method[ListRequest, ACLTokenListResponse]("ACL.TokenList", SideServer, KindRead, Need{Management: true})
	ACLPolicyUpsert  = method[ACLPolicyUpsertRequest, WriteResponse]("ACL.PolicyUpsert", SideServer, AtLeader, Need{Management: true})
	ACLPolicyDelete  = method[NameRequest, WriteResponse]("ACL.PolicyDelete", SideServer, AtLeader, Need{Management: true})
	ACLPolicyGet     = method[NameRequest, ACLPolicyResponse]("ACL.PolicyGet", SideServer, KindRead, Need{AnyToken: true})
	ACLPolicyList    = method[ListRequest, ACLPolicyListResponse]("ACL.PolicyList", SideServer, KindRead, Need{AnyToken: true})
	ACLPolicySelf    = method[EmptyRequest, ACLPolicyListResponse]("ACL.PolicySelf", SideServer, KindRead, Need{AnyToken: true})
	ACLRoleUpsert    = method[ACLRoleUpsertRequest, ACLRoleResponse]("ACL.RoleUpsert", SideServer, AtLeader, Need{Management: true})
	ACLRoleDelete    = method[ACLRoleGetRequest, WriteResponse]("ACL.RoleDelete", SideServer, AtLeader, Need{Management: true})
	ACLRoleGet       = method[ACLRoleGetRequest, ACLRoleResponse]("ACL.RoleGet", SideServer, KindRead, Need{AnyToken: true})
	ACLRoleList      = method[ListRequest, ACLRoleListResponse]("ACL.RoleList", SideServer, KindRead, Need{AnyToken: true})
	ACLOneTimeCreate = method[EmptyRequest, ACLOneTimeResponse]("ACL.OneTimeCreate", SideServer, AtLeader, Need{AnyToken: true})
	ACLOneTimeUse    = method[ACLOneTimeRequest, ACLTokenResponse]("ACL.OneTimeExchange", SideServer, AtLeader, Need{Anonymous: true})
	ACLAuthorize     = method[ACLAuthorizeRequest, WriteResponse]("ACL.Authorize", SideServer, KindRead, Need{Anonymous: true})         // an error if denied
	ACLPeerLogin     = method[ACLPeerLoginRequest, ACLPeerLoginResponse]("ACL.PeerLogin", SideServer, AtLeader, Need{NodeSecret: true}) // an agent vouches for a local user

	// Operator, system, status.
	RaftConfiguration  = method[EmptyRequest, RaftConfigurationResponse]("Operator.RaftConfiguration", SideServer, KindRead, Need{Operator: "read"})
	RaftRemovePeer     = method[RaftPeerRequest, WriteResponse]("Operator.RaftRemovePeer", SideServer, AtLeader, Need{Operator: "write"})
	RaftTransfer       = method[RaftPeerRequest, WriteResponse]("Operator.RaftTransfer", SideServer, AtLeader, Need{Operator: "write"})
	SchedulerConfigGet = method[EmptyRequest, SchedulerConfigResponse]("Operator.SchedulerConfigGet", SideServer, KindRead, Need{Operator: "read"})
	SchedulerConfigSet = method[SchedulerConfigRequest, SwapResponse]("Operator.SchedulerConfigSet", SideServer, AtLeader, Need{Operator: "write"})
	SchedulerInput     = method[NameRequest, SchedulerInputResponse]("Operator.SchedulerInput", SideServer, AtLeader, Need{Management: true})
	PredictionsGet     = method[EmptyRequest, PredictionsResponse]("Operator.Predictions", SideServer, AtLeader, Need{Operator: "read"})
	AutopilotGet       = method[EmptyRequest, AutopilotConfigResponse]("Operator.AutopilotGet", SideServer, KindRead, Need{Operator: "read"})
	AutopilotSet       = method[AutopilotConfigRequest, SwapResponse]("Operator.AutopilotSet", SideServer, AtLeader, Need{Operator: "write"})
	AutopilotHealth    = method[EmptyRequest, AutopilotHealthResponse]("Operator.AutopilotHealth", SideServer, AtLeader, Need{Operator: "read"})
	UpgradeStatus      = method[EmptyRequest, UpgradeStatusResponse]("Operator.UpgradeStatus", SideServer, AtLeader, Need{Operator: "read"})
	UpgradeFinish      = method[EmptyRequest, UpgradeFinishResponse]("Operator.UpgradeFinish", SideServer, AtLeader, Need{Operator: "write"})
	SnapshotSave       = stream[EmptyRequest]("Operator.SnapshotSave", SideServer, Need{Management: true})
	SnapshotRestore    = stream[EmptyRequest]("Operator.SnapshotRestore", SideServer, Need{Management: true})
	SystemGC           = method[EmptyRequest, WriteResponse]("System.GC", SideServer, AtLeader, Need{Management: true})
	SystemReconcile    = method[EmptyRequest, WriteResponse]("System.ReconcileSummaries", SideServer, AtLeader, Need{Management: true})
	StatusLeader       = method[EmptyRequest, StatusLeaderResponse]("Status.Leader", SideServer, KindAny, Need{AnyToken: true})
	StatusPeers        = method[EmptyRequest, StatusPeersResponse]("Status.Peers", SideServer, KindAny, Need{AnyToken: true})
	StatusRegions      = method[EmptyRequest, StatusRegionsResponse]("Status.Regions", SideServer, KindAny, Need{AnyToken: true})
	StatusHash         = method[EmptyRequest, StatusHashResponse]("Status.Hash", SideServer, KindAny, Need{Operator: "read"})
	SigningKeys        = method[EmptyRequest, SigningKeysResponse]("Keyring.Public", SideServer, KindRead, Need{Anonymous: true})
	Search             = method[SearchRequest, SearchResponse]("Search.Prefix", SideServer, KindRead, Need{AnyToken: true})
	SearchFuzzy        = method[SearchRequest, SearchFuzzyResponse]("Search.Fuzzy", SideServer, KindRead, Need{AnyToken: true})
	EventStream        = stream[EventStreamRequest]("Event.Stream", SideServer, Need{AnyToken: true}) // frames: EventBatch; filtered per object
	ServerInfo         = method[EmptyRequest, ServerInfoResponse]("Server.Info", SideServer, KindAny, Need{ServerCert: true})
	ServerHashes       = method[EmptyRequest, ServerHashesResponse]("Server.Hashes", SideServer, KindAny, Need{ServerCert: true})
	ServerSilence      = method[ServerSilenceRequest, ServerSilenceResponse]("Server.Silence", SideServer, KindAny, Need{ServerCert: true})
	ServerKeyring      = method[ServerKeyringRequest, ServerKeyringResponse]("Server.Keyring", SideServer, KindAny, Need{ServerCert: true})
	ServerHasNode      = method[ServerHasNodeRequest, ServerHasNodeResponse]("Server.HasNode", SideServer, KindAny, Need{ServerCert: true})
	ServerNodeSign     = method[ServerNodeRequest, ServerNodeSignResponse]("Server.NodeSign", SideServer, KindAny, Need{ServerCert: true})
	ServerAnswering    = method[ServerAnsweringRequest, ServerAnsweringResponse]("Server.Answering", SideServer, KindAny, Need{ServerCert: true})
	ServerNodeDoubt    = method[ServerNodeRequest, EmptyResponse]("Server.NodeDoubt", SideServer, KindAny, Need{ServerCert: true})
	ServerAuthenticate = method[ServerAuthenticateRequest, ServerAuthenticateResponse]("Server.Authenticate", SideServer, KindAny, Need{ServerCert: true})
	ServerAuthorize    = method[ServerAuthorizeRequest, ServerAuthorizeResponse]("Server.Authorize", SideServer, KindAny, Need{ServerCert: true})
	ServerJoin         = method[ServerJoinRequest, WriteResponse]("Server.Join", SideServer, AtLeader, Need{ServerCert: true})

	// Running allocations and machines; answered by the node.
	ClientFSList     = method[FSRequest, FSListResponse]("Client.FSList", SideNode, KindAny, ns("read-fs"))
	ClientFSStat     = method[FSRequest, FSStatResponse]("Client.FSStat", SideNode, KindAny, ns("read-fs"))
	ClientFSStream   = stream[FSStreamRequest]("Client.FSStream", SideNode, ns("read-fs"))  // frames: FSFrame
	ClientLogs       = stream[LogsRequest]("Client.Logs", SideNode, ns("read-logs"))        // frames: FSFrame
	ClientExec       = stream[ExecRequest]("Client.Exec", SideNode, ns("alloc-exec"))       // frames: ExecFrame both ways
	ClientForward    = stream[ForwardRequest]("Client.Forward", SideNode, ns("alloc-exec")) // frames: ForwardFrame both ways
	ClientStats      = method[AllocNodeRequest, AllocStatsResponse]("Client.AllocStats", SideNode, KindAny, ns("read-job"))
	ClientRestart    = method[AllocRestartRequest, WriteResponse]("Client.Restart", SideNode, KindAny, ns("alloc-lifecycle"))
	ClientSignal     = method[AllocSignalRequest, WriteResponse]("Client.Signal", SideNode, KindAny, ns("alloc-lifecycle"))
	ClientCheckpoint = method[AllocNodeRequest, CheckpointNotice]("Client.Checkpoint", SideNode, KindAny, ns("alloc-lifecycle"))
	ClientGC         = method[AllocNodeRequest, WriteResponse]("Client.GC", SideNode, KindAny, ns("submit-job"))
	ClientGCAll      = method[AllocNodeRequest, WriteResponse]("Client.GCAll", SideNode, KindAny, Need{Node: "write"})
	ClientChecks     = method[AllocNodeRequest, ChecksResponse]("Client.Checks", SideNode, KindAny, ns("read-job"))
	ClientGPURelease = method[GPUReleaseRequest, WriteResponse]("Client.GPURelease", SideNode, KindAny, Need{Node: "write"})
	ClientHostStats  = method[AllocNodeRequest, HostStatsResponse]("Client.HostStats", SideNode, KindAny, Need{Node: "read"})
	ClientMetaRead   = method[AllocNodeRequest, NodeMetaResponse]("Client.MetaRead", SideNode, KindAny, Need{Node: "read"})
	ClientMetaApply  = method[NodeMetaRequest, NodeMetaResponse]("Client.MetaApply", SideNode, KindAny, Need{Node: "write"})
	ClientMonitor    = stream[MonitorRequest]("Client.Monitor", SideNode, Need{Agent: "read"}) // frames: FSFrame

	// A server process, selected by server name.
	AgentMonitor = stream[MonitorRequest]("Agent.Monitor", SideAgent, Need{Agent: "read"}) // frames: FSFrame
)
