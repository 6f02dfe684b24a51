// Package cron reads the cron expressions of periodic jobs.
package cron

import (
	"fmt"
	"time"

	"github.com/hashicorp/cronexpr"
)

// maxLength is the longest expression that is read, in bytes.
const maxLength = 256

// Check returns why an expression cannot be read, or nil.
func Check(spec string) error {
	_, err := next(spec, time.Time{})
	return err
}

// Next returns the first time after t, in t's time zone, that matches one of the expressions; the zero time if none
// does any more. It fails if an expression cannot be read.
func Next(specs []string, t time.Time) (first time.Time, err error) {
	for _, spec := range specs {
		at, err := next(spec, t)
		if err != nil {
			return time.Time{}, err
		}
		if !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first, nil
}

// next is Next of one expression; for the zero time it only reads the expression. The parser panics on some input,
// which is an error here, because users write the expressions.
func next(spec string, t time.Time) (at time.Time, err error) {
	defer func() {
		if recover() != nil {
			at, err = time.Time{}, unreadable(spec)
		}
	}()
	if len(spec) > maxLength {
		return time.Time{}, fmt.Errorf("a cron expression of %d bytes; want at most %d", len(spec), maxLength)
	}
	x, err := cronexpr.Parse(spec)
	if err != nil {
		return time.Time{}, unreadable(spec)
	}
	if t.IsZero() {
		return t, nil
	}
	return x.Next(t), nil
}

func unreadable(spec string) error {
	return fmt.Errorf("%.64q is not a cron expression: want five fields such as \"*/15 * * * *\"", spec)
}
