// Package lib builds the fake driver libraries of package fakegpu with the system's C compiler.
package lib

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed src
var src embed.FS

// Names of the libraries.
const (
	NVML = "libnvidia-ml.so.1"
	CUDA = "libcuda.so.1"
)

// ErrNoCompiler is returned when the machine has no C compiler.
var ErrNoCompiler = errors.New("no C compiler")

// Flags are the compiler flags of every compilation.
var Flags = []string{"-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"}

// Build builds both libraries into dir, without the symbols named absent, as an older driver lacks them.
func Build(dir string, absent ...string) error {
	work, err := os.MkdirTemp("", "fakegpu-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := Sources(work); err != nil {
		return err
	}
	script := filepath.Join(work, "version.map")
	local := "{ };\n"
	if len(absent) > 0 {
		local = "{ local: " + strings.Join(absent, "; ") + "; };\n"
	}
	if err := os.WriteFile(script, []byte(local), 0o644); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, l := range []struct{ name, source string }{{NVML, "nvml.c"}, {CUDA, "cuda.c"}} {
		args := []string{"-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-Bsymbolic-functions", "-Wl,-soname," + l.name, "-o", filepath.Join(dir, l.name), filepath.Join(work, l.source), "-lpthread"}
		if len(absent) > 0 {
			args = append(args, "-Wl,--version-script="+script)
		}
		if err := Compile(args...); err != nil {
			return err
		}
	}
	return nil
}

// Sources writes the C sources into dir.
func Sources(dir string) error {
	list, err := src.ReadDir("src")
	if err != nil {
		return err
	}
	for _, e := range list {
		b, err := src.ReadFile("src/" + e.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Compile runs the compiler ($CC, or cc) with Flags and args.
func Compile(args ...string) error {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	path, err := exec.LookPath(cc)
	if err != nil {
		return fmt.Errorf("%w: %s is not on the PATH", ErrNoCompiler, cc)
	}
	out, err := exec.Command(path, append(append([]string{}, Flags...), args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", cc, strings.Join(args, " "), err, out)
	}
	return nil
}
