package main

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/internal/suggest"
)

// helpGroups are the sections of the root's help: what people do, and the commands for it in the order of help. A test
// checks that each command is in one of them.
var helpGroups = []struct {
	title    string
	commands []string
}{
	{"Start work", []string{"run", "job", "shell", "sbatch", "srun", "scancel", "rsh", "alloc", "fmt", "var", "service"}},
	{"See what happens", []string{"top", "status", "queue", "gpu", "eff", "acct", "squeue", "sinfo", "sacct", "event", "eval", "deployment"}},
	{"Share the cluster", []string{"namespace", "quota", "reservation", "acl"}},
	{"Run the cluster", []string{"agent", "node", "server", "operator", "config", "tls", "system", "monitor", "agent-info"}},
	{"Try it out", []string{"sim", "nodesim"}},
	{"This program", []string{"help", "completion", "version", "context"}},
}

// group sorts the commands of the root, those of cobra included, into helpGroups.
func group(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			for _, shell := range c.Commands() {
				shell.Example = indent("muster completion " + shell.Name())
			}
		}
	}
	for _, g := range helpGroups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, name := range g.commands {
			for _, c := range root.Commands() {
				if c.Name() == name && !c.Hidden {
					c.GroupID = g.title
				}
			}
		}
	}
}

// ordered returns the commands of a group in the order of helpGroups.
func ordered(root *cobra.Command, id string) []*cobra.Command {
	var out []*cobra.Command
	for _, g := range helpGroups {
		for _, name := range g.commands {
			for _, c := range root.Commands() {
				if g.title == id && c.GroupID == id && c.Name() == name {
					out = append(out, c)
				}
			}
		}
	}
	return out
}

//go:embed topics/*.txt
var topicFiles embed.FS

// topics returns the names of the topics, sorted.
func topics() []string {
	var out []string
	files, _ := fs.Glob(topicFiles, "topics/*.txt")
	for _, f := range files {
		out = append(out, strings.TrimSuffix(path.Base(f), ".txt"))
	}
	return out
}

// topicOf are other names of topics.
var topicOf = map[string]string{"mig": "gpus", "shares": "gpus"}

// topic returns the text about a topic. The singular of its name does as well.
func topic(name string) (text string, ok bool) {
	if t := topicOf[strings.ToLower(name)]; t != "" {
		name = t
	}
	for _, n := range []string{name, name + "s", strings.TrimSuffix(name, "y") + "ies"} {
		if b, err := topicFiles.ReadFile("topics/" + strings.ToLower(n) + ".txt"); err == nil {
			return string(b), true
		}
	}
	return "", false
}

func newHelp(e *env) *cobra.Command {
	c := &cobra.Command{
		Use: "help [COMMAND... | TOPIC]", Short: "Help about a command or a topic", DisableFlagsInUseLine: true,
		Example: indent("muster help job run\nmuster help gangs\nmuster help topics"),
	}
	c.Long = "Help about a command, or about a topic:\n\n" + topicList()
	c.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		at, _, err := c.Root().Find(args)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var out []string
		for _, s := range at.Commands() {
			if !s.Hidden {
				out = append(out, s.Name())
			}
		}
		if len(args) == 0 {
			out = append(out, topics()...)
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	c.RunE = func(_ *cobra.Command, args []string) error { return e.help(c.Root(), args) }
	return c
}

func (e *env) help(root *cobra.Command, args []string) error {
	at, rest, err := root.Find(args)
	switch {
	case err == nil && len(rest) == 0:
		return at.Help()
	case len(args) == 1 && (args[0] == "topic" || args[0] == "topics"):
		e.printf("%s", topicList())
		return nil
	case len(args) == 1:
		if text, ok := topic(args[0]); ok {
			e.printf("%s", text)
			return nil
		}
	}
	if at != nil && at != root {
		return noCommand(at, rest[0])
	}
	names := topics()
	for _, c := range root.Commands() {
		names = append(names, c.Name())
	}
	return fmt.Errorf("no command or topic %q%s (muster -help lists the commands, muster help topics the topics)", args[0], suggest.DidYouMean(args[0], names))
}

// topicNames lists the topics in a line.
func topicNames() string { return strings.Join(topics(), ", ") }

// topicList has a line for each topic.
func topicList() string {
	var b strings.Builder
	for _, name := range topics() {
		text, _ := topic(name)
		summary, _, _ := strings.Cut(text, "\n")
		fmt.Fprintf(&b, "  %-14s %s\n", name, summary)
	}
	return b.String()
}
