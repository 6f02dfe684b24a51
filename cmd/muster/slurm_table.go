package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// slurmVerb makes a command that takes options as Slurm does: -ualice, -lh, --me. run gets the words that are no
// options. Options for which there is nothing are refused with the command that does it here.
func (e *env) slurmVerb(use, short, long, example, elsewhere string, own func(*pflag.FlagSet), run func(ctx context.Context, a *api, words []string) error) *cobra.Command {
	c := e.verb(use, short, long, example, 0, -1, nil)
	c.DisableFlagParsing = true
	c.RunE = func(cmd *cobra.Command, args []string) error {
		fs := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
		fs.Usage = func() {}
		own(fs)
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" { // -h is another option here
				fs.AddFlag(f)
			}
		})
		args = slices.Clone(args)
		for i, w := range args { // the general options also with one dash, as everywhere
			name, _, _ := strings.Cut(strings.TrimPrefix(w, "-"), "=")
			if strings.HasPrefix(w, "-") && len(name) > 1 && fs.Lookup(name) != nil {
				args[i] = "-" + w
			}
		}
		switch err := fs.Parse(args); {
		case errors.Is(err, pflag.ErrHelp):
			return cmd.Help()
		case err != nil:
			return fmt.Errorf("%w: muster %s knows the options that are used daily (muster %s --help). More shows:  %s", err, cmd.Name(), cmd.Name(), elsewhere)
		}
		if name := emptyArgument(cmd.Use, fs.Args()); name != "" {
			return fmt.Errorf("%s is empty: %s", name, cmd.UseLine())
		}
		e.useContext(cmd.Flags())
		a, err := e.api()
		if err != nil {
			return err
		}
		return run(cmd.Context(), a, fs.Args())
	}
	return c
}

// slurmTable is a table of Slurm's: %i or JobID for a column, by its letter and its names.
type slurmTable[T any] []slurmColumn[T]

type slurmColumn[T any] struct {
	letter string // of -o, or ""
	name   string // of --format and --Format, in lower case
	head   string
	cell   func(T) string
}

var slurmSpec = regexp.MustCompile(`%(\.)?([0-9]*)([A-Za-z])`)

// columns reads "%.18i %j", or "JobID,Name:20,State%30".
func (t slurmTable[T]) columns(format string) (picked []slurmColumn[T], err error) {
	var known []string
	for _, c := range t {
		known = append(known, strings.TrimPrefix("%"+c.letter+"=", "%=")+c.name)
	}
	find := func(word string, is func(slurmColumn[T]) bool) {
		i := slices.IndexFunc(t, is)
		if i < 0 {
			err = errors.Join(err, fmt.Errorf("no field %q: there are %s", word, strings.Join(known, ", ")))
			return
		}
		picked = append(picked, t[i])
	}
	if strings.Contains(format, "%") && slurmSpec.MatchString(format) && strings.HasPrefix(strings.TrimSpace(format), "%") {
		for _, m := range slurmSpec.FindAllStringSubmatch(format, -1) {
			find(m[0], func(c slurmColumn[T]) bool { return c.letter == m[3] })
		}
		return picked, err
	}
	for _, w := range strings.FieldsFunc(format, func(r rune) bool { return r == ',' || r == ' ' }) {
		name, _, _ := strings.Cut(strings.ToLower(w), "%")
		name, _, _ = strings.Cut(name, ":")
		find(w, func(c slurmColumn[T]) bool { return c.name == name })
	}
	return picked, err
}

// print prints rows; delimiter "" aligns the columns.
func (t slurmTable[T]) print(e *env, format string, noHead bool, delimiter string, rows []T) error {
	picked, err := t.columns(format)
	if err != nil {
		return err
	}
	var lines [][]string
	if !noHead {
		head := []string{}
		for _, c := range picked {
			head = append(head, c.head)
		}
		lines = append(lines, head)
	}
	for _, r := range rows {
		line := []string{}
		for _, c := range picked {
			line = append(line, oneLine(c.cell(r)))
		}
		lines = append(lines, line)
	}
	widths := make([]int, len(picked))
	for _, l := range lines {
		for i, c := range l {
			widths[i] = max(widths[i], len([]rune(c)))
		}
	}
	for _, l := range lines {
		if delimiter == "" {
			for i := range l[:len(l)-1] {
				l[i] += strings.Repeat(" ", widths[i]-len([]rune(l[i])))
			}
			e.println(strings.Join(l, " "))
		} else {
			e.println(strings.Join(l, delimiter))
		}
	}
	return nil
}

// slurmClock formats a duration as sacct does: 00:01:05, 2-01:00:00.
func slurmClock(d time.Duration) string {
	s := int64(max(d, 0) / time.Second)
	clock := fmt.Sprintf("%02d:%02d:%02d", s/3600%24, s/60%60, s%60)
	if days := s / 86400; days > 0 {
		return fmt.Sprintf("%d-%s", days, clock)
	}
	return clock
}

// slurmSpan formats a duration as squeue does: 3:05, 1:02:03, 2-01:00:00.
func slurmSpan(d time.Duration) string {
	return strings.TrimPrefix(strings.TrimPrefix(slurmClock(d), "00:"), "0")
}

func slurmDate(ns int64) string {
	if ns <= 0 {
		return "N/A"
	}
	return time.Unix(0, ns).Format("2006-01-02T15:04:05")
}
