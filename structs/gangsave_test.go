package structs

import (
	"fmt"
	"strings"
	"testing"
)

// TestGangCheckpoint: a checkpoint of a gang counts when all that write parts of it have done so, and no earlier one of a
// member that went on counts for one that did not. Each step is the report of members, as MEMBER@TIME; what is wanted is
// the time of the newest complete checkpoint, and from how many parts it is.
func TestGangCheckpoint(t *testing.T) {
	for name, c := range map[string]struct {
		members int // of Checkpoint.Members
		steps   string
	}{
		"all save":                      {0, "0@100 > 100/1, 1@101 > none, 2@102 > 100/3, 0@200 > 100/3, 1@201 > 100/3, 2@203 > 200/3"},
		"all save, two in one report":   {0, "0@100 > 100/1, 1@101 2@102 > 100/3"},
		"all save, in one report":       {0, "0@100 1@101 2@102 > 100/3, 0@200 1@201 > 100/3, 2@199 > 199/3"},
		"one file that all see":         {0, "0@100 > 100/1, 1@100 > none, 2@100 > 100/3, 0@200 1@200 > 100/3, 2@200 > 200/3"},
		"one saves for all":             {0, "0@100 > 100/1, 0@200 > 200/1, 0@300 > 300/1"},
		"it was not alone":              {0, "0@100 > 100/1, 0@200 > 200/1, 1@201 > none, 2@201 > 200/3"},
		"one is slow, one skips":        {0, "0@100 1@100 2@100 > 100/3, 0@200 0@300 1@200 > 100/3, 1@300 2@200 > 200/3, 2@300 > 200/3"},
		"one never does":                {0, "0@100 1@101 > none, 0@200 1@201 > none, 0@300 1@301 > none"},
		"one of many is enough":         {1, "0@100 > 100/1, 1@101 > 101/1, 1@200 > 200/1"},
		"two of three":                  {2, "0@100 > none, 1@101 > 100/2, 0@200 > 100/2, 1@202 > 200/2"},
		"more than there are":           {9, "0@100 1@101 > none, 2@102 > 100/3"},
		"the others have succeeded":     {0, "0@100 1@101 2@102 > 100/3, 1=complete 2=complete 0@200 > 200/1"},
		"the others were stopped":       {0, "0@100 1@101 2@102 > 100/3, 1=stopped 2=stopped 0@200 > 100/3"},
		"a member joined":               {0, "0@100 1@101 2@102 > 100/3, 0@201 1@202 2@203 3=new > 201/3, 0@300 1@300 2@300 > 201/3, 3@300 > 300/4"},
		"a lost member takes them back": {0, "0@100 1@101 2@102 > 100/3, 0@200 > 100/3, lost@250 1@300 2@301 > 100/3, 0@302 > 300/3"},
		"alone before and after a loss": {0, "0@100 > 100/1, lost@150 0@200 > 200/1, 1@201 > 100/2, 2@202 > 200/3"},
		"as it ends":                    {0, "0@100 1@101 2@102 > 100/3, ends 0@200 1@201 > 100/3, 2@202 > 200/3"},
		"of the run before":             {0, "0@100 1@101 2@102 > 100/3, again@150 0@200 > 100/3, 1@201 2@202 > 200/3"},
	} {
		t.Run(name, func(t *testing.T) {
			allocs := map[AllocID]*Allocation{}
			r := &Roster{Group: "g"}
			join := func(i int, at LogTime) {
				a := &Allocation{ID: AllocID{byte(i + 1)}, Group: "g", Client: ClientRunning, Desired: DesiredRun, StartedAt: at}
				allocs[a.ID] = a
				r.Members = append(r.Members, RosterMember{Alloc: a.ID})
			}
			for i := range 3 {
				join(i, 1)
			}
			for step := range strings.SplitSeq(c.steps, ", ") {
				does, want, _ := strings.Cut(step, " > ")
				for _, w := range strings.Fields(does) {
					var i int
					var at LogTime
					var word string
					own := func() GangCheckpoint {
						if r.Checkpoint == nil {
							return GangCheckpoint{}
						}
						return *r.Checkpoint
					}()
					n := *r
					switch {
					case w == "ends":
						for _, m := range r.Members {
							own.Left = append(own.Left, m.Alloc)
							allocs[m.Alloc].Desired = DesiredEvict
						}
						n.Members, n.Checkpoint = nil, &own
						r = &n
					case scan(w, "lost@%d", &at):
						own.Since, n.Checkpoint = at, &own
						r = &n
					case scan(w, "again@%d", &at):
						r.Members = nil
						for i := range 3 {
							join(i, at)
						}
					case scan(w, "%d@%d", &i, &at):
						a := *allocs[AllocID{byte(i + 1)}]
						a.Saved = a.Saved.Newer(&Saved{Time: at})
						allocs[a.ID] = &a
					case scan(w, "%d=%s", &i, &word) && word == "new":
						join(i, 250)
					case scan(w, "%d=%s", &i, &word):
						a := *allocs[AllocID{byte(i + 1)}]
						if a.Client = ClientComplete; word == "stopped" {
							a.Desired = DesiredStop
						}
						allocs[a.ID] = &a
					default:
						t.Fatal(w)
					}
				}
				before := r.Checkpoint
				if next := r.Saving(&Checkpoint{Members: c.members}, func(id AllocID) *Allocation { return allocs[id] }); next != nil {
					r = next
				}
				got := "none"
				if x := r.Checkpoint; x != nil && x.Newest != nil {
					got = fmt.Sprintf("%d/%d", x.Newest.Time, x.Parts)
				}
				if got != want {
					t.Fatalf("%s: %s, want %s; the record was %+v and is %+v", does, got, want, before, r.Checkpoint)
				}
				if r.Saving(&Checkpoint{Members: c.members}, func(id AllocID) *Allocation { return allocs[id] }) != nil {
					t.Fatalf("%s: the same again changes the record %+v", does, r.Checkpoint)
				}
			}
		})
	}
}

func scan(s, format string, to ...any) bool {
	n, err := fmt.Sscanf(s, format, to...)
	return err == nil && n == len(to)
}
