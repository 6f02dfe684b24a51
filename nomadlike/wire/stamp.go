package wire

import (
	"bytes"
	"strings"
	"time"
)

// StampLen is the length of what Stamper puts before a line.
const StampLen = len(stampForm) + 1

const stampForm = "2006-01-02T15:04:05.000Z"

// Stamper puts before each line of a log when its first byte was written.
type Stamper struct{ within bool }

// Stamp returns data that was written at that time (Unix nanoseconds; 0: not known), the next piece of a log, with stamps.
func (s *Stamper) Stamp(data []byte, at int64) []byte {
	stamp := []byte(strings.Repeat("-", len(stampForm)) + " ")
	if at != 0 {
		stamp = time.Unix(0, at).UTC().AppendFormat(stamp[:0], stampForm+" ")
	}
	out := make([]byte, 0, len(data)+StampLen)
	for line := range bytes.Lines(data) {
		if !s.within {
			out = append(out, stamp...)
		}
		out = append(out, line...)
		s.within = line[len(line)-1] != '\n'
	}
	return out
}
