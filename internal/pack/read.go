package pack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

var (
	errShort = errors.New("msgpack: the data ends in the middle of a value")
	errLarge = errors.New("msgpack: integer does not fit int64")
	errDeep  = fmt.Errorf("msgpack: nested deeper than %d", depthMax)
)

// Reader reads msgpack bytes. It never allocates more than the bytes present justify.
type Reader struct {
	b     []byte
	at    int
	depth int
}

// NewReader returns a reader of data.
func NewReader(data []byte) *Reader { return &Reader{b: data} }

func (r *Reader) enter() error {
	if r.depth++; r.depth > depthMax {
		return errDeep
	}
	return nil
}

func (r *Reader) leave() { r.depth-- }

func (r *Reader) byte() (byte, error) {
	if r.at >= len(r.b) {
		return 0, errShort
	}
	c := r.b[r.at]
	r.at++
	return c, nil
}

// take returns the next n bytes without a copy.
func (r *Reader) take(n uint64) ([]byte, error) {
	if n > uint64(len(r.b)-r.at) {
		return nil, errShort
	}
	s := r.b[r.at : r.at+int(n)]
	r.at += int(n)
	return s, nil
}

func (r *Reader) big(n int) (uint64, error) {
	s, err := r.take(uint64(n))
	if err != nil {
		return 0, err
	}
	switch n {
	case 1:
		return uint64(s[0]), nil
	case 2:
		return uint64(binary.BigEndian.Uint16(s)), nil
	case 4:
		return uint64(binary.BigEndian.Uint32(s)), nil
	}
	return binary.BigEndian.Uint64(s), nil
}

// Nil consumes the next value if it is nil.
func (r *Reader) Nil() bool {
	if r.at < len(r.b) && r.b[r.at] == 0xc0 {
		r.at++
		return true
	}
	return false
}

// Map reads the beginning of a map or struct, and returns the number of its entries.
func (r *Reader) Map() (int, error) {
	c, err := r.byte()
	if err != nil {
		return 0, err
	}
	var n uint64
	switch {
	case c&0xf0 == 0x80:
		n = uint64(c & 0x0f)
	case c == 0xde:
		n, err = r.big(2)
	case c == 0xdf:
		n, err = r.big(4)
	default:
		return 0, wrong("a map", c)
	}
	if err == nil && n*2 > uint64(len(r.b)-r.at) {
		err = errShort
	}
	return int(n), err
}

// Array reads the beginning of a list, and returns the number of its elements.
func (r *Reader) Array() (int, error) {
	c, err := r.byte()
	if err != nil {
		return 0, err
	}
	var n uint64
	switch {
	case c&0xf0 == 0x90:
		n = uint64(c & 0x0f)
	case c == 0xdc:
		n, err = r.big(2)
	case c == 0xdd:
		n, err = r.big(4)
	default:
		return 0, wrong("an array", c)
	}
	if err == nil && n > uint64(len(r.b)-r.at) {
		err = errShort
	}
	return int(n), err
}

// Bytes reads a string or binary value, without a copy.
func (r *Reader) Bytes() ([]byte, error) {
	c, err := r.byte()
	if err != nil {
		return nil, err
	}
	var n uint64
	switch {
	case c&0xe0 == 0xa0:
		n = uint64(c & 0x1f)
	case c == 0xd9 || c == 0xc4:
		n, err = r.big(1)
	case c == 0xda || c == 0xc5:
		n, err = r.big(2)
	case c == 0xdb || c == 0xc6:
		n, err = r.big(4)
	default:
		return nil, wrong("a string", c)
	}
	if err != nil {
		return nil, err
	}
	return r.take(n)
}

// integer reads any integer. If neg, u is the two's complement of a negative one.
func (r *Reader) integer() (u uint64, neg bool, err error) {
	c, err := r.byte()
	if err != nil {
		return 0, false, err
	}
	switch {
	case c <= 0x7f:
		return uint64(c), false, nil
	case c >= 0xe0:
		return uint64(int64(int8(c))), true, nil
	case c >= 0xcc && c <= 0xcf:
		u, err = r.big(1 << (c - 0xcc))
		return u, false, err
	case c >= 0xd0 && c <= 0xd3:
		size := 1 << (c - 0xd0)
		u, err = r.big(size)
		shift := 64 - 8*size
		i := int64(u<<shift) >> shift
		return uint64(i), i < 0, err
	}
	return 0, false, wrong("an integer", c)
}

// Int reads an integer.
func (r *Reader) Int() (int64, error) {
	u, neg, err := r.integer()
	if err == nil && !neg && u > math.MaxInt64 {
		err = errLarge
	}
	return int64(u), err
}

// Bool reads a boolean.
func (r *Reader) Bool() (v bool, err error) {
	err = decBool(r, addrTo(&v))
	return v, err
}

// skip skips one value of any kind.
func (r *Reader) skip() error {
	if err := r.enter(); err != nil {
		return err
	}
	defer r.leave()
	if r.at >= len(r.b) {
		return errShort
	}
	c := r.b[r.at]
	switch {
	case c == 0xc0 || c == 0xc2 || c == 0xc3:
		r.at++
		return nil
	case c <= 0x7f || c >= 0xe0 || (c >= 0xcc && c <= 0xd3):
		_, _, err := r.integer()
		return err
	case c&0xe0 == 0xa0 || (c >= 0xc4 && c <= 0xc6) || (c >= 0xd9 && c <= 0xdb):
		_, err := r.Bytes()
		return err
	case c&0xf0 == 0x90 || c == 0xdc || c == 0xdd:
		n, err := r.Array()
		for ; err == nil && n > 0; n-- {
			err = r.skip()
		}
		return err
	case c&0xf0 == 0x80 || c == 0xde || c == 0xdf:
		n, err := r.Map()
		for n *= 2; err == nil && n > 0; n-- {
			err = r.skip()
		}
		return err
	}
	return wrong("a value this format uses", c)
}

func wrong(want string, c byte) error {
	return fmt.Errorf("msgpack: want %s, found a value with first byte 0x%02x", want, c)
}

func decBool(r *Reader, p addr) error {
	c, err := r.byte()
	switch {
	case err != nil:
		return err
	case c == 0xc2 || c == 0xc0:
		*as[bool](p) = false
	case c == 0xc3:
		*as[bool](p) = true
	default:
		return wrong("a boolean", c)
	}
	return nil
}

func decString(r *Reader, p addr) error {
	if r.Nil() {
		*as[string](p) = ""
		return nil
	}
	s, err := r.Bytes()
	if err != nil {
		return err
	}
	*as[string](p) = string(s)
	return nil
}

func decBytes(r *Reader, p addr) error {
	if r.Nil() {
		*as[[]byte](p) = nil
		return nil
	}
	s, err := r.Bytes()
	if err != nil {
		return err
	}
	*as[[]byte](p) = append(make([]byte, 0, len(s)), s...)
	return nil
}
