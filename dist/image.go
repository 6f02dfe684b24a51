package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
)

// user of the image, who is nobody in particular.
const imageUser = 65532

type blob struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int    `json:"size"`

	content []byte
}

func newBlob(kind string, content []byte) blob {
	sum := sha256.Sum256(content)
	return blob{kind, "sha256:" + hex.EncodeToString(sum[:]), len(content), content}
}

func (b blob) path() string { return "blobs/sha256/" + b.Digest[len("sha256:"):] }

// image writes an image from scratch: the program without a C library, its license and a directory for state. The tar is
// an OCI layout and, for engines that know no layouts, an archive of docker save.
func (d *dist) image(bin, goarch string) error {
	program, err := os.ReadFile(bin)
	if err != nil {
		return err
	}
	license, err := os.ReadFile(filepath.Join(d.root, "LICENSE"))
	if err != nil {
		return err
	}
	var layer bytes.Buffer
	t := tar.NewWriter(&layer)
	for _, f := range []struct {
		name    string
		mode    int64
		uid     int
		content []byte
	}{
		{"etc/", 0o755, 0, nil},
		{"etc/passwd", 0o644, 0, []byte("root:x:0:0:root:/:/\nmuster:x:65532:65532:muster:/var/lib/muster:/\n")},
		{"muster", 0o755, 0, program}, {"LICENSE", 0o644, 0, license},
		{"tmp/", 0o1777, 0, nil}, {"var/", 0o755, 0, nil}, {"var/lib/", 0o755, 0, nil}, {"var/lib/muster/", 0o711, imageUser, nil},
	} {
		if err := d.tarFile(t, f.name, f.mode, f.uid, f.content); err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return err
	}
	rootfs := newBlob("application/vnd.oci.image.layer.v1.tar", layer.Bytes())
	config, err := json.Marshal(map[string]any{
		"architecture": goarch, "os": "linux", "created": d.time,
		"config": map[string]any{
			"Entrypoint": []string{"/muster"}, "User": "65532:65532", "WorkingDir": "/", "Env": []string{"PATH=/"},
			"Labels": map[string]string{"org.opencontainers.image.version": d.version, "org.opencontainers.image.revision": d.commit,
				"org.opencontainers.image.licenses": "Apache-2.0", "org.opencontainers.image.title": "muster"},
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{rootfs.Digest}},
		"history": []any{map[string]any{"created": d.time, "created_by": "make dist"}},
	})
	if err != nil {
		return err
	}
	cfg := newBlob("application/vnd.oci.image.config.v1+json", config)
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": cfg, "layers": []blob{rootfs},
	})
	if err != nil {
		return err
	}
	man := newBlob("application/vnd.oci.image.manifest.v1+json", manifest)
	tag := "muster:" + d.version
	index, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
		"manifests": []any{map[string]any{"mediaType": man.MediaType, "digest": man.Digest, "size": man.Size,
			"platform":    map[string]string{"os": "linux", "architecture": goarch},
			"annotations": map[string]string{"org.opencontainers.image.ref.name": d.version, "io.containerd.image.name": "docker.io/library/" + tag}}},
	})
	if err != nil {
		return err
	}
	docker, err := json.Marshal([]any{map[string]any{"Config": cfg.path(), "RepoTags": []string{tag}, "Layers": []string{rootfs.path()}}})
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(d.out, d.name("linux", goarch)+"_image.tar"))
	if err != nil {
		return err
	}
	defer f.Close()
	t = tar.NewWriter(f)
	for _, e := range []struct {
		name    string
		content []byte
	}{
		{"blobs/", nil}, {"blobs/sha256/", nil}, {rootfs.path(), rootfs.content}, {cfg.path(), cfg.content}, {man.path(), man.content},
		{"index.json", index}, {"manifest.json", docker}, {"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)},
	} {
		mode := int64(0o644)
		if e.content == nil {
			mode = 0o755
		}
		if err := d.tarFile(t, e.name, mode, 0, e.content); err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return err
	}
	return f.Sync()
}

// tarFile writes a file, or a directory if the name ends with a slash.
func (d *dist) tarFile(t *tar.Writer, name string, mode int64, id int, content []byte) error {
	h := &tar.Header{Name: name, Mode: mode, Uid: id, Gid: id, ModTime: d.time, Size: int64(len(content)), Typeflag: tar.TypeReg}
	if content == nil {
		h.Typeflag = tar.TypeDir
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err := t.Write(content)
	return err
}
