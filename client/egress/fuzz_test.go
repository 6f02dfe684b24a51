package egress

import (
	"net/netip"
	"testing"
)

// FuzzAddress checks that an IPv4 address is refused in all its spellings, or in none.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"127.0.0.1", "169.254.169.254", "10.0.0.1", "0.0.0.0", "100.100.100.200", "224.0.0.1", "8.8.8.8"} {
		a := netip.MustParseAddr(s).As4()
		f.Add(a[:])
	}
	filter, err := New(Rules{Allow: []string{"127.1.0.0/16"}, Deny: []string{"10.0.0.0/8"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, ok := netip.AddrFromSlice(b); ok {
			if err := filter.Check(a); (err == nil) != (filter.Check(a.WithZone("eth0")) == nil) {
				t.Fatalf("%s: a zone changes the answer: %v", a, err)
			}
		}
		if len(b) != 4 {
			return
		}
		a := netip.AddrFrom4([4]byte(b))
		plain := filter.Check(a)
		mapped, nat := a.As16(), nat64.Addr().As16()
		copy(nat[12:], b)
		for _, other := range []netip.Addr{netip.AddrFrom16(mapped), netip.AddrFrom16(nat)} {
			if err := filter.Check(other); (err == nil) != (plain == nil) {
				t.Fatalf("%s: %v; %s: %v", a, plain, other, err)
			}
		}
	})
}
