package agentconfig

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/muster-sched/muster/internal/suggest"
)

var durationType = reflect.TypeFor[time.Duration]()

// decoder fills a Config from a tree of nodes.
type decoder struct {
	errs *problems
	warn func(at pos, format string, args ...any)
}

// object fills a struct. section is the path of its keys, "" at the top.
func (d *decoder) object(section string, n *node, v reflect.Value) {
	if n = single(n); n.kind != object {
		d.errs.add(n.pos, "%s: want a block, found %s", section, n.kind)
		return
	}
	fields := fieldsOf(v.Type())
	for _, key := range n.keys {
		val := n.fields[key]
		path := key
		if section != "" {
			path = section + "." + key
		}
		if i, ok := fields[key]; ok {
			if val.kind != null {
				d.value(path, val, v.Field(i))
			}
			continue
		}
		if why, ok := refused[section][key]; ok {
			if val.kind == null || val.kind == boolean && !val.bool || val.kind == list && len(val.items) == 0 || val.kind == text && val.str == "" {
				continue
			}
			d.errs.add(val.pos, "%s is not supported, and to ignore it would allow what it forbids: %s", path, why)
			continue
		}
		why, ok := noEffect[section][key]
		if !ok {
			why, ok = noEffect[section]["*"]
		}
		if ok {
			if !saysOff(val) {
				d.warn(val.pos, "%s has no effect: %s", path, why)
			}
			continue
		}
		known := make([]string, 0, len(fields))
		for k := range fields {
			known = append(known, k)
		}
		for k := range noEffect[section] {
			known = append(known, k)
		}
		where := "at the top"
		if section != "" {
			where = "in " + section
		}
		hint := suggest.DidYouMean(key, known)
		if hint == "" {
			if s := elsewhere(key); s != "" {
				hint = "; it belongs into " + s
			}
		}
		d.errs.add(val.pos, "%s: there is no such setting %s%s", key, where, hint)
	}
}

// saysOff reports whether a block only turns something off.
func saysOff(n *node) bool {
	n = single(n)
	switch n.kind {
	case null:
		return true
	case boolean:
		return !n.bool
	case object:
		e := n.fields["enabled"]
		return len(n.keys) == 0 || e != nil && e.kind == boolean && !e.bool
	}
	return false
}

// elsewhere returns the section to which a misplaced key, a setting or a block, belongs, or "".
func elsewhere(key string) string {
	for _, path := range Keys() {
		parts := strings.Split(path, ".")
		for i, p := range parts {
			if i > 0 && p == key {
				return strings.Join(parts[:i], ".") + " { }"
			}
		}
	}
	return ""
}

// Keys lists every key with a meaning, as "client.reserved.cpu"; the name of a host volume is "*".
func Keys() []string {
	var out []string
	walk(reflect.TypeFor[Config](), "", func(p string) { out = append(out, p) })
	return out
}

func walk(t reflect.Type, section string, f func(path string)) {
	for i := range t.NumField() {
		key := t.Field(i).Tag.Get("conf")
		if key == "" {
			continue
		}
		path := strings.TrimPrefix(section+"."+key, ".")
		ft := t.Field(i).Type
		if ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		if ft.Kind() == reflect.Map && ft.Elem().Kind() == reflect.Struct {
			path, ft = path+".*", ft.Elem()
		}
		if ft.Kind() == reflect.Struct {
			walk(ft, path, f)
			continue
		}
		f(path)
	}
}

func fieldsOf(t reflect.Type) map[string]int {
	out := make(map[string]int, t.NumField())
	for i := range t.NumField() {
		if key := t.Field(i).Tag.Get("conf"); key != "" {
			out[key] = i
		}
	}
	return out
}

func (d *decoder) value(path string, n *node, v reflect.Value) {
	want := func(what string) {
		found := n.kind.String()
		if n.kind == text && len(n.str) <= 40 {
			found = strconv.Quote(n.str)
		} else if n.kind == number {
			found = n.str
		}
		d.errs.add(n.pos, "%s: want %s, found %s", path, what, found)
	}
	switch {
	case v.Type() == durationType:
		if n.kind != text {
			want(`a duration in quotes such as "30s"`)
			return
		}
		t, err := time.ParseDuration(n.str)
		if err != nil {
			want(`a duration such as "30s", "5m" or "1h30m"`)
			return
		}
		if t < 0 {
			want("a duration that is not negative")
			return
		}
		v.SetInt(int64(t))
		return
	}
	switch v.Kind() {
	case reflect.String:
		if n.kind != text {
			want("text in quotes")
			return
		}
		v.SetString(n.str)
	case reflect.Bool:
		if n.kind != boolean {
			if n.kind == text && (n.str == "true" || n.str == "false") {
				want(n.str + " without quotes")
				return
			}
			want("true or false")
			return
		}
		v.SetBool(n.bool)
	case reflect.Int, reflect.Int64:
		i, err := strconv.ParseInt(n.str, 10, 64)
		if n.kind == text && err == nil {
			want(n.str + " without quotes")
			return
		}
		if n.kind != number || err != nil || v.OverflowInt(i) {
			want("a whole number")
			return
		}
		v.SetInt(i)
	case reflect.Slice:
		if n.kind != list {
			want("a list such as [\"a\", \"b\"]")
			return
		}
		if v.Type().Elem().Kind() == reflect.Int {
			out := reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
			for i, item := range n.items {
				d.value(fmt.Sprintf("%s[%d]", path, i), item, out.Index(i))
			}
			v.Set(out)
			return
		}
		out := make([]string, 0, len(n.items))
		for i, item := range n.items {
			if item.kind != text {
				d.errs.add(item.pos, "%s[%d]: want text in quotes, found %s", path, i, item.kind)
				continue
			}
			out = append(out, item.str)
		}
		v.Set(reflect.ValueOf(out))
	case reflect.Struct:
		d.object(path, n, v)
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		d.object(path, n, p.Elem())
		v.Set(p)
	case reflect.Map:
		d.mapping(path, n, v)
	default:
		panic(fmt.Sprintf("agentconfig: field of kind %s at %s", v.Kind(), path))
	}
}

func (d *decoder) mapping(path string, n *node, v reflect.Value) {
	if n = single(n); n.kind != object {
		d.errs.add(n.pos, "%s: want a block, found %s", path, n.kind)
		return
	}
	out := reflect.MakeMapWithSize(v.Type(), len(n.keys))
	for _, k := range n.keys {
		item := n.fields[k]
		e := reflect.New(v.Type().Elem()).Elem()
		if e.Kind() == reflect.Struct {
			d.object(path+"."+k, item, e)
		} else {
			switch item.kind { // in free keys, numbers and booleans stand for their text
			case text, number:
				e.SetString(item.str)
			case boolean:
				e.SetString(strconv.FormatBool(item.bool))
			case null:
				continue
			default:
				d.errs.add(item.pos, "%s.%s: want text, found %s", path, k, item.kind)
				continue
			}
		}
		out.SetMapIndex(reflect.ValueOf(k), e)
	}
	v.Set(out)
}
