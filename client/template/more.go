package template

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"text/template"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// workMax limits the bytes of all function results of a template. Each result is limited, but variables can hold
// thousands of them.
const workMax = 64 << 20

var errWork = fmt.Errorf("its functions give more than %d bytes in all", workMax)

// metered counts the results of functions, and ends the rendering at the limit.
func metered(fs template.FuncMap) template.FuncMap {
	left := workMax
	out := make(template.FuncMap, len(fs))
	for name, f := range fs {
		v := reflect.ValueOf(f)
		out[name] = reflect.MakeFunc(v.Type(), func(args []reflect.Value) []reflect.Value {
			var res []reflect.Value
			if v.Type().IsVariadic() {
				res = v.CallSlice(args)
			} else {
				res = v.Call(args)
			}
			if left -= weight(res[0], left); left < 0 {
				panic(errWork) // the template engine turns it into an error
			}
			return res
		}).Interface()
	}
	return out
}

// weight returns about how many bytes a value takes, counting no further than a limit.
func weight(v reflect.Value, limit int) int {
	n := 16
	switch v.Kind() {
	case reflect.String:
		n += v.Len()
	case reflect.Interface:
		n += weight(v.Elem(), limit)
	case reflect.Slice:
		for i := 0; i < v.Len() && n <= limit; i++ {
			n += weight(v.Index(i), limit-n)
		}
	case reflect.Map:
		for it := v.MapRange(); n <= limit && it.Next(); {
			n += 32 + weight(it.Key(), limit-n) + weight(it.Value(), limit-n)
		}
	}
	return n
}

// moreFunctions are the less common functions.
func moreFunctions() template.FuncMap {
	encode := func(b []byte, err error) (string, error) {
		if err != nil {
			return "", err
		}
		return short(strings.TrimSuffix(string(b), "\n"))
	}
	return template.FuncMap{
		"loop":     loop,
		"add":      arithmetic("add", func(b, a int64) (int64, error) { return a + b, nil }, func(b, a float64) float64 { return a + b }),
		"subtract": arithmetic("subtract", func(b, a int64) (int64, error) { return a - b, nil }, func(b, a float64) float64 { return a - b }),
		"multiply": arithmetic("multiply", func(b, a int64) (int64, error) { return a * b, nil }, func(b, a float64) float64 { return a * b }),
		"divide": arithmetic("divide", func(b, a int64) (int64, error) {
			if b == 0 {
				return 0, errors.New("divide: by 0")
			}
			return a / b, nil
		}, func(b, a float64) float64 { return a / b }),
		"modulo": arithmetic("modulo", func(b, a int64) (int64, error) {
			if b == 0 {
				return 0, errors.New("modulo: by 0")
			}
			return a % b, nil
		}, math.Mod),
		"minimum":         arithmetic("minimum", func(b, a int64) (int64, error) { return min(a, b), nil }, math.Min),
		"maximum":         arithmetic("maximum", func(b, a int64) (int64, error) { return max(a, b), nil }, math.Max),
		"base64URLEncode": func(s string) (string, error) { return short(base64.URLEncoding.EncodeToString([]byte(s))) },
		"base64URLDecode": func(s string) (string, error) {
			b, err := base64.URLEncoding.DecodeString(s)
			return string(b), err
		},
		"md5sum":     func(s string) string { h := md5.Sum([]byte(s)); return hex.EncodeToString(h[:]) },
		"parseFloat": func(s string) (float64, error) { return strconv.ParseFloat(s, 64) },
		"parseUint":  func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) },
		"regexMatch": func(pattern, s string) (bool, error) {
			re, err := regexp.Compile(pattern)
			return err == nil && re.MatchString(s), err
		},
		"regexReplaceAll": regexReplaceAll,
		"indent": func(n int, s string) (string, error) {
			if n < 0 || n > 1000 || len(s)+n*(strings.Count(s, "\n")+1) > ResultMax {
				return "", errResult
			}
			pad := strings.Repeat(" ", n)
			lines := strings.SplitAfter(s, "\n")
			var b strings.Builder
			for _, l := range lines {
				if l != "" && l != "\n" {
					b.WriteString(pad)
				}
				b.WriteString(l)
			}
			return b.String(), nil
		},
		"toTitle": func(s string) string {
			words := strings.SplitAfter(s, " ")
			for i, w := range words {
				if c, n := utf8.DecodeRuneInString(w); c != utf8.RuneError {
					words[i] = string(unicode.ToTitle(c)) + w[n:]
				}
			}
			return strings.Join(words, "")
		},
		"toJSONPretty": func(v any) (string, error) { return encode(json.MarshalIndent(v, "", "  ")) },
		"toYAML":       func(v any) (string, error) { return encode(yaml.Marshal(v)) },
		"in":           in,
	}
}

// arithmetic is an operation on two numbers: integers, or floats if one of them is not an integer. The second number is
// the first argument, so that the first one can be piped in.
func arithmetic(name string, whole func(b, a int64) (int64, error), floating func(b, a float64) float64) func(b, a any) (any, error) {
	return func(b, a any) (any, error) {
		bn, bf, bwhole, err := number(name, b)
		if err != nil {
			return nil, err
		}
		an, af, awhole, err := number(name, a)
		switch {
		case err != nil:
			return nil, err
		case awhole && bwhole:
			return whole(bn, an)
		}
		return floating(bf, af), nil
	}
}

func number(name string, v any) (n int64, f float64, whole bool, err error) {
	switch x := reflect.ValueOf(v); {
	case x.CanInt():
		return x.Int(), float64(x.Int()), true, nil
	case x.CanUint() && x.Uint() <= math.MaxInt64:
		return int64(x.Uint()), float64(x.Uint()), true, nil
	case x.CanFloat():
		return 0, x.Float(), false, nil
	}
	return 0, 0, false, fmt.Errorf("%s: want numbers, not %.40q", name, fmt.Sprint(v))
}

// loop returns the integers from 0, or from the first argument, up to but excluding the last.
func loop(args ...any) ([]int64, error) {
	var numbers []int64
	for _, a := range args {
		n, _, whole, err := number("loop", a)
		if err != nil || !whole {
			return nil, fmt.Errorf("loop: want whole numbers, not %.40q", fmt.Sprint(a))
		}
		numbers = append(numbers, n)
	}
	from, to := int64(0), int64(0)
	switch len(args) {
	case 1:
		to = numbers[0]
	case 2:
		from, to = numbers[0], numbers[1]
	default:
		return nil, bad{fmt.Errorf("loop: want one or two numbers, not %d", len(args))}
	}
	if to <= from {
		return nil, nil
	}
	if to-from > loopMax || to-from < 0 {
		return nil, fmt.Errorf("its loops go over more than %d elements", loopMax)
	}
	out := make([]int64, 0, to-from)
	for ; from < to; from++ {
		out = append(out, from)
	}
	return out, nil
}

func regexReplaceAll(pattern, with, s string) (string, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return "", err
	}
	// Each match becomes at most with, plus the whole match for each $ in it.
	found := len(re.FindAllStringIndex(s, loopMax))
	if found == loopMax || len(s)+found*len(with)+strings.Count(with, "$")*len(s) > 2*ResultMax {
		return "", errResult
	}
	return short(re.ReplaceAllString(s, with))
}

// in reports whether a text contains another one, or a list an element.
func in(where, what any) (bool, error) {
	if s, ok := where.(string); ok {
		return strings.Contains(s, fmt.Sprint(what)), nil
	}
	v := reflect.ValueOf(where)
	switch v.Kind() {
	case reflect.Invalid:
		return false, nil
	case reflect.Slice:
		for i := range v.Len() {
			if reflect.DeepEqual(v.Index(i).Interface(), what) {
				return true, nil
			}
		}
		return false, nil
	}
	return false, bad{fmt.Errorf("in: want a text or a list, not a %s", v.Kind())}
}
