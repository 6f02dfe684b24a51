package structs

import (
	"strings"
	"testing"
)

func TestExpandPath(t *testing.T) {
	value := func(w byte) (string, bool) {
		switch w {
		case 't':
			return "", false
		case '%':
			return "%%", true
		case 'n':
			return "3", true
		}
		return "v", true
	}
	for in, want := range map[string]string{
		"/x/%j-%t.out": "/x/v-%t.out", "%4n%%": "0003%%", "%03t": "%03t", "plain": "plain", "%3j": "v",
		"%q": "ERR no placeholder", "50%": "ERR %%", "%99n": "ERR digits",
	} {
		t.Run(in, func(t *testing.T) {
			got, err := ExpandPath(in, value)
			if why, bad := strings.CutPrefix(want, "ERR "); bad {
				if err == nil || !strings.Contains(err.Error(), why) {
					t.Errorf("%q: %q, %v; want an error with %q", in, got, err, why)
				}
			} else if err != nil || got != want {
				t.Errorf("%q: %q, %v; want %q", in, got, err, want)
			}
		})
	}
}

func TestParseUlimit(t *testing.T) {
	for _, c := range []struct {
		name, text string
		soft, hard uint64
		bad        string
	}{
		{"memlock", "unlimited", NoLimit, NoLimit, ""}, {"nofile", "1024:4096", 1024, 4096, ""}, {"stack", "8:-1", 8, NoLimit, ""},
		{"nice", "1", 0, 0, "no limit"}, {"core", "much", 0, 0, "want a number"}, {"core", "5:4", 0, 0, "above"},
	} {
		t.Run(c.text, func(t *testing.T) {
			soft, hard, err := ParseUlimit(c.name, c.text)
			if c.bad != "" {
				if err == nil || !strings.Contains(err.Error(), c.bad) {
					t.Errorf("%s = %s: %v, want %q", c.name, c.text, err, c.bad)
				}
			} else if err != nil || soft != c.soft || hard != c.hard {
				t.Errorf("%s = %s: %d, %d, %v", c.name, c.text, soft, hard, err)
			}
		})
	}
	if m, err := ParseUmask("0027"); err != nil || m != 0o27 {
		t.Errorf("umask %o, %v", m, err)
	}
	if _, err := ParseUmask("9"); err == nil {
		t.Error("umask 9 is none")
	}
}
