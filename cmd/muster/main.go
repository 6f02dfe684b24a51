// Command muster is the whole of Muster: agent, command line and the small processes that agents start.
package main

import "os"

func main() {
	maybeChild()
	os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr))
}
