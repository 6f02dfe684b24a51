package pack

import "reflect"

// A stand-in keeps a value of another type in less memory, and is written as that value. It has two methods:
//
//	func (S) Expand() T
//	func (*S) Compact(T)
//
// A zero S stands for a zero T.

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

func standIn(c, elem *coder, t, of reflect.Type) {
	expand, _ := t.MethodByName("Expand")
	compact, _ := reflect.PointerTo(t).MethodByName("Compact")
	c.enc = func(b []byte, p addr) []byte {
		v := reflect.New(of)
		v.Elem().Set(p.value(t).Method(expand.Index).Call(nil)[0])
		return elem.enc(b, addrOf(v))
	}
	c.dec = func(r *reader, p addr) error {
		v := reflect.New(of)
		if err := elem.dec(r, addrOf(v)); err != nil {
			return err
		}
		p.value(t).Addr().Method(compact.Index).Call([]reflect.Value{v.Elem()})
		return nil
	}
}
