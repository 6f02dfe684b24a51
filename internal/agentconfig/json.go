package agentconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/big"
)

// parseJSON reads a file in JSON.
func parseJSON(src *source, errs *problems) *node {
	j := &jsonReader{src: src, errs: errs, dec: json.NewDecoder(bytes.NewReader(src.text))}
	j.dec.UseNumber()
	n, ok := j.value(0)
	if !ok {
		return nil
	}
	if n.kind != object {
		errs.add(n.pos, "want an object in braces, found %s", n.kind)
		return nil
	}
	if at, ok := j.peek(); ok {
		errs.add(at, "something follows the end of the configuration")
		return nil
	}
	return n
}

type jsonReader struct {
	src  *source
	errs *problems
	dec  *json.Decoder
}

// peek returns the position of the next significant byte; false at the end.
func (j *jsonReader) peek() (pos, bool) {
	i := int(j.dec.InputOffset())
	for ; i < len(j.src.text); i++ {
		switch j.src.text[i] {
		case ' ', '\t', '\r', '\n', ',', ':':
		default:
			return j.src.at(i), true
		}
	}
	return j.src.at(i), false
}

func (j *jsonReader) fail(at pos, err error) {
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		j.errs.add(j.src.at(len(j.src.text)), "the file ends in the middle of a value; is a } or ] missing?")
	case errors.As(err, &syntax):
		j.errs.add(at, "not JSON: %s", syntax.Error())
	default:
		j.errs.add(at, "not JSON: %v", err)
	}
}

func (j *jsonReader) value(depth int) (*node, bool) {
	at, _ := j.peek()
	if depth > depthMax {
		j.errs.add(at, "nested more than %d deep; no setting needs that", depthMax)
		return nil, false
	}
	tok, err := j.dec.Token()
	if err != nil {
		j.fail(at, err)
		return nil, false
	}
	switch t := tok.(type) {
	case string:
		return &node{kind: text, pos: at, str: t}, true
	case bool:
		return &node{kind: boolean, pos: at, bool: t}, true
	case nil:
		return &node{kind: null, pos: at}, true
	case json.Number:
		f, _, err := big.ParseFloat(t.String(), 10, 256, big.ToNearestEven)
		if err != nil {
			j.errs.add(at, "the number %.40s is out of range", t)
			return nil, false
		}
		n := numberOf(f, at, j.errs)
		return n, n != nil
	case json.Delim:
		if t == '[' {
			return j.array(at, depth)
		}
		return j.object(at, depth)
	}
	return nil, false
}

func (j *jsonReader) array(at pos, depth int) (*node, bool) {
	out := &node{kind: list, pos: at}
	for j.dec.More() {
		v, ok := j.value(depth + 1)
		if !ok {
			return nil, false
		}
		out.items = append(out.items, v)
	}
	return out, j.end()
}

func (j *jsonReader) object(at pos, depth int) (*node, bool) {
	out := newObject(at)
	for j.dec.More() {
		at, _ := j.peek()
		tok, err := j.dec.Token()
		if err != nil {
			j.fail(at, err)
			return nil, false
		}
		key, ok := tok.(string)
		if !ok {
			j.errs.add(at, "want a key in quotes")
			return nil, false
		}
		v, ok := j.value(depth + 1)
		if !ok {
			return nil, false
		}
		v.pos = at
		if old := out.fields[key]; old != nil {
			j.errs.add(at, "%s is set twice; first at line %d", key, old.pos.line)
			continue
		}
		out.set(key, v)
	}
	return out, j.end()
}

func (j *jsonReader) end() bool {
	at, _ := j.peek()
	if _, err := j.dec.Token(); err != nil {
		j.fail(at, err)
		return false
	}
	return true
}
