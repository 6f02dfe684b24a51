// Package pack writes and reads Go values as canonical msgpack: struct fields by name in sorted order, zero fields
// omitted, integers in their shortest form, map keys sorted. Equal values give equal bytes, and a field that a newer
// version adds changes no bytes while it is zero; log entries, snapshots and the state hash depend on both.
//
// Floating point, interfaces, channels and functions are refused when a type is first seen (D10). Fields
// tagged `codec:"-"` and unexported fields are left out. Nil and empty slices and maps stay apart.
//
// A type is looked at once and turned into functions over its values, because the log, the state hash and the calls that
// place work spend much of their time here. ADR 0014 says why they go without package unsafe.
package pack

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// depthMax bounds the nesting of a value that Decode follows or skips.
const depthMax = 64

// coder is how one type is written and read. enc is given a value that it can take the address of; dec is given one that
// is zero and that it can set.
type coder struct {
	enc func(b []byte, v reflect.Value) []byte
	dec func(r *reader, v reflect.Value) error
}

type field struct {
	name  string
	key   []byte // the name as msgpack
	index []int
	kind  reflect.Kind
	c     *coder
}

// Coder writes and reads values with one set of rules; it remembers the types that it has seen.
type Coder struct {
	wire   bool     // rules of Wire
	coders sync.Map // reflect.Type -> *coder, or error
}

var (
	state Coder

	// Wire has the rules of messages between agents, which go-msgpack reads and writes, too: fields of an embedded struct
	// are fields of the struct around it, whose own hide those of the same name, and a tag may rename a field.
	Wire = &Coder{wire: true}
)

// Append writes v, a pointer to the value, after b. It panics on a type that cannot be packed, which is a mistake in
// the program and found by any test that packs the type once.
func Append(b []byte, v any) []byte {
	rv := reflect.ValueOf(v)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		panic(fmt.Sprintf("pack: want a non-nil pointer, not %T", v))
	}
	c, err := state.of(rv.Type().Elem())
	if err != nil {
		panic(err.Error())
	}
	return c.enc(b, rv.Elem())
}

// Decode reads exactly one value from data into v, a pointer. Fields that v's type does not have are skipped; bytes
// after the value are an error.
func Decode(data []byte, v any) error {
	rv := reflect.ValueOf(v)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		panic(fmt.Sprintf("pack: want a non-nil pointer, not %T", v))
	}
	c, err := state.of(rv.Type().Elem())
	if err != nil {
		panic(err.Error())
	}
	return c.read(data, rv)
}

// Append writes v, a value or a pointer to one, after b; ok is false, and nothing is written, for a type that these
// rules have no form for.
func (m *Coder) Append(b []byte, v any) (out []byte, ok bool) {
	rv := reflect.ValueOf(v)
	if !rv.IsValid() {
		return b, false
	}
	if rv.Kind() != reflect.Pointer {
		at := reflect.New(rv.Type())
		at.Elem().Set(rv)
		rv = at
	} else if rv.IsNil() {
		return b, false
	}
	c, err := m.of(rv.Type().Elem())
	if err != nil {
		return b, false
	}
	return c.enc(b, rv.Elem()), true
}

// Decode reads exactly one value from data into v, a pointer; ok is false for a type that these rules have no form for.
func (m *Coder) Decode(data []byte, v any) (ok bool, err error) {
	rv := reflect.ValueOf(v)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		return false, nil
	}
	c, err := m.of(rv.Type().Elem())
	if err != nil {
		return false, nil
	}
	return true, c.read(data, rv)
}

func (c *coder) read(data []byte, rv reflect.Value) error {
	rv.Elem().SetZero()
	r := &reader{b: data}
	if err := c.dec(r, rv.Elem()); err != nil {
		return err
	}
	if len(r.b) > r.at {
		return fmt.Errorf("msgpack: %d bytes after the value", len(r.b)-r.at)
	}
	return nil
}

// refusal is why a type cannot be packed, on its way up through compile.
type refusal string

func (m *Coder) of(t reflect.Type) (*coder, error) {
	if c, ok := m.coders.Load(t); ok {
		if err, bad := c.(error); bad {
			return nil, err
		}
		return c.(*coder), nil
	}
	return m.learn(t)
}

func (m *Coder) learn(t reflect.Type) (c *coder, err error) {
	// Built into a private map first, so that a recursive type finds itself and nobody sees it half built.
	b := &builder{m: m, done: map[reflect.Type]*coder{}}
	defer func() {
		switch why := recover().(type) {
		case nil:
		case refusal:
			c, err = nil, errors.New("pack: "+string(why))
			m.coders.Store(t, err)
		default:
			panic(why)
		}
	}()
	c = b.compile(t)
	for t, c := range b.done {
		m.coders.LoadOrStore(t, c)
	}
	return c, nil
}

type builder struct {
	m    *Coder
	done map[reflect.Type]*coder
}

func (b *builder) compile(t reflect.Type) *coder {
	if c, ok := b.m.coders.Load(t); ok {
		if c, ok := c.(*coder); ok {
			return c
		}
	}
	if c, ok := b.done[t]; ok {
		return c
	}
	if b.m.wire && (t.Implements(binaryType) || reflect.PointerTo(t).Implements(binaryType)) {
		panic(refusal(t.String() + " writes itself"))
	}
	c := &coder{}
	b.done[t] = c
	switch t.Kind() {
	case reflect.Bool:
		c.enc, c.dec = encBool, decBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		c.enc, c.dec = encInt, decInt
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		c.enc, c.dec = encUint, decUint
	case reflect.String:
		c.enc, c.dec = encString, decString
	case reflect.Pointer:
		pointer(c, b.compile(t.Elem()), t)
	case reflect.Array:
		if t.Elem().Kind() != reflect.Uint8 {
			panic(refusal("array of " + t.Elem().String()))
		}
		c.enc, c.dec = encArray, decArray
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			c.enc, c.dec = encBytes, decBytes
		} else {
			slice(c, b.compile(t.Elem()), t)
		}
	case reflect.Map:
		mapping(c, b.compile(t.Key()), b.compile(t.Elem()), t)
	case reflect.Struct:
		b.structure(c, t)
	default:
		panic(refusal("a value of type " + t.String() + " cannot be in the log or the state"))
	}
	return c
}

// isZero is v.IsZero, in less time for the commonest kinds.
func (f *field) isZero(v reflect.Value) bool {
	switch f.kind {
	case reflect.String:
		return v.Len() == 0
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int() == 0
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return v.Uint() == 0
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return v.IsNil()
	}
	return v.IsZero()
}

// of returns the field of a struct.
func (f *field) of(v reflect.Value) reflect.Value {
	if len(f.index) == 1 {
		return v.Field(f.index[0])
	}
	return v.FieldByIndex(f.index)
}

// Field is a field of a struct and the name it has in a message.
type Field struct {
	Name                string
	reflect.StructField // Index leads to it from the outermost struct
}

// Fields returns the fields of a struct that are written, by name.
func (m *Coder) Fields(t reflect.Type) []Field {
	var out []Field
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("codec"), ",")
		inline := m.wire && f.Anonymous && name == ""
		if name == "-" || inline && f.Type.Kind() == reflect.Struct || !inline && !f.IsExported() || !m.wire && len(f.Index) > 1 {
			continue
		}
		if inline {
			panic(refusal(t.String() + " embeds " + f.Type.String()))
		}
		if name == "" || !m.wire {
			name = f.Name
		}
		out = append(out, Field{name, f})
	}
	slices.SortFunc(out, func(a, b Field) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// fieldsMax bounds the fields of a struct, so that a byte counts them.
const fieldsMax = 256

func (b *builder) structure(c *coder, t reflect.Type) {
	var fields []field
	for _, f := range b.m.Fields(t) {
		fields = append(fields, field{f.Name, appendString(nil, f.Name), f.Index, f.Type.Kind(), b.compile(f.Type)})
	}
	if len(fields) > fieldsMax {
		panic(refusal(t.String() + " has too many fields"))
	}
	for i := 1; i < len(fields); i++ {
		if fields[i].name == fields[i-1].name {
			panic(refusal(t.String() + " has two fields called " + fields[i].name))
		}
	}
	c.enc = func(b []byte, v reflect.Value) []byte {
		var set [fieldsMax]uint8
		n := 0
		for i := range fields {
			if f := &fields[i]; !f.isZero(f.of(v)) {
				set[n] = uint8(i)
				n++
			}
		}
		b = appendMapHeader(b, n)
		for _, i := range set[:n] {
			f := &fields[i]
			b = append(b, f.key...)
			b = f.c.enc(b, f.of(v))
		}
		return b
	}
	c.dec = func(r *reader, v reflect.Value) error {
		if r.isNil() {
			return nil
		}
		n, err := r.mapHeader()
		if err != nil {
			return err
		}
		if err := r.enter(); err != nil {
			return err
		}
		defer r.leave()
		next := 0 // names come sorted, so the next one is usually close
		for range n {
			name, err := r.str()
			if err != nil {
				return err
			}
			i := next
			for i < len(fields) && fields[i].name < string(name) {
				i++
			}
			if i >= len(fields) || fields[i].name != string(name) {
				var found bool
				i, found = slices.BinarySearchFunc(fields, name, func(f field, name []byte) int { return strings.Compare(f.name, string(name)) })
				if !found {
					if err := r.skip(); err != nil {
						return err
					}
					continue
				}
			}
			if err := fields[i].c.dec(r, fields[i].of(v)); err != nil {
				return fmt.Errorf("%s: %w", fields[i].name, err)
			}
			next = i + 1
		}
		return nil
	}
}

// binaryType is of values, times among them, that the msgpack library of other versions lets write themselves.
var binaryType = reflect.TypeFor[encoding.BinaryMarshaler]()

func pointer(c, elem *coder, t reflect.Type) {
	c.enc = func(b []byte, v reflect.Value) []byte {
		if v.IsNil() {
			return append(b, 0xc0)
		}
		return elem.enc(b, v.Elem())
	}
	of := t.Elem()
	c.dec = func(r *reader, v reflect.Value) error {
		if r.isNil() {
			return nil
		}
		at := reflect.New(of)
		if err := elem.dec(r, at.Elem()); err != nil {
			return err
		}
		v.Set(at)
		return nil
	}
}

func slice(c, elem *coder, t reflect.Type) {
	c.enc = func(b []byte, v reflect.Value) []byte {
		if v.IsNil() {
			return append(b, 0xc0)
		}
		n := v.Len()
		b = appendArrayHeader(b, n)
		for i := range n {
			b = elem.enc(b, v.Index(i))
		}
		return b
	}
	c.dec = func(r *reader, v reflect.Value) error {
		if r.isNil() {
			return nil
		}
		n, err := r.arrayHeader()
		if err != nil {
			return err
		}
		if err := r.enter(); err != nil {
			return err
		}
		defer r.leave()
		have := min(n, 256) // grown as elements really arrive: a header alone costs nothing
		v.Set(reflect.MakeSlice(t, have, have))
		for i := range n {
			if i == have {
				more := min(n-have, have)
				v.Grow(more)
				have += more
				v.SetLen(have)
			}
			if err := elem.dec(r, v.Index(i)); err != nil {
				return fmt.Errorf("[%d]: %w", i, err)
			}
		}
		return nil
	}
}

func mapping(c, key, elem *coder, t reflect.Type) {
	if t == stringsType {
		c.enc, c.dec = encStrings, decStrings
		return
	}
	less := keyLess(t.Key())
	c.enc = func(b []byte, v reflect.Value) []byte {
		if v.IsNil() {
			return append(b, 0xc0)
		}
		keys := v.MapKeys()
		slices.SortFunc(keys, less)
		b = appendMapHeader(b, len(keys))
		e := reflect.New(t.Elem()).Elem() // an array in a value in a map has no address
		for _, k := range keys {
			b = key.enc(b, k)
			e.Set(v.MapIndex(k))
			b = elem.enc(b, e)
		}
		return b
	}
	c.dec = func(r *reader, v reflect.Value) error {
		if r.isNil() {
			return nil
		}
		n, err := r.mapHeader()
		if err != nil {
			return err
		}
		if err := r.enter(); err != nil {
			return err
		}
		defer r.leave()
		m := reflect.MakeMapWithSize(t, min(n, 256))
		k, e := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
		for range n {
			k.SetZero()
			if err := key.dec(r, k); err != nil {
				return err
			}
			e.SetZero()
			if err := elem.dec(r, e); err != nil {
				return fmt.Errorf("[%v]: %w", k, err)
			}
			m.SetMapIndex(k, e)
		}
		v.Set(m)
		return nil
	}
}

var stringsType = reflect.TypeFor[map[string]string]()

// encStrings and decStrings are mapping for the commonest map.
func encStrings(b []byte, v reflect.Value) []byte {
	m := v.Interface().(map[string]string)
	if m == nil {
		return append(b, 0xc0)
	}
	var few [16]string
	keys := few[:0]
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	b = appendMapHeader(b, len(keys))
	for _, k := range keys {
		b = appendString(appendString(b, k), m[k])
	}
	return b
}

func decStrings(r *reader, v reflect.Value) error {
	if r.isNil() {
		return nil
	}
	n, err := r.mapHeader()
	if err != nil {
		return err
	}
	if err := r.enter(); err != nil {
		return err
	}
	defer r.leave()
	m := make(map[string]string, min(n, 256))
	for range n {
		k, err := r.text()
		if err != nil {
			return err
		}
		at, err := r.text()
		if err != nil {
			return fmt.Errorf("[%v]: %w", k, err)
		}
		m[k] = at
	}
	v.Set(reflect.ValueOf(m))
	return nil
}
