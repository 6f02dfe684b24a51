package fsm

import (
	"fmt"
	"reflect"
	"sync"

	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/structs"
)

// EntryBytesMax is the size of the largest log entry (D9). Encode refuses a larger one, before it reaches the log.
const EntryBytesMax = 1 << 20

// batchCommandsMax bounds the commands of one BatchCommand.
const batchCommandsMax = 10_000

// bodies makes an empty body for each type of command. CmdPlan, CmdPlans and CmdBatch have encodings of their own.
var bodies = map[structs.CommandType]func() any{
	structs.CmdJobRegister:     func() any { return new(structs.JobRegisterCommand) },
	structs.CmdJobDeregister:   func() any { return new(structs.JobDeregisterCommand) },
	structs.CmdJobStable:       func() any { return new(structs.JobStableCommand) },
	structs.CmdJobTag:          func() any { return new(structs.JobTagCommand) },
	structs.CmdEvalUpsert:      func() any { return new(structs.EvalUpsertCommand) },
	structs.CmdPlan:            func() any { return new(structs.PlanEntry) },
	structs.CmdNodeRegister:    func() any { return new(structs.NodeRegisterCommand) },
	structs.CmdNodePurge:       func() any { return new(structs.NodePurgeCommand) },
	structs.CmdNodeStatus:      func() any { return new(structs.NodeStatusCommand) },
	structs.CmdNodeEligibility: func() any { return new(structs.NodeEligibilityCommand) },
	structs.CmdNodeDrain:       func() any { return new(structs.NodeDrainCommand) },
	structs.CmdAllocObserved:   func() any { return new(structs.AllocObservedCommand) },
	structs.CmdAllocTransition: func() any { return new(structs.AllocTransitionCommand) },
	structs.CmdPoolUpsert:      func() any { return new(structs.PoolUpsertCommand) },
	structs.CmdPoolDelete:      func() any { return new(structs.PoolDeleteCommand) },
	structs.CmdNamespaceUpsert: func() any { return new(structs.NamespaceUpsertCommand) },
	structs.CmdNamespaceDelete: func() any { return new(structs.NamespaceDeleteCommand) },
	structs.CmdPolicyUpsert:    func() any { return new(structs.PolicyUpsertCommand) },
	structs.CmdPolicyDelete:    func() any { return new(structs.PolicyDeleteCommand) },
	structs.CmdTokenUpsert:     func() any { return new(structs.TokenUpsertCommand) },
	structs.CmdTokenDelete:     func() any { return new(structs.TokenDeleteCommand) },
	structs.CmdACLBootstrap:    func() any { return new(structs.ACLBootstrapCommand) },
	structs.CmdRoleUpsert:      func() any { return new(structs.RoleUpsertCommand) },
	structs.CmdRoleDelete:      func() any { return new(structs.RoleDeleteCommand) },
	structs.CmdOneTimeUpsert:   func() any { return new(structs.OneTimeUpsertCommand) },
	structs.CmdOneTimeDelete:   func() any { return new(structs.OneTimeDeleteCommand) },
	structs.CmdSchedulerConfig: func() any { return new(structs.SchedulerConfigCommand) },
	structs.CmdAutopilotConfig: func() any { return new(structs.AutopilotConfigCommand) },
	structs.CmdPeriodicLaunch:  func() any { return new(structs.PeriodicLaunchCommand) },
	structs.CmdScale:           func() any { return new(structs.ScaleCommand) },
	structs.CmdCollect:         func() any { return new(structs.CollectCommand) },
	structs.CmdClusterInit:     func() any { return new(structs.ClusterInitCommand) },
	structs.CmdRestored:        func() any { return new(structs.RestoredCommand) },
	structs.CmdSigningKey:      func() any { return new(structs.SigningKeyCommand) },
	structs.CmdNodeEvent:       func() any { return new(structs.NodeEventCommand) },
	structs.CmdEvalDelete:      func() any { return new(structs.EvalDeleteCommand) },
	structs.CmdBatch:           func() any { return new(structs.BatchCommand) },
	structs.CmdPlans:           func() any { return new(structs.PlansCommand) },
	structs.CmdWorkload:        func() any { return new(structs.WorkloadCommand) },
	structs.CmdRoster:          func() any { return new(structs.RosterCommand) },
	structs.CmdAcctCollect:     func() any { return new(structs.AcctCollectCommand) },
	structs.CmdQueueUpsert:     func() any { return new(structs.QueueUpsertCommand) },
	structs.CmdQueueDelete:     func() any { return new(structs.QueueDeleteCommand) },
	structs.CmdReserve:         func() any { return new(structs.ReserveCommand) },
	structs.CmdUnreserve:       func() any { return new(structs.UnreserveCommand) },
	structs.CmdQuotaUpsert:     func() any { return new(structs.QuotaUpsertCommand) },
	structs.CmdQuotaDelete:     func() any { return new(structs.QuotaDeleteCommand) },
	structs.CmdVariableSet:     func() any { return new(structs.VariableSetCommand) },
	structs.CmdVariableDelete:  func() any { return new(structs.VariableDeleteCommand) },
	structs.CmdSealKey:         func() any { return new(structs.SealKeyCommand) },
	structs.CmdNodeTaint:       func() any { return new(structs.NodeTaintCommand) },
	structs.CmdServiceDelete:   func() any { return new(structs.ServiceDeleteCommand) },
	structs.CmdJobPriority:     func() any { return new(structs.JobPriorityCommand) },
	structs.CmdSealRekey:       func() any { return new(structs.SealKeyCommand) },
	structs.CmdSealKeyDelete:   func() any { return new(structs.SealKeyDeleteCommand) },
	structs.CmdVariableReseal:  func() any { return new(structs.VariableResealCommand) },
	structs.CmdSuspend:         func() any { return new(structs.SuspendCommand) },
}

// envelope is what follows the type byte of an entry.
type envelope struct {
	Time structs.LogTime
	Seed []byte // 16 bytes, or none for the zero seed
	By   *structs.Submitter
	Body []byte // the body, packed: nested so that a server can read the envelope of a type that it does not know
}

// parts is the body of CmdBatch and CmdPlans: packed entries, packed plans.
type parts struct{ Parts [][]byte }

// UnknownCommandError says that a log entry has a type that this version does not know and may not skip.
type UnknownCommandError struct {
	Type  structs.CommandType
	Index structs.Index
}

func (e *UnknownCommandError) Error() string {
	at := ""
	if e.Index != 0 {
		at = fmt.Sprintf(" at index %d", e.Index)
	}
	return fmt.Sprintf("log entry%s has command type %d, which this version of muster does not know; run at least the version of the server that wrote it", at, e.Type)
}

// Encode makes a log entry of a command: the type byte, then canonical msgpack. It refuses a body of the wrong type and
// an entry over EntryBytesMax.
func Encode(cmd structs.Command) ([]byte, error) {
	b, err := encode(cmd, 0)
	if err != nil {
		return nil, err
	}
	if len(b) > EntryBytesMax {
		return nil, structs.Errorf(structs.CodeTooLarge, "the change takes %d bytes of log; one entry may take %d", len(b), EntryBytesMax)
	}
	return b, nil
}

// scratches are for the bodies of entries, which are copied when their length is known.
var scratches = sync.Pool{New: func() any { return new([]byte) }}

// scratchMax is what one may keep.
const scratchMax = 64 << 10

func encode(cmd structs.Command, depth int) ([]byte, error) {
	scratch := scratches.Get().(*[]byte)
	defer scratches.Put(scratch)
	body, err := appendBody((*scratch)[:0], cmd, depth)
	if err != nil {
		return nil, err
	}
	if cap(body) <= scratchMax {
		*scratch = body
	}
	env := envelope{Time: cmd.Time, Body: body}
	if cmd.Seed != (structs.Seed{}) {
		env.Seed = cmd.Seed[:]
	}
	if cmd.By != (structs.Submitter{}) {
		env.By = &cmd.By
	}
	b := make([]byte, 1, len(body)+64)
	b[0] = byte(cmd.Type)
	return pack.Append(b, &env), nil
}

// appendBody writes the body of a command after b.
func appendBody(b []byte, cmd structs.Command, depth int) ([]byte, error) {
	wrong := func() ([]byte, error) {
		return nil, structs.Errorf(structs.CodeInternal, "command type %d cannot have a body of type %T", cmd.Type, cmd.Body)
	}
	switch body := cmd.Body.(type) {
	case nil:
		return wrong()
	case *structs.PlanEntry:
		if cmd.Type != structs.CmdPlan || body == nil {
			return wrong()
		}
		return appendPlan(b, body), nil
	case *structs.PlansCommand:
		if cmd.Type != structs.CmdPlans || body == nil {
			return wrong()
		}
		p := parts{}
		for _, e := range body.Entries {
			if e == nil {
				return wrong()
			}
			p.Parts = append(p.Parts, appendPlan(nil, e))
		}
		return pack.Append(b, &p), nil
	case *structs.BatchCommand:
		if cmd.Type != structs.CmdBatch || body == nil {
			return wrong()
		}
		if depth > 0 {
			return nil, structs.Errorf(structs.CodeInternal, "a batch of commands cannot hold another batch")
		}
		p := parts{}
		for _, c := range body.Commands {
			e, err := encode(c, depth+1)
			if err != nil {
				return nil, err
			}
			p.Parts = append(p.Parts, e)
		}
		return pack.Append(b, &p), nil
	}
	mk := bodies[cmd.Type]
	if mk == nil || reflect.TypeOf(mk()) != reflect.TypeOf(cmd.Body) {
		return wrong()
	}
	return pack.Append(b, cmd.Body), nil
}

// Decode reads a log entry. An entry of an unknown type gives an *UnknownCommandError, or with IgnorableFlag a command
// without a body and no error.
func Decode(b []byte) (structs.Command, error) {
	if len(b) > EntryBytesMax {
		return structs.Command{}, fmt.Errorf("log entry of %d bytes; the limit is %d", len(b), EntryBytesMax)
	}
	return decode(b, 0)
}

func decode(b []byte, depth int) (structs.Command, error) {
	var cmd structs.Command
	if len(b) == 0 {
		return cmd, fmt.Errorf("log entry is empty; want a type byte and a body")
	}
	cmd.Type = structs.CommandType(b[0])
	mk := bodies[cmd.Type]
	if mk == nil && cmd.Type&structs.IgnorableFlag == 0 {
		return cmd, &UnknownCommandError{Type: cmd.Type}
	}
	var env envelope
	if err := pack.Decode(b[1:], &env); err != nil {
		if mk == nil {
			return cmd, nil // ignorable whatever it holds
		}
		return cmd, fmt.Errorf("log entry of command type %d: %w", cmd.Type, err)
	}
	cmd.Time = env.Time
	if len(env.Seed) != 0 {
		if len(env.Seed) != len(cmd.Seed) {
			return cmd, fmt.Errorf("log entry of command type %d: seed of %d bytes; want %d", cmd.Type, len(env.Seed), len(cmd.Seed))
		}
		copy(cmd.Seed[:], env.Seed)
	}
	if env.By != nil {
		cmd.By = *env.By
	}
	if mk == nil {
		return cmd, nil
	}
	body := mk()
	var err error
	switch body := body.(type) {
	case *structs.PlanEntry:
		err = decodePlan(env.Body, body)
	case *structs.PlansCommand:
		var p parts
		if err = pack.Decode(env.Body, &p); err != nil {
			break
		}
		for _, raw := range p.Parts {
			e := new(structs.PlanEntry)
			if err = decodePlan(raw, e); err != nil {
				break
			}
			body.Entries = append(body.Entries, e)
		}
	case *structs.BatchCommand:
		var p parts
		if err = pack.Decode(env.Body, &p); err != nil {
			break
		}
		if depth > 0 || len(p.Parts) > batchCommandsMax {
			err = fmt.Errorf("a batch may hold at most %d commands and no other batch", batchCommandsMax)
			break
		}
		for _, raw := range p.Parts {
			var c structs.Command
			if c, err = decode(raw, depth+1); err != nil {
				break
			}
			body.Commands = append(body.Commands, c)
		}
	default:
		err = pack.Decode(env.Body, body)
	}
	if err != nil {
		return cmd, fmt.Errorf("log entry of command type %d: %w", cmd.Type, err)
	}
	cmd.Body = body
	return cmd, nil
}
