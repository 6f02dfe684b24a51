// Package driverconf has the config blocks of the task drivers: which keys each of them takes, and of which type. Servers
// and the command line check a job with it before it runs, and the drivers decode with it.
package driverconf

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-sched/muster/internal/suggest"
)

// FieldType is the type of a config key.
type FieldType string

// The types a config key may have.
const (
	String   FieldType = "string"
	Int      FieldType = "number"
	Bool     FieldType = "bool"
	Duration FieldType = "duration"
	List     FieldType = "list of strings"
	Map      FieldType = "map of strings"
	Blocks   FieldType = "list of blocks"
)

// Field is one key of a task's config block.
type Field struct {
	Name     string
	Type     FieldType
	Required bool
	Doc      string   // one line for a reader
	Inner    Schema   // of a field of type Blocks: the keys of such a block
	OneOf    []string // of a field of type String: the values that it may have; nil: any
	Keys     []string // of a field of type Map: the keys that it may have; nil: any
}

// Schema is the keys that a driver's config block accepts.
type Schema []Field

// Values is a config block that has been checked against its schema. Getters return the zero value of an absent key.
type Values map[string]any

// String returns the text under key.
func (v Values) String(key string) string { s, _ := v[key].(string); return s }

// Int returns the number under key.
func (v Values) Int(key string) int64 { n, _ := v[key].(int64); return n }

// Bool returns the truth value under key.
func (v Values) Bool(key string) bool { b, _ := v[key].(bool); return b }

// Duration returns the duration under key.
func (v Values) Duration(key string) time.Duration { d, _ := v[key].(time.Duration); return d }

// List returns the list under key.
func (v Values) List(key string) []string { l, _ := v[key].([]string); return l }

// Map returns the map under key.
func (v Values) Map(key string) map[string]string { m, _ := v[key].(map[string]string); return m }

// Blocks returns the blocks under key; each is to be decoded with its own schema.
func (v Values) Blocks(key string) []map[string]any { b, _ := v[key].([]map[string]any); return b }

// Has reports whether key was set.
func (v Values) Has(key string) bool { _, ok := v[key]; return ok }

// keysMax is how many keys a config block may have: more than any schema, and few enough to say of each what is wrong with it.
const keysMax = 200

// Problem is something wrong with a config block.
type Problem struct {
	Key  string // or "" if the block as a whole is meant
	Text string
}

// Decode checks config against the schema and converts its values. There is one problem for each mistake; for an unknown
// key it lists the valid ones and the most similar one. A block of more than keysMax keys is one mistake.
func (s Schema) Decode(config map[string]any) (Values, []Problem) {
	if why := s.tooMany(config); why != nil {
		return nil, why
	}
	out := make(Values, len(config))
	var problems []Problem
	for k, given := range config {
		v, why := s.decode(k, given)
		switch {
		case why != "":
			problems = append(problems, Problem{k, why})
		case v != nil:
			out[k] = v
		}
	}
	if len(problems) > 1 {
		slices.SortFunc(problems, func(a, b Problem) int { return strings.Compare(a.Key, b.Key) }) // one for a key
	}
	for i := range s {
		if f := &s[i]; f.Required {
			switch given := config[f.Name]; {
			case given == nil && !s.misspelt(config, f.Name):
				problems = append(problems, Problem{"", fmt.Sprintf("config key %q (%s) is required", f.Name, f.Type)})
			case f.Type == String && out.Has(f.Name) && out.String(f.Name) == "":
				problems = append(problems, Problem{f.Name, fmt.Sprintf("config key %q must not be empty", f.Name)})
			}
		}
	}
	return out, problems
}

// tooMany returns what is wrong with a block of more than keysMax keys, or nil.
func (s Schema) tooMany(config map[string]any) []Problem {
	if len(config) <= keysMax {
		return nil
	}
	return []Problem{{"", fmt.Sprintf("%d config keys; valid are only %s", len(config), strings.Join(s.names(), ", "))}}
}

// decode converts the value of one key; it returns nil for an absent one. why says what is wrong, or "".
func (s Schema) decode(key string, given any) (v any, why string) {
	f := s.field(key)
	switch {
	case f == nil:
		names := s.names()
		return nil, fmt.Sprintf("unknown config key %q%s (valid keys: %s)", key, suggest.DidYouMean(key, names), strings.Join(names, ", "))
	case given == nil:
		return nil, ""
	}
	v, err := convert(f.Type, given)
	if err != nil {
		return nil, fmt.Sprintf("config key %q: %v", key, err)
	}
	if why := f.refuses(v); why != "" {
		return nil, fmt.Sprintf("config key %q: %s", key, why)
	}
	return v, ""
}

// misspelt reports whether an unknown key of config probably means this one.
func (s Schema) misspelt(config map[string]any, name string) bool {
	for k := range config {
		if s.field(k) == nil && suggest.Nearest(k, s.names()) == name {
			return true
		}
	}
	return false
}

// check is Decode for a block whose values may still hold ${...}, which only a node can replace: what such a text stands
// for is unknown, unless a list or a block is wanted.
func (s Schema) check(config map[string]any) []Problem {
	if why := s.tooMany(config); why != nil {
		return why
	}
	known := make(map[string]any, len(config))
	for k, v := range config {
		f := s.field(k)
		if text, ok := v.(string); ok && f != nil && strings.Contains(text, "${") && (f.Type == Int || f.Type == Bool || f.Type == Duration || f.OneOf != nil) {
			continue
		}
		known[k] = v
	}
	values, problems := s.Decode(known)
	for _, f := range s {
		for _, block := range values.Blocks(f.Name) {
			for _, p := range f.Inner.check(block) {
				problems = append(problems, Problem{f.Name, f.Name + ": " + p.Text})
			}
		}
	}
	return problems
}

// refuses returns why a field may not have a value of its type, or "".
func (f *Field) refuses(v any) string {
	if text, ok := v.(string); ok && f.OneOf != nil && text != "" && !slices.Contains(f.OneOf, text) {
		return fmt.Sprintf("%q is not one of %s%s; %s", text, strings.Join(f.OneOf, ", "), suggest.DidYouMean(text, f.OneOf), f.Doc)
	}
	if m, ok := v.(map[string]string); ok && f.Keys != nil {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !slices.Contains(f.Keys, k) {
				return fmt.Sprintf("unknown key %q%s (valid keys: %s)", k, suggest.DidYouMean(k, f.Keys), strings.Join(f.Keys, ", "))
			}
		}
	}
	return ""
}

// field returns the field of that name, or nil.
func (s Schema) field(name string) *Field {
	for i := range s {
		if s[i].Name == name {
			return &s[i]
		}
	}
	return nil
}

func (s Schema) names() []string {
	names := make([]string, 0, len(s))
	for _, f := range s {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	return names
}

func convert(t FieldType, v any) (any, error) {
	if n, ok := v.(json.Number); ok { // of a submitted job, whose numbers keep all their digits
		if i, err := n.Int64(); err == nil {
			v = i
		} else if f, err := n.Float64(); err == nil {
			v = f
		}
	}
	bad := func() error { return fmt.Errorf("want a %s, got %s", t, describe(v)) }
	switch t {
	case String:
		switch x := v.(type) {
		case string:
			return x, nil
		case int, int64, bool:
			return fmt.Sprint(x), nil
		case float64: // JSON decodes every number to it; 1000000 must not become 1e+06
			return strconv.FormatFloat(x, 'f', -1, 64), nil
		}
	case Int:
		switch x := v.(type) {
		case int:
			return int64(x), nil
		case int64:
			return x, nil
		case uint64:
			if x <= math.MaxInt64 {
				return int64(x), nil
			}
		case float64:
			if x == math.Trunc(x) && math.Abs(x) < 1<<53 {
				return int64(x), nil
			}
		case string:
			if n, err := strconv.ParseInt(x, 10, 64); err == nil {
				return n, nil
			}
		}
	case Bool:
		switch x := v.(type) {
		case bool:
			return x, nil
		case string:
			if b, err := strconv.ParseBool(x); err == nil {
				return b, nil
			}
		}
	case Duration:
		switch x := v.(type) {
		case string:
			if d, err := time.ParseDuration(x); err == nil {
				if d < 0 {
					return nil, fmt.Errorf("duration %q must not be negative", x)
				}
				return d, nil
			}
			return nil, fmt.Errorf("want a duration such as \"90s\" or \"1h30m\", got %q", x)
		case time.Duration:
			return x, nil
		case int, int64, float64:
			n, err := convert(Int, v)
			if err == nil && n.(int64) >= 0 && n.(int64) < math.MaxInt64/int64(time.Second) {
				return time.Duration(n.(int64)) * time.Second, nil
			}
		}
	case List:
		switch x := v.(type) {
		case []string:
			return append([]string(nil), x...), nil
		case []any:
			l := make([]string, len(x))
			for i, e := range x {
				s, err := convert(String, e)
				if err != nil {
					return nil, fmt.Errorf("element %d: %w", i, err)
				}
				l[i] = s.(string)
			}
			return l, nil
		}
	case Blocks:
		switch x := v.(type) {
		case map[string]any:
			return []map[string]any{x}, nil
		case []map[string]any:
			return x, nil
		case []any:
			l := make([]map[string]any, len(x))
			for i, e := range x {
				m, ok := e.(map[string]any)
				if !ok {
					return nil, fmt.Errorf("element %d: want a block, got %s", i, describe(e))
				}
				l[i] = m
			}
			return l, nil
		}
	case Map:
		switch x := v.(type) {
		case map[string]string:
			return x, nil
		case []map[string]any: // a block in HCL1-shaped JSON
			if len(x) == 1 {
				return convert(Map, x[0])
			}
		case []any:
			if len(x) == 1 {
				return convert(Map, x[0])
			}
		case map[string]any:
			m := make(map[string]string, len(x))
			for k, e := range x {
				s, err := convert(String, e)
				if err != nil {
					return nil, fmt.Errorf("key %q: %w", k, err)
				}
				m[k] = s.(string)
			}
			return m, nil
		}
	}
	return nil, bad()
}

func describe(v any) string {
	switch x := v.(type) {
	case nil:
		return "nothing"
	case string:
		return fmt.Sprintf("the string %.40q", x)
	case bool:
		return fmt.Sprintf("the bool %t", x)
	case int, int64, uint64, float64:
		return fmt.Sprintf("the number %v", x)
	case []any, []string:
		return "a list"
	case map[string]any, map[string]string:
		return "a map"
	}
	return fmt.Sprintf("a %T", v)
}
