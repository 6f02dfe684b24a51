// Package objectfile reads files of queues, quotas, reservations, namespaces and node pools, in HCL or JSON, and converts
// them to what the API takes. Errors name what is wrong as it is written in the file, with its line.
package objectfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/muster-sched/muster/internal/hclgate"
	"github.com/muster-sched/muster/internal/suggest"
)

// SizeMax is the largest file that is read, in bytes.
const SizeMax = 1 << 20

// Blocks reads a file with labelled blocks of a kind (queue "a" { ... }), or with a JSON object or a list of them,
// and returns each.
func Blocks(src []byte, path, kind string) ([]Object, error) {
	if list, err := jsonObjects(src, path); list != nil || err != nil {
		return list, err
	}
	file, diags := hclgate.Parse(path, src, SizeMax)
	if diags.HasErrors() {
		return nil, Diagnostics(file, diags)
	}
	var out []Object
	for _, b := range file.Body.(*hclsyntax.Body).Blocks {
		if b.Type != kind || len(b.Labels) != 1 {
			return nil, fmt.Errorf("%s: line %d: want %s \"name\" { ... }, not %s", path, b.TypeRange.Start.Line, kind, b.Type)
		}
		obj := map[string]any{}
		if diags := hclMap(b.Body, obj); diags.HasErrors() {
			return nil, Diagnostics(file, diags)
		}
		obj = rename(obj)
		obj["Name"] = b.Labels[0]
		raw, err := json.Marshal(obj)
		if err != nil {
			return nil, err
		}
		out = append(out, Object{raw, path, file, b.Body})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no %s \"name\" { ... }", path, kind)
	}
	return out, nil
}

// jsonObjects returns the objects of a JSON file; nil if it is not JSON.
func jsonObjects(src []byte, path string) ([]Object, error) {
	t := bytes.TrimSpace(src)
	switch {
	case len(t) > 0 && t[0] == '{':
		return []Object{{JSON: t, path: path}}, nil
	case len(t) > 0 && t[0] == '[':
		list := []json.RawMessage{}
		if err := json.Unmarshal(t, &list); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		out := make([]Object, len(list))
		for i, raw := range list {
			out[i] = Object{JSON: raw, path: path}
		}
		return out, nil
	}
	return nil, nil
}

// Quotas reads the quotas of a file: in JSON an object or a list of them, in HCL labelled blocks or, as in Nomad,
// the settings of one quota.
func Quotas(src []byte, path string) ([]Object, error) {
	if list, err := jsonObjects(src, path); list != nil || err != nil {
		return list, err
	}
	file, diags := hclgate.Parse(path, src, SizeMax)
	if diags.HasErrors() {
		return nil, Diagnostics(file, diags)
	}
	body := file.Body.(*hclsyntax.Body)
	var out []Object
	add := func(b *hclsyntax.Body, name string) error {
		obj, diags := quotaObject(b)
		if diags.HasErrors() {
			return Diagnostics(file, diags)
		}
		if name != "" {
			obj["Name"] = name
		}
		raw, err := json.Marshal(obj)
		out = append(out, Object{raw, path, file, b})
		return err
	}
	if _, alone := body.Attributes["name"]; alone {
		return out, add(body, "")
	}
	for _, b := range body.Blocks {
		if b.Type != "quota" || len(b.Labels) != 1 {
			return nil, fmt.Errorf("%s: line %d: want quota \"name\" { ... }, not %s", path, b.TypeRange.Start.Line, b.Type)
		}
		if err := add(b.Body, b.Labels[0]); err != nil {
			return nil, err
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no quota \"name\" { ... }", path)
	}
	return out, nil
}

// quotaObject converts a quota's settings to the shape of the API: "limit" may be repeated, "device" has a label.
func quotaObject(b *hclsyntax.Body) (map[string]any, hcl.Diagnostics) {
	obj, limits := map[string]any{}, []any{}
	diags := hclMap(&hclsyntax.Body{Attributes: b.Attributes}, obj)
	for _, l := range b.Blocks {
		if l.Type != "limit" {
			want := "a quota has blocks limit { ... }"
			if l.Type == "quota" || suggest.Nearest(l.Type, []string{"limit", "quota"}) == "quota" {
				want = "a quota's name is the label of its block, quota \"NAME\" { limit { ... } }, or stands beside its blocks limit { ... }"
			}
			diags = append(diags, unknownBlock(l, want, "limit", "quota"))
			continue
		}
		limit := map[string]any{}
		diags = append(diags, hclMap(&hclsyntax.Body{Attributes: l.Body.Attributes}, limit)...)
		for _, r := range l.Body.Blocks {
			if r.Type != "region_limit" && r.Type != "soft" {
				diags = append(diags, unknownBlock(r, "a limit has blocks region_limit { ... } and soft { ... }", "region_limit", "soft"))
				continue
			}
			amounts, devices := map[string]any{}, []any{}
			diags = append(diags, hclMap(&hclsyntax.Body{Attributes: r.Body.Attributes}, amounts)...)
			for from, to := range quotaNames {
				if v, ok := amounts[from]; ok {
					delete(amounts, from)
					amounts[to] = v
				}
			}
			for _, d := range r.Body.Blocks {
				if d.Type != "device" || len(d.Labels) != 1 {
					diags = append(diags, unknownBlock(d, "limits have blocks device \"nvidia/gpu\" { ... }", "device"))
					continue
				}
				device := map[string]any{}
				diags = append(diags, hclMap(d.Body, device)...)
				device["Name"] = d.Labels[0]
				devices = append(devices, rename(device))
			}
			if len(devices) > 0 {
				amounts["Devices"] = devices
			}
			limit[r.Type] = rename(amounts)
		}
		limits = append(limits, rename(limit))
	}
	obj = rename(obj)
	if len(limits) > 0 {
		obj["Limits"] = limits
	}
	return obj, diags
}

// unknownBlock refuses a block where others are known; want describes these.
func unknownBlock(b *hclsyntax.Block, want string, known ...string) *hcl.Diagnostic {
	end := "."
	if !slices.Contains(known, b.Type) {
		end = cmp.Or(suggest.DidYouMean(b.Type, known), end)
	}
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: "Unknown block " + b.Type, Detail: "Here " + want + end, Subject: b.TypeRange.Ptr()}
}

// Single reads a namespace or node pool in HCL or JSON into v. In HCL the object is a labelled block of that kind
// (node_pool "name" { ... }), or its attributes at the top level; isJSON refuses HCL.
func Single(src []byte, path, kind string, isJSON bool, v any) error {
	if t := bytes.TrimSpace(src); len(t) > 0 && t[0] == '{' {
		return Object{JSON: src, path: path}.Decode(kind, v)
	}
	if isJSON {
		return fmt.Errorf("%s is not JSON: it does not begin with {; leave -json out", path)
	}
	file, diags := hclgate.Parse(path, src, SizeMax)
	if diags.HasErrors() {
		return Diagnostics(file, diags)
	}
	body := file.Body.(*hclsyntax.Body)
	obj := map[string]any{}
	for _, b := range body.Blocks {
		if b.Type != kind && len(b.Labels) == 1 {
			return Diagnostics(file, hcl.Diagnostics{unknownBlock(b, fmt.Sprintf("stands %s \"NAME\" { ... }", kind), kind)})
		}
		if b.Type == kind {
			if len(b.Labels) == 1 {
				obj["name"] = b.Labels[0]
			}
			body = b.Body
			break
		}
	}
	if diags := hclMap(body, obj); diags.HasErrors() {
		return Diagnostics(file, diags)
	}
	raw, err := json.Marshal(rename(obj))
	if err != nil {
		return err
	}
	return Object{raw, path, file, body}.Decode(kind, v)
}

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

// Attributes evaluates a file without variables: its attributes, and its blocks as objects.
func Attributes(src []byte, name string) (map[string]json.RawMessage, error) {
	file, diags := hclgate.Parse(name, src, SizeMax)
	if diags.HasErrors() {
		return nil, Diagnostics(file, diags)
	}
	obj := map[string]any{}
	if diags := hclMap(file.Body.(*hclsyntax.Body), obj); diags.HasErrors() {
		return nil, Diagnostics(file, diags)
	}
	b, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
	out := map[string]json.RawMessage{}
	return out, json.Unmarshal(b, &out)
}

// rename spells attribute names like the API. Keys of ownKeys attributes are user-defined and kept.
func rename(m map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range m {
		if raw, ok := v.(json.RawMessage); ok && !ownKeys[k] { // written as x = { ... }
			sub := map[string]any{}
			if bytes.HasPrefix(raw, []byte("{")) && json.Unmarshal(raw, &sub) == nil {
				v = sub
			}
		}
		if sub, ok := v.(map[string]any); ok && !ownKeys[k] {
			v = rename(sub)
		}
		out[apiName(k)] = v
	}
	return out
}

// shownMax is how many characters of a line of the file an error shows.
const shownMax = 200

// Diagnostics returns diagnostics as an error that shows their places in the file.
func Diagnostics(file *hcl.File, diags hcl.Diagnostics) error {
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
	lines := strings.Split(strings.TrimPrefix(strings.TrimSpace(b.String()), "Error: "), "\n") // the caller prints "Error: " itself
	for i, l := range lines {
		if r := []rune(l); len(r) > shownMax {
			lines[i] = string(r[:shownMax]) + "..."
		}
	}
	return errors.New(strings.Join(lines, "\n"))
}
