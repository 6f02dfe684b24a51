package main

import (
	"bytes"
	"cmp"
	"crypto/rand"
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
	"sync/atomic"
	"syscall"
	"time"

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

// ownToken returns a new file for a token of a context that was given and not named. No two share a file, so that a context never
// has the token of another address, also where the second of the two writes fails.
func (b *contextBook) ownToken(name string) string {
	return filepath.Join(b.dir, "tokens", name+"-"+rand.Text()[:12])
}

// owns reports whether a token file is one that ownToken named.
func (b *contextBook) owns(file string) bool {
	return file != "" && filepath.Dir(file) == filepath.Join(b.dir, "tokens")
}

// lockPatience is how long a change of the contexts waits for another; a lock that is older was left by a command that was killed.
const lockPatience = 5 * time.Second

// lock keeps other commands from changing the contexts until unlock is called. A directory is the lock, which every system makes as one step.
func (b *contextBook) lock() (unlock func(), err error) {
	if b.dir == "" {
		_, err := configDir()
		return nil, fmt.Errorf("there is no directory for the file of contexts: %w", err)
	}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return nil, err
	}
	path := b.path() + ".lock"
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := os.Mkdir(path, 0o700)
		if err == nil {
			return func() { _ = os.Remove(path) }, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) > lockPatience {
			_ = os.Remove(path)
		} else if time.Since(began) > 2*lockPatience {
			return nil, fmt.Errorf("the contexts are being changed by another command; if there is none, remove %s", path)
		}
	}
}

// change reads the user's contexts, lets f change them and writes them, while no other command does.
func changeContexts(f func(b *contextBook) error) error {
	b := &contextBook{}
	if dir, err := configDir(); err == nil {
		b.dir = dir
	}
	unlock, err := b.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if b, err = readContexts(); err != nil {
		return err
	}
	return f(b)
}

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
	text, err := json.MarshalIndent(b, "", "    ")
	if err != nil {
		return err
	}
	if len(text) >= privateMax {
		return fmt.Errorf("the file of contexts would be larger than %d bytes", privateMax)
	}
	return writePrivate(b.path(), append(text, '\n'))
}

// writePrivate replaces a file that only the user may read, in a directory for which the same holds. The caller has the lock.
func writePrivate(path string, content []byte) error {
	if real, err := filepath.EvalSymlinks(path); err == nil { // a link into a repository of such files remains one
		path = real
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	// The lock is held: what has this name was left by a command that was killed.
	if err := os.Remove(path + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
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
	if !isToken(s) {
		return "", fmt.Errorf("the token file %s does not hold one token", c[tokenFile])
	}
	return s, nil
}

// isToken reports whether s may be sent as a token: printable, in one word.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// privateMax limits the size of a file of contexts or a token file.
const privateMax = 1 << 20

// readPrivate reads a file that may hold secrets. It refuses one that other users of the machine may read or write.
func readPrivate(path string) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // to open a pipe would wait for its writer
		return nil, fmt.Errorf("%s is no file", path)
	}
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
// order, that of the flag, of MUSTER_x, of the context, of NOMAD_x, and the default. What belongs to one cluster is not sent to another:
//   - a context is set aside where -address or MUSTER_ADDR names another address, unless -context names it together with -address;
//   - -context sets MUSTER_x aside where MUSTER_ADDR names another address;
//   - a context sets NOMAD_x aside.
//
// The error is kept for api: a command that asks no agent needs no context.
func (e *env) useContext(f *pflag.FlagSet) {
	e.context, e.contextErr, e.from = "", nil, map[string]string{}
	printedContext.Store(nil)
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
	name, c, err := e.chosenContext(f)
	named := f.Lookup("context").Changed
	if err != nil {
		// Who names an address needs none; and one whose directory is closed to this user, as under sudo and in services, is none.
		if !named && os.Getenv("MUSTER_CONTEXT") == "" && (own["address"] || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOTDIR)) {
			return
		}
		e.contextErr = fmt.Errorf("%w; -context \"\" uses no context", err)
		return
	}
	if name == "" {
		return
	}
	if own["address"] && !sameAddress(e.addr, c["address"]) {
		switch {
		case !named:
			return
		case e.from["address"] != "-address":
			for _, o := range contextOptions { // of another cluster
				if e.from[o.flag] == "MUSTER_"+o.env {
					own[o.flag] = false
				}
			}
		}
	}
	e.context = name
	if named {
		printedContext.Store(&name)
	}
	set := func(flag, value string) {
		if own[flag] {
			return
		}
		if value == "" {
			if e.from[flag] == "default" {
				return
			}
			value = optionDefaults[flag]
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
		if o.flag != "token" {
			set(o.flag, c[o.flag])
		}
	}
}

// optionDefaults are the values of general options without flag, context and environment, where they are not "".
var optionDefaults = map[string]string{"tls-skip-verify": "false"}

func sameAddress(a, b string) bool { return strings.TrimRight(a, "/") == strings.TrimRight(b, "/") }

// printedContext is the context that -context named: commands that are printed need it, too.
var printedContext atomic.Pointer[string]

// chosenContext returns the context of -context, of MUSTER_CONTEXT, or the current one. The name is "" where none is in use.
func (e *env) chosenContext(f *pflag.FlagSet) (name string, c clusterContext, err error) {
	if f.Lookup("context").Changed && e.contextFlag == "" {
		return "", nil, nil
	}
	b, err := readContexts()
	if err != nil {
		return "", nil, err
	}
	name = cmp.Or(e.contextFlag, b.Current) // the default of the flag is MUSTER_CONTEXT
	if name == "" {
		return "", nil, nil
	}
	c, err = b.named(name)
	return name, c, err
}

// homeNamespace returns the namespace of commands without -namespace and -context.
func homeNamespace() string {
	if ns := os.Getenv("MUSTER_NAMESPACE"); ns != "" {
		return ns
	}
	if b, err := readContexts(); err == nil {
		c := b.Contexts[cmp.Or(os.Getenv("MUSTER_CONTEXT"), b.Current)]
		if addr := os.Getenv("MUSTER_ADDR"); c != nil && (addr == "" || sameAddress(addr, c["address"])) {
			return cmp.Or(c["namespace"], "default")
		}
	}
	return firstEnv("default", "NAMESPACE")
}

// names returns the names of the contexts, sorted.
func (b *contextBook) names() []string { return slices.Sorted(maps.Keys(b.Contexts)) }
