// Package hclgate refuses HCL that would crash the process that parses it. hcl/v2 v2.25.0 overflows the stack at about
// 66,000 nested parentheses, a fatal error that recover cannot catch; unary operators, conditionals and index chains
// nest in the same way without brackets. The gate counts tokens, which needs no recursion.
package hclgate

import (
	"bytes"
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// Limits on a file.
const (
	DepthMax     = 100     // brackets, blocks and templates inside of each other
	BracketsMax  = 300_000 // opening brackets in a file, so that the tokens themselves fit into memory
	unaryMax     = 100     // unary operators in a row
	operatorsMax = 20_000  // operators and index brackets in a file
)

// Parse parses a file that Check lets pass.
func Parse(filename string, src []byte, sizeMax int) (*hcl.File, hcl.Diagnostics) {
	if d := Check(filename, src, sizeMax); d != nil {
		return &hcl.File{Bytes: src}, hcl.Diagnostics{d}
	}
	return hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
}

// Check refuses a source of more than sizeMax bytes, or one that is too deep to be parsed safely; else it returns nil.
// It works for JSON too, whose brackets are the same.
func Check(filename string, src []byte, sizeMax int) *hcl.Diagnostic {
	start := &hcl.Range{Filename: filename, Start: hcl.InitialPos, End: hcl.InitialPos}
	if len(src) > sizeMax {
		return problem(nil, "File too large", "%s has %d bytes; at most %d are read.", filename, len(src), sizeMax)
	}
	if bytes.IndexByte(src, 0) >= 0 {
		return problem(start, "Not a text file", "The file holds zero bytes; want UTF-8 text.")
	}
	if n := bytes.Count(src, []byte("(")) + bytes.Count(src, []byte("[")) + bytes.Count(src, []byte("{")); n > BracketsMax {
		return problem(start, "Too many brackets", "The file opens %d brackets; at most %d are read.", n, BracketsMax)
	}
	tokens, _ := hclsyntax.LexConfig(src, filename, hcl.InitialPos) // the parser reports the lexer's diagnostics
	depth, unary, operators := 0, 0, 0
	for i, t := range tokens {
		isUnary := false
		switch t.Type {
		case hclsyntax.TokenOParen, hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			depth++
			if t.Type == hclsyntax.TokenOBrack && i > 0 {
				switch tokens[i-1].Type {
				case hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenIdent, hclsyntax.TokenCBrace, hclsyntax.TokenCQuote:
					operators++
				}
			}
		case hclsyntax.TokenCParen, hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenTemplateSeqEnd:
			depth--
		case hclsyntax.TokenMinus, hclsyntax.TokenBang:
			isUnary = true
			operators++
		case hclsyntax.TokenPlus, hclsyntax.TokenStar, hclsyntax.TokenSlash, hclsyntax.TokenPercent, hclsyntax.TokenAnd, hclsyntax.TokenOr,
			hclsyntax.TokenEqualOp, hclsyntax.TokenNotEqual, hclsyntax.TokenLessThan, hclsyntax.TokenLessThanEq, hclsyntax.TokenGreaterThan,
			hclsyntax.TokenGreaterThanEq, hclsyntax.TokenQuestion:
			operators++
		}
		if isUnary {
			unary++
		} else {
			unary = 0
		}
		switch {
		case depth > DepthMax:
			return problem(&t.Range, "Nested too deep", "Brackets, blocks and templates may stand at most %d deep inside of each other.", DepthMax)
		case unary > unaryMax:
			return problem(&t.Range, "Too many operators in a row", "At most %d unary operators may follow each other.", unaryMax)
		case operators > operatorsMax:
			return problem(&t.Range, "Too many operators", "A file may hold at most %d operators.", operatorsMax)
		}
	}
	return nil
}

func problem(r *hcl.Range, summary, format string, args ...any) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: fmt.Sprintf(format, args...), Subject: r}
}
