package top

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/charmbracelet/x/ansi"
)

// Styles are the 16 colours of the terminal, so that they suit the user's theme.
const (
	bold    = "1"
	dim     = "2"
	reverse = "7"
	red     = "31"
	green   = "32"
	yellow  = "33"
	blue    = "34"
	cyan    = "36"
)

func paint(style, s string) string {
	if style == "" || s == "" {
		return s
	}
	return "\x1b[" + style + "m" + s + "\x1b[m"
}

// clean removes escape sequences and control characters from text that others wrote.
func clean(s string) string {
	s = strings.ReplaceAll(ansi.Strip(s), "\t", "    ")
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return -1
		}
		return r
	}, s)
}

// fit makes plain text w cells wide.
func fit(s string, w int, right bool) string {
	if w <= 0 {
		return ""
	}
	n := ansi.StringWidth(s)
	if n > w {
		s = ansi.Truncate(s, w, "…")
		n = ansi.StringWidth(s) // a wide character may not have fitted
	}
	pad := strings.Repeat(" ", w-n)
	if right {
		return pad + s
	}
	return s + pad
}

// glyphs are the characters of bars and sparklines.
type glyphs struct {
	full, half, empty string
	sparks            []string
	up, down, none    string
}

var (
	unicodeGlyphs = glyphs{"━", "╸", "─", []string{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}, "▲", "▼", "–"}
	asciiGlyphs   = glyphs{"=", "-", ".", []string{"_", ".", "-", "=", "*", "#"}, "^", "v", "-"}
)

func (m *Model) glyphs() *glyphs {
	if m.opt.ASCII {
		return &asciiGlyphs
	}
	return &unicodeGlyphs
}

// bar draws a share from 0 to 1, w cells wide; less than 0 is unknown and draws nothing.
func (g *glyphs) bar(share float64, w int, style string) string {
	if w <= 0 {
		return ""
	}
	if share < 0 {
		return strings.Repeat(" ", w)
	}
	halves := int(min(share, 1)*float64(2*w) + 0.5)
	if share > 0 {
		halves = max(halves, 1)
	}
	s := strings.Repeat(g.full, halves/2)
	if halves%2 == 1 {
		s += g.half
	}
	return paint(style, s) + paint(dim, strings.Repeat(g.empty, w-halves/2-halves%2))
}

// history is the recent values of something, as shares of 255; the newest is the last.
type history struct {
	at     int64 // of the newest sample
	values []uint8
}

const noSample = 0 // drawn as a gap; samples begin with 1

func (h *history) add(at int64, share float64) {
	v := uint8(noSample)
	if share >= 0 {
		v = uint8(1 + min(share, 1)*254)
	}
	h.at = at
	h.values = append(h.values, v)
	if len(h.values) > historyMax {
		h.values = append(h.values[:0], h.values[len(h.values)-historyMax:]...)
	}
}

// spark draws the newest w samples.
func (g *glyphs) spark(h *history, w int, style string) string {
	var b strings.Builder
	n := 0
	if h != nil {
		n = min(len(h.values), w)
		for _, v := range h.values[len(h.values)-n:] {
			if v == noSample {
				b.WriteByte(' ')
				continue
			}
			b.WriteString(g.sparks[int(v-1)*len(g.sparks)/255])
		}
	}
	return strings.Repeat(" ", w-n) + paint(style, b.String())
}

// span formats a duration in at most six cells.
func span(d time.Duration) string {
	d = max(d, 0)
	switch h := int(d.Hours()); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case h < 24:
		return fmt.Sprintf("%dh%02dm", h, int(d.Minutes())%60)
	case h < 100*24:
		return fmt.Sprintf("%dd%02dh", h/24, h%24)
	default:
		return fmt.Sprintf("%dd", h/24)
	}
}

// bytes formats an amount of memory in at most five cells.
func bytes(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 40, "T"}, {1 << 30, "G"}, {1 << 20, "M"}, {1 << 10, "K"}} {
		if n >= u.size {
			if v := float64(n) / float64(u.size); v < 9.95 {
				return fmt.Sprintf("%.1f%s", v, u.name)
			}
			return fmt.Sprintf("%d%s", (n+u.size/2)/u.size, u.name)
		}
	}
	return fmt.Sprintf("%dB", n)
}

// natural compares names so that numbers in them count as numbers: gpu-2 before gpu-10.
func natural(a, b string) int {
	for a != "" && b != "" {
		if digit(a[0]) && digit(b[0]) {
			x, restA := number(a)
			y, restB := number(b)
			if len(x) != len(y) {
				return len(x) - len(y)
			}
			if c := strings.Compare(x, y); c != 0 {
				return c
			}
			a, b = restA, restB
			continue
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	return len(a) - len(b)
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// number returns the number at the beginning of s, without leading zeros, and the rest.
func number(s string) (n, rest string) {
	i := 0
	for i < len(s) && digit(s[i]) {
		i++
	}
	return strings.TrimLeft(s[:i], "0"), s[i:]
}
