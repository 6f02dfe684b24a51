package structs

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"strings"
)

// Billing holds the weights that turn what a queue's work holds into one number, its billing units, so that an hour of
// a large GPU counts for more than one of a small GPU. Weights are in millionths of a unit. Amount.Billed has the
// units, in thousandths. A Billing is immutable.
type Billing struct {
	GPU       int64            // of a whole GPU of a model that is not in Models
	GPUMemory int64            // of a GiB of GPU memory
	CPU       int64            // of 1000 MHz
	Memory    int64            // of a GiB
	Models    map[string]int64 // of a whole GPU, by a word of its model ("H100") as in GPURequest.Model; the longest matching word counts
}

// Limits of Billing and user weights.
const (
	BillingMax       = 1000 * 1_000_000 // of one weight
	billingModelsMax = 64
	userWeightsMax   = 10_000
)

// Equal reports whether both have the same weights. Either may be nil.
func (b *Billing) Equal(o *Billing) bool {
	if b == nil || o == nil {
		return b == o
	}
	return b.GPU == o.GPU && b.GPUMemory == o.GPUMemory && b.CPU == o.CPU && b.Memory == o.Memory && maps.Equal(b.Models, o.Models)
}

// check returns what is wrong with the weights, or "".
func (b *Billing) check() string {
	if len(b.Models) > billingModelsMax {
		return "it names more than 64 models"
	}
	sum := int64(0)
	for _, c := range b.parts() {
		if c.value < 0 || c.value > BillingMax {
			return "the weight of " + c.name + " is not between 0 and 1000"
		}
		sum += c.value
	}
	if sum == 0 {
		return "every weight is 0, so nothing would count"
	}
	for m := range b.Models {
		if strings.TrimSpace(m) == "" {
			return "a model has no name"
		}
	}
	return ""
}

type billingPart struct {
	name  string
	value int64
}

func (b *Billing) parts() []billingPart {
	out := []billingPart{{"gpu", b.GPU}, {"gpu_memory_gb", b.GPUMemory}, {"cpu_ghz", b.CPU}, {"memory_gb", b.Memory}}
	for _, m := range slices.Sorted(maps.Keys(b.Models)) {
		out = append(out, billingPart{"model " + m, b.Models[m]})
	}
	return out
}

// whole returns the weight of a whole GPU of a model: that of the longest matching word, and among equally long ones of
// the first by name.
func (b *Billing) whole(model string) int64 {
	word, found := "", false
	for w := range b.Models {
		if IsModel(model, w) && (!found || cmp.Or(cmp.Compare(len(word), len(w)), cmp.Compare(w, word)) < 0) {
			word, found = w, true
		}
	}
	if found {
		return b.Models[word]
	}
	return b.GPU
}

// rest returns what an amount counts without whole GPUs: everything else, including GPU memory.
func (b *Billing) rest(a Amount) int64 {
	const gib = 1024
	return weighed(a.CPU, b.CPU, 1) + weighed(1000*a.MemoryMiB, b.Memory, gib) + weighed(1000*a.GPUMemoryMiB, b.GPUMemory, gib)
}

// weighed returns v * weight / per, in thousandths of units.
func weighed(v, weight, per int64) int64 {
	if v <= 0 || weight == 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(v), uint64(weight))
	by := uint64(per) * 1_000_000
	if hi >= by {
		return 1 << 62
	}
	q, _ := bits.Div64(hi, lo, by)
	return int64(q)
}

// Of returns what an allocation counts, in thousandths of units; 0 without weights.
func (b *Billing) Of(a *Allocation) int64 {
	if b == nil {
		return 0
	}
	sum := b.rest(AmountOf(a))
	for i := range a.Grants {
		if g := &a.Grants[i]; g.IsGPU() {
			sum += weighed(GrantAmount(g).GPUMilli, b.whole(DeviceModel(g.Device)), 1)
		}
	}
	return sum
}

// OfGroup returns what one allocation of a group will count, as far as it is known before GPUs are chosen: see
// GroupAmount.
func (b *Billing) OfGroup(g *Group) int64 {
	if b == nil {
		return 0
	}
	sum := b.rest(GroupAmount(g))
	for _, t := range g.Tasks {
		for i := range t.Resources.Devices {
			if d := &t.Resources.Devices[i]; IsGPUDevice(d.Name) {
				sum += weighed(1000*max(d.Count, 1), b.whole(DeviceModel(d.Name)), 1)
			}
		}
		if len(t.Resources.GPU) > 0 {
			r := &t.Resources.GPU[0]
			milli := int64(1000)
			if r.Shared() {
				milli = 10 * max(r.Share, r.Compute)
			}
			sum += weighed(milli*max(r.Count, 1), b.whole(r.Model), 1)
		}
	}
	return sum
}

// OfCluster returns what a whole cluster counts. models lists its GPUs by model.
func (b *Billing) OfCluster(total Amount, models []GPUCount) int64 {
	if b == nil {
		return 0
	}
	sum, named := b.rest(total), int64(0)
	for _, m := range models {
		named += 1000 * m.Count
		sum += weighed(1000*m.Count, b.whole(m.Model), 1)
	}
	return sum + weighed(total.GPUMilli-named, b.GPU, 1)
}

// GPUCount is the number of GPUs of a model.
type GPUCount struct {
	Model string
	Count int64
}

// DeviceModel returns the model in the name of a device, "vendor/type/model", or "".
func DeviceModel(id string) string {
	_, rest, _ := strings.Cut(id, "/")
	_, model, _ := strings.Cut(rest, "/")
	return model
}

// UserWeight returns the weight of a submitter in a queue whose settings are resolved.
func (q *Queue) UserWeight(user string) int64 { return max(q.UserWeights[user], 1) }
