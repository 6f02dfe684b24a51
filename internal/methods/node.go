package methods

import (
	"time"

	"github.com/muster-sched/muster/structs"
)

// Requests and responses of methods that nodes answer. AllocID selects the node, or NodeID if AllocID is zero.
type (
	// AllocNodeRequest names an allocation, or a node.
	AllocNodeRequest struct {
		AllocID structs.AllocID
		NodeID  structs.NodeID
		Task    string // "" for all
	}
	// GPUReleaseRequest asks a node to release its GPU driver for a time; 0: 10 minutes.
	GPUReleaseRequest struct {
		NodeID structs.NodeID
		For    time.Duration
	}
	// FSRequest names a path below an allocation's directory.
	FSRequest struct {
		AllocID structs.AllocID
		Path    string
	}
	// FileInfo describes a file. ModTime is Unix nanoseconds.
	FileInfo struct {
		Name        string
		IsDir       bool
		Size        int64
		Mode        string // "-rw-r--r--"
		ModTime     structs.LogTime
		ContentType string
	}
	// FSListResponse lists a directory, by name.
	FSListResponse struct{ Files []FileInfo }
	// FSStatResponse describes one file.
	FSStatResponse struct{ Info FileInfo }
	// FSStreamRequest reads a file from Offset (counted from Origin "start" or "end"), at most Limit bytes (0: all), and
	// with Follow waits for more.
	FSStreamRequest struct {
		AllocID structs.AllocID
		Path    string
		Offset  int64
		Origin  string
		Limit   int64
		Follow  bool
	}
	// LogsRequest reads a task's log across its rotated files.
	LogsRequest struct {
		AllocID structs.AllocID
		Task    string
		Type    string // "stdout" or "stderr"
		Offset  int64
		Origin  string // "start" or "end"
		Follow  bool
		Since   structs.LogTime // leaves out what was written before; 0: nothing
		Times   bool            // frames have times
	}
	// FSFrame is a piece of a followed file. Without Data and Event it is a heartbeat. Time is when Data was written, in
	// Unix nanoseconds, 0 where that is not known or was not asked for.
	FSFrame struct {
		File   string
		Offset int64
		Data   []byte
		Event  string // "file deleted", "file truncated"
		Time   structs.LogTime
	}
	// ExecRequest runs a command inside a task.
	ExecRequest struct {
		AllocID structs.AllocID
		Task    string
		Command []string
		TTY     bool
		Rank    int // with Ranked: the rank whose RANK and LOCAL_RANK the command gets
		Ranked  bool
	}
	// ExecFrame is one piece of an exec session in either direction.
	ExecFrame struct {
		Stdin       []byte
		StdinClose  bool
		Stdout      []byte
		StdoutClose bool
		Stderr      []byte
		StderrClose bool
		Resize      *TTYSize
		Exited      bool
		ExitCode    int
	}
	// TTYSize is a terminal's size in cells.
	TTYSize struct{ Height, Width int }
	// ForwardRequest asks for a connection to the one port of Ports, a label or a number, in the network of an allocation.
	// With Watch nothing is connected: the stream ends with the allocation, or with its Task where one is named.
	ForwardRequest struct {
		AllocID structs.AllocID
		Task    string
		Ports   []string
		Watch   bool
	}
	// ForwardFrame is a piece of a forwarded connection in either direction. The node's first frame is empty: it has
	// connected, or watches.
	ForwardFrame struct {
		Data  []byte
		Close bool // nothing follows in this direction
	}
	// MonitorRequest follows the log of an agent.
	MonitorRequest struct {
		NodeID          structs.NodeID
		ServerName      string
		Level           string
		JSON            bool
		IncludeLocation bool
	}

	// CPUStats is CPU use. Percentages are of one core, in millionths of a percent, which are exact on the wire;
	// nanoseconds count from the start of the task.
	CPUStats struct {
		TotalNanos     int64
		PercentMicro   int64
		UserMicro      int64
		SystemMicro    int64
		TotalTicksMHz  int64
		ThrottledNanos int64
		ThrottledCount int64
	}
	// MemoryStats is memory use in bytes.
	MemoryStats struct {
		RSS, Cache, Swap, Usage, MaxUsage, KernelUsage int64
	}
	// TaskStats is the usage of one task.
	TaskStats struct {
		CPU    CPUStats
		Memory MemoryStats
		Pids   int64
		Time   structs.LogTime
		// Devices are the task's devices; a shared one counts the use by other allocations too.
		Devices []DeviceStats
	}
	// AllocStatsResponse is the current usage of an allocation.
	AllocStatsResponse struct {
		Total TaskStats
		Tasks map[string]*TaskStats
		Time  structs.LogTime
	}
	// DiskStats is the use of one mount, in bytes.
	DiskStats struct {
		Device, Mountpoint         string
		Size, Used, Available      int64
		UsedMicro, InodesUsedMicro int64 // in millionths of a percent
	}
	// CoreStats is the use of one core, in millionths of a percent.
	CoreStats struct {
		CPU                                           string
		UserMicro, SystemMicro, IdleMicro, TotalMicro int64
	}
	// DeviceStats is the current state of one device; -1 means unknown.
	DeviceStats struct {
		Group                    string // "nvidia/gpu/H100"
		ID, Parent               string // Parent is the GPU of a MIG instance
		UsedBytes, TotalBytes    int64
		BAR1Bytes                int64
		Utilization, MemoryUtil  int64 // percent
		TemperatureC, PowerMW    int64
		EnergyMJ                 int64 // since the driver was loaded
		ECCUncorrected, ECCFixed int64 // errors since the driver was loaded
		Time                     structs.LogTime
		More                     []DeviceFigure // further measurements, in order
		Use                      []DeviceUse    // of the requested task; without one, of all tasks
	}
	// DeviceFigure is a further measurement of a device, without a field in DeviceStats.
	DeviceFigure struct {
		Name, Unit string
		Value      int64
	}
	// DeviceUse is one task's use of a GPU since the agent first saw the task there.
	DeviceUse struct {
		Task, Backend         string
		QuotaBytes, UsedBytes int64 // QuotaBytes 0: the whole GPU; UsedBytes -1: unknown to the driver
		PeakBytes, MiBSeconds int64
		SMMillis, EnergyMJ    int64 // SMMillis: time at full use of all multiprocessors; EnergyMJ: its share of the GPU's energy
		Denied                int64 // allocations refused
		ActiveMillis          int64 // mean activity of the multiprocessors over KnownMillis
		KnownMillis           int64
	}
	// HostStatsResponse is the current use of a machine, memory in bytes.
	HostStatsResponse struct {
		MemTotal, MemAvailable, MemUsed, MemFree int64
		CPU                                      []CoreStats
		CPUTicksMHz                              int64
		Disks                                    []DiskStats
		Devices                                  []DeviceStats // in order of group and id
		AllocDir                                 DiskStats
		Uptime                                   time.Duration
		Time                                     structs.LogTime
	}
	// AllocRestartRequest restarts one task, the running tasks (Task ""), or all tasks (All).
	AllocRestartRequest struct {
		AllocID structs.AllocID
		Task    string
		All     bool
	}
	// AllocSignalRequest signals one task or all.
	AllocSignalRequest struct {
		AllocID structs.AllocID
		Task    string
		Signal  string // "SIGHUP"
	}
	// CheckpointNotice is the result of asking an allocation's tasks to save their state.
	CheckpointNotice struct {
		Tasks []string // that were notified
		How   string   // "signal SIGUSR1"
		Over  bool     // the state is saved: commands have returned, requests were answered
		At    structs.LogTime
		Was   *structs.Saved // the newest checkpoint before the request, or nil
		Grace time.Duration  // how long saving may take
	}
	// ChecksResponse has the newest results of the checks of an allocation's services, by ID.
	ChecksResponse struct{ Checks []CheckStatus }
	// CheckStatus is the newest result of a check.
	CheckStatus struct {
		ID, Check, Service, Task, Group string
		Readiness                       bool // the check does not count for the allocation's health
		Status                          structs.ServiceHealth
		Output                          string
		Code                            int // of an HTTP answer; 0: none
		Time                            structs.LogTime
	}
	// NodeMetaRequest changes dynamic metadata; a nil value unsets a key.
	NodeMetaRequest struct {
		NodeID structs.NodeID
		Meta   map[string]*string
	}
	// NodeMetaResponse is a node's metadata.
	NodeMetaResponse struct {
		Meta    map[string]string
		Dynamic map[string]*string
		Static  map[string]string
	}
)

// NodeRequest is a request that carries the node's ID and secret.
type NodeRequest interface{ AuthRef() *NodeAuth }

// AuthRef implements NodeRequest.
func (a *NodeAuth) AuthRef() *NodeAuth { return a }
