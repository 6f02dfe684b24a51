//go:build !linux

package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// What runs on nodes and servers needs Linux. A build for another system is the command line of a laptop: these commands
// say so there, and no file that it is built from imports the packages behind them.

func maybeChild() {}

func newAgent(e *env) *cobra.Command {
	return linuxOnly("agent", "Run an agent: a server, a client, or both (on Linux)")
}

func newNodesim(e *env) *cobra.Command {
	return linuxOnly("nodesim", "Run many simulated nodes in one process (on Linux)")
}

func newRaftMigrate(e *env) *cobra.Command {
	return linuxOnly("migrate-backend", "Convert the raft log of a stopped server to another backend (on Linux)")
}

// linuxOnly makes a command that takes anything and says where it runs.
func linuxOnly(use, short string) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, DisableFlagParsing: true, DisableFlagsInUseLine: true}
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return fmt.Errorf("%s runs on Linux; from here, point MUSTER_ADDR or -address at an agent that runs there", cmd.CommandPath())
	}
	return c
}
