package fsm

import (
	"fmt"
	"slices"
	"sync"

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

// UnknownCommandError reports a log entry of a type that this version neither knows nor may skip.
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

// Encode returns the log entry of a command: the type byte, then canonical msgpack. It refuses a body that is missing
// and an entry over EntryBytesMax.
func Encode(cmd structs.Command) ([]byte, error) {
	b, err := encode(cmd)
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
const scratchMax = 64 << 10

func encode(cmd structs.Command) ([]byte, error) {
	row := commands.of(cmd.Body)
	if row == nil {
		return nil, structs.Errorf(structs.CodeInternal, "a command with a body of type %T cannot be encoded", cmd.Body)
	}
	scratch := scratches.Get().(*[]byte)
	defer scratches.Put(scratch)
	body, err := appendBody((*scratch)[:0], row, cmd.Body)
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
func appendBody(b []byte, row *commandRow, body structs.CommandBody) ([]byte, error) {
	batch, ok := body.(*structs.BatchCommand)
	if !ok || batch == nil {
		return row.encode(b, body)
	}
	var p parts
	for _, c := range batch.Commands {
		if commands.of(c.Body) == row {
			return nil, structs.Errorf(structs.CodeInternal, "a batch of commands cannot hold another batch")
		}
		e, err := encode(c)
		if err != nil {
			return nil, err
		}
		p.Parts = append(p.Parts, e)
	}
	return pack.Append(b, &p), nil
}

// Decode reads a log entry. For an unknown type it returns an *UnknownCommandError, or with IgnorableFlag a command
// without a body and no error.
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
		return cmd, &UnknownCommandError{Type: typ}
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
	return cmd, nil
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
