package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
)

// replay is a trace under one policy: the arguments of `muster sim`, separated by blanks.
type replay string

// figures are those of a replay, by name.
type figures map[string]float64

// run replays a trace.
func (r replay) run(ctx context.Context, bin string) (figures, error) {
	args := append([]string{"sim", "-json"}, strings.Fields(string(r))...)
	cmd := exec.CommandContext(ctx, bin, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	fmt.Fprintf(os.Stderr, "muster %s\n", strings.Join(args, " "))
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("muster %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	for s := bufio.NewScanner(&out); s.Scan(); {
		var raw map[string]any
		if json.Unmarshal(s.Bytes(), &raw) != nil {
			continue
		}
		got := figures{}
		for k, v := range raw {
			if f, ok := v.(float64); ok {
				got[k] = f
			}
		}
		return got, nil
	}
	return nil, fmt.Errorf("muster %s printed no figures", strings.Join(args, " "))
}

// runAll runs each replay once, one per processor at a time.
func runAll(ctx context.Context, bin string, list []replay) (map[replay]figures, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	got := map[replay]figures{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := make(chan replay)
	for range runtime.NumCPU() {
		wg.Go(func() {
			for r := range next {
				f, err := r.run(ctx, bin)
				if err != nil {
					stop(err)
				}
				mu.Lock()
				got[r] = f
				mu.Unlock()
			}
		})
	}
	begun := map[replay]bool{}
	for _, r := range list {
		if !begun[r] && ctx.Err() == nil {
			begun[r] = true
			next <- r
		}
	}
	close(next)
	wg.Wait()
	return got, context.Cause(ctx)
}

// num is a figure with as many digits as matter.
func num(v float64) string {
	if v < 1000 {
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	s := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
