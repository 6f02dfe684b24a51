package structs

import "fmt"

// Format numbers the replicated formats: the commands of the log with their fields, what Apply makes of them, the tables
// of the state, the state hash and snapshot files. They have one number, because Apply makes one from the other. Package
// internal/feature declares the formats that a build speaks.
type Format uint64

// Speaks is what a server reports about the versions that it speaks. A zero Newest means that it reported nothing.
type Speaks struct {
	Muster         string // release
	Oldest, Newest Format // formats that it reads and writes
	RPC            uint64 // version of the calls between agents
}

// Reads reports whether a server can follow a cluster in which a format is in force.
func (s Speaks) Reads(f Format) bool { return s.Oldest <= f && f <= s.Newest }

// String returns the formats for a sentence.
func (s Speaks) String() string {
	switch s.Newest {
	case 0:
		return "no format that it reports"
	case s.Oldest:
		return fmt.Sprintf("format %d", s.Newest)
	}
	return fmt.Sprintf("formats %d to %d", s.Oldest, s.Newest)
}

// Formats returns the formats for a table: "2" or "1-2"; "" if they are unknown.
func (s Speaks) Formats() string {
	switch s.Newest {
	case 0:
		return ""
	case s.Oldest:
		return fmt.Sprint(s.Newest)
	}
	return fmt.Sprintf("%d-%d", s.Oldest, s.Newest)
}
