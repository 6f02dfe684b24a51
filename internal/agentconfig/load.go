package agentconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	fileMax  = 1 << 20 // bytes of one file
	filesMax = 256     // files of one configuration
)

// Options are the sources of a configuration. Later sources win: defaults, -dev, files in order, flags.
type Options struct {
	Dev   bool
	Paths []string // files, and directories whose *.hcl and *.json are read in the order of their names
	Flags []Flag

	Hostname  func() (string, error) // nil is os.Hostname
	DefaultIP func() (string, error) // address of the default route; nil finds it
}

// Flag is one setting of the command line.
type Flag struct {
	Name  string // "-data-dir"
	Key   string // "client.node_class"
	Value any    // string, bool, int, []string or map[string]string
}

// Load reads, merges, checks and completes a configuration. The error is of type Errors, or that of a file that could
// not be read.
func Load(o Options) (*Config, error) {
	var errs problems
	files, err := expand(o.Paths)
	if err != nil {
		return nil, err
	}
	cfg := Defaults()
	cfg.Dev, cfg.Files = o.Dev, files
	tree := newObject(pos{})
	if o.Dev {
		tree = merge(tree, devDefaults())
	}
	for _, f := range files {
		n, err := readFile(f, &errs)
		if err != nil {
			return nil, err
		}
		if n != nil {
			tree = merge(tree, n)
		}
	}
	if o.Dev { // -dev overrides the files here
		tree = merge(tree, flagTree(Flag{"-dev", "server.enabled", true}))
		tree = merge(tree, flagTree(Flag{"-dev", "client.enabled", true}))
	}
	for _, f := range o.Flags {
		tree = merge(tree, flagTree(f))
	}
	if err := errs.err(); err != nil {
		return nil, err
	}
	cfg.tree = tree
	d := &decoder{errs: &errs, warn: cfg.warn}
	d.object("", tree, reflect.ValueOf(cfg).Elem())
	if err := errs.err(); err != nil {
		return nil, err
	}
	if o.Hostname == nil {
		o.Hostname = os.Hostname
	}
	if o.DefaultIP == nil {
		o.DefaultIP = defaultIP
	}
	cfg.finish(o, &errs)
	if err := errs.err(); err != nil {
		return nil, err
	}
	return cfg, nil
}

func (c *Config) warn(at pos, format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	if w := at.String(); w != "" {
		s = w + ": " + s
	}
	c.Warnings = append(c.Warnings, s)
}

// devDefaults returns the settings of -dev that files may override.
func devDefaults() *node {
	out := newObject(pos{})
	for _, f := range []Flag{
		{"-dev", "plugin.raw_exec.config.enabled", true},
		{"-dev", "enable_debug", true},
		{"-dev", "acl.login_nodes", []string{AllNodes}},
		{"-dev", "client.egress.allow", []string{"127.0.0.0/8", "::1/128"}},
	} {
		out = merge(out, flagTree(f))
	}
	return out
}

// flagTree returns a configuration with one setting.
func flagTree(f Flag) *node {
	at := pos{src: &source{name: "flag " + f.Name}}
	var v *node
	switch x := f.Value.(type) {
	case string:
		v = &node{kind: text, str: x}
	case bool:
		v = &node{kind: boolean, bool: x}
	case int:
		v = &node{kind: number, str: strconv.Itoa(x)}
	case []string:
		v = &node{kind: list}
		for _, s := range x {
			v.items = append(v.items, &node{kind: text, str: s, pos: at})
		}
	case map[string]string:
		v = newObject(at)
		for k, s := range x {
			v.set(k, &node{kind: text, str: s, pos: at})
		}
		slices.Sort(v.keys)
	}
	v.pos = at
	root := newObject(at)
	n := root
	keys := strings.Split(f.Key, ".")
	for _, k := range keys[:len(keys)-1] {
		next := newObject(at)
		n.set(k, next)
		n = next
	}
	n.set(keys[len(keys)-1], v)
	return root
}

// expand replaces directories by the files in them.
func expand(paths []string) ([]string, error) {
	var out []string
	for _, p := range paths {
		st, err := os.Stat(p)
		if err != nil {
			return nil, fmt.Errorf("configuration %s: %w", p, clean(err))
		}
		if !st.IsDir() {
			out = append(out, p)
			continue
		}
		list, err := os.ReadDir(p) // sorted by name
		if err != nil {
			return nil, fmt.Errorf("configuration directory %s: %w", p, clean(err))
		}
		for _, e := range list {
			if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".hcl" || ext == ".json") && !strings.HasPrefix(e.Name(), ".") {
				out = append(out, filepath.Join(p, e.Name()))
			}
		}
	}
	if len(out) > filesMax {
		return nil, fmt.Errorf("%d configuration files; at most %d are read", len(out), filesMax)
	}
	return out, nil
}

// clean removes the path from an error whose caller adds it.
func clean(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// readFile parses one file. A nil node without an error means that problems were added to errs.
func readFile(name string, errs *problems) (*node, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", name, clean(err))
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, fileMax+1))
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", name, clean(err))
	}
	return parse(name, b, errs), nil
}

// parse reads the text of a file in either syntax.
func parse(name string, b []byte, errs *problems) *node {
	whole := pos{src: &source{name: name}}
	if len(b) > fileMax {
		errs.add(whole, "the file is larger than 1 MiB, the most a configuration may have")
		return nil
	}
	b = bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))
	trimmed := bytes.TrimLeft(b, " \t\r\n")
	switch {
	case len(trimmed) == 0:
		errs.add(whole, "the file is empty")
		return nil
	case !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0:
		errs.add(whole, "the file is not text in UTF-8; want HCL or JSON")
		return nil
	}
	src := newSource(name, b)
	if trimmed[0] == '{' || filepath.Ext(name) == ".json" {
		return parseJSON(src, errs)
	}
	return parseHCL(src, errs)
}

// defaultIP returns the address from which this machine reaches others. No packet is sent.
func defaultIP() (string, error) {
	for _, a := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		c, err := net.Dial("udp", a)
		if err != nil {
			continue
		}
		ip := c.LocalAddr().(*net.UDPAddr).IP
		c.Close()
		if !ip.IsUnspecified() && !ip.IsLoopback() {
			return ip.String(), nil
		}
	}
	return "", errors.New("this machine has no default route")
}

// Changes lists the settings that differ between two configurations and need a restart, as "client.node_class".
func Changes(old, now *Config) []string {
	seen := map[string]*node{}
	var out []string
	old.tree.leaves("", func(p string, n *node) { seen[p] = n })
	now.tree.leaves("", func(p string, n *node) {
		if !same(seen[p], n) && p != "log_level" {
			out = append(out, p)
		}
		delete(seen, p)
	})
	for p := range seen {
		if p != "log_level" {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}
