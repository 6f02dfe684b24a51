package contend

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/structs"
)

func TestNamesOf(t *testing.T) {
	var jobs []structs.JobKey
	for n := range subjectsMax + 3 {
		got := strings.Split(namesOf(jobs, nil), ", ")
		if n > 0 && len(got) != min(n, subjectsMax+1) || n == 0 && got[0] != "" || (got[len(got)-1] == "...") != (n > subjectsMax) {
			t.Errorf("%d jobs are named %v", n, got)
		}
		jobs = append(jobs, structs.JobKey{ID: string(rune('a' + len(jobs)))})
	}
}
