package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/muster-sched/muster/internal/suggest"
)

// A context is a named cluster: the values of the general options that reach it, by the options' names. In place of a token
// it has the file that holds one.
type clusterContext map[string]string

// contextOptions are the general options that a context may have, and their names in the environment.
var contextOptions = []struct{ flag, env string }{
	{"address", "ADDR"}, {"token", "TOKEN"}, {"namespace", "NAMESPACE"}, {"region", "REGION"}, {"ca-cert", "CACERT"}, {"client-cert", "CLIENT_CERT"},
	{"client-key", "CLIENT_KEY"}, {"tls-server-name", "TLS_SERVER_NAME"}, {"tls-skip-verify", "SKIP_VERIFY"},
}

// tokenFile is the setting of a context that names the file of its token.
const tokenFile = "token-file"

// contextBook is the file with a user's contexts.
type contextBook struct {
	Current  string                    // used unless -context or MUSTER_CONTEXT names another; "" for none
	Contexts map[string]clusterContext // by name

	dir string // where the file is
}

// configDir returns the directory of the user's configuration, or an error where the user has none.
func configDir() (string, error) {
	dir := os.Getenv("XDG_CONFIG_HOME") // also where the system has another place
	if !filepath.IsAbs(dir) {
		var err error
		if dir, err = os.UserConfigDir(); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "muster"), nil
}

func (b *contextBook) path() string { return filepath.Join(b.dir, "contexts.json") }

// ownToken returns the file in which a token is kept that was given and not named.
func (b *contextBook) ownToken(name string) string { return filepath.Join(b.dir, "tokens", name) }

// readContexts reads the user's contexts. Without a file, or a home directory, there are none.
func readContexts() (*contextBook, error) {
	dir, err := configDir()
	if err != nil {
		return &contextBook{}, nil
	}
	b := &contextBook{dir: dir}
	text, err := readPrivate(b.path())
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	} else if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(b); err != nil {
		return nil, fmt.Errorf("the file of contexts %s is not understood: %w", b.path(), err)
	}
	for name, c := range b.Contexts {
		for key := range c {
			if key == tokenFile || key != "token" && slices.ContainsFunc(contextOptions, func(o struct{ flag, env string }) bool { return o.flag == key }) {
				continue
			}
			return nil, fmt.Errorf("the file of contexts %s: context %q has the unknown setting %q", b.path(), name, key)
		}
	}
	return b, nil
}

// write replaces the file.
func (b *contextBook) write() error {
	if b.dir == "" {
		_, err := configDir()
		return fmt.Errorf("there is no directory for the file of contexts: %w", err)
	}
	text, err := json.MarshalIndent(b, "", "    ")
	if err != nil {
		return err
	}
	return writePrivate(b.path(), append(text, '\n'))
}

// writePrivate replaces a file that only the user may read, in a directory for which the same holds.
func writePrivate(path string, content []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // unless it was renamed
	_, err = f.Write(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// named returns a context, or an error that helps to find the right one.
func (b *contextBook) named(name string) (clusterContext, error) {
	c, ok := b.Contexts[name]
	if !ok {
		return nil, fmt.Errorf("there is no context %q%s (muster context list)", name, suggest.DidYouMean(name, sortedKeys(b.Contexts)))
	}
	return c, nil
}

// token returns the token of a context, or "".
func (c clusterContext) token() (string, error) {
	if c[tokenFile] == "" {
		return "", nil
	}
	b, err := readPrivate(c[tokenFile])
	if err != nil {
		return "", err
	}
	s := strings.TrimSpace(string(b))
	if s == "" || strings.ContainsAny(s, " \t\r\n") {
		return "", fmt.Errorf("the token file %s does not hold one token", c[tokenFile])
	}
	return s, nil
}

// privateMax limits the size of a file of contexts or a token file.
const privateMax = 1 << 20

// readPrivate reads a file that may hold secrets. It refuses one that other users of the machine may read or write.
func readPrivate(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch mode := info.Mode(); {
	case !mode.IsRegular():
		return nil, fmt.Errorf("%s is no file", path)
	case runtime.GOOS != "windows" && mode.Perm()&0o077 != 0: // there, the profile's directory is its user's alone
		return nil, fmt.Errorf("%s may be read or changed by other users (mode %04o), so it is not used; make it yours alone:  chmod 600 %s", path, mode.Perm(), word(path))
	}
	b, err := io.ReadAll(io.LimitReader(f, privateMax+1))
	if err == nil && len(b) > privateMax {
		err = fmt.Errorf("%s is larger than %d bytes", path, privateMax)
	}
	return b, err
}

// useContext gives the general options that were not given the values of the context in use. An option's value is, in this
// order, that of the flag, of MUSTER_x, of the context, of NOMAD_x, and the default. The error is kept for api: a command that
// asks no agent needs no context.
func (e *env) useContext(f *pflag.FlagSet) {
	e.context, e.contextErr, e.from = "", nil, map[string]string{}
	own := map[string]bool{} // given for Muster: by the flag or MUSTER_x
	for _, o := range contextOptions {
		flag := f.Lookup(o.flag)
		if flag == nil {
			return // of a command that reaches no agent
		}
		switch {
		case flag.Changed:
			e.from[o.flag], own[o.flag] = "-"+o.flag, true
		case os.Getenv("MUSTER_"+o.env) != "":
			e.from[o.flag], own[o.flag] = "MUSTER_"+o.env, true
		case os.Getenv("NOMAD_"+o.env) != "":
			e.from[o.flag] = "NOMAD_" + o.env
		default:
			e.from[o.flag] = "default"
		}
	}
	name, c, chosen, err := e.chosenContext(f)
	if err != nil {
		e.contextErr = err
		return
	}
	// The token of a cluster is not sent to another one, unless the user names both.
	if name == "" || own["address"] && e.addr != c["address"] && !chosen {
		return
	}
	e.context = name
	set := func(flag, value string) {
		if value == "" || own[flag] {
			return
		}
		if err := f.Lookup(flag).Value.Set(value); err != nil {
			e.contextErr = fmt.Errorf("context %q: %s: %w", name, flag, err)
		}
		e.from[flag] = fmt.Sprintf("context %q", name)
	}
	if !own["token"] {
		token, err := c.token()
		if err != nil {
			e.contextErr = fmt.Errorf("context %q: %w", name, err)
			return
		}
		set("token", token)
	}
	for _, o := range contextOptions {
		set(o.flag, c[o.flag])
	}
}

// chosenContext returns the context of -context, of MUSTER_CONTEXT, or the current one; chosen reports that it is not just
// the current one. The name is "" where none is in use.
func (e *env) chosenContext(f *pflag.FlagSet) (name string, c clusterContext, chosen bool, err error) {
	flag := f.Lookup("context")
	if flag.Changed && e.contextFlag == "" {
		return "", nil, true, nil
	}
	b, err := readContexts()
	if err != nil {
		return "", nil, false, err
	}
	name, chosen = b.Current, false
	if e.contextFlag != "" { // its default is MUSTER_CONTEXT
		name, chosen = e.contextFlag, true
	}
	if name == "" {
		return "", nil, false, nil
	}
	c, err = b.named(name)
	return name, c, chosen, err
}

// homeNamespace returns the namespace of commands without -namespace and -context.
func homeNamespace() string {
	if ns := os.Getenv("MUSTER_NAMESPACE"); ns != "" {
		return ns
	}
	if b, err := readContexts(); err == nil {
		name := b.Current
		if chosen := os.Getenv("MUSTER_CONTEXT"); chosen != "" {
			name = chosen
		}
		if ns := b.Contexts[name]["namespace"]; ns != "" {
			return ns
		}
	}
	return firstEnv("default", "NAMESPACE")
}

// names returns the names of the contexts, sorted.
func (b *contextBook) names() []string { return slices.Sorted(maps.Keys(b.Contexts)) }
