package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sort"
	"strings"
	"sync"

	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/structs"
)

// Limits of what Decode reads: what any real body needs. Go's decoder limits nesting to 10,000 and nothing else, and a small
// value, such as an empty group, costs a thousand times its bytes.
const (
	DepthMax        = 128
	valuesMax       = 200_000 // a job of a thousand groups has about half as many
	unknownKeysKept = 50
)

// Decode reads one JSON value into v, which points to a wire type. Field names match in any case, as in Nomad. Fields
// that v does not have are not an error: they are returned, each with its path and, if one is similar, the name that
// was probably meant.
func Decode(data []byte, v any) (unknown []string, err error) {
	found, more, err := DecodeFields(data, v)
	for _, u := range found {
		unknown = append(unknown, u.String())
	}
	sort.Strings(unknown)
	if more > 0 {
		unknown = append(unknown, fmt.Sprintf("... and %d more unknown fields", more))
	}
	return unknown, err
}

// UnknownField is a field that the type does not have.
type UnknownField struct {
	Path string // as users write it: a.b[0].c
	Name string // its last part
	Like string // the field that was probably meant; or ""
}

func (u UnknownField) String() string {
	if u.Like == "" {
		return "unknown field " + u.Path
	}
	return fmt.Sprintf("unknown field %s; did you mean %q?", u.Path, u.Like)
}

// DecodeFields is Decode with the first unknown fields as values, and the number of those that follow them.
func DecodeFields(data []byte, v any) (unknown []UnknownField, more int, err error) {
	if err := jsonGate(data); err != nil {
		return nil, 0, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(v); err != nil {
		return nil, 0, explain(data, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, 0, structs.Errorf(structs.CodeInvalid, "%s: there is more than one JSON value; send exactly one", position(data, dec.InputOffset()))
	}
	w := unknownWalk{data: data}
	w.walk(reflect.TypeOf(v))
	return w.found, w.more, nil
}

// jsonGate refuses deep nesting and too many values, without recursion and before anything is made of them.
func jsonGate(data []byte) error {
	depth, values, inString, escaped := 0, 1, false, false
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
			values++
		case c == '}' || c == ']':
			depth--
		case c == ',':
			values++
		}
		if values > valuesMax {
			return structs.Errorf(structs.CodeInvalid, "%s: more than %d values", position(data, int64(i)), valuesMax)
		}
	}
	return nil
}

func explain(data []byte, err error) error {
	var syn *json.SyntaxError
	var typ *json.UnmarshalTypeError
	var b64 base64.CorruptInputError
	switch {
	case errors.As(err, &b64):
		return structs.Errorf(structs.CodeInvalid, "a field of bytes (such as Payload) is not base64: %v", err)
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
		return structs.Errorf(structs.CodeInvalid, "%s: %s: want %s, got a JSON %s", position(data, typ.Offset), field, Expected(typ.Type), typ.Value)
	}
	return structs.Errorf(structs.CodeInvalid, "%v", err)
}

// Expected returns what a value of a type is called in errors: "a whole number".
func Expected(t reflect.Type) string {
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

// unknownWalk compares JSON with the type that it was decoded into. The data is one valid value, not nested deeper than
// DepthMax: both were checked before. It is read in place, because a second decoding, into maps, costs more than the
// first.
type unknownWalk struct {
	data  []byte
	at    int
	path  []step
	found []UnknownField // the first unknownKeysKept
	more  int            // unknown fields after those
}

// step is a field, or the element of a list.
type step struct {
	field string
	index int // -1 for a field
}

var unmarshalerType = reflect.TypeFor[json.Unmarshaler]()

// next returns the first byte of the next token.
func (w *unknownWalk) next() byte {
	for w.at < len(w.data) {
		switch c := w.data[w.at]; c {
		case ' ', '\t', '\r', '\n', ',', ':':
			w.at++
		default:
			return c
		}
	}
	return 0
}

// text reads the string that begins here.
func (w *unknownWalk) text() string {
	from, plain := w.at, true
	for w.at++; w.at < len(w.data) && w.data[w.at] != '"'; w.at++ {
		if w.data[w.at] == '\\' {
			w.at++
			plain = false
		}
	}
	w.at = min(w.at+1, len(w.data))
	if plain {
		return string(w.data[from+1 : w.at-1])
	}
	var s string
	_ = json.Unmarshal(w.data[from:w.at], &s) // it has been decoded once before
	return s
}

// skip passes over one value.
func (w *unknownWalk) skip() {
	depth := 0
	for {
		switch c := w.next(); {
		case c == 0:
			return
		case c == '{' || c == '[':
			depth++
			w.at++
		case c == '}' || c == ']':
			depth--
			w.at++
		case c == '"':
			for w.at++; w.at < len(w.data) && w.data[w.at] != '"'; w.at++ {
				if w.data[w.at] == '\\' {
					w.at++
				}
			}
			w.at++
		default:
			for w.at < len(w.data) && !strings.ContainsRune(" \t\r\n,:]}", rune(w.data[w.at])) {
				w.at++
			}
		}
		if depth <= 0 {
			return
		}
	}
}

func (w *unknownWalk) walk(t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		if t.Implements(unmarshalerType) {
			w.skip()
			return
		}
		t = t.Elem()
	}
	c := w.next()
	switch kind := t.Kind(); {
	case reflect.PointerTo(t).Implements(unmarshalerType):
		w.skip()
	case c == '{' && (kind == reflect.Map || kind == reflect.Struct):
		w.object(t)
	case c == '[' && kind == reflect.Slice:
		w.at++
		for i := 0; w.next() != ']' && w.at < len(w.data); i++ {
			w.path = append(w.path, step{index: i})
			w.walk(t.Elem())
			w.path = w.path[:len(w.path)-1]
		}
		w.at++
	default:
		w.skip()
	}
}

func (w *unknownWalk) object(t reflect.Type) {
	var fields map[string]reflect.StructField
	if t.Kind() == reflect.Struct {
		fields = jsonFields(t)
	}
	w.at++
	for w.next() == '"' {
		k := w.text()
		w.path = append(w.path, step{field: k, index: -1})
		switch f, known := fields[strings.ToLower(k)]; {
		case t.Kind() == reflect.Map:
			w.walk(t.Elem())
		case known:
			w.walk(f.Type)
		default:
			if len(w.found) == unknownKeysKept {
				w.more++
			} else {
				names := make([]string, 0, len(fields))
				for _, f := range fields {
					names = append(names, f.Name)
				}
				w.found = append(w.found, UnknownField{w.where(), k, suggest.Nearest(k, names)})
			}
			w.skip()
		}
		w.path = w.path[:len(w.path)-1]
	}
	w.at++
}

// where returns the path as users write it.
func (w *unknownWalk) where() string {
	var b strings.Builder
	for _, s := range w.path {
		if s.index >= 0 {
			fmt.Fprintf(&b, "[%d]", s.index)
			continue
		}
		k := s.field
		if len(k) > 64 {
			k = k[:64] + "..."
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(k)
	}
	return b.String()
}

var jsonFieldsOf sync.Map // reflect.Type -> map[string]reflect.StructField

// jsonFields lists the fields of a struct by lower-case JSON name, embedded ones included.
func jsonFields(t reflect.Type) map[string]reflect.StructField {
	if m, ok := jsonFieldsOf.Load(t); ok {
		return m.(map[string]reflect.StructField)
	}
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
	jsonFieldsOf.Store(t, out)
	return out
}
