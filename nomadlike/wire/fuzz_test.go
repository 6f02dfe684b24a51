package wire

import (
	"encoding/json"
	"testing"
)

// FuzzTexts reads any text as each small language of a job file. What is read is written and read again as the same.
func FuzzTexts(f *testing.F) {
	for _, s := range []string{"1h30m", "2d", "-3s", "20 GiB", "1TiB", "*/15 * * * *", "@hourly", "0 0 31 2 * 2099", "2026-01-02T03:04:05Z", "prep, clean:completed, other:started:2h", "dedicated=nlp:no-schedule, spot", "9999999999999999999d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := ParseDuration(s); err == nil {
			if again, err := ParseDuration(d.String()); err != nil || again != d {
				t.Fatalf("%q is %v, and that is %v, %v", s, d, again, err)
			}
		}
		if b, err := json.Marshal(s); err == nil {
			var d Duration
			var x TextDuration
			if (d.UnmarshalJSON(b) == nil) != (x.UnmarshalJSON(b) == nil) || d != Duration(x) {
				t.Fatalf("%s: %v and %v", b, d, x)
			}
		}
		if n, err := parseMiB(s); err == nil && (n <= 0 || n > amountMax) {
			t.Fatalf("%q is %d MiB", s, n)
		}
		if at, err := parseTime(&s); err == nil && at != 0 {
			if again, err := parseTime(timeFrom(at)); err != nil || again != at {
				t.Fatalf("%q is %v, and that is %v, %v", s, at, again, err)
			}
		}
		if list, err := parseDepends(s); err == nil && !sameDepends(list, list) {
			t.Fatalf("%q does not equal itself", s)
		}
		if list, err := parseTolerations(s); err == nil {
			for _, x := range list {
				if x.Key == "" {
					t.Fatalf("%q has a toleration without a key", s)
				}
			}
		}
	})
}
