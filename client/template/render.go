// Package template renders the files that jobs describe as templates, with limits on the cost of a template: it is
// untrusted and rendered in the agent.
package template

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"
)

// Limits of a template.
const (
	SourceMax = 256 << 10 // bytes of the template
	ResultMax = 1 << 20   // bytes of the result, and of any text on the way
	loopMax   = 100_000   // elements of all its loops together
)

// Input is what a template is rendered from.
type Input struct {
	Source      string
	Left, Right string // delimiters; "" are {{ and }}
	MissingErr  bool   // a missing key is an error
	Env         func(name string) string
	Replace     func(text string) string          // replaces ${...}
	File        func(name string) (string, error) // of the allocation
	Vars        Variables                         // or nil: variables cannot be read
	Services    Services                          // or nil: services cannot be looked up
}

// ErrBad marks a template that can never be rendered.
var ErrBad = errors.New("bad template")

type bad struct{ error }

func (b bad) Unwrap() error        { return b.error }
func (b bad) Is(target error) bool { return target == ErrBad }

var errResult = fmt.Errorf("it becomes more than %d bytes", ResultMax)

// Render renders a template. A *MissingError names the variables that it waits for.
func Render(in Input) ([]byte, error) {
	if len(in.Source) > SourceMax {
		return nil, bad{fmt.Errorf("the template has %d bytes; at most %d are rendered", len(in.Source), SourceMax)}
	}
	left := loopMax
	lack := &missing{}
	t := template.New("template").Delims(in.Left, in.Right).Funcs(metered(functions(in))).Funcs(variableFunctions(in, lack)).Funcs(serviceFunctions(in)).Funcs(template.FuncMap{
		// every loop calls it: see bind
		"muster_each": func(v any) (any, error) {
			x := reflect.ValueOf(v)
			for x.Kind() == reflect.Interface || x.Kind() == reflect.Pointer {
				x = x.Elem()
			}
			switch x.Kind() {
			case reflect.Invalid:
				return []any{}, nil
			case reflect.Slice, reflect.Array, reflect.Map:
			default:
				return nil, fmt.Errorf("range goes over lists and maps, not over a %s", x.Kind())
			}
			if left -= x.Len(); left < 0 {
				return nil, fmt.Errorf("its loops go over more than %d elements", loopMax)
			}
			return v, nil
		},
	})
	if in.MissingErr {
		t.Option("missingkey=error")
	}
	t, err := t.Parse(in.Source)
	if err != nil {
		return nil, bad{err}
	}
	if len(t.Templates()) > 1 {
		return nil, bad{errors.New("define and block are not supported")}
	}
	if t.Tree == nil || t.Root == nil {
		return nil, nil
	}
	if err := bind(t.Root); err != nil {
		return nil, bad{err}
	}
	out := &bounded{}
	if err := lack.err(t.Execute(out, nil)); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

type bounded struct{ bytes.Buffer }

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > ResultMax {
		return 0, errResult
	}
	return b.Buffer.Write(p)
}

// bind makes every loop count its elements first, so that no template runs for ever. Templates that use others could
// grow without loops and are refused.
func bind(n parse.Node) error {
	switch x := n.(type) {
	case *parse.ListNode:
		if x == nil {
			return nil
		}
		for _, c := range x.Nodes {
			if err := bind(c); err != nil {
				return err
			}
		}
	case *parse.RangeNode:
		call := &parse.CommandNode{NodeType: parse.NodeCommand, Pos: x.Pos, Args: []parse.Node{parse.NewIdentifier("muster_each").SetPos(x.Pos).SetTree(nil)}}
		x.Pipe.Cmds = append(x.Pipe.Cmds, call)
		return errors.Join(bind(x.List), bind(x.ElseList))
	case *parse.IfNode:
		return errors.Join(bind(x.List), bind(x.ElseList))
	case *parse.WithNode:
		return errors.Join(bind(x.List), bind(x.ElseList))
	case *parse.TemplateNode:
		return errors.New("templates cannot use other templates")
	}
	return nil
}

// short returns an error for a text beyond the limit.
func short(s string) (string, error) {
	if len(s) > ResultMax {
		return "", errResult
	}
	return s, nil
}

// absent are functions of other template engines whose data this cluster does not have.
var absent = map[string]string{
	"key": "there is no key store", "keyOrDefault": "there is no key store", "keyExists": "there is no key store", "ls": "there is no key store", "tree": "there is no key store",
	"secret": "there is no Vault", "secrets": "there is no Vault", "service": "there is no Consul; see nomadService", "services": "there is no Consul; see nomadServices",
	"timestamp": "it would change at every look", "plugin": "no programs are run", "writeToFile": "a template writes its destination",
}

func functions(in Input) template.FuncMap {
	file := in.File
	f := template.FuncMap{
		"env": in.Env,
		"envOrDefault": func(name, def string) string {
			if v := in.Env(name); v != "" {
				return v
			}
			return def
		},
		"mustEnv": func(name string) (string, error) {
			if v := in.Env(name); v != "" {
				return v, nil
			}
			return "", fmt.Errorf("the variable %s is not set", name)
		},
		"interpolate": in.Replace,
		"file":        func(name string) (string, error) { return file(name) },
		"toUpper":     strings.ToUpper, "toLower": strings.ToLower, "trimSpace": strings.TrimSpace,
		"trim":       func(cut, s string) string { return strings.Trim(s, cut) },
		"trimPrefix": func(p, s string) string { return strings.TrimPrefix(s, p) },
		"trimSuffix": func(p, s string) string { return strings.TrimSuffix(s, p) },
		"contains":   func(sub, s string) bool { return strings.Contains(s, sub) },
		"split":      func(sep, s string) []string { return strings.Split(s, sep) },
		"join":       func(sep string, list []string) (string, error) { return short(strings.Join(list, sep)) },
		"replaceAll": func(old, with, s string) (string, error) {
			if n := strings.Count(s, old); n*len(with)+len(s) > ResultMax {
				return "", errResult
			}
			return strings.ReplaceAll(s, old, with), nil
		},
		"base64Encode": func(s string) (string, error) { return short(base64.StdEncoding.EncodeToString([]byte(s))) },
		"base64Decode": func(s string) (string, error) {
			b, err := base64.StdEncoding.DecodeString(s)
			return string(b), err
		},
		"sha256Hex": func(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) },
		"parseInt":  func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) },
		"parseBool": strconv.ParseBool,
		"parseJSON": func(s string) (any, error) {
			var v any
			err := json.Unmarshal([]byte(s), &v)
			return v, err
		},
		"toJSON": func(v any) (string, error) {
			b, err := json.Marshal(v)
			if err != nil {
				return "", err
			}
			return short(string(b))
		},
		"print":   func(v ...any) (string, error) { return short(fmt.Sprint(v...)) },
		"println": func(v ...any) (string, error) { return short(fmt.Sprintln(v...)) },
		"printf":  printf,
		"html":    func(s string) (string, error) { return escaped(s, template.HTMLEscapeString) },
		"js":      func(s string) (string, error) { return escaped(s, template.JSEscapeString) },
		"urlquery": func(s string) (string, error) {
			return escaped(s, func(s string) string { return template.URLQueryEscaper(s) })
		},
	}
	maps.Copy(f, moreFunctions())
	for name, why := range absent {
		f[name] = func(...any) (any, error) { return nil, bad{fmt.Errorf("%s: %s", name, why)} }
	}
	return f
}

// printf is fmt's, without widths that produce long results.
func printf(format string, v ...any) (string, error) {
	if strings.Count(format, "%") > 1000 {
		return "", errResult
	}
	digits := 0
	for _, c := range format {
		if c >= '0' && c <= '9' {
			if digits++; digits > 4 {
				return "", errors.New("printf: a number in the format is too large")
			}
		} else {
			digits = 0
		}
		if c == '*' {
			return "", errors.New("printf: widths are written in the format")
		}
	}
	return short(fmt.Sprintf(format, v...))
}

func escaped(s string, f func(string) string) (string, error) {
	if len(s) > ResultMax/8 {
		return "", errResult
	}
	return f(s), nil
}
