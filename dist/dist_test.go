package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The tests look at what `make dist` has made, in DIST.
func made(t *testing.T, pattern string) string {
	dir := os.Getenv("DIST")
	if dir == "" {
		t.Skip("not run: DIST does not name a directory that make dist has written (make dist-check)")
	}
	list, _ := filepath.Glob(filepath.Join(dir, pattern))
	if len(list) != 1 {
		t.Fatalf("%s: %q; want one file", pattern, list)
	}
	return list[0]
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestSums checks that SHA256SUMS has every file.
func TestSums(t *testing.T) {
	path := made(t, "SHA256SUMS")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), "\n"); n != len(list)-1 || n < 4 {
		t.Errorf("%d sums of %d files", n, len(list)-1)
	}
	c := exec.Command("sha256sum", "-c", "SHA256SUMS")
	c.Dir = filepath.Dir(path)
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}
}

// TestSameBytes packs one program twice.
func TestSameBytes(t *testing.T) {
	work := t.TempDir()
	if err := write(filepath.Join(work, "docs/man/muster.1"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"muster.bash", "_muster", "muster.fish"} {
		if err := write(filepath.Join(work, "docs/completions", n), []byte(n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(work, "muster")
	if err := write(bin, []byte("program"), 0o700); err != nil {
		t.Fatal(err)
	}
	sums := func() string {
		d := &dist{root: "..", out: t.TempDir(), version: "1.2.3", commit: "abc", time: time.Unix(1e9, 0).UTC(), docs: filepath.Join(work, "docs"), publisher: "Ann <ann@example.org>"}
		for _, err := range []error{d.archive(bin, "linux", "amd64"), d.archive(bin, "windows", "amd64"), d.pack("deb", bin, "amd64"),
			d.pack("rpm", bin, "amd64"), d.image(bin, "amd64"), d.sums()} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := exec.LookPath("dpkg-deb"); err == nil {
			if who := command(t, "dpkg-deb", "-f", filepath.Join(d.out, "muster_1.2.3-1_amd64.deb"), "Maintainer"); who != "Ann <ann@example.org>\n" {
				t.Errorf("the maintainer of the package is %q", who)
			}
		}
		b, err := os.ReadFile(filepath.Join(d.out, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	first := sums()
	for begin := time.Now().Unix(); time.Now().Unix() == begin; { // a clock in a file would have moved
		time.Sleep(50 * time.Millisecond)
	}
	if second := sums(); first != second || strings.Count(first, "\n") != 5 {
		t.Errorf("two runs differ:\n%s\n%s", first, second)
	}
}

// TestDebian installs, upgrades, removes and purges the package below a directory of its own.
func TestDebian(t *testing.T) {
	deb := made(t, "*_amd64.deb")
	if _, err := exec.LookPath("dpkg"); err != nil || os.Geteuid() != 0 {
		t.Skip("not run: it needs dpkg and root")
	}
	root := t.TempDir()
	in := func(name string) string { return filepath.Join(root, name) }
	for _, dir := range []string{"updates", "info"} {
		if err := os.MkdirAll(in("var/lib/dpkg/"+dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(in("var/lib/dpkg/status"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	dpkg := func(args ...string) string {
		t.Helper()
		return command(t, "dpkg", append([]string{"--root=" + root, "--force-script-chrootless", "--force-depends", "--force-confold"}, args...)...)
	}
	exists := func(name string) bool { _, err := os.Stat(in(name)); return err == nil }
	dpkg("-i", deb)
	for name, mode := range map[string]os.FileMode{
		"usr/bin/muster": 0o755, "etc/muster.d": 0o750, "etc/muster.d/muster.hcl": 0o640, "var/lib/muster": 0o711,
		"usr/lib/systemd/system/muster.service": 0o644, "usr/share/man/man1/muster-job-run.1": 0o644,
		"usr/share/bash-completion/completions/muster": 0o644, "usr/share/doc/muster/copyright": 0o644,
	} {
		if st, err := os.Stat(in(name)); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want mode %v", name, st, err, mode)
		}
	}
	if links, _ := filepath.Glob(in("etc/systemd/system/*/muster.service")); len(links) > 0 {
		t.Errorf("the installation has enabled the agent: %q", links)
	}
	// Until an operator has said what the machine is, the agent does not start: that is the only complaint.
	out, err := exec.Command(in("usr/bin/muster"), "config", "validate", in("etc/muster.d")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "neither server nor client is enabled") || strings.Count(string(out), "\n") != 2 {
		t.Errorf("config validate: %v\n%s", err, out)
	}
	if err := os.WriteFile(in("etc/muster.d/muster.hcl"), []byte("# mine\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"etc/muster.d/mine.hcl", "var/lib/muster/state"} {
		if err := os.WriteFile(in(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dpkg("-i", deb) // an upgrade
	if b, err := os.ReadFile(in("etc/muster.d/muster.hcl")); err != nil || string(b) != "# mine\n" {
		t.Errorf("after an upgrade the configuration is %q, %v", b, err)
	}
	dpkg("-r", "muster")
	if exists("usr/bin/muster") || !exists("etc/muster.d/muster.hcl") || !exists("var/lib/muster/state") {
		t.Error("removing must take the program, and leave configuration and state")
	}
	dpkg("-P", "muster")
	if exists("etc/muster.d/muster.hcl") || !exists("etc/muster.d/mine.hcl") || !exists("var/lib/muster/state") {
		t.Error("purging must take the package's configuration, and leave state and an operator's own files")
	}
}

// TestRPMInstalled installs, upgrades and removes the package below a directory of its own, in which its scripts find a shell.
func TestRPMInstalled(t *testing.T) {
	pkg := made(t, "*.x86_64.rpm")
	if _, err := exec.LookPath("rpm"); err != nil || os.Geteuid() != 0 {
		t.Skip("not run: it needs rpm and root")
	}
	root := t.TempDir()
	in := func(name string) string { return filepath.Join(root, name) }
	exists := func(name string) bool { _, err := os.Stat(in(name)); return err == nil }
	for _, file := range append([]string{"/bin/sh"}, regexp.MustCompile(`/\S+`).FindAllString(command(t, "ldd", "/bin/sh"), -1)...) {
		if err := os.MkdirAll(in(filepath.Dir(file)), 0o755); err != nil {
			t.Fatal(err)
		}
		command(t, "cp", "-L", file, in(file))
	}
	rpm := func(args ...string) {
		t.Helper()
		command(t, "rpm", append([]string{"--root=" + root, "--dbpath=/var/lib/rpm", "--nodeps"}, args...)...)
	}
	rpm("-i", pkg)
	for name, mode := range map[string]os.FileMode{
		"usr/bin/muster": 0o755, "etc/muster.d": 0o750, "etc/muster.d/muster.hcl": 0o640, "var/lib/muster": 0o711,
		"usr/lib/systemd/system/muster.service": 0o644, "usr/share/man/man1/muster-job-run.1": 0o644,
	} {
		if st, err := os.Stat(in(name)); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want mode %v", name, st, err, mode)
		}
	}
	if links, _ := filepath.Glob(in("etc/systemd/system/*/muster.service")); len(links) > 0 {
		t.Errorf("the installation has enabled the agent: %q", links)
	}
	if out := command(t, in("usr/bin/muster"), "version"); !strings.Contains(out, "Muster") {
		t.Errorf("muster version: %q", out)
	}
	for name, text := range map[string]string{"etc/muster.d/muster.hcl": "# mine\n", "etc/muster.d/mine.hcl": "", "var/lib/muster/state": ""} {
		if err := os.WriteFile(in(name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	rpm("-U", "--replacepkgs", pkg) // an upgrade
	if b, err := os.ReadFile(in("etc/muster.d/muster.hcl")); err != nil || string(b) != "# mine\n" {
		t.Errorf("after an upgrade the configuration is %q, %v", b, err)
	}
	rpm("-e", "muster")
	if exists("usr/bin/muster") || exists("usr/lib/systemd/system/muster.service") || !exists("etc/muster.d/muster.hcl.rpmsave") || !exists("etc/muster.d/mine.hcl") || !exists("var/lib/muster/state") {
		t.Error("removing must take the program, and leave what the operator wrote, and state")
	}
}

// TestRPM checks the RPM package with rpm, without installing it.
func TestRPM(t *testing.T) {
	rpm := made(t, "*.x86_64.rpm")
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Skip("not run: rpm is not installed")
	}
	command(t, "rpm", "-K", "--nosignature", rpm)
	if out := strings.TrimSpace(command(t, "rpm", "-qpc", rpm)); out != "/etc/muster.d/muster.hcl" {
		t.Errorf("configuration files: %q", out)
	}
	files := command(t, "rpm", "-qplv", rpm)
	for _, want := range []string{"-rwxr-xr-x    1 root     root", "drwxr-x---", " /usr/lib/systemd/system/muster.service\n", " /usr/share/man/man1/muster-job-run.1\n"} {
		if !strings.Contains(files, want) {
			t.Errorf("no %q in\n%.1000s", want, files)
		}
	}
	if out := command(t, "rpm", "-qp", "--scripts", rpm); strings.Contains(out, "systemctl start") || strings.Contains(out, "enable --now") {
		t.Errorf("the scripts start the agent:\n%s", out)
	}
}

// TestUnit has systemd check the unit, alone and with the drop-in of servers.
func TestUnit(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("not run: systemd-analyze is not installed")
	}
	dir := t.TempDir()
	unit, err := os.ReadFile("files/muster.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nKillMode=process\n", "\nDelegate=yes\n", "\nLimitNOFILE="} {
		if !strings.Contains(string(unit), want) {
			t.Errorf("the unit lacks %q", want)
		}
	}
	for _, l := range strings.Split(string(unit), "\n") {
		key, _, _ := strings.Cut(l, "=")
		for _, p := range []string{"Protect", "Private", "Restrict", "NoNewPrivileges", "SystemCall", "MemoryDenyWriteExecute"} {
			if strings.HasPrefix(key, p) {
				t.Errorf("%s: tasks would inherit it", l)
			}
		}
	}
	// Neither the program nor its manual has to be installed here.
	text := strings.NewReplacer("/usr/bin/muster", "/bin/true", "Documentation=man:muster-agent(1)\n", "").Replace(string(unit))
	dropIn, err := os.ReadFile("files/server-only.conf")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "muster.service")
	for _, conf := range []string{"", string(dropIn)} {
		if err := write(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if conf != "" {
			if err := write(path+".d/server-only.conf", []byte(conf), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := exec.Command(analyze, "verify", "--man=no", path).CombinedOutput(); err != nil || strings.Contains(string(out), "muster.service") {
			t.Errorf("systemd-analyze verify: %v\n%s", err, out)
		}
	}
	if out, err := exec.Command(analyze, "security", "--help").CombinedOutput(); err != nil || !strings.Contains(string(out), "--offline") {
		t.Log("not run: this systemd-analyze does not rate units that are not loaded")
		return
	}
	// What a server that runs no tasks exposes, from 0 to 10; systemd calls less than 5 ok.
	if out, err := exec.Command(analyze, "security", "--offline=true", "--threshold=25", path).CombinedOutput(); err != nil {
		t.Errorf("with server-only.conf the unit exposes more than 2.5: %v\n%s", err, out)
	}
}

// TestArchives lists what each archive must hold.
func TestArchives(t *testing.T) {
	path := made(t, "muster_*_linux_amd64.tar.gz")
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	gz, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(h.Name, "/")
		names = append(names, name)
	}
	check := func(names []string, program string) {
		t.Helper()
		list := "\n" + strings.Join(names, "\n") + "\n"
		for _, want := range []string{program, "LICENSE", "completions/muster.bash", "completions/_muster", "completions/muster.fish", "man/man1/muster-job-run.1"} {
			if !strings.Contains(list, "\n"+want+"\n") {
				t.Errorf("%s lacks %s", path, want)
			}
		}
	}
	check(names, "muster")
	if list, _ := filepath.Glob(filepath.Join(os.Getenv("DIST"), "*.zip")); len(list) > 0 {
		z, err := zip.OpenReader(list[0])
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		names = names[:0]
		for _, f := range z.File {
			_, name, _ := strings.Cut(f.Name, "/")
			names = append(names, name)
		}
		check(names, "muster.exe")
	}
}

// TestImage follows the image from its index to its layer and runs the program in it.
func TestImage(t *testing.T) {
	path := made(t, "*_linux_amd64_image.tar")
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	parts := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(b); strings.HasPrefix(h.Name, "blobs/sha256/") && h.Typeflag == tar.TypeReg && hex.EncodeToString(sum[:]) != filepath.Base(h.Name) {
			t.Errorf("%s does not have the content of its name", h.Name)
		}
		parts[h.Name] = b
	}
	var index struct{ Manifests []blob }
	var manifest struct {
		Config blob
		Layers []blob
	}
	if err := json.Unmarshal(parts["index.json"], &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("index.json: %+v, %v", index, err)
	}
	if err := json.Unmarshal(parts[index.Manifests[0].path()], &manifest); err != nil || len(manifest.Layers) != 1 || len(parts[manifest.Config.path()]) != manifest.Config.Size {
		t.Fatalf("manifest: %+v, %v", manifest, err)
	}
	layer := filepath.Join(t.TempDir(), "layer.tar")
	if err := os.WriteFile(layer, parts[manifest.Layers[0].path()], 0o644); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	command(t, "tar", "-C", root, "--no-same-owner", "-xf", layer)
	if os.Geteuid() != 0 {
		t.Skip("not run: chroot into the image needs root")
	}
	if out := command(t, "chroot", root, "/muster", "version"); !strings.Contains(out, "Muster v") {
		t.Errorf("the program of the image prints %q", out)
	}
}

// TestImageInAnEngine loads the image into a Docker Engine and runs the program there, as the image's own user.
func TestImageInAnEngine(t *testing.T) {
	image := made(t, "*_linux_amd64_image.tar")
	daemon, err := exec.LookPath("dockerd")
	_, none := exec.LookPath("docker")
	if err != nil || none != nil || os.Geteuid() != 0 {
		t.Skip("not run: it needs dockerd and docker (Debian package docker.io) and root")
	}
	dir, err := os.MkdirTemp("", "muster-dist-") // short: paths of sockets end at 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + filepath.Base(dir)) // version 1; version 2 is one level up
		for _, g := range append(groups, "/sys/fs/cgroup/"+filepath.Base(dir)) {
			_ = os.Remove(g)
		}
		_ = os.RemoveAll(dir)
	})
	if err := write(filepath.Join(dir, "daemon.json"), []byte("{}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	host := "unix://" + dir + "/d.sock"
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	engine := exec.Command(daemon, "--host", host, "--config-file", dir+"/daemon.json", "--data-root", dir+"/data", "--exec-root", dir+"/exec", "--pidfile", dir+"/d.pid",
		"--storage-driver", "vfs", "--iptables=false", "--ip6tables=false", "--bridge=none", "--cgroup-parent", "/"+filepath.Base(dir))
	engine.Stdout, engine.Stderr = log, log
	if err := engine.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- engine.Wait() }()
	t.Cleanup(func() {
		_ = engine.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = engine.Process.Kill()
		}
	})
	docker := func(args ...string) (string, error) {
		out, err := exec.Command("docker", append([]string{"-H", host}, args...)...).CombinedOutput()
		return string(out), err
	}
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		if out, err := docker("version"); err == nil {
			break
		} else if time.Since(begin) > 60*time.Second {
			b, _ := os.ReadFile(log.Name())
			t.Fatalf("the engine does not answer: %v\n%s\n%s", err, out, b)
		}
	}
	out, err := docker("load", "-i", image)
	_, tag, found := strings.Cut(strings.TrimSpace(out), "Loaded image: ")
	if err != nil || !found || !strings.HasPrefix(tag, "muster:") {
		t.Fatalf("docker load: %v\n%s", err, out)
	}
	if out, err := docker("run", "--rm", "--network", "none", tag, "version"); err != nil || !strings.Contains(out, "Muster v") {
		t.Errorf("docker run %s version: %v\n%s", tag, err, out)
	}
	if out, err := docker("inspect", "-f", "{{.Config.User}}", tag); err != nil || strings.TrimSpace(out) != "65532:65532" {
		t.Errorf("the user of the image: %v, %s", err, out)
	}
}
