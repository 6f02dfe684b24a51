package structs

import (
	"strings"
	"time"
)

// LogTime is the time carried by a command, in Unix nanoseconds; it never goes backwards along the log (D11). Zero
// means "not set".
type LogTime int64

// Time converts to the standard library's type, in UTC.
func (t LogTime) Time() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(t)).UTC()
}

// Add returns the time d later.
func (t LogTime) Add(d time.Duration) LogTime { return t + LogTime(d) }

// Sub returns t - u.
func (t LogTime) Sub(u LogTime) time.Duration { return time.Duration(t - u) }

// LogTimeOf converts from the standard library's type; the zero time gives zero.
func LogTimeOf(t time.Time) LogTime {
	if t.IsZero() {
		return 0
	}
	return LogTime(t.UnixNano())
}

// ShortDuration formats a duration without units that are zero: 10m, not 10m0s.
func ShortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
