package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sort"
	"strings"

	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/structs"
)

// Limits on what Decode reads. Go's decoder bounds nesting at 10,000 by itself, ours at what any real body needs.
const (
	DepthMax        = 128
	unknownKeysKept = 50
)

// Decode reads one JSON value into v, which points to a wire type. Field names match whatever their case, as in Nomad.
// Fields that v does not know are not an error: they are returned, each with its path and, where one is near, the name
// that was probably meant.
func Decode(data []byte, v any) (unknown []string, err error) {
	if err := jsonDepth(data); err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(v); err != nil {
		return nil, explain(data, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, structs.Errorf(structs.CodeInvalid, "%s: there is more than one JSON value; send exactly one", position(data, dec.InputOffset()))
	}
	var generic any
	gen := json.NewDecoder(bytes.NewReader(data))
	gen.UseNumber()
	if err := gen.Decode(&generic); err != nil {
		return nil, explain(data, err)
	}
	w := unknownWalk{}
	w.walk("", generic, reflect.TypeOf(v))
	sort.Strings(w.found)
	if n := len(w.found); n > unknownKeysKept {
		w.found = append(w.found[:unknownKeysKept], fmt.Sprintf("... and %d more unknown fields", n-unknownKeysKept))
	}
	return w.found, nil
}

// jsonDepth refuses deep nesting without recursion.
func jsonDepth(data []byte) error {
	depth, inString, escaped := 0, false, false
	for i, c := range data {
		switch {
		case escaped:
			escaped = false
		case inString:
			switch c {
			case '\\':
				escaped = true
			case '"':
				inString = false
			}
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			if depth++; depth > DepthMax {
				return structs.Errorf(structs.CodeInvalid, "%s: nested deeper than %d levels", position(data, int64(i)), DepthMax)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

func explain(data []byte, err error) error {
	var syn *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF):
		return structs.Errorf(structs.CodeInvalid, "the body is empty; want one JSON object")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return structs.Errorf(structs.CodeInvalid, "the JSON ends too early, after %d bytes; a bracket or quote is not closed", len(data))
	case errors.As(err, &syn):
		return structs.Errorf(structs.CodeInvalid, "%s: not JSON: %v", position(data, syn.Offset-1), err)
	case errors.As(err, &typ):
		field := typ.Field
		if field == "" {
			field = "the body"
		}
		return structs.Errorf(structs.CodeInvalid, "%s: %s: want %s, got a JSON %s", position(data, typ.Offset), field, wantText(typ.Type), typ.Value)
	}
	return structs.Errorf(structs.CodeInvalid, "%v", err)
}

func wantText(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int8:
		return "a whole number from -128 to 127"
	case reflect.Uint8:
		return "a whole number from 0 to 255"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Uint, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number, 0 or more"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice, reflect.Array:
		return "a list"
	}
	return "an object"
}

func position(data []byte, offset int64) string {
	n := max(0, min(int(offset), len(data)))
	line := 1 + bytes.Count(data[:n], []byte("\n"))
	return fmt.Sprintf("line %d, column %d", line, n-bytes.LastIndexByte(data[:n], '\n'))
}

// unknownWalk compares a decoded value with the type it was meant for.
type unknownWalk struct{ found []string }

var unmarshalerType = reflect.TypeFor[json.Unmarshaler]()

func (w *unknownWalk) walk(path string, v any, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		if t.Implements(unmarshalerType) {
			return
		}
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(unmarshalerType) {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		switch t.Kind() {
		case reflect.Map:
			for k, e := range v {
				w.walk(join(path, k), e, t.Elem())
			}
		case reflect.Struct:
			fields := jsonFields(t)
			for k, e := range v {
				ft, ok := fields[strings.ToLower(k)]
				if !ok {
					names := make([]string, 0, len(fields))
					for _, f := range fields {
						names = append(names, f.Name)
					}
					w.found = append(w.found, "unknown field "+join(path, k)+suggest.DidYouMean(k, names))
					continue
				}
				w.walk(join(path, k), e, ft.Type)
			}
		}
	case []any:
		if t.Kind() == reflect.Slice {
			for i, e := range v {
				w.walk(fmt.Sprintf("%s[%d]", path, i), e, t.Elem())
			}
		}
	}
}

func join(path, k string) string {
	if len(k) > 64 {
		k = k[:64] + "..."
	}
	if path == "" {
		return k
	}
	return path + "." + k
}

// jsonFields lists the fields of a struct by lower-case JSON name, embedded ones included.
func jsonFields(t reflect.Type) map[string]reflect.StructField {
	out := map[string]reflect.StructField{}
	for f := range t.Fields() {
		if f.Anonymous {
			for k, e := range jsonFields(f.Type) {
				out[k] = e
			}
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			name = f.Name
		}
		if name == "-" {
			continue
		}
		f.Name = name
		out[strings.ToLower(name)] = f
	}
	return out
}
