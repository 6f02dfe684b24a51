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
	"strconv"
	"strings"
	"testing"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/golden"
	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/structs"
)

var update = flag.Bool("update", false, "write the golden entries and the golden log")

// goldens has a directory for each format: an entry of each command that is new or has new fields in it, a log, and the
// snapshot of the state that the log makes.
const goldens = "testdata/formats"

// formats lists the formats that this build writes.
func formats() (out []structs.Format) {
	for f := feature.Oldest; f <= feature.Newest; f++ {
		out = append(out, f)
	}
	return out
}

func file(f structs.Format, name string) string {
	return filepath.Join(goldens, fmt.Sprint(f), name)
}

// fill sets every field of a value that a format has to something that is not zero. A field of a later format takes no
// number, so that the values of an old format stay when a field is added.
func fill(v reflect.Value, n int, in structs.Format) {
	if of := pack.Expands(v.Type()); of != nil {
		x := reflect.New(of).Elem()
		fill(x, n, in)
		pack.Compact(v, x)
		return
	}
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
			fill(v.Index(i), n+i, in)
		}
	case reflect.Map:
		m := reflect.MakeMap(v.Type())
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(k, n, in)
		fill(e, n, in)
		m.SetMapIndex(k, e)
		v.Set(m)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n, in)
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if sinceOf(f) > in {
				continue
			}
			if f.IsExported() && f.Tag.Get("codec") != "-" {
				fill(v.Field(i), n, in)
			}
			if !f.Anonymous || f.IsExported() { // not the mark of a command
				n++
			}
		}
	default:
		panic("fill: " + v.Type().String())
	}
}

// sinceOf returns the format that a field needs.
func sinceOf(f reflect.StructField) structs.Format {
	n, _ := strconv.ParseUint(f.Tag.Get("since"), 10, 64)
	return structs.Format(n)
}

// filledCommand has every field of its body set that a format has.
func filledCommand(typ structs.CommandType, in structs.Format) structs.Command {
	cmd := structs.Command{Time: 1_700_000_000_000_000_000, Seed: structs.Seed{1, 2, 3}, By: structs.Submitter{Name: "op", UID: 1000, GID: 1000, Accessor: structs.AccessorID{9}}}
	cmd.Body = commands.byNumber[typ].empty()
	if batch, ok := cmd.Body.(*structs.BatchCommand); ok {
		for _, t := range []structs.CommandType{TypeOf[*structs.NodeStatusCommand](), TypeOf[*structs.PlanEntry]()} {
			batch.Commands = append(batch.Commands, filledCommand(t, in))
		}
		return cmd
	}
	fill(reflect.ValueOf(cmd.Body).Elem(), int(typ), in)
	switch body := cmd.Body.(type) { // a format that this build reads
	case *structs.ClusterInitCommand:
		body.Format = feature.Oldest
	case *structs.UpgradeFinishCommand:
		body.Format = feature.Oldest
	}
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
		cmd := filledCommand(typ, feature.Newest)
		data, err := Encode(cmd, feature.Newest)
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

// TestGoldenEntries compares an entry of every command, with every field of a format set, with its golden. A change that
// fails here makes logs of earlier builds unreadable, or read otherwise.
func TestGoldenEntries(t *testing.T) {
	for _, typ := range commandTypes() {
		var last []byte // of the format before
		for _, in := range formats() {
			if commands.byNumber[typ].format > in {
				continue
			}
			data, err := Encode(filledCommand(typ, in), in)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(data, last) {
				golden.Compare(t, file(in, fmt.Sprintf("command-%03d.hex", typ)), []byte(hex.EncodeToString(data)+"\n"), *update)
			}
			last = data
			cmd, err := Decode(data)
			if err != nil {
				t.Errorf("command type %d: %v", typ, err)
				continue
			}
			if again, err := Encode(cmd, in); err != nil || !bytes.Equal(again, data) {
				t.Errorf("command type %d, decoded and encoded again (%v), is\n%x\nwant\n%x", typ, err, again, data)
			}
			// Whatever the entry does to an empty state, it must not crash the server.
			New(Options{}).ApplyBatch([]Entry{{Index: 5, Data: data}})
		}
	}
}

// TestGoldenLog replays the log of every format and wants the state hash and the snapshot that an earlier build had (I9).
// A change of what commands do to the state needs a gate.
func TestGoldenLog(t *testing.T) {
	for _, in := range formats() {
		path := file(in, "log.bin")
		if *update && !golden.Frozen(t, path) {
			golden.Write(t, path, makeLog(t, in))
		}
		log, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		entries := readLog(log[32:])
		f := New(Options{})
		if _, _, err := f.ApplyBatch(entries); err != nil {
			t.Fatal(err)
		}
		if got := f.Snapshot().Hash(); !bytes.Equal(got[:], log[:32]) {
			t.Errorf("format %d: %d entries give state hash %x, want %x; what Apply makes of an entry must not change: %s", in, len(entries), got[:8], log[:8], golden.Raise)
		}
		var snap bytes.Buffer
		if err := WriteSnapshot(&snap, f.Snapshot()); err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, file(in, "snapshot.bin"), snap.Bytes(), *update)
		restoreAndRaise(t, in, snap.Bytes())
	}
}

// restoreAndRaise restores the snapshot of a format, and finishes the upgrade to the newest.
func restoreAndRaise(t *testing.T, in structs.Format, snap []byte) {
	t.Helper()
	f := New(Options{})
	if _, err := f.Restore(bytes.NewReader(snap)); err != nil {
		t.Fatalf("format %d: %v", in, err)
	}
	if f.Snapshot().Format() != in {
		t.Errorf("the snapshot of format %d puts format %d in force", in, f.Snapshot().Format())
	}
	data, err := Encode(structs.Command{Time: f.Snapshot().Time(), Body: &structs.UpgradeFinishCommand{Format: feature.Newest, By: "test"}}, in)
	if err != nil {
		t.Fatal(err)
	}
	res, _, err := f.ApplyBatch([]Entry{{Index: f.Snapshot().Index() + 1, Data: data}})
	if err != nil || (res[0].Err == nil) != (in < feature.Newest) {
		t.Fatalf("raised from format %d: %v, %v", in, res[0].Err, err)
	}
	var again bytes.Buffer
	if err := WriteSnapshot(&again, f.Snapshot()); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{}).Restore(&again); err != nil || f.Snapshot().Hash() != f.Snapshot().Rehash() {
		t.Errorf("raised from format %d: the snapshot gives %v", in, err)
	}
}

// makeLog makes a log of commands of a format, after the hash of the state that they make.
func makeLog(t *testing.T, in structs.Format) []byte {
	t.Helper()
	g := newGenerator(42)
	f := New(Options{})
	var log []byte
	write := func(cmd structs.Command) {
		data, err := Encode(cmd, in)
		if err != nil && structs.CodeOf(err) == structs.CodeConflict {
			return // of a later format
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.ApplyBatch([]Entry{{Index: f.Snapshot().Index() + 1, Data: data}}); err != nil {
			t.Fatal(err)
		}
		log = binary.AppendUvarint(log, uint64(len(data)))
		log = append(log, data...)
	}
	write(structs.Command{Time: g.now, Body: &structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: in, By: "golden"}})
	for i := range 400 {
		g.snap = f.Snapshot()
		if i%7 == 0 {
			g.old = g.snap
		}
		write(g.next())
	}
	h := f.Snapshot().Hash()
	return append(h[:], log...)
}

func readLog(log []byte) (entries []Entry) {
	for len(log) > 0 {
		n, k := binary.Uvarint(log)
		entries = append(entries, Entry{Index: structs.Index(len(entries) + 2), Data: log[k : k+int(n)]})
		log = log[k+int(n):]
	}
	return entries
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
			if _, err := Encode(c, feature.Newest); err == nil {
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
	res, _, _ := f.ApplyBatch([]Entry{{Index: 5, Data: []byte{0x80 | 99, 1, 2, 3}}, {Index: 6}})
	if res[0].Err != nil || f.Snapshot().Index() != 6 || f.Snapshot().Hash() != hash {
		t.Errorf("an ignorable entry gave %+v", res[0])
	}
	newer := append([]byte{byte(TypeOf[*structs.JobStableCommand]())}, pack.Append(nil, &envelope{Body: pack.Append(nil, &struct{ JobID, Unheard string }{"j", "of"})})...)
	raised, err := encode(structs.Command{Body: &structs.UpgradeFinishCommand{Format: feature.Newest + 1, By: "9.9.9"}}, feature.Newest)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		data []byte
		want []string
	}{
		{[]byte{99, 0x80}, []string{"command type 99", "run the release that wrote it"}},
		{[]byte{1, 0xff}, []string{"move its data directory aside"}},
		{[]byte{6, 0x80}, []string{"move its data directory aside"}},
		{newer, []string{`no field "Unheard"`, "run the release that wrote it"}},
		{raised, []string{"cannot be undone", "Muster 9.9.9 or later"}},
	} {
		var bad *UnreadableError
		_, _, err := f.ApplyBatch([]Entry{{Index: 7, Data: c.data}})
		if !errors.As(err, &bad) || strings.Contains(err.Error(), "\n") {
			t.Errorf("entry %x: got %v, want one sentence", c.data, err)
			continue
		}
		for _, want := range append(c.want, "index 7") {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("entry %x: %q does not say %q", c.data, err, want)
			}
		}
		if f.Snapshot().Index() != 6 {
			t.Errorf("entry %x: the state is at index %d", c.data, f.Snapshot().Index())
		}
	}
}

// laterBody is a known command with a field of a later format.
type laterBody struct {
	structs.EvalDeleteCommand
	Unheard string `since:"99"`
}

// TestGates wants a command of a later format, and a field of one, to be refused before they are in the log.
func TestGates(t *testing.T) {
	later := feature.Gate{Name: "later", Format: feature.Newest + 1, Allows: "it"}
	was := commands
	defer func() { commands = was }()
	none := func(*tx, *structs.EvalDeleteCommand) *structs.Error { return nil }
	commands = tableOf(command(36, none).since(later), command(37, applyBatch), command(38, func(*tx, *laterBody) *structs.Error { return nil }))
	cmd := structs.Command{Body: &structs.EvalDeleteCommand{}}
	for name, c := range map[string]structs.Command{
		"a command":          cmd,
		"in a batch":         {Body: &structs.BatchCommand{Commands: []structs.Command{cmd}}},
		"a field":            {Body: &laterBody{Unheard: "of"}},
		"a field in a batch": {Body: &structs.BatchCommand{Commands: []structs.Command{{Body: &laterBody{Unheard: "of"}}}}},
	} {
		_, err := Encode(c, feature.Newest)
		if structs.CodeOf(err) != structs.CodeConflict || !strings.Contains(err.Error(), "muster operator upgrade finish") {
			t.Errorf("%s: got %v, want a refusal that says what to do", name, err)
		}
	}
	reported := &laterBody{Unheard: "of"}
	commands.byBody[reflect.TypeOf(reported)].fromAgents()
	if _, err := Encode(structs.Command{Body: reported}, feature.Newest); err != nil || reported.Unheard != "" {
		t.Errorf("a field that an agent reports: %v, want it left out", err)
	}
	if _, err := Encode(structs.Command{Body: &laterBody{}}, feature.Newest); err != nil {
		t.Errorf("a field that is not set: %v", err)
	}
	saved := structs.Command{Body: &structs.PlansCommand{Entries: []*structs.PlanEntry{{Evals: []*structs.Evaluation{{FailedGroups: []*structs.GroupReport{{
		Refusals: []structs.Refusal{{CuredBy: structs.EventSaved}}}}}}}}}}
	commands = was
	if _, err := Encode(saved, feature.EventSaved.Format-1); structs.CodeOf(err) != structs.CodeConflict || !strings.Contains(err.Error(), "CuredBy, which is saved, ") {
		t.Errorf("an event of a later format: %v", err)
	}
	if _, err := Encode(saved, feature.EventSaved.Format); err != nil {
		t.Errorf("an event of the format in force: %v", err)
	}
	if structs.EventSaved.Since() != uint64(feature.EventSaved.Format) {
		t.Errorf("the event needs format %d, its gate %d", structs.EventSaved.Since(), feature.EventSaved.Format)
	}
	commands = tableOf(command(36, none).since(later))
	data, err := Encode(cmd, later.Format)
	if err != nil {
		t.Fatal(err)
	}
	if res, _, err := New(Options{}).ApplyBatch([]Entry{{Index: 5, Data: data}}); err != nil || res[0].Err == nil {
		t.Errorf("a command of a later format than the one in force was applied: %+v, %v", res, err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, typ := range commandTypes() {
		data, err := Encode(filledCommand(typ, feature.Newest), feature.Newest)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 16<<10 { // longer ones find nothing else, and take most of the time
			return
		}
		cmd, err := Decode(data)
		if err != nil || cmd.Body == nil {
			return
		}
		again, err := Encode(cmd, feature.Newest)
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
		third, err := Encode(back, feature.Newest)
		if err != nil || !bytes.Equal(again, third) {
			t.Fatalf("the encoding is not stable (%v)", err)
		}
		New(Options{}).ApplyBatch([]Entry{{Index: 5, Data: again}}) // any content must get an answer
	})
}
