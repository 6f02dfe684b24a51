package wire

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestDecodeUnknownFields(t *testing.T) {
	var r JobRegisterRequest
	unknown, err := Decode([]byte(`{"Job": {"id": "x", "Prioritty": 3, "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Resources": {"MemroyMB": 3}, "Config": {"anything": {"goes": 1}}}]}]}, "Bogus": 1}`), &r)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`unknown field Bogus`,
		`unknown field Job.Prioritty; did you mean "Priority"?`,
		`unknown field Job.TaskGroups[0].Tasks[0].Resources.MemroyMB; did you mean "MemoryMB"?`,
	}
	if strings.Join(unknown, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %q", unknown)
	}
	if got := val(r.Job.ID); got != "x" {
		t.Errorf(`names must match whatever their case: got %q, want "x"`, got)
	}
}

// What the search for unknown fields passes over does not confuse it.
func TestDecodeUnknownFieldsPassesOver(t *testing.T) {
	var r JobRegisterRequest
	unknown, err := Decode([]byte(` {"B\u006fgus" : {"a":[1,{"x":"}]"}],"b":"\\\"{"} , "Job":{"Meta":{"a\"b":"c","":"}"},"TaskGroups":[null,{"Nam":-1.5e3,"Tasks":[]},{"Count":2,"Zz":[]}],
		"Periodic":null,"Qq":true}, "":null} `), &r)
	if err != nil {
		t.Fatal(err)
	}
	want := "unknown field |unknown field Bogus|unknown field Job.Qq|unknown field Job.TaskGroups[1].Nam; did you mean \"Name\"?|unknown field Job.TaskGroups[2].Zz"
	if got := strings.Join(unknown, "|"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Of very many mistakes the first are listed, and looking for the others costs next to nothing.
func TestMistakesAreListedUpToALimit(t *testing.T) {
	var b strings.Builder
	for i := range 150_000 {
		fmt.Fprintf(&b, `"f%06d":0,`, i)
	}
	var r JobRegisterRequest
	unknown, err := Decode([]byte(`{"Job":{`+b.String()+`"ID":"x"}}`), &r)
	if err != nil || len(unknown) != unknownKeysKept+1 || unknown[0] != "unknown field Job.f000000" || unknown[unknownKeysKept] != "... and 149950 more unknown fields" {
		t.Errorf("%d unknown fields, %.300q %v", len(unknown), unknown, err)
	}
	r.Job.Datacenters = make([]string, 150_000)
	if _, p := Prepare(r.Job); len(p.Errors) > 2*problemsMax || !strings.HasPrefix(p.Err().Error(), "150002 errors occurred:") || !strings.Contains(p.Err().Error(), fmt.Sprintf("\n\t* ... and %d more\n", 150_002-len(p.Errors))) || len(p.Err().Error()) > 64*problemsMax*2 {
		t.Errorf("%d errors: %.300s", len(p.Errors), p.Err())
	}
}

func BenchmarkDecode(b *testing.B) {
	body := []byte(`{"Job":{"ID":"x","Name":"x","Type":"service","Datacenters":["*"],"TaskGroups":[{"Name":"g","Count":1,"EphemeralDisk":{"SizeMB":10},"Tasks":[{"Name":"t","Driver":"fake","LogConfig":{"MaxFiles":1,"MaxFileSizeMB":1},"Config":{"command":"sleep"},"Resources":{"CPU":1,"MemoryMB":10}}]}]}}`)
	b.ReportAllocs()
	for b.Loop() {
		var r JobRegisterRequest
		if _, err := Decode(body, &r); err != nil {
			b.Fatal(err)
		}
	}
}

func TestDecodeErrors(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{``, "the body is empty"},
		{`{"Job":`, "ends too early"},
		{`{"Job": {"Priority": "high"}}`, "line 1, column 28: Job.Priority: want a whole number, got a JSON string"},
		{"{\n\"Job\": x}", "line 2, column 8: not JSON"},
		{`{} {}`, "more than one JSON value"},
		{strings.Repeat("[", 1000), "nested deeper than 128 levels"},
		{`{"Job":{"TaskGroups":[` + strings.Repeat("{},", 700_000) + `{}]}}`, "column 300017: more than 200000 values"},
		{`{"Job": {"Reschedule": {"Delay": "soon"}}}`, `"soon" is not a duration`},
		{`{"Job": {"Affinities": [{"Weight": 300}]}}`, "want a whole number from -128 to 127"},
	} {
		t.Run(c.want, func(t *testing.T) {
			var r JobRegisterRequest
			_, err := Decode([]byte(c.in), &r)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%.40s: got %v, want %s", c.in, err, c.want)
			}
		})
	}
}

func TestDurations(t *testing.T) {
	var j Job
	if _, err := Decode([]byte(`{"Reschedule": {"Delay": "1h30m", "Interval": 5000000000, "MaxDelay": "2d"}}`), &j); err != nil {
		t.Fatal(err)
	}
	r := j.Reschedule
	if r.Delay.D() != 90*time.Minute || r.Interval.D() != 5*time.Second || r.MaxDelay.D() != 48*time.Hour {
		t.Errorf("%+v; want r.Delay.D() = %v, r.Interval.D() = %v, r.MaxDelay.D() = %v", r, 90*time.Minute, 5*time.Second, 48*time.Hour)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"Job": {"ID": "x", "TaskGroups": [{"Name": "g", "Volumes": {"a": null}, "Tasks": [null, {}]}]}}`))
	f.Add([]byte(`{"Job": {"Periodic": {"Spec": "@hourly"}, "TaskGroups": [null]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r JobRegisterRequest
		if _, err := Decode(b, &r); err != nil {
			return
		}
		out, p := Prepare(r.Job)
		if (out == nil) != (len(p.Errors) > 0) {
			t.Fatalf("a job without errors must convert: %v", p.Errors)
		}
	})
}
