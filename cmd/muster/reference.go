//go:generate go test . -run TestReferencePages -update

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/internal/version"
)

// newReference makes the command that writes the manual: it is for those who build packages, and hidden from help.
func newReference(e *env) *cobra.Command {
	man := false
	c := &cobra.Command{
		Use: "reference [options] DIR", Short: "Write the reference of every command into a directory", Hidden: true, DisableFlagsInUseLine: true,
		Args: cobra.ExactArgs(1), Example: indent("muster reference /tmp/reference\nmuster reference -man /tmp/man1"),
	}
	c.Flags().BoolVar(&man, "man", false, "write manual pages instead of Markdown")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		pages := referencePages(cmd.Root())
		if man {
			pages = manPages(cmd.Root())
		}
		if err := os.MkdirAll(args[0], 0o755); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(pages)) {
			if err := os.WriteFile(filepath.Join(args[0], name), []byte(pages[name]), 0o644); err != nil {
				return err
			}
		}
		return nil
	}
	return c
}

// documented returns the commands below c that help lists.
func documented(c *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(slices.Clone(c.Commands()), func(c *cobra.Command) bool { return !c.IsAvailableCommand() || c.Name() == "help" })
}

// referencePages returns pages in Markdown by file name: one for each command of the first level, with all
// that are below it, and an index.
func referencePages(root *cobra.Command) map[string]string {
	pages := map[string]string{}
	var index strings.Builder
	index.WriteString("# Commands\n\nWritten from the commands; `make generate` writes it again. One dash works as well as two, and options may stand anywhere.\n" +
		"`muster COMMAND -help` prints the same.\n\n| command | |\n|---|---|\n")
	for _, c := range documented(root) {
		var b strings.Builder
		markdown(&b, c, 1)
		pages[c.Name()+".md"] = b.String()
		fmt.Fprintf(&index, "| [%s](%s.md) | %s |\n", c.Name(), c.Name(), prose(c.Short))
	}
	index.WriteString("\n## General options\n\nEvery command that asks an agent has these:\n\n```text\n" + trimLines(generalFlags().FlagUsages()) + "```\n")
	pages["README.md"] = index.String()
	return pages
}

// markdown writes a command and those below it.
func markdown(b *strings.Builder, c *cobra.Command, depth int) {
	fmt.Fprintf(b, "%s %s\n\n%s\n\n", strings.Repeat("#", min(depth, 4)), c.CommandPath(), prose(orShort(c)))
	fmt.Fprintf(b, "```text\n%s\n", useLine(c))
	if c.HasExample() {
		fmt.Fprintf(b, "\n%s\n", strings.TrimRight(trimLines(c.Example), "\n"))
	}
	b.WriteString("```\n\n")
	if own := ownFlagUsages(c); own != "" {
		fmt.Fprintf(b, "```text\n%s```\n\n", trimLines(own))
	}
	if depth == 1 && hasGeneral(c) {
		b.WriteString("The [general options](README.md#general-options) say which agent is asked.\n\n")
	}
	for _, sub := range documented(c) {
		markdown(b, sub, depth+1)
	}
	if depth == 1 {
		s := strings.TrimRight(b.String(), "\n") + "\n"
		b.Reset()
		b.WriteString(s)
	}
}

// manPages returns the manual pages of section 1 by file name: one for each command.
func manPages(root *cobra.Command) map[string]string {
	pages := map[string]string{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		name := strings.ReplaceAll(c.CommandPath(), " ", "-")
		pages[name+".1"] = manPage(name, c)
		for _, sub := range documented(c) {
			walk(sub)
		}
	}
	walk(root)
	return pages
}

func manPage(name string, c *cobra.Command) string {
	var b strings.Builder
	verbatim := func(head, text string) {
		if text = strings.TrimRight(trimLines(text), "\n"); text != "" {
			fmt.Fprintf(&b, ".SH %s\n.nf\n%s\n.fi\n", head, roff(text))
		}
	}
	fmt.Fprintf(&b, ".TH %q 1 \"\" \"Muster %s\" \"Muster\"\n", strings.ToUpper(name), version.Version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.B %s\n.SH DESCRIPTION\n", roff(name), roff(c.Short), roff(useLine(c)))
	for i, p := range strings.Split(strings.TrimSpace(orShort(c)), "\n\n") {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		b.WriteString(roff(p) + "\n")
	}
	verbatim("EXAMPLES", c.Example)
	verbatim("OPTIONS", ownFlagUsages(c))
	verbatim("GENERAL OPTIONS", generalFlagUsages(c))
	var also []string
	if c.HasParent() {
		also = append(also, strings.ReplaceAll(c.Parent().CommandPath(), " ", "-"))
	}
	for _, sub := range documented(c) {
		also = append(also, name+"-"+sub.Name())
	}
	for i, a := range also {
		if i == 0 {
			b.WriteString(".SH SEE ALSO\n")
		}
		end := ","
		if i == len(also)-1 {
			end = ""
		}
		fmt.Fprintf(&b, ".BR %s (1)%s\n", roff(a), end)
	}
	return b.String()
}

func orShort(c *cobra.Command) string {
	if c.Long != "" {
		return c.Long
	}
	return c.Short + "."
}

func useLine(c *cobra.Command) string {
	if c.HasAvailableSubCommands() {
		return c.CommandPath() + " COMMAND"
	}
	return c.UseLine()
}

// hasGeneral reports whether a command, or one below it, has the general options.
func hasGeneral(c *cobra.Command) bool {
	return generalFlagUsages(c) != "" || slices.ContainsFunc(documented(c), hasGeneral)
}

// trimLines removes the indentation that all lines have in common, and spaces at their ends.
func trimLines(s string) string {
	lines, common := strings.Split(strings.Trim(s, "\n"), "\n"), -1
	for _, l := range lines {
		if n := len(l) - len(strings.TrimLeft(l, " ")); strings.TrimSpace(l) != "" && (common < 0 || n < common) {
			common = n
		}
	}
	for i, l := range lines {
		if len(l) >= common && common > 0 {
			l = l[common:]
		}
		lines[i] = strings.TrimRight(l, " ")
	}
	return strings.Join(lines, "\n") + "\n"
}

// prose keeps Markdown from reading marks in a text of the help, except for code. Lines that the help indents, such as
// lists and commands, become blocks.
func prose(s string) string {
	marks := strings.NewReplacer("<", "&lt;", "*", `\*`, "|", `\|`, "[", `\[`, "]", `\]`)
	var out, block []string
	flush := func() {
		if len(block) > 0 {
			out = append(out, "", "```text", strings.TrimSuffix(trimLines(strings.Join(block, "\n")), "\n"), "```", "")
			block = nil
		}
	}
	for l := range strings.Lines(strings.TrimSpace(s) + "\n") {
		l = strings.TrimRight(strings.ReplaceAll(l, "\t", "    "), " \n")
		if strings.HasPrefix(l, "  ") {
			block = append(block, l)
			continue
		}
		flush()
		parts := strings.Split(l, "`")
		for i := 0; i < len(parts); i += 2 {
			parts[i] = marks.Replace(parts[i])
		}
		out = append(out, strings.Join(parts, "`"))
	}
	flush()
	return strings.TrimSpace(blankLines.ReplaceAllString(strings.Join(out, "\n"), "\n\n"))
}

var blankLines = regexp.MustCompile(`\n{3,}`)

// roff keeps roff from reading requests and escapes in a text.
func roff(s string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s), "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
