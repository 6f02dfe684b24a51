// Package archive reads and writes archives of snapshots: what `muster operator snapshot save` keeps and inspect checks.
package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/structs"
)

// A snapshot archive is a gzipped tar of meta.json (raft's metadata), state.bin (the state) and SHA256SUMS (checksums
// of both, in the format of sha256sum).
const (
	metaFile  = "meta.json"
	stateFile = "state.bin"
	sumsFile  = "SHA256SUMS"

	metaMax  = 1 << 20
	stateMax = 64 << 30
)

// Write writes a snapshot archive.
func Write(w io.Writer, meta *raft.SnapshotMeta, state io.Reader) error {
	gz := gzip.NewWriter(w)
	tw := tar.NewWriter(gz)
	mb, err := json.MarshalIndent(meta, "", "  ")
	if err != nil {
		return err
	}
	put := func(name string, size int64, r io.Reader) (string, error) {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, ModTime: time.Unix(0, 0)}); err != nil {
			return "", err
		}
		h := sha256.New()
		if _, err := io.CopyN(io.MultiWriter(tw, h), r, size); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		return fmt.Sprintf("%s  %s\n", hex.EncodeToString(h.Sum(nil)), name), nil
	}
	m, err := put(metaFile, int64(len(mb)), bytes.NewReader(mb))
	if err != nil {
		return err
	}
	st, err := put(stateFile, meta.Size, state)
	if err != nil {
		return err
	}
	sums := m + st
	if _, err := put(sumsFile, int64(len(sums)), strings.NewReader(sums)); err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return gz.Close()
}

// Read checks a snapshot archive and copies its state to out. The copy must not be used unless Read
// returns without an error, because the checksums come last.
func Read(r io.Reader, out io.Writer) (*raft.SnapshotMeta, error) {
	bad := func(format string, args ...any) (*raft.SnapshotMeta, error) {
		return nil, structs.Errorf(structs.CodeInvalid, "snapshot archive: "+format, args...)
	}
	gz, err := gzip.NewReader(r)
	if err != nil {
		return bad("not a gzip file: %v", err)
	}
	tr := tar.NewReader(gz)
	got := map[string]string{}
	var meta *raft.SnapshotMeta
	var sums []byte
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return bad("truncated or not a tar file: %v", err)
		}
		sum := sha256.New()
		switch h.Name {
		case metaFile:
			b, err := io.ReadAll(io.LimitReader(io.TeeReader(tr, sum), metaMax))
			if err != nil {
				return bad("%s: %v", metaFile, err)
			}
			meta = new(raft.SnapshotMeta)
			if err := json.Unmarshal(b, meta); err != nil {
				return bad("%s does not decode: %v", metaFile, err)
			}
		case stateFile:
			if h.Size > stateMax {
				return bad("%s of %d bytes is over the limit", stateFile, h.Size)
			}
			if _, err := io.Copy(io.MultiWriter(out, sum), tr); err != nil {
				return bad("%s: %v", stateFile, err)
			}
		case sumsFile:
			if sums, err = io.ReadAll(io.LimitReader(tr, metaMax)); err != nil {
				return bad("%s: %v", sumsFile, err)
			}
			continue
		default:
			return bad("unexpected file %q", h.Name)
		}
		if _, twice := got[h.Name]; twice {
			return bad("%s occurs twice", h.Name)
		}
		got[h.Name] = hex.EncodeToString(sum.Sum(nil))
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(gz, 1<<20)); err != nil {
		return bad("%v", err)
	}
	if meta == nil || got[stateFile] == "" || sums == nil {
		return bad("%s, %s and %s are needed", metaFile, stateFile, sumsFile)
	}
	want := map[string]string{}
	sc := bufio.NewScanner(bytes.NewReader(sums))
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) != 2 {
			return bad("%s has a line that is not a checksum and a name", sumsFile)
		}
		want[f[1]] = f[0]
	}
	for _, name := range []string{metaFile, stateFile} {
		if want[name] != got[name] {
			return bad("the checksum of %s does not match; the file is damaged", name)
		}
	}
	return meta, nil
}
