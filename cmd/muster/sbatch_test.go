package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestDirectives(t *testing.T) {
	for script, want := range map[string]string{
		"#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH -N 2\n#SBATCH --gpus-per-node=h100:8\n#SBATCH -t 1-02:00:00\n#SBATCH --mem=64G   # a lot\n\nsrun x\n#SBATCH -p late\n": "[[name train] [nodes 2] [gpus h100:8] [time 26h] [mem 64G]] []",
		"#!/bin/sh\n#SBATCH --gres=gpu:2 -c4 --mail-user me@x --exclusive\n#SBATCH -a 0-9%2 -p gpu -A ml -o %j.out\n":                                                          "[[gpus 2] [cores 4] [array 0-9%2] [pool gpu] [queue ml] [log %j.out]] [--mail-user --exclusive]",
		"#SBATCH --dependency=afterok:prep:fetch\n#SBATCH -G 1\n#SBATCH -n 4\n#SBATCH --requeue\n":                                                                             "[[depends prep,fetch] [gpus 1] [ranks 4] [requeue 10]] []",
		"#SBATCH -d afterany:a\n#SBATCH -N2 -G 16\n#SBATCH -d singleton\n#SBATCH --gres=disk:1\n":                                                                              "[[depends a:completed] [nodes 2]] [-G -d --gres]",
		"#SBATCHX -N 2\n##SBATCH -N 2\necho\n": "[] []",
		"":                                     "[] []",
	} {
		options, unknown := directives(script)
		if got := fmt.Sprint(options, unknown); got != want {
			t.Errorf("%q:\ngot  %s\nwant %s", script, got, want)
		}
	}
}

func TestSlurmTime(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"90": 90 * time.Minute, "10:30": 10*time.Minute + 30*time.Second, "00:10:00": 10 * time.Minute, "2-12": 60 * time.Hour, "1-00:30": 24*time.Hour + 30*time.Minute,
		"": 0, "x": 0, "1:2:3:4": 0, "0": 0, "-1": 0, "1-": 0,
	} {
		if got, ok := slurmTime(s); got != want && ok || ok != (want > 0) {
			t.Errorf("%q is %v (%v), want %v", s, got, ok, want)
		}
	}
}

// TestRunOfSbatchScript: who runs a script of Slurm hears which options it lacks, and only those.
func TestRunOfSbatchScript(t *testing.T) {
	script := filepath.Join(t.TempDir(), "job.sbatch")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n#SBATCH --gres=gpu:2\n#SBATCH -t 00:10:00\n#SBATCH --mail-user me\necho\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := newAgentFake(t)
	r := f.run(t, "", "run", "-detach", "-time", "5m", "--", script, "a b")
	if want := "  muster run -gpus 2 -detach -time 5m0s -- " + script + " 'a b'\n  (nothing stands for --mail-user)\n"; !strings.Contains(r.errOut, "#SBATCH lines, which are not read") || !strings.Contains(r.errOut, want) {
		t.Errorf("%d %s\nwant %s", r.code, r.errOut, want)
	}
	if r := f.run(t, "", "run", "-time", "00:10:00", "--", script); !strings.Contains(r.errOut, "did you mean 10m?") {
		t.Error(r.errOut)
	}
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if r := f.run(t, "", "run", "-detach", "--", script); strings.Contains(r.errOut, "SBATCH") {
		t.Errorf("a script without such lines: %s", r.errOut)
	}
}
