package pack

import "reflect"

// A stand-in keeps a value of another type in less memory, and is written as that value. It has two methods:
//
//	func (S) Expand() T
//	func (*S) Compact(T)
//
// A zero S stands for a zero T. A stand-in that is written often may have two more, which spare the value:
//
//	func (S) Pack(b []byte) []byte // appends what Append appends for Expand()
//	func (*S) Unpack(r *Reader) bool
//
// Unpack reads what Pack has written. It may give up on anything else, and return false; Compact then gets the value, or the
// reader learns what is wrong with it.

type (
	packer   interface{ Pack(b []byte) []byte }
	unpacker interface{ Unpack(r *Reader) bool }
)

// Expands returns T of a stand-in, and nil for other types.
func Expands(t reflect.Type) reflect.Type {
	expand, ok := t.MethodByName("Expand")
	if !ok || expand.Type.NumIn() != 1 || expand.Type.NumOut() != 1 {
		return nil
	}
	of := expand.Type.Out(0)
	compact, ok := reflect.PointerTo(t).MethodByName("Compact")
	if !ok || compact.Type.NumIn() != 2 || compact.Type.In(1) != of || compact.Type.NumOut() != 0 {
		return nil
	}
	return of
}

// Expand returns the value that a stand-in stands for.
func Expand(v reflect.Value) reflect.Value { return v.MethodByName("Expand").Call(nil)[0] }

// Compact makes a stand-in, which is addressable, stand for of.
func Compact(v, of reflect.Value) { v.Addr().MethodByName("Compact").Call([]reflect.Value{of}) }

func standIn(c, elem *coder, t, of reflect.Type) {
	expand, _ := t.MethodByName("Expand")
	compact, _ := reflect.PointerTo(t).MethodByName("Compact")
	_, packs := reflect.Zero(t).Interface().(packer)
	_, unpacks := reflect.New(t).Interface().(unpacker)
	c.enc = func(b []byte, p addr) []byte {
		if packs {
			return p.pointer(t).Interface().(packer).Pack(b)
		}
		v := reflect.New(of)
		v.Elem().Set(p.value(t).Method(expand.Index).Call(nil)[0])
		return elem.enc(b, addrOf(v))
	}
	c.dec = func(r *Reader, p addr) error {
		if unpacks {
			at := r.at
			if p.pointer(t).Interface().(unpacker).Unpack(r) {
				return nil
			}
			r.at = at
		}
		v := reflect.New(of)
		if err := elem.dec(r, addrOf(v)); err != nil {
			return err
		}
		p.value(t).Addr().Method(compact.Index).Call([]reflect.Value{v.Elem()})
		return nil
	}
}
