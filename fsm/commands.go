package fsm

import (
	"fmt"

	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/structs"
)

// commands says what this version can read, write and carry out. To add a command, give its body a number in package
// structs and add a row here.
var commands = tableOf(
	command(applyJobRegister),
	command(applyJobDeregister),
	command(applyJobStable),
	command(applyJobTag),
	command(applyEvalUpsert),
	encodedCommand(applyPlan, appendPlan, decodePlan),
	command(applyNodeRegister),
	command(applyNodePurge),
	command(applyNodeStatus),
	command(applyNodeEligibility),
	command(applyNodeDrain),
	command(applyAllocObserved),
	command(applyAllocTransition),
	command(applyPoolUpsert),
	command(applyPoolDelete),
	command(applyNamespaceUpsert),
	command(applyNamespaceDelete),
	command(applyPolicyUpsert),
	command(applyPolicyDelete),
	command(applyTokenUpsert),
	command(applyTokenDelete),
	command(applyACLBootstrap),
	command(applyRoleUpsert),
	command(applyRoleDelete),
	command(applyOneTimeUpsert),
	command(applyOneTimeDelete),
	command(applySchedulerConfig),
	command(applyAutopilotConfig),
	command(applyPeriodicLaunch),
	command(applyScale),
	command(applyCollect),
	command(applyClusterInit),
	command(applyRestored),
	command(applySigningKey),
	command(applyNodeEvent),
	command(applyEvalDelete),
	command(applyBatch), // encoded by encode and decode themselves, since it holds commands
	encodedCommand(applyPlans, appendPlans, decodePlans),
	command(applyQueueUpsert),
	command(applyQueueDelete),
	command(applyReserve),
	command(applyUnreserve),
	command(applyWorkload),
	command(applyRoster),
	command(applyAcctCollect),
	command(applyQuotaUpsert),
	command(applyQuotaDelete),
	command(applyVariableSet),
	command(applyVariableDelete),
	command(applySealKey),
	command(applyNodeTaint),
	command(applyServiceDelete),
	command(applyJobPriority),
	command(applySealRekey),
	command(applySealKeyDelete),
	command(applyVariableReseal),
	command(applySuspend),
)

// commandTable holds the row of each type of command; nil for types that this version does not know.
type commandTable [256]*commandRow

// commandRow is one type of command. The functions get a body of the row's type.
type commandRow struct {
	typ    structs.CommandType
	empty  func() structs.CommandBody
	encode func(b []byte, body structs.CommandBody) ([]byte, error) // appends to b
	decode func(b []byte, body structs.CommandBody) error
	apply  func(x *tx, body structs.CommandBody) *structs.Error
}

// command is the row of a command whose body is packed as it is.
func command[P bodyOf[B], B any](apply func(*tx, P) *structs.Error) *commandRow {
	return encodedCommand(apply,
		func(b []byte, body P) ([]byte, error) { return pack.Append(b, body), nil },
		func(b []byte, body P) error { return pack.Decode(b, body) })
}

type bodyOf[B any] interface {
	*B
	structs.CommandBody
}

// encodedCommand is the row of a command with an encoding of its own.
func encodedCommand[P bodyOf[B], B any](apply func(*tx, P) *structs.Error, encode func([]byte, P) ([]byte, error), decode func([]byte, P) error) *commandRow {
	return &commandRow{
		typ:   structs.CommandTypeOf[P](),
		empty: func() structs.CommandBody { return P(new(B)) },
		encode: func(b []byte, body structs.CommandBody) ([]byte, error) {
			if body.(P) == nil {
				return nil, structs.Errorf(structs.CodeInternal, "a command has a nil %T for a body", body)
			}
			return encode(b, body.(P))
		},
		decode: func(b []byte, body structs.CommandBody) error { return decode(b, body.(P)) },
		apply:  func(x *tx, body structs.CommandBody) *structs.Error { return apply(x, body.(P)) },
	}
}

func tableOf(rows ...*commandRow) *commandTable {
	t := new(commandTable)
	for _, r := range rows {
		if t[r.typ] != nil {
			panic(fmt.Sprintf("fsm: two commands have the number %d", r.typ))
		}
		t[r.typ] = r
	}
	return t
}
