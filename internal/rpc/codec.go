package rpc

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"github.com/muster-sched/muster/internal/pack"
)

// handle configures go-msgpack to write the same bytes as package pack: integers in their shortest form, map keys
// sorted. sparse.go removes zero fields before the library sees them. Structs are written as maps, so that fields can
// be added. MaxDepth keeps a hostile body from exhausting the stack.
var handle = func() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{WriteExt: true, PositiveIntUnsigned: true}
	h.RawToString = true
	h.Canonical = true
	h.MaxDepth = maxDepth
	return h
}()

// Packed marks a message that package pack encodes and decodes instead of go-msgpack. These are the messages sent so
// often that the library would cost more than ADR 0014 allows.
type Packed interface{ Packed() }

// maxDepth bounds the nesting of a body.
const maxDepth = 128

// maxItems bounds the items of one list or map. On the wire a nil item is one byte, but in memory it has the size of
// the element, so the size of the body alone does not bound the memory that decoding takes.
const maxItems = 256 << 10

// Raw is an encoded request body. Invoke and Open send it unchanged.
type Raw []byte

var encoders = sync.Pool{New: func() any { return codec.NewEncoderBytes(new([]byte), handle) }}
var scratches = sync.Pool{New: func() any { return new([]byte) }}

// scratchMax is the capacity of the largest buffer that is kept for reuse.
const scratchMax = 1 << 20

var decoders = sync.Pool{New: func() any { return codec.NewDecoderBytes(nil, handle) }}

// Encode returns the wire encoding of v.
func Encode(v any) ([]byte, error) {
	if raw, ok := v.(Raw); ok {
		return raw, nil
	}
	scratch := scratches.Get().(*[]byte)
	b, err := appendEncoded((*scratch)[:0], v)
	if err != nil {
		return nil, err
	}
	out := bytes.Clone(b)
	release(scratch, b)
	return out, nil
}

// Size returns the length of v's wire encoding. Package pack counts it, which writes the same bytes at a fraction of the cost.
func Size(v any) (int, error) {
	scratch := scratches.Get().(*[]byte)
	b, ok := pack.Wire.Append((*scratch)[:0], v)
	if !ok {
		return 0, fmt.Errorf("encode %T: package pack has no form for it", v)
	}
	release(scratch, b)
	return len(b), nil
}

// release keeps a buffer of scratches, grown to b, for reuse.
func release(scratch *[]byte, b []byte) {
	if cap(b) <= scratchMax {
		*scratch = b
		scratches.Put(scratch)
	}
}

// appendEncoded appends the wire encoding of v.
func appendEncoded(to []byte, v any) (out []byte, err error) {
	switch v := v.(type) {
	case Raw:
		return append(to, v...), nil
	case Packed:
		b, ok := pack.Wire.Append(to, v)
		if !ok {
			return nil, fmt.Errorf("encode %T: package pack has no form for it", v)
		}
		return b, nil
	}
	e := encoders.Get().(*codec.Encoder)
	scratch := scratches.Get().(*[]byte)
	defer func() {
		if r := recover(); r != nil {
			out, err = nil, fmt.Errorf("encode %T: %v", v, r)
			return
		}
		encoders.Put(e)
	}()
	b := (*scratch)[:0]
	e.ResetBytes(&b)
	if err := e.Encode(sparseOf(v)); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	out = append(to, b...)
	release(scratch, b)
	return out, nil
}

// Decode decodes b into v, a pointer. It refuses bodies that nest too deeply, have too many items, or have bytes after
// the value.
func Decode(b []byte, v any) (err error) {
	if err := checkShape(b); err != nil {
		return fmt.Errorf("decode %T: %w", v, err)
	}
	if _, ok := v.(Packed); ok || packDecodes(reflect.TypeOf(v)) {
		if err := decodePacked(b, v); err != nil {
			return fmt.Errorf("decode %T: %w", v, err)
		}
		return nil
	}
	d := decoders.Get().(*codec.Decoder)
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("decode %T: %v", v, r)
			return
		}
		d.ResetBytes(nil)
		decoders.Put(d)
	}()
	if rv := reflect.ValueOf(v); rv.Kind() == reflect.Pointer && !rv.IsNil() {
		rv.Elem().SetZero() // the library does not reset fields that the body lacks
	}
	d.ResetBytes(b)
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("decode %T: %w", v, err)
	}
	return nil
}

func decodePacked(b []byte, v any) error {
	ok, err := pack.Wire.Decode(b, v)
	if !ok {
		return errors.New("package pack has no form for it")
	}
	return err
}

var (
	errTruncated = errors.New("the body ends inside a value")
	errDeep      = fmt.Errorf("the body nests deeper than %d", maxDepth)
	errItems     = fmt.Errorf("the body has a list or map of more than %d items", maxItems)
	errTrailing  = errors.New("the body has bytes after its value")
	errByte      = errors.New("the body has a byte that msgpack reserves")
)

// checkShape checks one msgpack value without recursion or allocation. The decoder skips unknown fields by recursion
// and trusts lengths, so this comes first. It ensures that every length fits into the body and that nesting is bounded.
func checkShape(b []byte) error {
	var left [maxDepth]uint64 // values left to read at each level
	depth := 0
	i := 0
	for {
		if i >= len(b) {
			return errTruncated
		}
		c := b[i]
		i++
		skip, items := uint64(0), uint64(0)
		var width int // bytes of an explicit length
		var kind byte // 's' bytes, 'e' ext, 'a' array, 'm' map
		switch {
		case c <= 0x7f || c >= 0xe0 || c == 0xc0 || c == 0xc2 || c == 0xc3:
		case c <= 0x8f:
			items = 2 * uint64(c&0x0f)
		case c <= 0x9f:
			items = uint64(c & 0x0f)
		case c <= 0xbf:
			skip = uint64(c & 0x1f)
		case c == 0xc1:
			return errByte
		case c <= 0xc6:
			width, kind = 1<<(c-0xc4), 's'
		case c <= 0xc9:
			width, kind = 1<<(c-0xc7), 'e'
		case c == 0xca:
			skip = 4
		case c == 0xcb:
			skip = 8
		case c <= 0xcf:
			skip = 1 << (c - 0xcc)
		case c <= 0xd3:
			skip = 1 << (c - 0xd0)
		case c <= 0xd8:
			skip = 1 + 1<<(c-0xd4)
		case c <= 0xdb:
			width, kind = 1<<(c-0xd9), 's'
		case c <= 0xdd:
			width, kind = 2<<(c-0xdc), 'a'
		default:
			width, kind = 2<<(c-0xde), 'm'
		}
		if width > 0 {
			if len(b)-i < width {
				return errTruncated
			}
			n := uint64(0)
			for _, x := range b[i : i+width] {
				n = n<<8 | uint64(x)
			}
			i += width
			switch kind {
			case 's':
				skip = n
			case 'e':
				skip = n + 1
			case 'a':
				items = n
			case 'm':
				items = 2 * n
			}
		}
		if skip > uint64(len(b)-i) || items > uint64(len(b)-i) {
			return errTruncated
		}
		if items > 2*maxItems {
			return errItems
		}
		i += int(skip)
		if items > 0 {
			if depth == maxDepth {
				return errDeep
			}
			left[depth] = items
			depth++
			continue
		}
		for depth > 0 {
			left[depth-1]--
			if left[depth-1] > 0 {
				break
			}
			depth--
		}
		if depth == 0 {
			if i != len(b) {
				return errTrailing
			}
			return nil
		}
	}
}
