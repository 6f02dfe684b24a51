package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/internal/version"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// Exit codes, as in Nomad's command line.
const (
	exitOK        = 0
	exitError     = 1
	exitNotPlaced = 2 // submitted, but not everything could be placed

	// Of Muster's own.
	exitFailed      = 3   // the job that was waited for did not end well, and no task has an exit code
	exitTimeout     = 124 // as timeout(1)
	exitInterrupted = 130
)

// exitCode is an error that only sets the exit status; its message, if any, has been printed.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// env is what a command may use: streams, and the flags that every command has.
type env struct {
	in       io.Reader
	out, err io.Writer
	question io.Writer // where questions are asked, if not on err

	line    []string                                                    // the words of the command line after the program's name
	now     func() time.Time                                            // the clock of ages and progress lines
	sub     func(ctx context.Context, args []string, out io.Writer) int // runs another command line in this process
	instead func(ctx context.Context, args []string) int                // runs another command line in the place of this one
	tty     bool                                                        // in and out are terminals
	asks    bool                                                        // in and err are terminals, so a person can answer a question

	addr, token, namespace, region   string
	caCert, clientCert, clientKey    string
	tlsServerName                    string
	tlsSkipVerify, noColor, forceCol bool

	contextFlag string            // -context
	context     string            // name of the context in use, or ""
	contextErr  error             // why no context can be used, for commands that ask an agent
	from        map[string]string // where the value of each general option comes from
}

// run is main with its environment as arguments.
func run(args []string, in io.Reader, out, errw io.Writer) int {
	for _, w := range []io.Writer{out, errw} {
		if f, ok := w.(*os.File); ok {
			escapes(f)
		}
	}
	e := &env{in: in, out: out, err: errw, now: time.Now, tty: isTerminal(in) && isTerminal(out), asks: isTerminal(in) && (isTerminal(out) || isTerminal(errw))}
	if !isTerminal(errw) && isTerminal(out) {
		e.question = out
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return e.main(ctx, args)
}

// outlet is the standard output. It remembers a failed write, because a command that could not print its result has not
// succeeded.
type outlet struct {
	w   io.Writer
	mu  sync.Mutex
	err error // the first error
}

func (o *outlet) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	if err != nil {
		o.mu.Lock()
		o.err = cmp.Or(o.err, err)
		o.mu.Unlock()
	}
	return n, err
}

func (o *outlet) broken() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// main runs one command line and returns the exit status.
func (e *env) main(ctx context.Context, args []string) int {
	out := &outlet{w: e.out}
	e.out = out
	code, told := e.execute(ctx, args)
	if err := out.broken(); err != nil && !told {
		fmt.Fprintln(e.err, "Error:", err)
		code = max(code, exitError)
	}
	return code
}

// execute is main without the check of the output. told means that the printed error may be a failed write, or that the
// command is the agent, whose output is only its log.
func (e *env) execute(ctx context.Context, args []string) (status int, told bool) {
	e.sub = func(ctx context.Context, args []string, out io.Writer) int {
		return (&env{in: strings.NewReader(""), out: out, err: out, now: e.now}).main(ctx, args)
	}
	e.instead = func(ctx context.Context, args []string) int {
		code, _ := e.execute(ctx, args)
		return code
	}
	e.line = args[1:]
	root := newRoot(e)
	if len(args) > 1 && strings.HasPrefix(args[1], cobra.ShellCompRequestCmd) {
		e.completeFlags(root)
	}
	root.SetArgs(normalize(root, args[1:]))
	cmd, err := root.ExecuteContextC(ctx)
	agent := cmd.Name() == "agent"
	var code exitCode
	switch {
	case err == nil:
		return exitOK, agent
	case errors.As(err, &code):
		return int(code), agent
	}
	fmt.Fprintln(e.err, "Error:", shortened(err.Error(), args[1:]))
	if list := listOf(cmd); notFound(err) && list != "" {
		e.hint("What there is:  %s", list)
	}
	var answer *apiError
	if errors.As(err, &answer) && (answer.Status == http.StatusForbidden || answer.Status == http.StatusUnauthorized) {
		switch {
		case e.token == "":
			e.hint("No token was sent%s: give -token or set MUSTER_TOKEN.", e.ofContext(": context %q has none"))
		case strings.Contains(answer.Msg, structs.ErrTokenNotFound.Msg), strings.Contains(answer.Msg, structs.ErrTokenExpired.Msg):
			e.hint("This cluster does not know the token in use%s: it is mistyped, expired, deleted or another cluster's. Give another with -token or MUSTER_TOKEN.", e.ofContext(" (context %q)"))
		default:
			if names := e.otherNamespaces(ctx); names != "" {
				e.hint("The token in use may use namespace %s: add -namespace, or set MUSTER_NAMESPACE.", names)
			}
			e.hint("The token in use does not allow it. What it allows:  muster acl token self   and   muster acl policy self")
		}
	}
	return exitError, true
}

// otherNamespaces lists the namespaces that the token in use may see, if the one that was asked is not among them; else "".
func (e *env) otherNamespaces(ctx context.Context) string {
	a, err := e.api()
	if err != nil {
		return ""
	}
	ctx, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	var names []string
	for _, n := range listOrNone[*wire.Namespace](ctx, a, "/v1/namespaces", nil) { // the servers leave out what the token may not see
		names = append(names, n.Name)
	}
	if a.namespace == "*" || slices.Contains(names, orDefault(a.namespace)) {
		return ""
	}
	slices.Sort(names)
	if n := len(names) - candidatesShown; n > 0 {
		names = append(names[:candidatesShown:candidatesShown], fmt.Sprintf("... (%d more)", n))
	}
	return strings.Join(names, ", ")
}

// listOf returns the command that lists what a command works with, or "".
func listOf(cmd *cobra.Command) string {
	if p := cmd.Parent(); p != nil {
		for _, c := range p.Commands() {
			if c.Name() == "list" && c != cmd {
				return c.CommandPath()
			}
		}
	}
	return ""
}

func newRoot(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:           "muster",
		Short:         "A cluster scheduler for GPU work in one binary",
		Long:          "Muster schedules GPU work on a cluster: queues, gangs, sharing and explanations, in one binary.\n\nStart a one-machine cluster with `muster agent -dev`, then run a job with `muster job init` and `muster job run example.muster.hcl`.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return noCommand(cmd, args...)
		},
	}
	root.Version = version.String() // -version, in addition to the verb, as in Nomad
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetIn(e.in)
	root.SetOut(e.out)
	root.SetErr(e.err)
	root.CompletionOptions.HiddenDefaultCmd = false
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if other := ofOther(cmd, cmd.Flags().Args()); other != nil { // its options are not known either
			return other
		}
		var absent *pflag.NotExistError
		if errors.As(err, &absent) {
			return fmt.Errorf("no flag -%s%s (%s -help lists the flags)", absent.GetSpecifiedName(), nearestFlag(cmd, absent.GetSpecifiedName()), cmd.CommandPath())
		}
		var value *pflag.InvalidValueError
		if errors.As(err, &value) && value.GetFlag().Value.Type() == "duration" {
			return wantsDuration(value.GetFlag().Name, value.GetValue())
		}
		return fmt.Errorf("%w (%s -help lists the flags)", err, cmd.CommandPath())
	})
	for _, add := range commands {
		root.AddCommand(add(e))
	}
	root.SetUsageTemplate(usageTemplate)
	root.SetHelpCommand(newHelp(e))
	group(root)
	return root
}

// noCommand is the error for a word that is no subcommand of cmd.
func noCommand(cmd *cobra.Command, words ...string) error {
	if err := ofOther(cmd, words); err != nil {
		return err
	}
	word := words[0]
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}
	if (word == "list" || word == "ls") && slices.Contains(names, "status") {
		return fmt.Errorf("no command %q under %s; in its place:  %s status", word, cmd.CommandPath(), cmd.CommandPath())
	}
	where := ""
	if cmd.HasParent() {
		where = " under " + cmd.CommandPath()
	}
	return fmt.Errorf("no command %q%s%s (%s -help lists all)", word, where, suggest.DidYouMean(word, names), cmd.CommandPath())
}

// nearestFlag returns "; did you mean -x?" for a misspelt long flag of cmd, or "".
func nearestFlag(cmd *cobra.Command, word string) string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if n := suggest.Nearest(word, names); n != "" && len(word) > 1 {
		return "; did you mean -" + n + "?"
	}
	return ""
}

func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// clientFlags adds the flags that every command needs to reach an agent. Environment: MUSTER_x first, then NOMAD_x; useContext
// puts a context between them.
func (e *env) clientFlags(f *pflag.FlagSet) {
	f.StringVar(&e.addr, "address", firstEnv("http://127.0.0.1:4646", "ADDR"), "address of an agent's HTTP API (MUSTER_ADDR, NOMAD_ADDR); unix:///path for a socket")
	f.StringVar(&e.contextFlag, "context", os.Getenv("MUSTER_CONTEXT"), "context to use instead of the current one; \"\" for none (MUSTER_CONTEXT)")
	f.StringVar(&e.token, "token", firstEnv("", "TOKEN"), "secret of the ACL token to use (MUSTER_TOKEN, NOMAD_TOKEN)")
	f.Lookup("token").DefValue = ""
	f.StringVar(&e.namespace, "namespace", firstEnv("", "NAMESPACE"), "namespace; * for all where that makes sense (MUSTER_NAMESPACE, NOMAD_NAMESPACE)")
	f.StringVar(&e.region, "region", firstEnv("", "REGION"), "region to ask (MUSTER_REGION, NOMAD_REGION)")
	f.StringVar(&e.caCert, "ca-cert", firstEnv("", "CACERT"), "PEM file of the CA that signed the agent's certificate (MUSTER_CACERT, NOMAD_CACERT)")
	f.StringVar(&e.clientCert, "client-cert", firstEnv("", "CLIENT_CERT"), "PEM file of the certificate to show (MUSTER_CLIENT_CERT, NOMAD_CLIENT_CERT)")
	f.StringVar(&e.clientKey, "client-key", firstEnv("", "CLIENT_KEY"), "PEM file of its key (MUSTER_CLIENT_KEY, NOMAD_CLIENT_KEY)")
	f.StringVar(&e.tlsServerName, "tls-server-name", firstEnv("", "TLS_SERVER_NAME"), "name to check the agent's certificate against")
	f.BoolVar(&e.tlsSkipVerify, "tls-skip-verify", firstEnv("", "SKIP_VERIFY") != "", "do not check the agent's certificate")
	f.BoolVar(&e.noColor, "no-color", os.Getenv("NO_COLOR") != "" || firstEnv("", "CLI_NO_COLOR") != "", "no colour in the output")
	f.BoolVar(&e.forceCol, "force-color", firstEnv("", "CLI_FORCE_COLOR") != "", "colour even when the output is not a terminal")
}

func firstEnv(def string, name string) string {
	for _, p := range []string{"MUSTER_", "NOMAD_"} {
		if v := os.Getenv(p + name); v != "" {
			return v
		}
	}
	return def
}

// normalize lets long flags be written with one dash, like Nomad's: -json is --json, -address=x is --address=x. Single
// letters and bundles of known ones (-it) are kept, and so is everything after "--".
func normalize(root *cobra.Command, args []string) []string {
	out := make([]string, 0, len(args))
	cmd := root
	for i, a := range args {
		if a == "--" {
			return append(out, args[i:]...)
		}
		if len(a) > 2 && a[0] == '-' && a[1] != '-' { // -1h is a value: no flag begins with a digit
			name, _, _ := strings.Cut(a[1:], "=")
			if len(name) > 1 && (!bundle(cmd, name) || longFlag(cmd, name)) && !isNumber(a[1:2]) {
				a = "-" + a
			}
		} else if a != "" && a[0] != '-' {
			for _, c := range cmd.Commands() {
				if c.Name() == a || c.HasAlias(a) {
					cmd = c
					break
				}
			}
			if cmd.DisableFlagParsing { // it reads them as Slurm does
				return append(out, args[i:]...)
			}
		}
		out = append(out, a)
		// The words after the command of exec belong to the user's program: end our flags before them.
		if stopsFlags(cmd) && a != "" && a[0] != '-' && positional(cmd, out) {
			out = append(out[:len(out)-1], "--", a)
			return append(out, args[i+1:]...)
		}
	}
	return out
}

// stopsFlags reports whether a command passes the rest of its arguments to a program; positional, whether that rest
// begins.
func stopsFlags(cmd *cobra.Command) bool { return cmd.Annotations["passthrough"] != "" }

func positional(cmd *cobra.Command, sofar []string) bool {
	want := len(cmd.Annotations["passthrough"]) // one mark per argument before the program's
	n := 0
	depth := strings.Count(cmd.CommandPath(), " ")
	skip := false
	for _, a := range sofar {
		switch {
		case skip:
			skip = false
		case strings.HasPrefix(a, "-"):
			name := strings.TrimLeft(a, "-")
			if strings.Contains(name, "=") {
				continue
			}
			if f := cmd.Flags().Lookup(name); f != nil && f.NoOptDefVal == "" {
				skip = true
			} else if len(name) == 1 {
				if f := cmd.Flags().ShorthandLookup(name); f != nil && f.NoOptDefVal == "" {
					skip = true
				}
			}
		default:
			n++
		}
	}
	return n-depth > want
}

func isNumber(s string) bool {
	return strings.Trim(s, "0123456789.") == ""
}

// bundle reports whether every letter is a one-letter flag of the command.
func bundle(cmd *cobra.Command, letters string) bool {
	for _, r := range letters {
		if r > 127 || cmd.Flags().ShorthandLookup(string(r)) == nil {
			return false
		}
	}
	return true
}

func longFlag(cmd *cobra.Command, name string) bool { return cmd.Flags().Lookup(name) != nil }
