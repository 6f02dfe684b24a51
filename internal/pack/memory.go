package pack

import (
	"reflect"
	"unsafe"
)

// All use of unsafe is in this file; ADR 0014 has its worth. It relies on two conditions: an addr is the address of a
// live value of the type that a coder was compiled for, and fields have the offsets that reflection reports.

// addr is the address of a value.
type addr struct{ p unsafe.Pointer }

// addrOf returns the address that a pointer or a slice points to.
func addrOf(v reflect.Value) addr { return addr{v.UnsafePointer()} }

// addrTo is addrOf without reflection.
func addrTo[T any](v *T) addr { return addr{unsafe.Pointer(v)} }

// as returns a pointer to the value at p, whose underlying type is T. A pointer, and the first word of a map or slice,
// is read as an addr.
func as[T any](p addr) *T { return (*T)(p.p) }

func (p addr) isNil() bool { return p.p == nil }

// plus returns the address n bytes further in the same value.
func (p addr) plus(n uintptr) addr { return addr{unsafe.Add(p.p, n)} }

// pointer returns a pointer to the value at p for reflection.
func (p addr) pointer(t reflect.Type) reflect.Value { return reflect.NewAt(t, p.p) }

// value returns the value at p for reflection.
func (p addr) value(t reflect.Type) reflect.Value { return p.pointer(t).Elem() }

// bytes returns the array of n bytes at p as a slice.
func (p addr) bytes(n int) []byte { return unsafe.Slice((*byte)(p.p), n) }

// list returns the address of the first element of the slice at p, and its length.
func (p addr) list() (elems addr, n int) {
	s := as[struct {
		elems    addr
		len, cap int
	}](p)
	return s.elems, s.len
}
