// Package pack writes and reads Go values as canonical msgpack: struct fields by name in sorted order, zero fields
// omitted, integers in their shortest form, map keys sorted. Equal values give equal bytes, and a field that a newer
// version adds changes no bytes while it is zero. Log entries, snapshots and the state hash depend on both.
//
// Floating point, interfaces, channels and functions are refused when a type is first used (D10). Fields tagged
// `codec:"-"` and unexported fields are omitted; those of a struct behind a pointer tagged `codec:",inline"` belong to the
// outer struct. Nil and empty slices and maps remain distinct.
//
// A type is examined once, by reflection, and compiled into functions over the address of a value, because the log, the
// state hash and the calls that place work spend much of their time here. After that, only maps, allocation and growth
// use reflection. All use of unsafe is in memory.go.
package pack

import (
	"encoding"
	"errors"
	"fmt"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// depthMax bounds the nesting of a value that Decode reads or skips.
const depthMax = 64

// coder writes and reads values of one type, and recognises zero values. Its functions take the address of a value; dec
// expects a zero value there.
type coder struct {
	enc  func(b []byte, p addr) []byte
	dec  func(r *Reader, p addr) error
	zero func(p addr) bool
	look look
}

// look says how zero values of the most common kinds are recognised without a function call.
type look uint8

const (
	lookCall  look = iota // call coder.zero
	look8                 // one byte
	look32                // four bytes
	look64                // eight bytes
	lookWord              // a pointer, or the first word of a slice
	lookEmpty             // a string
)

type field struct {
	name string
	key  []byte // name in msgpack
	off  uintptr
	look look
	c    *coder
	in   reflect.Type // struct that off is in, of an inline field; nil: the struct itself
	ptr  uintptr      // offset of the pointer to that struct
}

// at returns the address of a field, and whether it exists: the pointer to an inline struct may be nil.
func (f *field) at(p addr) (addr, bool) {
	if f.in == nil {
		return p.plus(f.off), true
	}
	if p = *as[addr](p.plus(f.ptr)); p.isNil() {
		return p, false
	}
	return p.plus(f.off), true
}

// make is at for a field that is about to be read: a missing inline struct is allocated.
func (f *field) make(p addr) addr {
	if f.in == nil {
		return p.plus(f.off)
	}
	at := as[addr](p.plus(f.ptr))
	if at.isNil() {
		*at = addrOf(reflect.New(f.in))
	}
	return at.plus(f.off)
}

// Coder writes and reads values with one set of rules. It caches the types that it has compiled.
type Coder struct {
	wire   bool     // use the rules of Wire
	coders sync.Map // reflect.Type -> *coder, or error
}

var (
	state Coder

	// Wire has the rules of messages between agents, which go-msgpack can read and write, too: unknown fields are
	// skipped, fields of an embedded struct belong to the outer struct, whose own fields hide them if the names are
	// equal, and a tag may rename a field.
	Wire = &Coder{wire: true}
)

// Append appends v, a pointer to the value, to b. It panics on a type that cannot be packed. That is a mistake in the
// program, found by any test that packs the type once.
func Append(b []byte, v any) []byte {
	rv := reflect.ValueOf(v)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		panic(fmt.Sprintf("pack: want a non-nil pointer, not %T", v))
	}
	c, err := state.of(rv.Type().Elem())
	if err != nil {
		panic(err.Error())
	}
	return c.enc(b, addrOf(rv))
}

// UnknownFieldError reports a field that the type read has not: a newer version wrote it.
type UnknownFieldError struct{ Type, Field string }

func (e *UnknownFieldError) Error() string {
	return fmt.Sprintf("%s has no field %q; a newer version of muster wrote it", e.Type, e.Field)
}

// Decode reads exactly one value from data into v, a pointer. Bytes after the value are an error, and so is an unknown
// field: a server that skipped a part of an entry or of a row would differ from its peers (I9).
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

// Append appends v, a value or a pointer to one, to b. ok is false, and nothing is appended, if the type cannot be
// packed.
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
	return c.enc(b, addrOf(rv)), true
}

// Decode reads exactly one value from data into v, a pointer. ok is false if the type cannot be packed.
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
	r := NewReader(data)
	if err := c.dec(r, addrOf(rv)); err != nil {
		return err
	}
	if len(r.b) > r.at {
		return fmt.Errorf("msgpack: %d bytes after the value", len(r.b)-r.at)
	}
	return nil
}

// refusal is a panic value in compile: why a type cannot be packed.
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
	// The coders are built in a private map first: a recursive type finds itself there, and other goroutines see no
	// half-built ones.
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
	if of := Expands(t); of != nil {
		standIn(c, b.compile(of), t, of)
		c.zero = zeroOf(t)
		return c
	}
	switch t.Kind() {
	case reflect.Bool:
		c.enc, c.dec, c.look = encBool, decBool, look8
	case reflect.Int64:
		number[int64](c, t)
	case reflect.Int:
		number[int](c, t)
	case reflect.Int32:
		number[int32](c, t)
	case reflect.Int16:
		number[int16](c, t)
	case reflect.Int8:
		number[int8](c, t)
	case reflect.Uint64:
		unsigned[uint64](c, t)
	case reflect.Uint:
		unsigned[uint](c, t)
	case reflect.Uint32:
		unsigned[uint32](c, t)
	case reflect.Uint16:
		unsigned[uint16](c, t)
	case reflect.Uint8:
		unsigned[uint8](c, t)
	case reflect.String:
		c.enc, c.dec, c.look = encString, decString, lookEmpty
	case reflect.Pointer:
		pointer(c, b.compile(t.Elem()), t)
	case reflect.Array:
		if t.Elem().Kind() != reflect.Uint8 {
			panic(refusal("array of " + t.Elem().String()))
		}
		byteArray(c, t.Len())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			c.enc, c.dec, c.look = encBytes, decBytes, lookWord
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
	if c.zero == nil {
		c.zero = zeroOf(t)
	}
	return c
}

// zeroOf returns a function that recognises a zero value as reflect.Value.IsZero does: all fields count, even those not
// written.
func zeroOf(t reflect.Type) func(p addr) bool {
	switch t.Kind() {
	case reflect.Bool, reflect.Int8, reflect.Uint8:
		return func(p addr) bool { return *as[uint8](p) == 0 }
	case reflect.Int16, reflect.Uint16:
		return func(p addr) bool { return *as[uint16](p) == 0 }
	case reflect.Int32, reflect.Uint32:
		return func(p addr) bool { return *as[uint32](p) == 0 }
	case reflect.Int64, reflect.Uint64:
		return func(p addr) bool { return *as[uint64](p) == 0 }
	case reflect.Int, reflect.Uint, reflect.Uintptr:
		return func(p addr) bool { return *as[uint](p) == 0 }
	case reflect.String:
		return func(p addr) bool { return len(*as[string](p)) == 0 }
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Interface:
		return func(p addr) bool { return as[addr](p).isNil() }
	case reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			n := t.Len()
			return func(p addr) bool {
				for _, x := range p.bytes(n) {
					if x != 0 {
						return false
					}
				}
				return true
			}
		}
	case reflect.Struct:
		type part struct {
			off  uintptr
			zero func(p addr) bool
		}
		var parts []part
		for i := range t.NumField() {
			f := t.Field(i)
			parts = append(parts, part{f.Offset, zeroOf(f.Type)})
		}
		return func(p addr) bool {
			for i := range parts {
				if !parts[i].zero(p.plus(parts[i].off)) {
					return false
				}
			}
			return true
		}
	}
	return func(p addr) bool { return p.value(t).IsZero() }
}

// isZero is c.zero without a call for the most common kinds.
func (f *field) isZero(p addr) bool {
	switch f.look {
	case look8:
		return *as[uint8](p) == 0
	case look32:
		return *as[uint32](p) == 0
	case look64:
		return *as[uint64](p) == 0
	case lookWord:
		return as[addr](p).isNil()
	case lookEmpty:
		return len(*as[string](p)) == 0
	}
	return f.c.zero(p)
}

// Field is a field of a struct, with its name in messages.
type Field struct {
	Name                string
	reflect.StructField // Index is the path from the outermost struct
}

// Fields returns the fields of a struct that are written, sorted by name.
func (m *Coder) Fields(t reflect.Type) []Field {
	var out []Field
	for _, f := range reflect.VisibleFields(t) {
		name, option, _ := strings.Cut(f.Tag.Get("codec"), ",")
		if option == "inline" {
			out = append(out, m.inline(t, f)...)
			continue
		}
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

// inline returns the fields of a struct that a field points to. They are written like fields of the outer struct.
func (m *Coder) inline(t reflect.Type, f reflect.StructField) (out []Field) {
	if f.Type.Kind() != reflect.Pointer || f.Type.Elem().Kind() != reflect.Struct || len(f.Index) > 1 {
		panic(refusal(t.String() + "." + f.Name + " is inline, and not a pointer to a struct"))
	}
	for _, sub := range m.Fields(f.Type.Elem()) {
		if len(sub.Index) > 1 {
			panic(refusal(f.Type.Elem().String() + " is inline, and embeds a struct"))
		}
		sub.Index = append(slices.Clone(f.Index), sub.Index...)
		out = append(out, sub)
	}
	return out
}

// offset returns the offset of a field in the outermost struct.
func offset(t reflect.Type, index []int) (at uintptr) {
	for _, i := range index {
		at += t.Field(i).Offset
		t = t.Field(i).Type
	}
	return at
}

// fieldsMax bounds the fields of a struct, so that a small bit set can mark those to write.
const fieldsMax = 256

func (b *builder) structure(c *coder, t reflect.Type) {
	var fields []field
	for _, f := range b.m.Fields(t) {
		c := b.compile(f.Type)
		at := field{name: f.Name, key: AppendString(nil, f.Name), look: c.look, c: c}
		if in := t.Field(f.Index[0]); in.Type.Kind() == reflect.Pointer && len(f.Index) > 1 {
			at.in, at.ptr, at.off = in.Type.Elem(), in.Offset, offset(in.Type.Elem(), f.Index[1:])
		} else {
			at.off = offset(t, f.Index)
		}
		fields = append(fields, at)
	}
	if len(fields) > fieldsMax {
		panic(refusal(t.String() + " has too many fields"))
	}
	for i := 1; i < len(fields); i++ {
		if fields[i].name == fields[i-1].name {
			panic(refusal(t.String() + " has two fields called " + fields[i].name))
		}
	}
	words := (len(fields) + 63) / 64
	strict := !b.m.wire
	c.enc = func(b []byte, p addr) []byte {
		var set [fieldsMax / 64]uint64
		n := 0
		for i := range fields {
			f := &fields[i]
			if at, ok := f.at(p); ok && !f.isZero(at) {
				set[i/64] |= 1 << (i % 64)
				n++
			}
		}
		b = AppendMap(b, n)
		for w, left := range set[:words] {
			for ; left != 0; left &= left - 1 {
				f := &fields[w*64+bits.TrailingZeros64(left)]
				b = append(b, f.key...)
				at, _ := f.at(p)
				b = f.c.enc(b, at)
			}
		}
		return b
	}
	c.dec = func(r *Reader, p addr) error {
		if r.Nil() {
			return nil
		}
		n, err := r.Map()
		if err != nil {
			return err
		}
		if err := r.enter(); err != nil {
			return err
		}
		defer r.leave()
		next := 0 // names are sorted, so the next field is usually close
		for range n {
			name, err := r.Bytes()
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
					if strict {
						return &UnknownFieldError{Type: t.String(), Field: string(name)}
					}
					if err := r.skip(); err != nil {
						return err
					}
					continue
				}
			}
			if err := fields[i].c.dec(r, fields[i].make(p)); err != nil {
				return fmt.Errorf("%s: %w", fields[i].name, err)
			}
			next = i + 1
		}
		return nil
	}
}

// binaryType is implemented by types such as time.Time, which go-msgpack encodes by their own method.
var binaryType = reflect.TypeFor[encoding.BinaryMarshaler]()

func pointer(c, elem *coder, t reflect.Type) {
	c.look = lookWord
	c.enc = func(b []byte, p addr) []byte {
		at := *as[addr](p)
		if at.isNil() {
			return AppendNil(b)
		}
		return elem.enc(b, at)
	}
	of := t.Elem()
	c.dec = func(r *Reader, p addr) error {
		if r.Nil() {
			*as[addr](p) = addr{}
			return nil
		}
		at := addrOf(reflect.New(of))
		if err := elem.dec(r, at); err != nil {
			return err
		}
		*as[addr](p) = at
		return nil
	}
}

func slice(c, elem *coder, t reflect.Type) {
	c.look = lookWord
	size := t.Elem().Size()
	c.enc = func(b []byte, p addr) []byte {
		at, n := p.list()
		if at.isNil() {
			return AppendNil(b)
		}
		b = AppendArray(b, n)
		for i := range n {
			b = elem.enc(b, at.plus(uintptr(i)*size))
		}
		return b
	}
	c.dec = func(r *Reader, p addr) error {
		if r.Nil() {
			p.value(t).SetZero()
			return nil
		}
		n, err := r.Array()
		if err != nil {
			return err
		}
		if err := r.enter(); err != nil {
			return err
		}
		defer r.leave()
		have := min(n, 256) // grows as elements arrive, because a header may claim any number
		s := p.value(t)
		s.Set(reflect.MakeSlice(t, have, have))
		at := addrOf(s)
		for i := range n {
			if i == have {
				more := min(n-have, have)
				s.Grow(more)
				have += more
				s.SetLen(have)
				at = addrOf(s)
			}
			if err := elem.dec(r, at.plus(uintptr(i)*size)); err != nil {
				return fmt.Errorf("[%d]: %w", i, err)
			}
		}
		return nil
	}
}

func mapping(c, key, elem *coder, t reflect.Type) {
	c.look = lookWord
	if t.Key() == stringType && t.Elem() == stringType {
		c.enc, c.dec = encStrings, decStrings
		return
	}
	less := keyLess(t.Key())
	c.enc = func(b []byte, p addr) []byte {
		v := p.value(t)
		if v.IsNil() {
			return AppendNil(b)
		}
		keys := v.MapKeys()
		slices.SortFunc(keys, less)
		b = AppendMap(b, len(keys))
		k, e := reflect.New(t.Key()), reflect.New(t.Elem())
		for _, name := range keys {
			k.Elem().Set(name)
			b = key.enc(b, addrOf(k))
			e.Elem().Set(v.MapIndex(name))
			b = elem.enc(b, addrOf(e))
		}
		return b
	}
	c.dec = func(r *Reader, p addr) error {
		v := p.value(t)
		if r.Nil() {
			v.SetZero()
			return nil
		}
		n, err := r.Map()
		if err != nil {
			return err
		}
		if err := r.enter(); err != nil {
			return err
		}
		defer r.leave()
		m := reflect.MakeMapWithSize(t, min(n, 256))
		k, e := reflect.New(t.Key()), reflect.New(t.Elem())
		for range n {
			k.Elem().SetZero()
			if err := key.dec(r, addrOf(k)); err != nil {
				return err
			}
			e.Elem().SetZero()
			if err := elem.dec(r, addrOf(e)); err != nil {
				return fmt.Errorf("[%v]: %w", k.Elem(), err)
			}
			m.SetMapIndex(k.Elem(), e.Elem())
		}
		v.Set(m)
		return nil
	}
}

var stringType = reflect.TypeFor[string]()

// encStrings and decStrings are faster forms of mapping for the most common map.
func encStrings(b []byte, p addr) []byte {
	m := *as[map[string]string](p)
	if m == nil {
		return AppendNil(b)
	}
	var few [16]string
	keys := few[:0]
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	b = AppendMap(b, len(keys))
	for _, k := range keys {
		b = AppendString(AppendString(b, k), m[k])
	}
	return b
}

func decStrings(r *Reader, p addr) error {
	at := as[map[string]string](p)
	if r.Nil() {
		*at = nil
		return nil
	}
	n, err := r.Map()
	if err != nil {
		return err
	}
	if err := r.enter(); err != nil {
		return err
	}
	defer r.leave()
	m := make(map[string]string, min(n, 256))
	for range n {
		var k, v string
		if err := decString(r, addrTo(&k)); err != nil {
			return err
		}
		if err := decString(r, addrTo(&v)); err != nil {
			return fmt.Errorf("[%v]: %w", k, err)
		}
		m[k] = v
	}
	*at = m
	return nil
}
