package rpc

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"github.com/muster-sched/muster/internal/pack"
)

// handle is the codec of the wire for types that pack.Wire has no form for: msgpack with the new string and time
// formats, structs as maps so that fields may be added, nesting bounded so that a hostile body cannot exhaust the stack.
// pack.Wire writes the same form, but for zero fields, which it leaves out, and takes a third of the time; either reads
// what the other wrote, so that versions may differ.
var handle = func() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{WriteExt: true}
	h.RawToString = true
	h.MaxDepth = maxDepth
	return h
}()

// maxDepth is how deeply a body may nest.
const maxDepth = 128

// maxItems is how many items one list or map may have. A list of nils is one byte an item on the wire and the size of
// the element in memory, so the size of the body alone does not bound what decoding takes.
const maxItems = 256 << 10

// Raw is a request body that is already encoded; Invoke and Open send it as it is.
type Raw []byte

var encoders = sync.Pool{New: func() any { return codec.NewEncoderBytes(new([]byte), handle) }}
var scratches = sync.Pool{New: func() any { return new([]byte) }}

// scratchMax is the largest buffer that is kept for the next body.
const scratchMax = 1 << 20

var decoders = sync.Pool{New: func() any { return codec.NewDecoderBytes(nil, handle) }}

// Encode is v in the wire's encoding.
func Encode(v any) (out []byte, err error) {
	if r, ok := v.(Raw); ok {
		return r, nil
	}
	scratch := scratches.Get().(*[]byte)
	if b, ok := pack.Wire.Append((*scratch)[:0], v); ok {
		out = bytes.Clone(b)
		if cap(b) <= scratchMax {
			*scratch = b
			scratches.Put(scratch)
		}
		return out, nil
	}
	e := encoders.Get().(*codec.Encoder)
	defer func() {
		if r := recover(); r != nil {
			out, err = nil, fmt.Errorf("encode %T: %v", v, r)
			return
		}
		encoders.Put(e)
	}()
	out = make([]byte, 0, 256)
	e.ResetBytes(&out)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return out, nil
}

// Decode reads b into v, a pointer. It refuses bodies that nest too deeply or go on after the value.
func Decode(b []byte, v any) (err error) {
	if err := checkShape(b); err != nil {
		return fmt.Errorf("decode %T: %w", v, err)
	}
	if ok, err := pack.Wire.Decode(b, v); ok {
		if err != nil {
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
	d.ResetBytes(b)
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("decode %T: %w", v, err)
	}
	return nil
}

var (
	errTruncated = errors.New("the body ends inside a value")
	errDeep      = fmt.Errorf("the body nests deeper than %d", maxDepth)
	errItems     = fmt.Errorf("the body has a list or map of more than %d items", maxItems)
	errTrailing  = errors.New("the body goes on after its value")
	errByte      = errors.New("the body has a byte that msgpack reserves")
)

// checkShape walks one msgpack value without recursion and without allocating. The decoder skips unknown fields by
// recursion and trusts lengths, so the shape is checked first: every length fits in what is there, nesting is bounded.
func checkShape(b []byte) error {
	var left [maxDepth]uint64 // values still to come at each level
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
