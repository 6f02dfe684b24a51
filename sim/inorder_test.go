package sim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A trace in any order and format is replayed like the sorted one: all metrics are equal.
func TestAnyOrderOfRows(t *testing.T) {
	for _, c := range []struct {
		format, head string
		row          func(i, at int) string
		o            Options
	}{
		{"csv", "job,submit,runtime,gpus,user", func(i, at int) string { return fmt.Sprintf("j%d,%d,%d,%d,u%d", i, at, 50+i*7%300, 1<<(i%4), i%3) }, Options{Nodes: "2x8"}},
		{"swf", "job,submit,run,procs,req,user", func(i, at int) string {
			return fmt.Sprintf("%d,%d,%d,%d,%d,%d", i, at, 50+i*7%300, 1+i%9, 400, i%3)
		}, Options{Procs: 10}},
		{"swf", "; a log", func(i, at int) string {
			return fmt.Sprintf("%d %d -1 %d %d -1 -1 -1 400 -1 1 %d 1 1 1 1 -1 -1", i, at, 50+i*7%300, 1+i%9, i%3)
		}, Options{Procs: 10}},
		{"muri", "job,gpus,submit_s,iterations,iter_s,model", func(i, at int) string { return fmt.Sprintf("j%d,%d,%d,%d,1,vgg16", i, 1<<(i%5), at, 50+i*7%300) }, Options{Nodes: "2x8"}},
	} {
		var rows []string
		for i := range 80 {
			rows = append(rows, c.row(i, 1000+i*13))
		}
		var want string
		for round := range 3 {
			switch round {
			case 1:
				slices.Reverse(rows)
			case 2:
				d := draws{5}
				for i := range rows {
					k := i + d.intn(len(rows)-i)
					rows[i], rows[k] = rows[k], rows[i]
				}
			}
			o := c.o
			o.Format, o.Trace = c.format, filepath.Join(t.TempDir(), "trace")
			if err := os.WriteFile(o.Trace, []byte(c.head+"\n"+strings.Join(rows, "\n")+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			rs, err := Run(context.Background(), &o)
			if err != nil {
				t.Fatalf("%s: %v", c.format, err)
			}
			got := ""
			for _, f := range rs[0].Figures {
				if f.Name != "wall_s" && f.Name != "overhead" {
					got += fmt.Sprintln(f.Name, f.Value)
				}
			}
			if round == 0 {
				want = got
			} else if got != want {
				t.Errorf("%s, round %d:\n%s\nin order:\n%s", c.format, round, got, want)
			}
			if v, _ := rs[0].Get("done"); v != 80 {
				t.Errorf("%s: %v of 80 jobs are done", c.format, v)
			}
		}
	}
}

// What a log leaves open is -1: without a limit the run time is the limit, the processors that were held stand for those
// asked for, and a job that cannot be replayed is left out and counted.
func TestUnknownFields(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	for kind, text := range map[string]string{
		"plain": "1 -1 -1 10 1 -1 -1 1 10 -1 1 1 1 1 1 1 -1 -1\n2 0 -1 -1 1 -1 -1 1 10 -1 1 1 1 1 1 1 -1 -1\n3 0 -1 10 -1 -1 -1 -1 10 -1 1 1 1 1 1 1 -1 -1\n" +
			"4 5 -1 10 3 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1\n5 5 -1 0 9 -1 -1 9 -1 -1 1 1 1 1 1 1 -1 -1\n",
		"csv": "job,submit,run,procs,req,user\n1,-1,10,1,10,1\n2,0,-1,1,10,1\n3,0,10,,10,1\n4,5,10,3,-1,-1\n5,5,0,9,,\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var ran []string
		o := &Options{Trace: name, Format: "swf", Procs: 4}
		src, err := openSWFJobs(o)
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		_, err = runSWF(context.Background(), o, "easy", src, func(l *Live) {
			ran = append(ran, fmt.Sprintf("%s:%v/%v:%d", l.Key.ID, l.Run, l.Job.Job.RunLimit(l.Job.Job.Groups[0]), l.Size))
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(ran)
		if got, want := strings.Join(ran, " "), "4:10s/10s:3 5:1s/1s:4"; got != want || src.rows.LeftOut != 3 || src.rows.Origin != 5*time.Second {
			t.Errorf("%s: ran %s and left out %d; want %s and 3; origin %v", kind, got, src.rows.LeftOut, want, src.rows.Origin)
		}
	}
}
