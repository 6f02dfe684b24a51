package fsm

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/muster-sched/muster/structs"
)

var update = flag.Bool("update", false, "write the golden entries and the golden log")

const goldens = "testdata/goldens"

// fill sets every field of a value to something that is not zero.
func fill(v reflect.Value, n int) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(n%100 + 1))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(n%100 + 1))
	case reflect.String:
		v.SetString(fmt.Sprintf("s%d", n))
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).SetUint(uint64((n+i)%255 + 1))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), n+i)
		}
	case reflect.Map:
		m := reflect.MakeMap(v.Type())
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(k, n)
		fill(e, n)
		m.SetMapIndex(k, e)
		v.Set(m)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.IsExported() && f.Tag.Get("codec") != "-" {
				fill(v.Field(i), n)
			}
			if !f.Anonymous || f.IsExported() { // not the mark of a command
				n++
			}
		}
	default:
		panic("fill: " + v.Type().String())
	}
}

// filledCommand has every field of its body set.
func filledCommand(typ structs.CommandType) structs.Command {
	cmd := structs.Command{Time: 1_700_000_000_000_000_000, Seed: structs.Seed{1, 2, 3}, By: structs.Submitter{Name: "op", UID: 1000, GID: 1000, Accessor: structs.AccessorID{9}}}
	cmd.Body = commands.byNumber[typ].empty()
	if batch, ok := cmd.Body.(*structs.BatchCommand); ok {
		for _, t := range []structs.CommandType{TypeOf[*structs.NodeStatusCommand](), TypeOf[*structs.PlanEntry]()} {
			batch.Commands = append(batch.Commands, filledCommand(t))
		}
		return cmd
	}
	fill(reflect.ValueOf(cmd.Body).Elem(), int(typ))
	return cmd
}

func commandTypes() []structs.CommandType {
	var out []structs.CommandType
	for t, row := range commands.byNumber {
		if row != nil {
			out = append(out, structs.CommandType(t))
		}
	}
	return out
}

// TestEveryCommandHasARow compares the structs that are marked as commands in package structs with the table.
func TestEveryCommandHasARow(t *testing.T) {
	var want []string
	files, err := filepath.Glob("../structs/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok && marked(spec.Type) {
				want = append(want, "*structs."+spec.Name.Name)
			}
			return true
		})
	}
	var got []string
	for _, typ := range commandTypes() {
		got = append(got, commands.byNumber[typ].body.String())
	}
	slices.Sort(want)
	slices.Sort(got)
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("the table has rows for %q, package structs marks %q as commands", got, want)
	}
}

// marked reports whether a type is a struct that embeds command.
func marked(typ ast.Expr) bool {
	s, ok := typ.(*ast.StructType)
	return ok && slices.ContainsFunc(s.Fields.List, func(f *ast.Field) bool {
		id, ok := f.Type.(*ast.Ident)
		return ok && len(f.Names) == 0 && id.Name == "command"
	})
}

// TestEveryFieldIsEncoded decodes what it encoded and wants every field back.
func TestEveryFieldIsEncoded(t *testing.T) {
	for _, typ := range commandTypes() {
		cmd := filledCommand(typ)
		data, err := Encode(cmd)
		if err != nil {
			t.Fatalf("command type %d: %v", typ, err)
		}
		back, err := Decode(data)
		if err != nil {
			t.Fatalf("command type %d: %v", typ, err)
		}
		if !reflect.DeepEqual(cmd, back) {
			t.Errorf("command type %d came back as %+v, want %+v", typ, back.Body, cmd.Body)
		}
	}
}

// TestGoldenEntries compares an entry of every command, with every field set, with its golden. A change that fails here
// makes logs of earlier builds unreadable, or read otherwise.
func TestGoldenEntries(t *testing.T) {
	for _, typ := range commandTypes() {
		data, err := Encode(filledCommand(typ))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(goldens, fmt.Sprintf("command-%03d.hex", typ))
		if *update {
			if err := errors.Join(os.MkdirAll(goldens, 0o755), os.WriteFile(path, []byte(hex.EncodeToString(data)+"\n"), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("command type %d has no golden entry (%v); make it with go test ./fsm -update", typ, err)
		}
		golden, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if !bytes.Equal(data, golden) {
			t.Errorf("command type %d is encoded as\n%x\nwant\n%x", typ, data, golden)
		}
		cmd, err := Decode(golden)
		if err != nil {
			t.Errorf("command type %d: %v", typ, err)
			continue
		}
		if again, err := Encode(cmd); err != nil || !bytes.Equal(again, golden) {
			t.Errorf("command type %d, decoded and encoded again (%v), is\n%x\nwant\n%x", typ, err, again, golden)
		}
		// Whatever the entry does to an empty state, it must not crash the server.
		New(Options{}).ApplyBatch([]Entry{{Index: 5, Data: golden}})
	}
}

// TestGoldenLog replays a log that an earlier build wrote and wants the state hash that it had (I9). A
// change of what commands do to the state needs a new state.Version, and then a new golden log.
func TestGoldenLog(t *testing.T) {
	path := filepath.Join(goldens, "log.bin")
	if *update {
		g := newGenerator(42)
		f := New(Options{})
		var log []byte
		for i := range 400 {
			g.snap = f.Snapshot()
			if i%7 == 0 {
				g.old = g.snap
			}
			data, err := Encode(g.next())
			if err != nil {
				t.Fatal(err)
			}
			f.ApplyBatch([]Entry{{Index: structs.Index(i + 2), Data: data}})
			log = binary.AppendUvarint(log, uint64(len(data)))
			log = append(log, data...)
		}
		h := f.Snapshot().Hash()
		if err := os.WriteFile(path, append(h[:], log...), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, rest := log[:32], log[32:]
	var entries []Entry
	for len(rest) > 0 {
		n, k := binary.Uvarint(rest)
		entries = append(entries, Entry{Index: structs.Index(len(entries) + 2), Data: rest[k : k+int(n)]})
		rest = rest[k+int(n):]
	}
	f := New(Options{})
	f.ApplyBatch(entries)
	if got := f.Snapshot().Hash(); !bytes.Equal(got[:], want) {
		t.Errorf("%d entries give state hash %x, want %x", len(entries), got[:8], want[:8])
	}
}

func TestEncodeRefuses(t *testing.T) {
	big := &structs.JobRegisterCommand{Job: &structs.Job{ID: "big", Payload: make([]byte, EntryBytesMax)}}
	for name, c := range map[string]structs.Command{
		"too large":    {Body: big},
		"no body":      {},
		"nil body":     {Body: (*structs.CollectCommand)(nil)},
		"nil entry":    {Body: (*structs.PlanEntry)(nil)},
		"nil plans":    {Body: (*structs.PlansCommand)(nil)},
		"nil batch":    {Body: (*structs.BatchCommand)(nil)},
		"nested batch": {Body: &structs.BatchCommand{Commands: []structs.Command{{Body: &structs.BatchCommand{}}}}},
		"nil plan":     {Body: &structs.PlansCommand{Entries: []*structs.PlanEntry{nil}}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Encode(c); err == nil {
				t.Errorf("%s: accepted", name)
			} else if name == "too large" && (structs.CodeOf(err) != structs.CodeTooLarge || !strings.Contains(err.Error(), "1048576")) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

func TestUnknownEntries(t *testing.T) {
	f := New(Options{})
	hash := f.Snapshot().Hash()
	res, _ := f.ApplyBatch([]Entry{{Index: 5, Data: []byte{0x80 | 99, 1, 2, 3}}, {Index: 6}})
	if res[0].Err != nil || f.Snapshot().Index() != 6 || f.Snapshot().Hash() != hash {
		t.Errorf("an ignorable entry gave %+v", res[0])
	}
	for _, data := range [][]byte{{99, 0x80}, {1, 0xff}, {6, 0x80}} {
		func() {
			defer func() {
				if text := fmt.Sprint(recover()); !strings.Contains(text, "index 7") {
					t.Errorf("entry %x: %q does not say where", data, text)
				}
			}()
			f.ApplyBatch([]Entry{{Index: 7, Data: data}})
		}()
	}
}

func FuzzDecode(f *testing.F) {
	for _, typ := range commandTypes() {
		data, err := Encode(filledCommand(typ))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cmd, err := Decode(data)
		if err != nil || cmd.Body == nil {
			return
		}
		again, err := Encode(cmd)
		if err != nil {
			if structs.CodeOf(err) == structs.CodeTooLarge {
				return
			}
			t.Fatalf("decoded but not encoded: %v", err)
		}
		back, err := Decode(again)
		if err != nil {
			t.Fatalf("encoded but not decoded: %v", err)
		}
		third, err := Encode(back)
		if err != nil || !bytes.Equal(again, third) {
			t.Fatalf("the encoding is not stable (%v)", err)
		}
		New(Options{}).ApplyBatch([]Entry{{Index: 5, Data: again}}) // any content must get an answer
	})
}
