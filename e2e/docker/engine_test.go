//go:build e2e

// Package docker runs the docker driver end to end: a real engine, a real agent, images of our own.
package docker

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/muster-sched/muster/e2e/harness"
)

// engine is a Docker Engine of the test's own.
type engine struct {
	t    *testing.T
	dir  string
	bin  string
	cmd  *exec.Cmd
	done chan struct{}
	api  *client.Client
}

// newEngine starts an engine; it is ended, and everything it ran, when the test ends.
func newEngine(t *testing.T) *engine {
	t.Helper()
	if os.Geteuid() != 0 {
		harness.NotRun(t, "the engine needs root")
	}
	bin := os.Getenv("MUSTER_E2E_DOCKERD")
	if bin == "" {
		var err error
		if bin, err = exec.LookPath("dockerd"); err != nil {
			harness.NotRun(t, "there is no dockerd (Debian package docker.io)")
		}
	}
	dir, err := os.MkdirTemp("", "muster-docker-") // short: paths of sockets end at 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{t: t, dir: dir, bin: bin}
	t.Cleanup(e.close)
	if e.api, err = client.New(client.WithHost(e.host())); err != nil {
		t.Fatal(err)
	}
	e.start()
	return e
}

func (e *engine) host() string { return "unix://" + e.dir + "/d.sock" }

func (e *engine) start() {
	e.t.Helper()
	log, err := os.OpenFile(filepath.Join(e.dir, "engine.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		e.t.Fatal(err)
	}
	defer log.Close()
	if err := os.WriteFile(filepath.Join(e.dir, "daemon.json"), []byte("{}\n"), 0o644); err != nil {
		e.t.Fatal(err)
	}
	args := []string{
		"--host", e.host(), "--config-file", e.dir + "/daemon.json", "--data-root", e.dir + "/data", "--exec-root", e.dir + "/exec", "--pidfile", e.dir + "/d.pid",
		"--storage-driver", "vfs", "--iptables=false", "--ip6tables=false", "--bridge=none", "--live-restore", "--cgroup-parent", "/" + filepath.Base(e.dir),
	}
	if extra := os.Getenv("MUSTER_E2E_DOCKERD_ARGS"); extra != "" {
		args = append(args, strings.Fields(extra)...)
	}
	e.cmd = exec.Command(e.bin, args...)
	e.cmd.Stdout, e.cmd.Stderr = log, log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := e.cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.done = make(chan struct{})
	go func(c *exec.Cmd, done chan struct{}) {
		_ = c.Wait()
		close(done)
	}(e.cmd, e.done)
	harness.Eventually(e.t, 60*time.Second, "the engine to answer", func() (bool, string) {
		select {
		case <-e.done:
			e.t.Fatalf("the engine has ended:\n%s", e.logTail())
		default:
		}
		_, err := e.api.Ping(context.Background(), client.PingOptions{})
		return err == nil, fmt.Sprint(err)
	})
}

// kill ends the engine with -9; containers go on.
func (e *engine) kill() {
	_ = e.cmd.Process.Kill()
	<-e.done
}

// sawOOM says whether the engine reported between two moments that a container ran out of memory.
func (e *engine) sawOOM(t *testing.T, from, to time.Time) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	res := e.api.Events(ctx, client.EventsListOptions{
		Since: from.Format(time.RFC3339Nano), Until: to.Format(time.RFC3339Nano), Filters: make(client.Filters).Add("event", "oom"),
	})
	select {
	case <-res.Messages:
		return true
	case err := <-res.Err:
		if err != io.EOF {
			t.Fatal(err)
		}
		return false
	}
}

func (e *engine) logTail() string {
	b, _ := os.ReadFile(filepath.Join(e.dir, "engine.log"))
	return string(b[max(0, len(b)-4000):])
}

func (e *engine) close() {
	if e.t.Failed() {
		e.t.Logf("---- the engine's last lines\n%s", e.logTail())
	}
	if e.cmd != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		if all, err := e.api.ContainerList(ctx, client.ContainerListOptions{All: true}); err == nil {
			for _, c := range all.Items {
				_, _ = e.api.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true})
			}
		}
		cancel()
		_ = e.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-e.done:
		case <-time.After(20 * time.Second):
			e.kill()
		}
	}
	harness.KillBelow(e.t, e.dir)
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + filepath.Base(e.dir)) // version 1; version 2 is one level up
	for _, g := range append(groups, "/sys/fs/cgroup/"+filepath.Base(e.dir)) {
		_ = os.Remove(g)
	}
	_ = os.RemoveAll(e.dir)
}

// imageTar returns the file system of an image with our one program.
func imageTar(t *testing.T) []byte {
	t.Helper()
	box := filepath.Join(t.TempDir(), "box")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", box, "./testdata/box")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build box: %v\n%s", err, out)
	}
	b, err := os.ReadFile(box)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range []struct {
		name string
		mode int64
		body []byte
	}{{"box", 0o755, b}, {"etc/", 0o755, nil}, {"etc/passwd", 0o644, []byte("root:x:0:0:root:/:/box\nuser:x:1234:1234:user:/:/box\n")}, {"etc/group", 0o644, []byte("root:x:0:\nuser:x:1234:\n")}, {"tmp/", 0o777, nil}} {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.body)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write(f.body)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// build makes an image of the tar.
func (e *engine) build(fs []byte, name string, changes ...string) {
	e.t.Helper()
	res, err := e.api.ImageImport(context.Background(), client.ImageImportSource{Source: bytes.NewReader(fs), SourceName: "-"}, name, client.ImageImportOptions{Changes: changes})
	if err != nil {
		e.t.Fatal(err)
	}
	defer res.Close()
	if b, err := io.ReadAll(res); err != nil || bytes.Contains(b, []byte(`"error"`)) {
		e.t.Fatalf("build %s: %v %s", name, err, b)
	}
}

// registry serves one image, slowly if asked to, to clients with the password if there is one.
type registry struct {
	addr     string
	password string

	mu     sync.Mutex
	pulls  int
	blobs  map[string][]byte
	types  map[string]string
	pauses time.Duration // before each 256 KiB of a layer
}

// newRegistry serves the image as "app", with the tag v1.
func newRegistry(t *testing.T, fs []byte) *registry {
	t.Helper()
	r := &registry{blobs: map[string][]byte{}, types: map[string]string{}}
	digest := func(b []byte) string {
		s := sha256.Sum256(b)
		return "sha256:" + hex.EncodeToString(s[:])
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(fs)
	z.Close()
	layer := zipped.Bytes()
	config, _ := json.Marshal(map[string]any{
		"architecture": goarch(), "os": "linux", "config": map[string]any{"Entrypoint": []string{"/box"}, "Cmd": []string{"echo", "hello"}, "Env": []string{"NVIDIA_VISIBLE_DEVICES=all"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(fs)}},
	})
	const kind = "application/vnd.docker.distribution.manifest.v2+json"
	manifest, _ := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": kind,
		"config": map[string]any{"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config), "digest": digest(config)},
		"layers": []any{map[string]any{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "size": len(layer), "digest": digest(layer)}},
	})
	r.blobs[digest(config)], r.blobs[digest(layer)] = config, layer
	r.blobs["v1"], r.blobs[digest(manifest)] = manifest, manifest
	r.types["v1"], r.types[digest(manifest)] = kind, kind
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	srv := &http.Server{Handler: r}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close() })
	return r
}

func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	password, pauses := r.password, r.pauses
	r.mu.Unlock()
	if _, pass, _ := req.BasicAuth(); password != "" && pass != password {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
		return
	}
	if req.URL.Path == "/v2/" {
		return
	}
	parts := strings.Split(req.URL.Path, "/")
	r.mu.Lock()
	b, ok := r.blobs[parts[len(parts)-1]]
	if strings.HasSuffix(req.URL.Path, "/manifests/v1") && req.Method == http.MethodGet {
		r.pulls++
	}
	r.mu.Unlock()
	if !ok || !strings.HasPrefix(req.URL.Path, "/v2/app/") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`)
		return
	}
	sum := sha256.Sum256(b)
	w.Header().Set("Docker-Content-Digest", "sha256:"+hex.EncodeToString(sum[:]))
	if kind := r.types[parts[len(parts)-1]]; kind != "" {
		w.Header().Set("Content-Type", kind)
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(b)))
	if req.Method == http.MethodHead {
		return
	}
	for len(b) > 0 {
		n := min(len(b), 256<<10)
		if pauses > 0 && len(b) > n {
			time.Sleep(pauses)
		}
		if _, err := w.Write(b[:n]); err != nil {
			return
		}
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		b = b[n:]
	}
}

func goarch() string {
	out, _ := exec.Command("go", "env", "GOARCH").Output()
	return strings.TrimSpace(string(out))
}

func readAll(r io.Reader) ([]byte, error) { return io.ReadAll(r) }
