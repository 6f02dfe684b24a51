package supervisor

import (
	"bufio"
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"net/rpc"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

// fill sets every exported field that v has to something other than zero.
func fill(t *testing.T, v reflect.Value, r *rand.Rand) {
	t.Helper()
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(0, r.Int64()).UTC()))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(t, v.Field(i), r)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), r)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(t, v.Index(i), r)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(t, k, r)
		fill(t, e, r)
		v.SetMapIndex(k, e)
	case reflect.String:
		v.SetString(string(rune('a'+r.IntN(26))) + "\x00ä")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1 + r.Int64N(1<<40))
	case reflect.Uint8:
		v.SetUint(7)
	case reflect.Uint32:
		v.SetUint(1 + r.Uint64N(1<<30))
	case reflect.Uint64:
		v.SetUint(1 + r.Uint64())
	default:
		t.Fatalf("a field of type %s", v.Type())
	}
}

// TestFramesCarryEverything sends every type that is called with, full and zero: a field that is added later and not
// carried fails here.
func TestFramesCarryEverything(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, v := range []any{new(Spec), new(Reply), new(Hello), new(Nothing), new(WaitArgs), new(SignalArgs), new(string)} {
		for _, full := range []bool{true, false} {
			if full {
				fill(t, reflect.ValueOf(v).Elem(), r)
			} else {
				reflect.ValueOf(v).Elem().SetZero()
			}
			arg := v
			if _, reply := v.(*Reply); !reply {
				arg = reflect.ValueOf(v).Elem().Interface() // as clients pass arguments
			}
			b, err := appendValue(nil, arg)
			if err != nil {
				t.Fatal(err)
			}
			got := reflect.New(reflect.TypeOf(v).Elem())
			if err := decodeValue(b, got.Interface()); err != nil {
				t.Fatalf("%T: %v", v, err)
			}
			if !reflect.DeepEqual(got.Interface(), v) {
				t.Errorf("%T went as %+v and came as %+v", v, v, got.Interface())
			}
		}
	}
}

type rwc struct {
	io.Reader
	io.Writer
}

func (rwc) Close() error { return nil }

// TestBrokenFrames reads what no peer of ours writes: it is an error, and nothing is allocated for it.
func TestBrokenFrames(t *testing.T) {
	var b bytes.Buffer
	w := &frames{c: rwc{nil, &b}}
	if err := w.write(9, "Supervisor.Wait", "an error", WaitArgs{ID: "a", Max: time.Second}); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	read := func(b []byte) error {
		f := &frames{r: bufio.NewReader(bytes.NewReader(b))}
		seq, method, failure, err := f.read()
		if err == nil && (seq != 9 || method != "Supervisor.Wait" || failure != "an error") && bytes.Equal(b, whole) {
			t.Errorf("%d %q %q", seq, method, failure)
		}
		if err != nil {
			return err
		}
		return f.take(new(WaitArgs))
	}
	if err := read(whole); err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		if read(whole[:n]) == nil {
			t.Errorf("the first %d of %d bytes pass for a frame", n, len(whole))
		}
	}
	for i := range whole { // no byte makes it panic
		for _, x := range []byte{0, 1, 0x7f, 0x80, 0xff} {
			c := bytes.Clone(whole)
			c[i] = x
			_ = read(c)
		}
	}
}

// TestOtherBuilds lets an agent that knows no frames call a supervisor of today, and an agent of today one that knows
// none.
func TestOtherBuilds(t *testing.T) {
	s := newSup(t)
	if _, err := s.Hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !s.hello.Frames {
		t.Fatalf("hello %+v", s.hello)
	}
	nc, err := net.Dial("unix", filepath.Join(s.dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	old := rpc.NewClient(nc)
	defer old.Close()
	var h Hello
	if err := old.Call(serviceName+".Hello", Nothing{}, &h); err != nil || h.PID != s.hello.PID || h.Protocol != protocol {
		t.Fatalf("%+v, %v", h, err)
	}
	var r Reply
	if err := old.Call(serviceName+".Start", *s.spec("g", "exit 3"), &r); err != nil || r.Kind != "" || r.Status.PID == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if e := s.wait("g"); e.Code != 3 { // in frames
		t.Errorf("%+v", e)
	}

	dir, err := os.Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	h.Frames = false
	if faster(old, h, dir) != old {
		t.Error("frames are used with a supervisor that does not tell of them")
	}
	h.Frames, h.PID = true, 1 // another one has taken the socket meanwhile
	if faster(old, h, dir) != old {
		t.Error("the connection of frames is another supervisor's")
	}
	if err := old.Call(serviceName+".Wait", WaitArgs{ID: "g", Max: time.Second}, &r); err != nil || !r.Status.Ended || r.Status.Exit.Code != 3 {
		t.Errorf("%+v, %v", r, err)
	}

	bad, err := net.Dial("unix", filepath.Join(s.dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	if _, err := io.WriteString(bad, "\x00MF9"); err != nil {
		t.Fatal(err)
	}
	if _, err := bad.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a form of later builds is answered with %v", err)
	}
}
