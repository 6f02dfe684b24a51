package state

import (
	"encoding/binary"
	"iter"
	"strings"

	"github.com/muster-sched/muster/structs"
)

func lessString(a, b string) bool { return a < b }

func lessID[K ~[16]byte](a, b K) bool {
	x, y := [16]byte(a), [16]byte(b)
	return less16(&x, &y)
}

func less16(x, y *[16]byte) bool {
	xh, yh := binary.BigEndian.Uint64(x[:8]), binary.BigEndian.Uint64(y[:8])
	if xh != yh {
		return xh < yh
	}
	return binary.BigEndian.Uint64(x[8:]) < binary.BigEndian.Uint64(y[8:])
}

// prefix is the abbreviation of an id that a user typed: any number of hex digits, with the dashes in place.
type prefix struct {
	lo     [16]byte // the lowest id with this prefix
	digits int
}

func parsePrefix(text string) (p prefix, err error) {
	hex := strings.ReplaceAll(strings.ToLower(text), "-", "")
	if len(hex) > 32 || len(text) > 36 {
		return p, structs.Errorf(structs.CodeInvalid, "id prefix of %d characters: an id has 36", len(text))
	}
	for i, c := range []byte(hex) {
		var n byte
		switch {
		case c >= '0' && c <= '9':
			n = c - '0'
		case c >= 'a' && c <= 'f':
			n = c - 'a' + 10
		default:
			return p, structs.Errorf(structs.CodeInvalid, "id prefix %q: only 0-9, a-f and dashes may occur", text)
		}
		p.lo[i/2] |= n << (4 * (1 - i%2))
	}
	p.digits = len(hex)
	return p, nil
}

func (p prefix) matches(id [16]byte) bool {
	whole := p.digits / 2
	return string(p.lo[:whole]) == string(id[:whole]) &&
		(p.digits%2 == 0 || p.lo[whole]>>4 == id[whole]>>4)
}

// byPrefix returns the rows whose id, as text, begins with text, by id.
func byPrefix[K ~[16]byte, T any](t *Table[K, T], s *Snapshot, text string) (iter.Seq[*T], error) {
	p, err := parsePrefix(text)
	if err != nil {
		return nil, err
	}
	return while(t.from(s, K(p.lo)), func(v *T) bool { return p.matches([16]byte(t.key(v))) }), nil
}
