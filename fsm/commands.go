package fsm

import (
	"fmt"
	"reflect"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/structs"
)

// commands is the table of the commands that this version can read, write and carry out: number, effect and, for two of
// them, their own encoding. To add a command, declare its body in package structs, add a row, and name its gate by
// commandRow.since. A number is never reused: a retired one stays as a comment.
var commands = tableOf(
	command(1, applyJobRegister),
	command(2, applyJobDeregister),
	command(3, applyJobStable),
	command(4, applyJobTag),
	command(5, applyEvalUpsert),
	encodedCommand(6, applyPlan, appendPlan, decodePlan),
	command(7, applyNodeRegister).fromAgents(),
	command(8, applyNodePurge),
	command(9, applyNodeStatus),
	command(10, applyNodeEligibility),
	command(11, applyNodeDrain),
	command(12, applyAllocObserved).fromAgents(),
	command(13, applyAllocTransition),
	command(14, applyPoolUpsert),
	command(15, applyPoolDelete),
	command(16, applyNamespaceUpsert),
	command(17, applyNamespaceDelete),
	command(18, applyPolicyUpsert),
	command(19, applyPolicyDelete),
	command(20, applyTokenUpsert),
	command(21, applyTokenDelete),
	command(22, applyACLBootstrap),
	command(23, applyRoleUpsert),
	command(24, applyRoleDelete),
	command(25, applyOneTimeUpsert),
	command(26, applyOneTimeDelete),
	command(27, applySchedulerConfig),
	command(28, applyAutopilotConfig),
	command(29, applyPeriodicLaunch),
	command(30, applyScale),
	command(31, applyCollect),
	command(32, applyClusterInit),
	command(33, applyRestored),
	command(34, applySigningKey),
	command(35, applyNodeEvent).fromAgents(),
	command(36, applyEvalDelete),
	command(37, applyBatch), // encoded by encode and decode themselves, since it holds commands
	encodedCommand(38, applyPlans, appendPlans, decodePlans),
	command(39, applyQueueUpsert),
	command(40, applyQueueDelete),
	command(41, applyReserve),
	command(42, applyUnreserve),
	command(43, applyWorkload),
	command(44, applyRoster),
	command(45, applyAcctCollect),
	command(46, applyQuotaUpsert),
	command(47, applyQuotaDelete),
	command(48, applyVariableSet),
	command(49, applyVariableDelete),
	command(50, applySealKey),
	command(51, applyNodeTaint),
	command(52, applyServiceDelete),
	command(53, applyJobPriority),
	command(54, applySealRekey),
	command(55, applySealKeyDelete),
	command(56, applyVariableReseal),
	command(57, applySuspend),
	command(58, applyUpgradeFinish),
	command(59, applyIntroduce),
)

// commandTable finds the row of a command by its number, and by the type of its body. An unknown number or type has no
// row: nil.
type commandTable struct {
	byNumber [256]*commandRow
	byBody   map[reflect.Type]*commandRow
}

// of returns the row of a body, nil for a nil one.
func (t *commandTable) of(body structs.CommandBody) *commandRow {
	return t.byBody[reflect.TypeOf(body)]
}

// TypeOf returns the type of the commands whose body is a P.
func TypeOf[P structs.CommandBody]() structs.CommandType {
	return commands.byBody[reflect.TypeFor[P]()].typ
}

// commandRow describes one type of command. The functions get a body of the row's type.
type commandRow struct {
	typ    structs.CommandType
	format structs.Format // that must be in force
	omits  bool           // fields of later formats are left out instead of refused
	body   reflect.Type
	empty  func() structs.CommandBody
	encode func(b []byte, body structs.CommandBody) ([]byte, error) // appends to b
	decode func(b []byte, body structs.CommandBody) error
	apply  func(x *tx, body structs.CommandBody) *structs.Error
}

// command returns the row of a command whose body is packed directly.
func command[P bodyOf[B], B any](typ structs.CommandType, apply func(*tx, P) *structs.Error) *commandRow {
	return encodedCommand(typ, apply,
		func(b []byte, body P) ([]byte, error) { return pack.Append(b, body), nil },
		func(b []byte, body P) error { return pack.Decode(b, body) })
}

type bodyOf[B any] interface {
	*B
	structs.CommandBody
}

// encodedCommand returns the row of a command with its own encoding.
func encodedCommand[P bodyOf[B], B any](typ structs.CommandType, apply func(*tx, P) *structs.Error, encode func([]byte, P) ([]byte, error), decode func([]byte, P) error) *commandRow {
	return &commandRow{
		typ:    typ,
		format: feature.Oldest,
		body:   reflect.TypeFor[P](),
		empty:  func() structs.CommandBody { return P(new(B)) },
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

// since declares that a command needs a gate.
func (r *commandRow) since(g feature.Gate) *commandRow {
	r.format = g.Format
	return r
}

// fromAgents declares that agents report the body. An agent does not know the format in force: what is too new is left out.
func (r *commandRow) fromAgents() *commandRow {
	r.omits = true
	return r
}

func tableOf(rows ...*commandRow) *commandTable {
	t := &commandTable{byBody: make(map[reflect.Type]*commandRow, len(rows))}
	for _, r := range rows {
		if t.byNumber[r.typ] != nil || t.byBody[r.body] != nil {
			panic(fmt.Sprintf("fsm: two commands have the number %d or the body %s", r.typ, r.body))
		}
		t.byNumber[r.typ] = r
		t.byBody[r.body] = r
	}
	return t
}
