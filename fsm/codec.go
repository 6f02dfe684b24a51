package fsm

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/structs"
)

// EntryBytesMax limits the size of a log entry (D9). Encode refuses a larger one before it reaches the log.
const EntryBytesMax = 1 << 20

// batchCommandsMax limits the commands of one BatchCommand.
const batchCommandsMax = 10_000

// envelope is the part of an entry after the type byte.
type envelope struct {
	Time structs.LogTime
	Seed []byte // 16 bytes, or none for the zero seed
	By   *structs.Submitter
	Body []byte // the body, packed: nested so that a server can read the envelope of an unknown type
}

// parts is the packed form of a BatchCommand or PlansCommand: its entries, each encoded separately.
type parts struct{ Parts [][]byte }

// UnreadableError reports a log entry that this build cannot apply. The server has to end, because going on without the
// entry would make its state differ from its peers' (I9).
type UnreadableError struct {
	Index structs.Index
	Newer bool // a newer release wrote it; otherwise the entry is damaged
	Err   error
}

func (e *UnreadableError) Unwrap() error { return e.Err }

func (e *UnreadableError) Error() string {
	if e.Newer {
		return fmt.Sprintf("the log entry at index %d cannot be applied: %v; run the release that wrote it, or a later one", e.Index, e.Err)
	}
	return fmt.Sprintf("the log entry at index %d cannot be read: %v; restore this server from its peers: stop it, move its data directory aside, start it again", e.Index, e.Err)
}

// errUnknownCommand is the error of a log entry of a type that this build neither knows nor may skip.
type errUnknownCommand struct{ typ structs.CommandType }

func (e errUnknownCommand) Error() string {
	return fmt.Sprintf("Muster %s does not know command type %d", feature.Here().Muster, e.typ)
}

// unreadable says why an entry cannot be applied.
func unreadable(at structs.Index, err error) *UnreadableError {
	var (
		command errUnknownCommand
		field   *pack.UnknownFieldError
		format  *feature.UnreadableError
	)
	return &UnreadableError{Index: at, Err: err, Newer: errors.As(err, &command) || errors.As(err, &field) || errors.As(err, &format)}
}

// errGate refuses a command before it is in the log.
func errGate(what string, needs, in structs.Format) error {
	return structs.Errorf(structs.CodeConflict, "%s needs format %d, and the cluster is at format %d: start every server with a release that has it, then run `muster operator upgrade finish`", what, needs, in)
}

// Encode returns the log entry of a command: the type byte, then canonical msgpack. It refuses a body that is missing, an
// entry over EntryBytesMax, and a command or a set field that needs a newer format than the one in force: a server of an
// older release could not apply it.
func Encode(cmd structs.Command, in structs.Format) ([]byte, error) {
	b, err := encode(cmd, in)
	if err != nil {
		return nil, err
	}
	if len(b) > EntryBytesMax {
		return nil, structs.Errorf(structs.CodeTooLarge, "the change takes %d bytes of log; one entry may take %d", len(b), EntryBytesMax)
	}
	return b, nil
}

// scratches holds buffers for bodies; a body is copied into the entry when its length is known.
var scratches = sync.Pool{New: func() any { return new([]byte) }}

// scratchMax is the size, in bytes, of the largest buffer that scratches keeps.
const scratchMax = 1 << 20

func encode(cmd structs.Command, in structs.Format) ([]byte, error) {
	row := commands.of(cmd.Body)
	if row == nil {
		return nil, structs.Errorf(structs.CodeInternal, "a command with a body of type %T cannot be encoded", cmd.Body)
	}
	if row.format > in {
		return nil, errGate(fmt.Sprintf("the change (%s)", row.body.Elem().Name()), row.format, in)
	}
	if needs, field := pack.Since(cmd.Body); structs.Format(needs) > in && row.omits {
		pack.Omit(cmd.Body, uint64(in))
	} else if structs.Format(needs) > in {
		return nil, errGate(fmt.Sprintf("the field %s (%s)", field, row.body.Elem().Name()), structs.Format(needs), in)
	}
	scratch := scratches.Get().(*[]byte)
	defer scratches.Put(scratch)
	body, err := appendBody((*scratch)[:0], row, cmd.Body, in)
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
	b[0] = byte(row.typ)
	return pack.Append(b, &env), nil
}

// appendBody writes a body after b.
func appendBody(b []byte, row *commandRow, body structs.CommandBody, in structs.Format) ([]byte, error) {
	batch, ok := body.(*structs.BatchCommand)
	if !ok || batch == nil {
		return row.encode(b, body)
	}
	var p parts
	for _, c := range batch.Commands {
		if commands.of(c.Body) == row {
			return nil, structs.Errorf(structs.CodeInternal, "a batch of commands cannot hold another batch")
		}
		e, err := encode(c, in)
		if err != nil {
			return nil, err
		}
		p.Parts = append(p.Parts, e)
	}
	return pack.Append(b, &p), nil
}

// Decode reads a log entry. An unknown field is an error, and so is an unknown type, unless it has IgnorableFlag: then
// the command has no body.
func Decode(b []byte) (structs.Command, error) {
	if len(b) > EntryBytesMax {
		return structs.Command{}, fmt.Errorf("log entry of %d bytes; the limit is %d", len(b), EntryBytesMax)
	}
	return decode(b)
}

func decode(b []byte) (structs.Command, error) {
	var cmd structs.Command
	if len(b) == 0 {
		return cmd, fmt.Errorf("log entry is empty; want a type byte and a body")
	}
	typ := structs.CommandType(b[0])
	row := commands.byNumber[typ]
	if row == nil && typ&structs.IgnorableFlag == 0 {
		return cmd, errUnknownCommand{typ}
	}
	var env envelope
	if err := pack.Decode(b[1:], &env); err != nil {
		if row == nil {
			return cmd, nil // ignorable, with any content
		}
		return cmd, fmt.Errorf("log entry of command type %d: %w", typ, err)
	}
	cmd.Time = env.Time
	if len(env.Seed) != 0 {
		if len(env.Seed) != len(cmd.Seed) {
			return cmd, fmt.Errorf("log entry of command type %d: seed of %d bytes; want %d", typ, len(env.Seed), len(cmd.Seed))
		}
		copy(cmd.Seed[:], env.Seed)
	}
	if env.By != nil {
		cmd.By = *env.By
	}
	if row == nil {
		return cmd, nil
	}
	body := row.empty()
	if err := decodeBody(env.Body, row, body); err != nil {
		return cmd, fmt.Errorf("log entry of command type %d: %w", typ, err)
	}
	cmd.Body = body
	return cmd, checkFormat(body)
}

// checkFormat returns an error for a command that puts a format in force which this build does not read.
func checkFormat(body structs.CommandBody) error {
	const what = "the cluster"
	switch c := body.(type) {
	case *structs.ClusterInitCommand:
		return feature.Check(what, c.Format, c.By)
	case *structs.UpgradeFinishCommand:
		return feature.Check(what, c.Format, c.By)
	}
	return nil
}

// decodeBody reads what appendBody wrote.
func decodeBody(b []byte, row *commandRow, body structs.CommandBody) error {
	batch, ok := body.(*structs.BatchCommand)
	if !ok {
		return row.decode(b, body)
	}
	var p parts
	if err := pack.Decode(b, &p); err != nil {
		return err
	}
	nested := func(raw []byte) bool { return len(raw) > 0 && structs.CommandType(raw[0]) == row.typ }
	if len(p.Parts) > batchCommandsMax || slices.ContainsFunc(p.Parts, nested) {
		return fmt.Errorf("a batch may hold at most %d commands and no other batch", batchCommandsMax)
	}
	for _, raw := range p.Parts {
		c, err := decode(raw)
		if err != nil {
			return err
		}
		batch.Commands = append(batch.Commands, c)
	}
	return nil
}
