package objectfile

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// Object is an object of a file.
type Object struct {
	JSON []byte // as the API has it
	path string
	file *hcl.File // or nil: it is JSON
	body *hclsyntax.Body
}

// At adds to an error where the object is in its file.
func (s Object) At(err error) error {
	if s.body == nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return fmt.Errorf("%s: line %d: %w", s.path, s.body.SrcRange.Start.Line, err)
}

// Decode decodes an object strictly.
func (s Object) Decode(kind string, v any) error {
	kind = strings.ReplaceAll(kind, "_", " ")
	unknown, _, err := wire.DecodeFields(s.JSON, v)
	var typ *json.UnmarshalTypeError
	switch {
	case err == nil && len(unknown) == 0:
		return nil
	case s.file == nil && err != nil:
		return fmt.Errorf("%s: %w", s.path, err)
	case s.file == nil:
		names := make([]string, len(unknown))
		for i, u := range unknown {
			names[i] = u.String()
		}
		return fmt.Errorf("%s: %s: %s", s.path, kind, strings.Join(names, ", "))
	case err != nil:
		if !errors.As(json.Unmarshal(s.JSON, v), &typ) {
			return s.refused(err)
		}
		name, at := place(s.body, typ.Field)
		got, number := strings.CutPrefix(typ.Value, "number ")
		if !number {
			got = "a " + typ.Value
		}
		return Diagnostics(s.file, hcl.Diagnostics{{Severity: hcl.DiagError, Subject: at, Summary: "Wrong type",
			Detail: fmt.Sprintf("%s wants %s, not %s.", name, wire.Expected(typ.Type), got)}})
	}
	var diags hcl.Diagnostics
	for _, u := range unknown {
		name, at := place(s.body, u.Path)
		d := &hcl.Diagnostic{Severity: hcl.DiagError, Subject: at, Summary: "Unknown setting", Detail: fmt.Sprintf("A %s has no %s.", kind, name)}
		if last := name[strings.LastIndex(name, ".")+1:]; kind == "quota" && (last == "gpu" || last == "gpus") && strings.Contains(name, ".region_limit.") {
			d.Detail += ` GPUs are limited by  device "nvidia/gpu" { count = 4 }`
		} else if u.Like != "" {
			d.Detail = fmt.Sprintf("A %s has no %s; did you mean %q?", kind, name, snake(u.Like))
		} else if in, _, nested := strings.Cut(strings.TrimPrefix(name, "limit."), "."); kind == "quota" && strings.HasPrefix(name, "limit.") && !nested && in != "" {
			d.Detail += " What is limited stands in region_limit { ... } or soft { ... }; muster quota apply -help has an example."
		}
		diags = append(diags, d)
	}
	slices.SortFunc(diags, func(a, b *hcl.Diagnostic) int {
		if a.Subject == nil || b.Subject == nil {
			return cmp.Compare(a.Detail, b.Detail)
		}
		return cmp.Or(cmp.Compare(a.Subject.Start.Byte, b.Subject.Start.Byte), cmp.Compare(a.Detail, b.Detail))
	})
	return Diagnostics(s.file, diags)
}

// wrongTime is in the errors of package time, which name its layouts.
var wrongTime = regexp.MustCompile(`parsing time ("(?:[^"\\]|\\.)*")`)

// refused says where the value stands that an error of a decoder quotes.
func (s Object) refused(err error) error {
	if m := wrongTime.FindStringSubmatch(err.Error()); m != nil {
		err = fmt.Errorf("%s is no time: want one such as 2026-12-01T08:00:00Z", m[1])
	}
	name, at := quoting(s.body, err.Error())
	if name == "" {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return Diagnostics(s.file, hcl.Diagnostics{{Severity: hcl.DiagError, Subject: at, Summary: "Wrong value", Detail: fmt.Sprintf("%s: %v.", name, err)}})
}

// quoting finds the first setting of a body whose text a sentence quotes.
func quoting(body *hclsyntax.Body, sentence string) (name string, at *hcl.Range) {
	for n, attr := range body.Attributes {
		v, diags := attr.Expr.Value(nil)
		if diags.HasErrors() || v.Type() != cty.String || v.IsNull() || !strings.Contains(sentence, strconv.Quote(v.AsString())) {
			continue
		}
		if at == nil || attr.SrcRange.Start.Byte < at.Start.Byte {
			name, at = n, attr.Range().Ptr()
		}
	}
	for _, b := range body.Blocks {
		if n, r := quoting(b.Body, sentence); at == nil && n != "" {
			name, at = b.Type+"."+n, r
		}
	}
	return name, at
}

// place finds what the API calls a.b in a body: as it is written there, and where. What is not found is in the body as a
// whole.
func place(body *hclsyntax.Body, path string) (string, *hcl.Range) {
	first, rest, deeper := strings.Cut(path, ".")
	first, at, _ := strings.Cut(strings.TrimSuffix(first, "]"), "[")
	skip, _ := strconv.Atoi(at)
	same := func(name string) bool {
		return strings.EqualFold(apiName(name), first) || strings.EqualFold(quotaNames[name], first) || strings.EqualFold(name+"s", first) // repeated blocks
	}
	for name, attr := range body.Attributes {
		if !same(name) {
			continue
		}
		object, is := attr.Expr.(*hclsyntax.ObjectConsExpr)
		if !deeper || !is {
			return name, attr.Range().Ptr()
		}
		for _, item := range object.Items {
			if key, d := item.KeyExpr.Value(nil); !d.HasErrors() && key.Type() == cty.String && strings.EqualFold(apiName(key.AsString()), rest) {
				return name + "." + key.AsString(), hcl.RangeBetween(item.KeyExpr.Range(), item.ValueExpr.Range()).Ptr()
			}
		}
		return name, attr.Range().Ptr()
	}
	for _, b := range body.Blocks {
		switch {
		case !same(b.Type):
		case skip > 0:
			skip--
		case !deeper:
			return b.Type, b.TypeRange.Ptr()
		default:
			name, at := place(b.Body, rest)
			return b.Type + "." + name, at
		}
	}
	return path, body.MissingItemRange().Ptr()
}

// apiName spells an attribute's name like the API, in which case does not matter.
func apiName(name string) string {
	if s := specNames[name]; s != "" {
		return s
	}
	return strings.ReplaceAll(name, "_", "")
}

// snake spells a name of the API like an attribute: gpu_hours_max for GPUHoursMax, gpus for GPUs.
func snake(name string) string {
	for attr, s := range specNames {
		if s == name {
			return attr
		}
	}
	var b strings.Builder
	for i, c := range name {
		if i > 0 && unicode.IsUpper(c) {
			after := name[i+1:]
			inWord := unicode.IsLower(rune(name[i-1]))
			begins := len(after) > 0 && unicode.IsLower(rune(after[0])) && !(after[0] == 's' && (len(after) == 1 || unicode.IsUpper(rune(after[1]))))
			if inWord || begins {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

// ownKeys are the attributes with user-defined keys.
var ownKeys = map[string]bool{"meta": true, "models": true, "user_weights": true, "user_priority_max": true, "user_priority_default": true}

// specNames are the attributes whose JSON name differs in more than spelling.
var specNames = map[string]string{"node_pool_config": "NodePoolConfiguration", "queue_config": "QueueConfiguration", "toleration_config": "TolerationConfiguration",
	"vault": "VaultConfiguration", "consul": "ConsulConfiguration", "scheduler_config": "SchedulerConfiguration"}

// quotaNames are the amounts of a quota whose JSON name differs in more than spelling.
var quotaNames = map[string]string{"memory": "MemoryMB", "memory_max": "MemoryMaxMB", "gpu_memory": "GPUMemoryMB"}
