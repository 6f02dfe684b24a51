package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/muster-sched/muster/nomadlike/objectfile"
)

const specFileMax = objectfile.SizeMax

// looksLikeFile reports whether an argument is a file and not a name: "-", a known extension, or an existing file.
func looksLikeFile(arg string) bool {
	if arg == "-" || strings.HasSuffix(arg, ".hcl") || strings.HasSuffix(arg, ".json") {
		return true
	}
	st, err := os.Stat(arg)
	return err == nil && st.Mode().IsRegular()
}

func (e *env) readFile(path string, limit int64) ([]byte, error) {
	r := e.in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r = f
	}
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return b, nil
}

// specBlocks reads the objects of a kind from a file (objectfile.Blocks).
func (e *env) specBlocks(path, kind string) ([]objectfile.Object, error) {
	src, err := e.readFile(path, specFileMax)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kind, err)
	}
	return objectfile.Blocks(src, path, kind)
}

// quotaSpecs reads the quotas of a file (objectfile.Quotas).
func (e *env) quotaSpecs(path string) ([]objectfile.Object, error) {
	src, err := e.readFile(path, specFileMax)
	if err != nil {
		return nil, fmt.Errorf("read quota: %w", err)
	}
	return objectfile.Quotas(src, path)
}

// specFile reads a namespace or node pool from a file into v (objectfile.Single).
func (e *env) specFile(path, kind string, isJSON bool, v any) error {
	src, err := e.readFile(path, specFileMax)
	if err != nil {
		return fmt.Errorf("read %s: %w", kind, err)
	}
	return objectfile.Single(src, path, kind, isJSON, v)
}
