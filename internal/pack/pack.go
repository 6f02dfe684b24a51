// Package pack writes and reads Go values as canonical msgpack: struct fields by name in sorted order, zero fields
// omitted, integers in their shortest form, map keys sorted. Equal values give equal bytes, and a field that a newer
// version adds changes no bytes while it is zero; log entries, snapshots and the state hash depend on both.
//
// Floating point, interfaces, channels and functions are refused when a type is first seen (DESIGN.md D10). Fields
// tagged `codec:"-"` and unexported fields are left out. Nil and empty slices and maps stay apart.
package pack

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sort"
	"strings"
	"sync"
)

// depthMax bounds the nesting of a value that Decode follows or skips.
const depthMax = 64

// coder is how one type is written, read and recognised as zero.
type coder struct {
	enc func(b []byte, v reflect.Value) []byte
	dec func(r *reader, v reflect.Value) error
}

type field struct {
	name  string
	key   []byte // the name as msgpack
	index int
	c     *coder
}

var coders sync.Map // reflect.Type -> *coder

// Append writes v, a pointer to the value, after b. It panics on a type that cannot be packed, which is a mistake in
// the program and found by any test that packs the type once.
func Append(b []byte, v any) []byte {
	rv := reflect.ValueOf(v)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		panic(fmt.Sprintf("pack: want a non-nil pointer, not %T", v))
	}
	return coderOf(rv.Type().Elem()).enc(b, rv.Elem())
}

// Decode reads exactly one value from data into v, a pointer. Fields that v's type does not have are skipped; bytes
// after the value are an error.
func Decode(data []byte, v any) error {
	rv := reflect.ValueOf(v)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		panic(fmt.Sprintf("pack: want a non-nil pointer, not %T", v))
	}
	r := &reader{b: data}
	if err := coderOf(rv.Type().Elem()).dec(r, rv.Elem()); err != nil {
		return err
	}
	if len(r.b) > r.at {
		return fmt.Errorf("msgpack: %d bytes after the value", len(r.b)-r.at)
	}
	return nil
}

func coderOf(t reflect.Type) *coder {
	if c, ok := coders.Load(t); ok {
		return c.(*coder)
	}
	// Built into a private map first, so that a recursive type finds itself and nobody sees it half built.
	build := map[reflect.Type]*coder{}
	c := compile(t, build)
	for t, c := range build {
		coders.LoadOrStore(t, c)
	}
	return c
}

func compile(t reflect.Type, build map[reflect.Type]*coder) *coder {
	if c, ok := coders.Load(t); ok {
		return c.(*coder)
	}
	if c, ok := build[t]; ok {
		return c
	}
	c := &coder{}
	build[t] = c
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
		pointer(c, compile(t.Elem(), build), t)
	case reflect.Array:
		if t.Elem().Kind() != reflect.Uint8 {
			panic("pack: array of " + t.Elem().String())
		}
		c.enc, c.dec = encByteArray, decByteArray
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			c.enc, c.dec = encBytes, decBytes
		} else {
			slice(c, compile(t.Elem(), build), t)
		}
	case reflect.Map:
		mapping(c, compile(t.Key(), build), compile(t.Elem(), build), t)
	case reflect.Struct:
		structure(c, t, build)
	default:
		panic("pack: a value of type " + t.String() + " cannot be in the log or the state")
	}
	return c
}

func structure(c *coder, t reflect.Type, build map[reflect.Type]*coder) {
	var fields []field
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() || f.Tag.Get("codec") == "-" {
			continue
		}
		fields = append(fields, field{name: f.Name, key: appendString(nil, f.Name), index: i, c: compile(f.Type, build)})
	}
	slices.SortFunc(fields, func(a, b field) int { return strings.Compare(a.name, b.name) })
	if len(fields) > 255 {
		panic("pack: " + t.String() + " has too many fields")
	}
	c.enc = func(b []byte, v reflect.Value) []byte {
		var set [256]uint8
		n := 0
		for i := range fields {
			if !v.Field(fields[i].index).IsZero() {
				set[n] = uint8(i)
				n++
			}
		}
		b = appendMapHeader(b, n)
		for _, i := range set[:n] {
			f := &fields[i]
			b = append(b, f.key...)
			b = f.c.enc(b, v.Field(f.index))
		}
		return b
	}
	c.dec = func(r *reader, v reflect.Value) error {
		v.SetZero()
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
				i = sort.Search(len(fields), func(i int) bool { return fields[i].name >= string(name) })
			}
			if i >= len(fields) || fields[i].name != string(name) {
				if err := r.skip(); err != nil {
					return err
				}
				continue
			}
			if err := fields[i].c.dec(r, v.Field(fields[i].index)); err != nil {
				return fmt.Errorf("%s: %w", fields[i].name, err)
			}
			next = i + 1
		}
		return nil
	}
}

func pointer(c, elem *coder, t reflect.Type) {
	c.enc = func(b []byte, v reflect.Value) []byte {
		if v.IsNil() {
			return append(b, 0xc0)
		}
		return elem.enc(b, v.Elem())
	}
	c.dec = func(r *reader, v reflect.Value) error {
		if r.isNil() {
			v.SetZero()
			return nil
		}
		p := reflect.New(t.Elem())
		if err := elem.dec(r, p.Elem()); err != nil {
			return err
		}
		v.Set(p)
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
			v.SetZero()
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
		s := reflect.New(t).Elem()
		s.Set(reflect.MakeSlice(t, 0, min(n, 256))) // grown as elements really arrive: a header alone costs nothing
		for i := range n {
			if i == s.Cap() {
				s.Grow(i)
			}
			s.SetLen(i + 1)
			if err := elem.dec(r, s.Index(i)); err != nil {
				return fmt.Errorf("[%d]: %w", i, err)
			}
		}
		v.Set(s)
		return nil
	}
}

func mapping(c, key, elem *coder, t reflect.Type) {
	less := keyLess(t.Key())
	c.enc = func(b []byte, v reflect.Value) []byte {
		if v.IsNil() {
			return append(b, 0xc0)
		}
		keys := v.MapKeys()
		slices.SortFunc(keys, less)
		b = appendMapHeader(b, len(keys))
		tmp := reflect.New(t.Elem()).Elem()
		for _, k := range keys {
			b = key.enc(b, k)
			tmp.Set(v.MapIndex(k))
			b = elem.enc(b, tmp)
		}
		return b
	}
	c.dec = func(r *reader, v reflect.Value) error {
		if r.isNil() {
			v.SetZero()
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

func keyLess(t reflect.Type) func(a, b reflect.Value) int {
	switch t.Kind() {
	case reflect.String:
		return func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }
	case reflect.Uint64, reflect.Uint, reflect.Uint32, reflect.Uint16, reflect.Uint8:
		return func(a, b reflect.Value) int {
			switch x, y := a.Uint(), b.Uint(); {
			case x < y:
				return -1
			case x > y:
				return 1
			}
			return 0
		}
	}
	panic("pack: map key of type " + t.String() + "; want a string or an unsigned integer")
}

func encBool(b []byte, v reflect.Value) []byte {
	if v.Bool() {
		return append(b, 0xc3)
	}
	return append(b, 0xc2)
}

func encInt(b []byte, v reflect.Value) []byte       { return appendInt(b, v.Int()) }
func encUint(b []byte, v reflect.Value) []byte      { return appendUint(b, v.Uint()) }
func encString(b []byte, v reflect.Value) []byte    { return appendString(b, v.String()) }
func encByteArray(b []byte, v reflect.Value) []byte { return appendBin(b, v.Bytes()) }

func encBytes(b []byte, v reflect.Value) []byte {
	if v.IsNil() {
		return append(b, 0xc0)
	}
	return appendBin(b, v.Bytes())
}

func appendInt(b []byte, i int64) []byte {
	switch {
	case i >= 0:
		return appendUint(b, uint64(i))
	case i >= -32:
		return append(b, byte(i))
	case i >= math.MinInt8:
		return append(b, 0xd0, byte(i))
	case i >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(b, 0xd1), uint16(i))
	case i >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(b, 0xd2), uint32(i))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(i))
}

func appendUint(b []byte, u uint64) []byte {
	switch {
	case u <= 127:
		return append(b, byte(u))
	case u <= math.MaxUint8:
		return append(b, 0xcc, byte(u))
	case u <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(u))
	case u <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(u))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), u)
}

func appendString(b []byte, s string) []byte {
	switch n := len(s); {
	case n <= 31:
		b = append(b, 0xa0|byte(n))
	case n <= math.MaxUint8:
		b = append(b, 0xd9, byte(n))
	case n <= math.MaxUint16:
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(n))
	}
	return append(b, s...)
}

func appendBin(b, s []byte) []byte {
	switch n := len(s); {
	case n <= math.MaxUint8:
		b = append(b, 0xc4, byte(n))
	case n <= math.MaxUint16:
		b = binary.BigEndian.AppendUint16(append(b, 0xc5), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xc6), uint32(n))
	}
	return append(b, s...)
}

func appendMapHeader(b []byte, n int) []byte {
	switch {
	case n <= 15:
		return append(b, 0x80|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xde), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xdf), uint32(n))
}

func appendArrayHeader(b []byte, n int) []byte {
	switch {
	case n <= 15:
		return append(b, 0x90|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n))
}
