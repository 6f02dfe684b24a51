package lint

import (
	"go/ast"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// oldWord is a private word that the field has a name for. One idea has one word: see the glossary in docs/README.md.
type oldWord struct {
	word string   // a word of an identifier or file name, in lower case
	use  string   // the field's word
	dirs []string // where it meant the idea; empty: everywhere
}

var (
	inScheduler = []string{"scheduler/...", "server/...", "sim/..."}
	inServer    = []string{"server/..."}
	inClient    = []string{"client/..."}
	inFSM       = []string{"fsm/..."}
	ofJobs      = []string{"structs", "scheduler/...", "fsm/...", "server/...", "nomadlike/...", "cmd/muster", "internal/methods"}
)

// vocabulary lists the words that declared identifiers and file names may not contain.
var vocabulary = []oldWord{
	{"foretell", "predict", nil}, {"foretold", "predicted", nil}, {"foreseen", "predicted", nil}, {"pasts", "nodeHistory", nil},
	{"hopeless", "noFit", nil}, {"vain", "noFit", nil}, {"lacks", "shortfall", inScheduler}, {"askmemo", "shortfallCache", nil},
	{"rival", "contender", nil}, {"rivals", "contenders", nil}, {"race", "competition", inScheduler}, {"compete", "contend", inScheduler},
	{"rouse", "wake", nil}, {"cure", "unblock", []string{"server/...", "scheduler/..."}}, {"cures", "unblockingEvents", inServer}, {"cured", "unblocked", inServer},
	{"aside", "setAside", inScheduler}, {"beyond", "overBound", []string{"scheduler/..."}}, {"behind", "passBound", []string{"scheduler/..."}},
	{"told", "notified", inClient}, {"tell", "notify", inClient}, {"teller", "notifier", nil},
	{"seat", "placement", []string{"scheduler/...", "client/..."}}, {"seats", "placements", []string{"scheduler/...", "client/..."}}, {"spot", "placement", []string{"scheduler/..."}},
	{"scan", "search", []string{"scheduler/..."}}, {"books", "reservations", inScheduler}, {"booked", "reservations", inScheduler},
	{"promised", "reserved", inScheduler}, {"promises", "reservations", inScheduler}, {"owed", "reserved", inScheduler}, {"spoken", "reserved", inScheduler},
	{"soonest", "earliestFree", inScheduler}, {"tail", "releaseTimes", []string{"scheduler", "scheduler/model", "scheduler/search"}}, {"spare", "freeBlock (capacity) or standby (gang)", ofJobs}, {"spares", "freeIndex (capacity) or standby (gang)", ofJobs},
	{"withheld", "deferredExpansion", []string{"scheduler/..."}},
	{"gatetext", "preconditionText", nil}, {"stands", "frozen", inClient}, {"still", "frozen", inClient},
	{"founds", "bootstraps", nil}, {"adjusted", "normalized", inServer}, {"oversub", "memoryMax", inServer}, {"claims", "preemptWait", inServer},
	{"saving", "checkpointSlots", inServer}, {"relay", "nodeRPC", inServer}, {"figures", "metrics", inServer},
	{"placed", "groupKey", inFSM}, {"came", "returned", inFSM}, {"clienttest", "clientfake", nil}, {"limitstart", "startEstimate", nil}, {"startwhen", "startEstimate", nil},
}

var camelWord = regexp.MustCompile(`[A-Z]?[a-z0-9]+|[A-Z]+`)

func words(name string) map[string]bool {
	out := map[string]bool{strings.ToLower(strings.ReplaceAll(name, "_", "")): true}
	for _, part := range strings.Split(name, "_") {
		for _, w := range camelWord.FindAllString(part, -1) {
			out[strings.ToLower(w)] = true
		}
	}
	return out
}

// TestVocabulary refuses the old words in names of files, types, functions, methods, fields, constants and package
// variables.
func TestVocabulary(t *testing.T) {
	check := func(where, dir, name string) {
		ws := words(name)
		for _, o := range vocabulary {
			if o.word == "aside" && strings.Contains(strings.ToLower(name), "setaside") {
				continue // the field's word
			}
			if ws[o.word] && (len(o.dirs) == 0 || in(dir, o.dirs...)) {
				t.Errorf("%s: the name %s contains %q; the field's word is %s (docs/README.md, glossary)", where, name, o.word, o.use)
			}
		}
	}
	for _, s := range sources(t) {
		check(s.name, s.dir, strings.TrimSuffix(strings.TrimSuffix(filepath.Base(s.name), ".go"), "_test"))
		if s.test {
			continue
		}
		at := func(id *ast.Ident) { check(fset.Position(id.Pos()).String(), s.dir, id.Name) }
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				at(d.Name)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.ValueSpec:
						for _, id := range spec.Names {
							at(id)
						}
					case *ast.TypeSpec:
						at(spec.Name)
						ast.Inspect(spec.Type, func(n ast.Node) bool {
							if f, ok := n.(*ast.Field); ok {
								for _, id := range f.Names {
									at(id)
								}
							}
							return true
						})
					}
				}
			}
		}
	}
}
