package wire

import (
	"testing"

	"github.com/muster-sched/muster/structs"
)

// TestAllocationsSayWhereWorkResumes: the checkpoint that an allocation was given is in lists, too.
func TestAllocationsSayWhereWorkResumes(t *testing.T) {
	a := &structs.Allocation{Line: &structs.Lineage{Resume: &structs.Saved{Time: 7, Bytes: 8, Path: "/ckpt/9"}}}
	want := SavedCheckpoint{Time: 7, Bytes: 8, Path: "/ckpt/9"}
	if got := AllocStubFromStructs(a, false, false).ResumeFrom; got == nil || *got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := AllocStubFromStructs(&structs.Allocation{}, false, false).ResumeFrom; got != nil {
		t.Errorf("%+v of an allocation that was given none", got)
	}
}
