package agentconfig

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// CheckMachine checks that the operator's commands can be run on this machine. Without it a missing one would show with
// the first allocation and drain node after node as allocations move.
func (c *Config) CheckMachine() error {
	if !c.Client.Enabled {
		return nil
	}
	var errs problems
	h := &c.Client.Hooks
	for _, p := range []struct {
		key     string
		command []string
	}{
		{"client.hooks.prolog.command", h.Prolog.Command},
		{"client.hooks.epilog.command", h.Epilog.Command},
		{"client.hooks.health.command", h.Health.Command},
		{"client.gpu_pressure.command.command", c.Client.GPUPressure.Command.Command},
	} {
		if len(p.command) == 0 {
			continue
		}
		if err := runnable(p.command[0]); err != nil {
			errs.add(c.at(p.key), "%s: %q cannot be run on this machine: %v", p.key, p.command[0], err)
		}
	}
	return errs.err()
}

// xOK makes access check whether a file may be executed: its mode, and the options of the file system's mount.
const xOK = 1

// runnable returns an error with the reason if a program cannot be run.
func runnable(path string) error {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return cause(err)
	case st.IsDir():
		return fmt.Errorf("it is a directory")
	case !st.Mode().IsRegular():
		return fmt.Errorf("it is not a file")
	}
	if err := syscall.Access(path, xOK); err != nil {
		if st.Mode()&0o111 == 0 {
			return fmt.Errorf("it is not executable (mode %04o)", st.Mode().Perm())
		}
		return fmt.Errorf("it is not executable here: %w", err)
	}
	interpreter, err := interpreterOf(path)
	if err != nil || !filepath.IsAbs(interpreter) {
		return nil // it may be executable without being readable
	}
	if _, err := os.Stat(interpreter); err != nil {
		return fmt.Errorf("its interpreter %q: %w", interpreter, cause(err))
	}
	return nil
}

// cause returns an error of a path without the path.
func cause(err error) error {
	if e, ok := err.(*os.PathError); ok {
		return e.Err
	}
	return err
}

// interpreterMax is how many bytes of a first line the kernel reads.
const interpreterMax = 256

// interpreterOf returns the program that the first line of a script names, or "" for a file that is no script. A
// carriage return is part of the name, as for the kernel.
func interpreterOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	line, err := bufio.NewReader(io.LimitReader(f, interpreterMax)).ReadString('\n')
	if err != nil && err != io.EOF {
		return "", err
	}
	rest, ok := strings.CutPrefix(line, "#!")
	if !ok {
		return "", nil
	}
	words := strings.FieldsFunc(rest, func(r rune) bool { return r == ' ' || r == '\t' || r == '\n' })
	if len(words) == 0 {
		return "", nil
	}
	return words[0], nil
}
