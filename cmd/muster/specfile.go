package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/muster-sched/muster/nomadlike/wire"
)

const specFileMax = 1 << 20 // bytes

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

// specFile reads a namespace or node pool in HCL or JSON into v. In HCL the object is a labelled block of that kind
// (node_pool "name" { ... }), or its attributes at the top level.
func (e *env) specFile(path, kind string, v any) error {
	src, err := e.readFile(path, specFileMax)
	if err != nil {
		return fmt.Errorf("read %s: %w", kind, err)
	}
	if t := bytes.TrimSpace(src); len(t) > 0 && t[0] == '{' {
		unknown, err := wire.Decode(src, v)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if len(unknown) > 0 {
			return fmt.Errorf("%s: unknown fields: %s", path, strings.Join(unknown, ", "))
		}
		return nil
	}
	file, diags := hclsyntax.ParseConfig(src, path, hcl.InitialPos)
	if diags.HasErrors() {
		return diagError(file, diags)
	}
	body := file.Body.(*hclsyntax.Body)
	obj := map[string]any{}
	for _, b := range body.Blocks {
		if b.Type == kind {
			if len(b.Labels) == 1 {
				obj["name"] = b.Labels[0]
			}
			body = b.Body
			break
		}
	}
	if diags := hclMap(body, obj); diags.HasErrors() {
		return diagError(file, diags)
	}
	renamed := rename(obj, specNames)
	b, err := json.Marshal(renamed)
	if err != nil {
		return err
	}
	unknown, err := wire.Decode(b, v)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(unknown) > 0 {
		return fmt.Errorf("%s: a %s has no %s", path, strings.ReplaceAll(kind, "_", " "), strings.Join(unknown, ", "))
	}
	return nil
}

// ownKeys are the attributes with user-defined keys.
var ownKeys = map[string]bool{"meta": true, "models": true, "user_weights": true}

// specNames are the attributes whose JSON name differs in more than spelling.
var specNames = map[string]string{"node_pool_config": "NodePoolConfiguration", "queue_config": "QueueConfiguration", "toleration_config": "TolerationConfiguration",
	"vault": "VaultConfiguration", "consul": "ConsulConfiguration", "scheduler_config": "SchedulerConfiguration"}

// hclMap evaluates a body without variables into out.
func hclMap(body *hclsyntax.Body, out map[string]any) hcl.Diagnostics {
	var diags hcl.Diagnostics
	for name, attr := range body.Attributes {
		val, d := attr.Expr.Value(nil)
		diags = append(diags, d...)
		if d.HasErrors() {
			continue
		}
		raw, err := ctyjson.Marshal(val, val.Type())
		if err != nil || val == cty.NilVal {
			diags = append(diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: "Unusable value", Detail: fmt.Sprint(err), Subject: attr.Range().Ptr()})
			continue
		}
		out[name] = json.RawMessage(raw)
	}
	for _, b := range body.Blocks {
		m := map[string]any{}
		diags = append(diags, hclMap(b.Body, m)...)
		out[b.Type] = m
	}
	return diags
}

// hclObject evaluates a file without variables: its attributes, and its blocks as objects.
func hclObject(src []byte, name string) (map[string]json.RawMessage, error) {
	file, diags := hclsyntax.ParseConfig(src, name, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, diagError(file, diags)
	}
	obj := map[string]any{}
	if diags := hclMap(file.Body.(*hclsyntax.Body), obj); diags.HasErrors() {
		return nil, diagError(file, diags)
	}
	b, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
	out := map[string]json.RawMessage{}
	return out, json.Unmarshal(b, &out)
}

// rename spells attribute names like the API. Keys of ownKeys attributes are user-defined and kept.
func rename(m map[string]any, special map[string]string) map[string]any {
	out := map[string]any{}
	for k, v := range m {
		name := special[k]
		if name == "" {
			name = strings.ReplaceAll(k, "_", "") // decoding ignores case
		}
		if raw, ok := v.(json.RawMessage); ok && !ownKeys[k] { // written as x = { ... }
			sub := map[string]any{}
			if bytes.HasPrefix(raw, []byte("{")) && json.Unmarshal(raw, &sub) == nil {
				v = sub
			}
		}
		if sub, ok := v.(map[string]any); ok && !ownKeys[k] {
			v = rename(sub, special)
		}
		out[name] = v
	}
	return out
}

// diagError shows diagnostics with their places in the file.
func diagError(file *hcl.File, diags hcl.Diagnostics) error {
	var b strings.Builder
	files := map[string]*hcl.File{}
	for _, d := range diags {
		if d.Subject != nil && file != nil {
			files[d.Subject.Filename] = file
		}
	}
	if err := hcl.NewDiagnosticTextWriter(&b, files, 100, false).WriteDiagnostics(diags); err != nil {
		return diags
	}
	return fmt.Errorf("%s", strings.TrimPrefix(strings.TrimSpace(b.String()), "Error: ")) // the caller prints "Error: " itself
}
