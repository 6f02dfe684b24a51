package main

import (
	"strings"
)

// tasks measures real processes: how many short ones are started and finished a second, and what a running one costs.
func tasks(string, bool) {
	res := goBench("./client/supervisor", "BenchmarkShortTasks|BenchmarkRunningTask", "3s")
	cmd := "go test -run '^$' -bench ShortTasks ./client/supervisor"
	for name, m := range res {
		for unit, v := range m {
			switch {
			case strings.Contains(unit, "tasks/s"):
				row("real processes started and finished (true): "+strings.TrimPrefix(name, "Benchmark"), format(v)+" a second", ">= 400/s", "Slurm 80/s", cmd)
			case strings.Contains(unit, "KiB"):
				row("memory of a running task: "+unit, format(v)+" KiB", "<= 2 MiB", "-", cmd)
			}
		}
	}
}
