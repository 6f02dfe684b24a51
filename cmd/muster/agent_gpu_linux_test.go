package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/cmd/agent"
	"github.com/muster-sched/muster/internal/fakegpu"
	"github.com/muster-sched/muster/internal/fakegpu/lib"
)

func TestMadeUpGPUs(t *testing.T) {
	t.Setenv(fakegpu.DirEnv, filepath.Join(t.TempDir(), "nowhere"))
	o := &agentOptions{gpus: "8xH100"}
	if _, err := o.devGPUs(&agent.ClientConfig{}, "m", hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "make fakegpu builds it") {
		t.Errorf("without libraries: %v", err)
	}
	t.Setenv(fakegpu.DirEnv, "")
	cfg := &agent.ClientConfig{GPU: &gpu.Config{}}
	if _, err := o.devGPUs(cfg, "m", hclog.NewNullLogger()); err != nil || cfg.GPU != nil || len(cfg.Devices) != 1 {
		t.Errorf("names only: %+v, %v", cfg, err)
	}
	if gpu.Built != "" {
		t.Skip("not run: " + gpu.Built)
	}
	dir := t.TempDir()
	if err := lib.Build(dir); errors.Is(err, lib.ErrNoCompiler) && os.Getenv("CI") == "" {
		t.Skip("not run: no C compiler")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Setenv(fakegpu.DirEnv, dir)
	cfg = &agent.ClientConfig{}
	forget, err := o.devGPUs(cfg, "m", hclog.NewNullLogger())
	if err != nil || cfg.GPU == nil || len(cfg.Devices) != 0 || filepath.Base(cfg.GPU.Library) != lib.NVML {
		t.Fatalf("with libraries: %+v, %v", cfg, err)
	}
	path := strings.TrimPrefix(cfg.GPU.Env[0], fakegpu.Env+"=")
	s, err := (&fakegpu.File{Path: path}).Read()
	if err != nil || len(s.GPUs) != 8 || s.GPUs[7].Name != "H100" {
		t.Errorf(`%+v, %v; want len(s.GPUs) = 8, s.GPUs[7].Name = "H100"`, s, err)
	}
	forget()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the state file stays: %v", err)
	}
}
