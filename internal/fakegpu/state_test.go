package fakegpu

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	s, err := New("8xH100,4xV100,1xT4", "seed")
	if err != nil {
		t.Fatal(err)
	}
	s.Split(3, 7)
	s.Context = 1 << 28
	s.Pairs = []Pair{{0, 1, 10}}
	s.Procs = []Proc{{s.GPUs[0].UUID, 17, 0, 5, 0}, {s.MIGs[2].UUID, 18, 99, 6, 4026531836}}
	s.XIDs = []XID{{1, 0, 79, -1}, {2, 3, 95, 7}}
	s.Faults = []Fault{{"hang", "nvmlDeviceGetUUID", 0}, {"delay", "cuInit", 30}}
	s.GPUs[5].Fabric, s.GPUs[5].Clique = strings.Repeat("ab", 16), 4
	got, err := Parse(s.String())
	if err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("%v\n%s\nbecame\n%s", err, s, got)
	}
	again, _ := New("8xH100,4xV100,1xT4", "seed")
	other, _ := New("8xH100,4xV100,1xT4", "another seed")
	if again.GPUs[4].UUID != s.GPUs[4].UUID || other.GPUs[4].UUID == s.GPUs[4].UUID {
		t.Error("UUIDs do not follow the seed")
	}
	for _, bad := range []string{"gpu nothing=1", "gpu memory=x", "mig 1", "what is this", "xid 1 2", "link 1 2"} {
		if _, err := Parse("driver 1\n" + bad); err == nil || !strings.HasPrefix(err.Error(), "line 2: ") {
			t.Errorf(`%q: %v; want an error, it to begin with "line 2: "`, bad, err)
		}
	}
	for _, bad := range []string{"", "8", "0xH100", "8xNOPE", "65xT4", "1xT4:mig", "1xH100:", "1xH100:mog", "1xH100:mig=", "1xH100:mig=5g", "1xH100:mig=1", "1xH100:mig=4g+4g"} {
		if _, err := New(bad, ""); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// TestFieldsAreAll finds fields of GPU that would not be written.
func TestFieldsAreAll(t *testing.T) {
	var g GPU
	if n, want := len(g.fields()), reflect.TypeOf(g).NumField(); n != want {
		t.Errorf("%d fields are written, GPU has %d", n, want)
	}
}

func TestEditsDoNotLoseEachOther(t *testing.T) {
	s, _ := New("1xT4", "")
	f, err := Create(filepath.Join(t.TempDir(), "state"), s)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 50 {
				if err := f.XID(0, 13); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	got, err := f.Read()
	if err != nil || len(got.XIDs) != 400 || got.XIDs[399].Seq != 400 {
		t.Errorf("%d events, %v", len(got.XIDs), err)
	}
	if left, _ := filepath.Glob(f.Path + ".*tmp"); len(left) != 0 {
		t.Errorf("files stay behind: %v", left)
	}
	_ = f.Hang("a")
	_ = f.Delay("a", 3)
	_ = f.Crash("b")
	_ = f.Heal("a")
	if got, _ = f.Read(); !reflect.DeepEqual(got.Faults, []Fault{{"crash", "b", 0}}) {
		t.Errorf("faults are %v", got.Faults)
	}
	if err := (&File{filepath.Join(os.DevNull, "x")}).Edit(func(*State) {}); err == nil {
		t.Error("an impossible path was accepted")
	}
}
