package policy

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
)

// learned prefers nodes on which work went well: mostly succeeded, and ran faster than expected. The history of a node
// is a moving average (search.Past) and part of the input. A node without history counts as one where all goes as
// expected, so that it is tried. Among equals the fuller node wins, as with binpack.
type learned struct{ binpack }

func (learned) Name() string                      { return "learned" }
func (learned) Capabilities() search.Capabilities { return search.Capabilities{UsesHistory: true} }

// Fit is success times speed/(speed+1), three parts, and binpack, one part.
func (learned) Fit(u *search.Use) int64 {
	success, speed := int64(model.Micro), int64(model.Micro)
	if u.Past.Ends > 0 {
		success = u.Past.Success
		if u.Past.Speed > 0 {
			speed = u.Past.Speed
		}
	}
	went := success * speed / (speed + model.Micro)
	return clampMicro((3*went + binpack{}.Fit(u)) / 4)
}
