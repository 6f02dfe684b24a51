package pack

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"strings"
)

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
	panic(refusal("map key of type " + t.String() + "; want a string or an unsigned integer"))
}

func encBool(b []byte, p addr) []byte { return AppendBool(b, *as[bool](p)) }

func number[T int | int8 | int16 | int32 | int64](c *coder, t reflect.Type) {
	c.look = lookOf(t)
	c.enc = func(b []byte, p addr) []byte { return AppendInt(b, int64(*as[T](p))) }
	c.dec = func(r *Reader, p addr) error {
		if r.Nil() {
			*as[T](p) = 0
			return nil
		}
		u, neg, err := r.integer()
		if err != nil {
			return err
		}
		if !neg && u > math.MaxInt64 || int64(T(u)) != int64(u) {
			return fmt.Errorf("msgpack: integer does not fit %s", t)
		}
		*as[T](p) = T(u)
		return nil
	}
}

func unsigned[T uint | uint8 | uint16 | uint32 | uint64](c *coder, t reflect.Type) {
	c.look = lookOf(t)
	c.enc = func(b []byte, p addr) []byte { return appendUint(b, uint64(*as[T](p))) }
	c.dec = func(r *Reader, p addr) error {
		if r.Nil() {
			*as[T](p) = 0
			return nil
		}
		u, neg, err := r.integer()
		if err != nil {
			return err
		}
		if neg || uint64(T(u)) != u {
			return fmt.Errorf("msgpack: integer does not fit %s", t)
		}
		*as[T](p) = T(u)
		return nil
	}
}

func lookOf(t reflect.Type) look {
	switch t.Size() {
	case 1:
		return look8
	case 4:
		return look32
	case 8:
		return look64
	}
	return lookCall
}

func encString(b []byte, p addr) []byte { return AppendString(b, *as[string](p)) }

func encBytes(b []byte, p addr) []byte {
	s := *as[[]byte](p)
	if s == nil {
		return AppendNil(b)
	}
	return appendBin(b, s)
}

func byteArray(c *coder, n int) {
	c.enc = func(b []byte, p addr) []byte { return appendBin(b, p.bytes(n)) }
	c.dec = func(r *Reader, p addr) error {
		at := p.bytes(n)
		if r.Nil() {
			clear(at)
			return nil
		}
		s, err := r.Bytes()
		if err != nil {
			return err
		}
		if len(s) != n {
			return fmt.Errorf("msgpack: %d bytes where %d are wanted", len(s), n)
		}
		copy(at, s)
		return nil
	}
}

// AppendNil appends nil: that of a pointer, map or slice.
func AppendNil(b []byte) []byte { return append(b, 0xc0) }

// AppendBool appends a boolean.
func AppendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 0xc3)
	}
	return append(b, 0xc2)
}

// AppendInt appends an integer.
func AppendInt(b []byte, i int64) []byte {
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

// AppendString appends a string.
func AppendString(b []byte, s string) []byte {
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

// AppendMap appends the beginning of a map or struct with n entries.
func AppendMap(b []byte, n int) []byte {
	switch {
	case n <= 15:
		return append(b, 0x80|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xde), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xdf), uint32(n))
}

// AppendArray appends the beginning of a list of n elements.
func AppendArray(b []byte, n int) []byte {
	switch {
	case n <= 15:
		return append(b, 0x90|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n))
}
