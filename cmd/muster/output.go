package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/charmbracelet/colorprofile"

	"github.com/muster-sched/muster/structs"
)

func (e *env) printf(f string, args ...any) { fmt.Fprintf(e.out, f, args...) }
func (e *env) println(args ...any)          { fmt.Fprintln(e.out, args...) }

// hint prints to stderr: the next command, or a warning. Only data goes to stdout.
func (e *env) hint(f string, args ...any) { fmt.Fprintf(e.err, f+"\n", args...) }

// warn prints the server's warnings, if any.
func (e *env) warn(text string) {
	if text = strings.TrimSpace(text); text != "" {
		e.hint("%s\n%s\n", e.paint("1;33", "Warnings:"), text)
	}
}

// inNamespace returns the options that a printed command needs to reach a namespace; "" for the one that is used without any.
func inNamespace(namespace string) string {
	context := ""
	if name := printedContext.Load(); name != nil {
		context = "-context " + *name + " "
	}
	if namespace == "" || context == "" && namespace == homeNamespace() {
		return context
	}
	return context + "-namespace " + namespace + " "
}

// word returns a name as a shell takes it from a printed command.
func word(name string) string {
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/@:+=,-") == "" {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

// colour reports whether stdout supports colours. Colour is never the only sign of a state.
func (e *env) colour() bool {
	if e.noColor {
		return false
	}
	out := e.out
	if o, ok := out.(*outlet); ok {
		out = o.w // what is behind it may be a terminal
	}
	return e.forceCol || colorprofile.Detect(out, os.Environ()) >= colorprofile.ANSI
}

func (e *env) paint(code, s string) string {
	if s == "" || !e.colour() {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (e *env) bold(s string) string { return e.paint("1", s) }

// heading starts a section.
func (e *env) heading(s string) { e.println("\n" + e.bold(s)) }

// stateColour returns the colour of a state's name.
func stateColour(word string) string {
	switch word {
	case "running", "ready", "complete", "alive", "healthy", "eligible", "successful":
		return "32"
	case "pending", "blocked", "starting", "draining", "initializing", "ineligible", "leaving", "unknown":
		return "33"
	case "failed", "lost", "down", "dead", "unhealthy", "disconnected":
		return "31"
	}
	return ""
}

// table prints rows under a head ("ID|Name|Status"), with columns two spaces apart.
func (e *env) table(head string, rows [][]string) {
	all := append([][]string{strings.Split(head, "|")}, rows...)
	for _, r := range rows {
		for i := range r {
			r[i] = oneLine(r[i])
		}
	}
	widths := make([]int, len(all[0]))
	for _, r := range all {
		for i, c := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	for n, r := range all {
		var b strings.Builder
		for i, c := range r {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c)+2)
			if i == len(r)-1 {
				pad = ""
			}
			if n == 0 {
				c = e.bold(c)
			} else if col := stateColour(c); col != "" {
				c = e.paint(col, c)
			}
			b.WriteString(c + pad)
		}
		e.println(strings.TrimRight(b.String(), " "))
	}
}

// oneLine returns a name without line breaks, which Nomad permits in ids: what reads a list by lines would take it for several.
func oneLine(s string) string { return lineBreaks.Replace(s) }

var lineBreaks = strings.NewReplacer("\n", `\n`, "\r", `\r`, "\u2028", `\u2028`, "\u2029", `\u2029`)

// kv prints "Name = value" lines, aligned.
func (e *env) kv(rows [][2]string) {
	w := 0
	for _, r := range rows {
		w = max(w, utf8.RuneCountInString(r[0]))
	}
	for _, r := range rows {
		v := r[1]
		if v == "" {
			v = "<none>"
		}
		if col := stateColour(v); col != "" {
			v = e.paint(col, v)
		}
		e.printf("%s%s = %s\n", e.bold(r[0]), strings.Repeat(" ", w-utf8.RuneCountInString(r[0])), v)
	}
}

// idLengths are the lengths to which ids may be cut: 8 characters, else up to a dash.
var idLengths = []int{8, 13, 18, 23, 36}

// abbreviate returns a function that cuts ids to the shortest of idLengths that keeps the given ones distinct.
func abbreviate(verbose bool, list []string) func(string) string {
	n := 36
	if !verbose {
		for _, n = range idLengths {
			seen := map[string]string{}
			clear := true
			for _, id := range list {
				if len(id) != 36 {
					continue
				}
				if other, ok := seen[id[:n]]; ok && other != id {
					clear = false
					break
				}
				seen[id[:n]] = id
			}
			if clear {
				break
			}
		}
	}
	return func(id string) string {
		if len(id) == 36 {
			return id[:n]
		}
		return id
	}
}

// shortID returns an id in display form.
func shortID(id string, verbose bool) string {
	if !verbose && len(id) == 36 {
		return id[:8]
	}
	return id
}

// age formats a time relative to now; verbose prints the time itself.
func (e *env) age(t time.Time, verbose bool) string {
	if t.IsZero() || t.UnixNano() <= 0 {
		return "-"
	}
	if verbose {
		return t.Format(time.RFC3339)
	}
	d := e.now().Sub(t)
	if d < 0 {
		return "in " + span(-d)
	}
	return span(d) + " ago"
}

func (e *env) ageNanos(ns int64, verbose bool) string {
	return e.age(time.Unix(0, ns), verbose && ns > 0)
}

// span formats a duration in its two largest units.
func span(d time.Duration) string {
	d = d.Round(time.Second)
	units := []struct {
		d time.Duration
		n string
	}{{365 * 24 * time.Hour, "y"}, {30 * 24 * time.Hour, "mo"}, {24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}
	var out string
	for i, u := range units {
		if n := d / u.d; n > 0 {
			out = fmt.Sprintf("%d%s", n, u.n)
			if i+1 < len(units) {
				if m := (d % u.d) / units[i+1].d; m > 0 {
					out += fmt.Sprintf("%d%s", m, units[i+1].n)
				}
			}
			return out
		}
	}
	return "0s"
}

// date formats a time; zero is "-".
func date(t time.Time) string {
	if t.IsZero() || t.UnixNano() <= 0 {
		return "-"
	}
	return t.Format(time.RFC3339)
}

// mib formats an amount in MiB.
func mib(n int64) string { return structs.MiBText(n) }

// bytesText formats an amount in bytes.
func bytesText(n uint64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

func plural(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func val[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func orNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return s
}

// bar draws how much is done, from 0 to 1.
func bar(share float64) string {
	const width = 30
	full := int(min(share, 1) * width)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "] " + strconv.Itoa(int(share*100)) + "%"
}

// confirm asks before an action that reaches more than one job of the user, or cannot be undone. Where there is no
// terminal to ask at it refuses without -yes.
func (e *env) confirm(ctx context.Context, yes bool, question string, args ...any) error {
	if !yes && !e.asks {
		return fmt.Errorf("%s\nNobody can be asked here: add -yes, as in\n  %s", fmt.Sprintf(question, args...), e.again("-yes"))
	}
	return e.ask(ctx, yes, question, args...)
}

// again returns the command line with one more option, and without a secret.
func (e *env) again(option string) string {
	line := []string{"muster"}
	secret := false
	for _, w := range e.line {
		name, _, joined := strings.Cut(strings.TrimLeft(w, "-"), "=")
		isToken := strings.HasPrefix(w, "-") && name == "token"
		if !secret && !isToken {
			line = append(line, word(w))
		}
		secret = isToken && !joined
	}
	return strings.Join(append(line, option), " ")
}

// ask asks before an action that concerns the user alone, on stderr, so that the output may go into a pipe, or on
// stdout if only that is a terminal. Where there is no terminal to ask at it does not ask, as in Nomad. A question that
// is interrupted, or that no answer follows, is answered with no.
func (e *env) ask(ctx context.Context, yes bool, question string, args ...any) error {
	if yes || !e.asks {
		return nil
	}
	to := e.question
	if to == nil {
		to = e.err
	}
	fmt.Fprintf(to, question+" [y/N] ", args...)
	answer := make(chan string, 1)
	go func() { // a read of a terminal cannot be canceled: after an interrupt it ends with the process
		line, _ := bufio.NewReader(io.LimitReader(e.in, 1024)).ReadString('\n')
		answer <- line
	}()
	var line string
	select {
	case <-ctx.Done():
		e.hint("\nNothing was done.")
		return exitCode(exitInterrupted)
	case line = <-answer:
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	if line == "" {
		e.hint("\nNothing was done: the question was not answered.")
		return exitCode(exitError)
	}
	e.hint("Nothing was done.")
	return exitCode(exitOK)
}

// quotedMax is how much an error shows of a word of the user.
const quotedMax = 400

// shortened returns an error's text with the middle left out of long arguments of the command line and of any other long word:
// an id of 100 kB that does not exist would hide what the error says about it.
func shortened(text string, args []string) string {
	if len(text) <= quotedMax {
		return text
	}
	for _, a := range args {
		if len(a) > quotedMax && strings.ContainsAny(a, " \t\n") { // others are words
			quoted := strconv.Quote(a)
			text = strings.NewReplacer(a, shortWord(a), quoted[1:len(quoted)-1], shortWord(quoted[1:len(quoted)-1])).Replace(text)
		}
	}
	return longWord.ReplaceAllStringFunc(text, shortWord)
}

var longWord = regexp.MustCompile(fmt.Sprintf(`\S{%d,}`, quotedMax+1))

// shortWord leaves out the middle of a long word.
func shortWord(s string) string {
	const head, tail = 40, 20
	r := []rune(s)
	return fmt.Sprintf("%s...(%d characters left out)...%s", string(r[:head]), len(r)-head-tail, string(r[len(r)-tail:]))
}
