package wire

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a duration. In JSON it is written as nanoseconds, and read as nanoseconds or as text ("1h30m").
type Duration time.Duration

// D returns the standard library's type.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String formats as the standard library does.
func (d Duration) String() string { return time.Duration(d).String() }

// UnmarshalJSON reads nanoseconds or a text such as "30s".
func (d *Duration) UnmarshalJSON(b []byte) error {
	s := strings.TrimSpace(string(b))
	if s == "null" {
		return nil
	}
	if strings.HasPrefix(s, `"`) {
		var text string
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
		if text == "" {
			*d = 0
			return nil
		}
		v, err := ParseDuration(text)
		if err != nil {
			return err
		}
		*d = v
		return nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		*d = Duration(n)
		return nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) >= math.MaxInt64 {
		return fmt.Errorf("%.40q is not a duration: want nanoseconds or a text like \"30s\"", s)
	}
	*d = Duration(f)
	return nil
}

// ParseDuration reads "90s", "1h30m" or "500ms", and also whole days ("2d").
func ParseDuration(s string) (Duration, error) {
	v, err := time.ParseDuration(s)
	if err == nil {
		return Duration(v), nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseInt(days, 10, 32); err == nil && n >= -100_000 && n <= 100_000 {
			return Duration(time.Duration(n) * 24 * time.Hour), nil
		}
	}
	return 0, fmt.Errorf("%.40q is not a duration: want a number with a unit, such as \"30s\", \"5m\" or \"1h30m\"", s)
}

// TextDuration is a Duration that is written as text ("8h0m0s"), as in the ACL, autopilot and node pool endpoints.
type TextDuration time.Duration

// MarshalJSON writes the text form.
func (d TextDuration) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(d).String())
}

// UnmarshalJSON reads nanoseconds or text.
func (d *TextDuration) UnmarshalJSON(b []byte) error { return (*Duration)(d).UnmarshalJSON(b) }
