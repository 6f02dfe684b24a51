// Command dist makes what a release consists of: archives for five platforms, Debian and RPM packages, container images
// and the checksums of all of them. Two runs on one commit with one toolchain make the same bytes.
//
// It is a module of its own, so that what makes packages is no dependency of the scheduler.
package main

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// glibc is the oldest C library that the Linux builds run with. They need one to load NVIDIA's driver.
const glibc = "2.34"

// compilers of C are needed for what a Linux agent asks the NVIDIA driver.
var compilers = map[string]string{"amd64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc"}

// dist is one run.
type dist struct {
	root, out string
	version   string // such as 0.1.0
	commit    string
	time      time.Time // of the commit: the time of every file
	docs      string    // directory with completions and manual pages
	publisher string    // the maintainer of packages: name and address
}

func main() {
	var d dist
	var platforms string
	flag.StringVar(&d.root, "root", "..", "the top of the tree")
	flag.StringVar(&d.out, "out", "../bin/dist", "directory to write to; it is emptied first")
	flag.StringVar(&d.commit, "commit", "", "the version that git describes")
	flag.StringVar(&d.publisher, "maintainer", "Local build <root@localhost>", "who publishes the packages, as Name <address>")
	flag.StringVar(&platforms, "platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64", "what to build")
	flag.Parse()
	if err := d.run(strings.Split(platforms, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

func (d *dist) run(platforms []string) (err error) {
	if d.version, err = release(d.root); err != nil {
		return err
	}
	if d.time, err = commitTime(d.root); err != nil {
		return err
	}
	if err := os.RemoveAll(d.out); err != nil {
		return err
	}
	work := filepath.Join(d.out, "work")
	d.docs = filepath.Join(work, "docs")
	if err := d.manual(work); err != nil {
		return err
	}
	for _, p := range platforms {
		goos, goarch, ok := strings.Cut(p, "/")
		if !ok {
			return fmt.Errorf("platform %q: want OS/ARCHITECTURE", p)
		}
		bin := filepath.Join(work, goos+"-"+goarch, "muster")
		if goos == "windows" {
			bin += ".exe"
		}
		if err := d.build(bin, goos, goarch, goos == "linux"); err != nil {
			return err
		}
		if err := d.archive(bin, goos, goarch); err != nil {
			return err
		}
		if goos != "linux" {
			continue
		}
		if err := checkLibc(bin); err != nil {
			return err
		}
		for _, format := range []string{"deb", "rpm"} {
			if err := d.pack(format, bin, goarch); err != nil {
				return err
			}
		}
		static := bin + "-static" // an image from scratch has no C library
		if err := d.build(static, goos, goarch, false); err != nil {
			return err
		}
		if err := d.image(static, goarch); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	return d.sums()
}

// release returns the version that the tree leads to.
func release(root string) (string, error) {
	b, err := os.ReadFile(filepath.Join(root, "internal/version/version.go"))
	if err != nil {
		return "", err
	}
	_, rest, ok := strings.Cut(string(b), "Version     = \"")
	v, _, end := strings.Cut(rest, "\"")
	if !ok || !end {
		return "", fmt.Errorf("internal/version/version.go has no version")
	}
	return v, nil
}

// commitTime returns SOURCE_DATE_EPOCH, else the time of the commit.
func commitTime(root string) (time.Time, error) {
	s := os.Getenv("SOURCE_DATE_EPOCH")
	if s == "" {
		out, err := exec.Command("git", "-C", root, "log", "-1", "--format=%ct").Output()
		if err != nil {
			return time.Time{}, fmt.Errorf("the time of the commit (SOURCE_DATE_EPOCH gives another one): %w", err)
		}
		s = strings.TrimSpace(string(out))
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(n, 0).UTC(), nil
}

// manual writes completions and manual pages, which a build for this machine knows.
func (d *dist) manual(work string) error {
	bin := filepath.Join(work, "host")
	if err := d.build(bin, runtime.GOOS, runtime.GOARCH, runtime.GOOS == "linux"); err != nil {
		return err
	}
	var clean []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "MUSTER_") && !strings.HasPrefix(kv, "NOMAD_") {
			clean = append(clean, kv)
		}
	}
	muster := func(args ...string) ([]byte, error) {
		c := exec.Command(bin, args...)
		c.Env, c.Stderr = clean, os.Stderr
		return c.Output()
	}
	if _, err := muster("reference", "-man", filepath.Join(d.docs, "man")); err != nil {
		return fmt.Errorf("manual pages: %w", err)
	}
	for shell, name := range map[string]string{"bash": "muster.bash", "zsh": "_muster", "fish": "muster.fish"} {
		b, err := muster("completion", shell)
		if err != nil {
			return fmt.Errorf("completion of %s: %w", shell, err)
		}
		if err := write(filepath.Join(d.docs, "completions", name), b, 0o644); err != nil {
			return err
		}
	}
	return os.Remove(bin)
}

// build compiles the program.
func (d *dist) build(out, goos, goarch string, cgo bool) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	c := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags",
		"-s -w -X github.com/muster-sched/muster/internal/version.Commit="+d.commit, "-o", out, "./cmd/muster")
	c.Dir, c.Stdout, c.Stderr = d.root, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0", "GOFLAGS=")
	if cgo {
		cc := compilers[goarch]
		if _, err := exec.LookPath(cc); err != nil && goarch == runtime.GOARCH {
			cc = "gcc"
		}
		if _, err := exec.LookPath(cc); err != nil {
			return fmt.Errorf("%s/%s: the compiler %s is missing (Debian: apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross)", goos, goarch, cc)
		}
		// -g0, because debugging data would name directories of this machine.
		c.Env = append(c.Env, "CGO_ENABLED=1", "CC="+cc, "CGO_CFLAGS=-O2 -g0 -Wno-deprecated-declarations")
	}
	if err := c.Run(); err != nil {
		return fmt.Errorf("build for %s/%s: %w", goos, goarch, err)
	}
	return nil
}

// checkLibc refuses a program that needs a newer C library than the packages declare.
func checkLibc(bin string) error {
	f, err := elf.Open(bin)
	if err != nil {
		return err
	}
	defer f.Close()
	syms, err := f.ImportedSymbols()
	if err != nil {
		return err
	}
	for _, s := range syms {
		if v, ok := strings.CutPrefix(s.Version, "GLIBC_"); ok && newer(v, glibc) {
			return fmt.Errorf("%s needs glibc %s for %s; the packages declare %s", bin, v, s.Name, glibc)
		}
	}
	return nil
}

// newer compares versions of the form 2.34.
func newer(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		x, _ := strconv.Atoi(as[i])
		y, _ := strconv.Atoi(bs[i])
		if x != y {
			return x > y
		}
	}
	return len(as) > len(bs)
}

// name returns the beginning of the name of a file of the release.
func (d *dist) name(goos, goarch string) string {
	return fmt.Sprintf("muster_%s_%s_%s", d.version, goos, goarch)
}

// sums writes SHA256SUMS, in the format of sha256sum.
func (d *dist) sums() error {
	list, err := os.ReadDir(d.out)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, e := range list { // by name
		content, err := os.ReadFile(filepath.Join(d.out, e.Name()))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		fmt.Fprintf(&b, "%s  %s\n", hex.EncodeToString(sum[:]), e.Name())
		fmt.Printf("%10d  %s\n", len(content), e.Name())
	}
	return write(filepath.Join(d.out, "SHA256SUMS"), []byte(b.String()), 0o644)
}

func write(path string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, mode)
}

// filesBelow returns the names of the files in a directory, sorted.
func filesBelow(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names, err
}
