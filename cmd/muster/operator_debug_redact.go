package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"
)

const (
	redacted   = "<redacted>"
	redactRule = "values whose name has secret, token, password, credential, private, encrypt, key or env in it; passwords in URLs; signed tokens; private keys; the token of this command"
)

// hiddenName is the rule: a value whose name it finds is left out. It finds more than secrets, such as names of keys.
var hiddenName = regexp.MustCompile(`(?i)secret|token|passw|passphrase|credential|private|encrypt|authorization|key|env`)

// In a text, a name and its value are joined by = or :, as in log lines, command lines and JSON inside of a string.
var (
	textPair  = regexp.MustCompile(`(?i)([\w.-]*(?:secret|token|passw|passphrase|credential|private|encrypt|authorization|key|env)[\w.-]*\\?["']?\s*(?:=|:)\s*)(\\?"(?:[^"\\]|\\[^"])*\\?"|'[^']*'|(?:bearer |basic )?[^\s,;&})\]"']+)`)
	urlLogin  = regexp.MustCompile(`(://[^/@\s:"]*):[^/@\s"]+@`)
	bearer    = regexp.MustCompile(`(?i)\b(bearer|basic) [\w.~+/=-]{8,}`)
	signed    = regexp.MustCompile(`\beyJ[\w-]+\.[\w-]+\.[\w-]*`)
	pemSecret = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`)
)

// A redactor leaves secrets out of answers and counts them.
type redactor struct {
	literal string // a secret wherever it stands, or ""
	count   int
}

// file returns an answer without secrets; the ending of its name says what it is. JSON that cannot be read is left out
// as a whole, because names in it cannot be found.
func (r *redactor) file(name string, b []byte) ([]byte, error) {
	switch {
	case b == nil:
		return nil, nil
	case strings.HasPrefix(name, "profiles/"): // names of functions and files, without values
		return b, nil
	case !strings.HasSuffix(name, ".json"):
		return []byte(r.text(string(b))), nil
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, errors.New("left out: the answer is not JSON")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("left out: the answer is more than one JSON value")
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(r.value("", v))
	return out.Bytes(), err
}

// value returns a JSON value of an object's field without secrets.
func (r *redactor) value(name string, v any) any {
	switch v := v.(type) {
	case string:
		if v != "" && hiddenName.MatchString(name) {
			return r.leave()
		}
		return r.text(v)
	case []any:
		if len(v) > 0 && hiddenName.MatchString(name) {
			return r.leave()
		}
		for i := range v {
			v[i] = r.value("", v[i])
		}
	case map[string]any:
		if len(v) > 0 && hiddenName.MatchString(name) {
			return r.leave()
		}
		return r.object(v)
	}
	return v // numbers and booleans are no secrets
}

// object cleans the fields of an object. In a pair of Key and Value, as taints are, the key is the name of the value.
func (r *redactor) object(v map[string]any) map[string]any {
	key, isKey := v["Key"].(string)
	_, pair := v["Value"]
	out := make(map[string]any, len(v))
	for k, x := range v {
		switch {
		case pair && isKey && k == "Key":
			out[k] = r.text(key)
		case pair && isKey && k == "Value":
			out[k] = r.value(key, x)
		default:
			out[r.text(k)] = r.value(k, x)
		}
	}
	return out
}

// text returns a text without secrets.
func (r *redactor) text(s string) string {
	if r.literal != "" {
		r.count += strings.Count(s, r.literal)
		s = strings.ReplaceAll(s, r.literal, redacted)
	}
	for _, p := range []struct {
		is   *regexp.Regexp
		with string
	}{{pemSecret, redacted}, {urlLogin, "$1:" + redacted + "@"}, {textPair, "${1}" + redacted}, {bearer, "$1 " + redacted}, {signed, redacted}} {
		if n := len(p.is.FindAllStringIndex(s, -1)); n > 0 {
			r.count += n
			s = p.is.ReplaceAllString(s, p.with)
		}
	}
	return s
}

func (r *redactor) leave() string {
	r.count++
	return redacted
}
