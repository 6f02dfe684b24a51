package structs

import (
	"cmp"
	"slices"
	"strings"
)

// ModelAmount is GPUs of one model, in thousandths: 1000 for a whole GPU, as in Amount. As a limit, Model is words that
// GPU requests may name ("H100", "H100|H200"; see IsModel), and Milli is the most that may be held of all GPUs that match.
type ModelAmount struct {
	Model string
	Milli int64
}

// modelLimitsMax bounds the limits by model in one place.
const modelLimitsMax = 64

// AddModels returns a + n*b, sorted by model and without zeros. Both are sorted; neither is changed.
func AddModels(a, b []ModelAmount, n int64) []ModelAmount {
	if len(b) == 0 || n == 0 {
		return a
	}
	out := make([]ModelAmount, 0, len(a)+len(b))
	put := func(m string, milli int64) {
		if milli != 0 {
			out = append(out, ModelAmount{m, milli})
		}
	}
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Model < b[0].Model:
			put(a[0].Model, a[0].Milli)
			a = a[1:]
		case len(a) == 0 || b[0].Model < a[0].Model:
			put(b[0].Model, n*b[0].Milli)
			b = b[1:]
		default:
			put(a[0].Model, a[0].Milli+n*b[0].Milli)
			a, b = a[1:], b[1:]
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// ModelsOf returns the GPUs of an allocation by model, sorted by model.
func ModelsOf(a *Allocation) (out []ModelAmount) {
	for i := range a.Grants {
		if g := &a.Grants[i]; g.IsGPU() {
			out = AddModels(out, []ModelAmount{{DeviceModel(g.Device), GrantAmount(g).GPUMilli}}, 1)
		}
	}
	return out
}

// ChargeModels is Charge for the GPUs by model.
func ChargeModels(a *Allocation, row UseRow, get func(AllocID) *Allocation) []ModelAmount {
	if !Holds(a) {
		return nil
	}
	sum := ModelsOf(a)
	for _, id := range a.WaitsOn {
		if v := get(id); v != nil && Holds(v) && slices.Contains(UseRows(v), row) {
			sum = AddModels(sum, ModelsOf(v), -1)
		}
	}
	return slices.DeleteFunc(slices.Clone(sum), func(m ModelAmount) bool { return m.Milli <= 0 })
}

// ChargeModelsBeyond is ChargeBeyond for GPUs by model.
func ChargeModelsBeyond(a, moved *Allocation, row UseRow, get func(AllocID) *Allocation) []ModelAmount {
	sum := ChargeModels(a, row, get)
	if moved == nil || !slices.Contains(UseRows(moved), row) {
		return sum
	}
	return slices.DeleteFunc(AddModels(sum, ModelsOf(moved), -1), func(m ModelAmount) bool { return m.Milli <= 0 })
}

// MilliOf returns how many thousandths of GPUs are of models that match words.
func MilliOf(held []ModelAmount, words string) (sum int64) {
	for _, m := range held {
		if IsModel(m.Model, words) {
			sum += m.Milli
		}
	}
	return sum
}

// BreaksModels returns the first limit that held + add exceeds and to which add adds, and by how many thousandths of
// GPUs; 0 for none.
func BreaksModels(held, add, limits []ModelAmount) (model string, over int64) {
	for _, l := range limits {
		if more := MilliOf(add, l.Model); more > 0 {
			if over := MilliOf(held, l.Model) + more - l.Milli; over > 0 {
				return l.Model, over
			}
		}
	}
	return "", 0
}

// checkModels returns what is wrong with limits by model, or "".
func checkModels(limits []ModelAmount) string {
	if len(limits) > modelLimitsMax {
		return "it names more than 64 models"
	}
	for i, l := range limits {
		switch {
		case slices.ContainsFunc(strings.Split(l.Model, "|"), func(word string) bool { return strings.TrimSpace(word) == "" }):
			return "a model has no name"
		case len(l.Model) > 128:
			return "the name of a model is longer than 128 bytes"
		case l.Milli < 0 || l.Milli > capMax:
			return "the limit of model " + l.Model + " is negative or too large"
		case i > 0 && cmp.Compare(limits[i-1].Model, l.Model) >= 0:
			return "model " + l.Model + " is named twice, or models are not sorted"
		}
	}
	return ""
}

// LimitsModels reports whether the queue has limits by GPU model.
func (q *Queue) LimitsModels() bool {
	return len(q.LimitModels)+len(q.UserLimitModels)+len(q.SoftLimitModels) > 0
}

// LimitsModels reports whether the quota has limits by GPU model.
func (q *QuotaSpec) LimitsModels() bool {
	return slices.ContainsFunc(q.Limits, func(l QuotaLimit) bool { return len(l.HardModels)+len(l.SoftModels) > 0 })
}

// Check returns an error if a quota is invalid by itself.
func (q *QuotaSpec) Check() *Error {
	if q.Name == "" {
		return Errorf(CodeInvalid, "a quota needs a name")
	}
	for i := range q.Limits {
		for _, models := range [...][]ModelAmount{q.Limits[i].HardModels, q.Limits[i].SoftModels} {
			if why := checkModels(models); why != "" {
				return Errorf(CodeInvalid, "quota %q: %s", q.Name, why)
			}
		}
	}
	return nil
}

// GPUNeed is what one allocation of a group asks for of GPUs of some models, in thousandths.
type GPUNeed struct {
	Must int64 // what can be of no other model
	May  int64 // what can be of others, too
}

// NeedOf returns what one allocation of a group asks for of GPUs that match words, in a cluster with these models, as far
// as it is known before GPUs are chosen: as GroupAmount does, and without conditions other than that on the model.
func NeedOf(g *Group, words string, models []GPUCount) (need GPUNeed) {
	add := func(milli int64, may func(model string) bool) {
		in, out := false, false
		for _, m := range models {
			if may(m.Model) {
				if IsModel(m.Model, words) {
					in = true
				} else {
					out = true
				}
			}
		}
		switch {
		case in && !out:
			need.Must += milli
		case in:
			need.May += milli
		}
	}
	for _, t := range g.Tasks {
		for i := range t.Resources.Devices {
			if d := &t.Resources.Devices[i]; IsGPUDevice(d.Name) {
				add(1000*max(d.Count, 1), d.mayBe)
			}
		}
		if rs := t.Resources.GPU; len(rs) > 0 {
			milli := int64(1000)
			if rs[0].Shared() {
				milli = 10 * max(rs[0].Share, rs[0].Compute)
			}
			add(milli*max(rs[0].Count, 1), func(model string) bool {
				return slices.ContainsFunc(rs, func(r GPURequest) bool { return IsModel(model, r.Model) })
			})
		}
	}
	return need
}

// mayBe reports whether a request for GPUs can be served by a model.
func (d *DeviceRequest) mayBe(model string) bool {
	if named := DeviceModel(d.Name); named != "" && named != model {
		return false
	}
	return !slices.ContainsFunc(d.Constraints, func(c Constraint) bool {
		words := ModelWords(c.RTarget)
		return c.LTarget == ModelTarget && c.Operand == OperandRegexp && words != "" && !IsModel(model, words)
	})
}
