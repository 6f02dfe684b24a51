package policy

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
)

// fgd places where the fragmentation of GPUs grows least (fragmentation gradient descent, Weng et al., ATC'23). A GPU's
// free share is fragmented as far as the usual requests could not use it:
//
//	F(m) = all that is free           if shape m needs no GPU, another model, more CPU than is free, or more GPUs with room
//	     = what is too little for m   otherwise
//	F    = sum over the mix of p(m) F(m)
//
// The score is 100 / (1 + exp(-(F before - F after) / 1000)), F in thousandths of a GPU, cut to a whole number. The cut
// is part of the result: without it tiny gains outweigh consolidation, and requests for whole nodes starve. Ties go to
// the first node and the first GPU. Preferences of the job still come first; how many of its group a node has does not
// count.
type fgd struct{}

func (fgd) Name() string  { return "fgd" }
func (fgd) Rotates() bool { return false }

func (fgd) Weights() search.Weights {
	w := search.DefaultWeights
	w.Load, w.GPU = 0, 0
	return w
}

// Fit is only called for nodes without GPUs. A placement there changes no fragmentation and gets the middle score.
func (fgd) Fit(*search.Use) int64 { return model.Micro / 2 }

func (fgd) Rater(mix *model.Mix) search.GPURater { return &fragments{mix} }

// fragments values nodes by F times the total of the mix.
type fragments struct{ mix *model.Mix }

func (f *fragments) Score(before, after int64) int64 {
	if f.mix.Total <= 0 {
		return model.Micro / 2
	}
	return percent(before-after, f.mix.Total) * (model.Micro / 100)
}

func (f *fragments) Value(g *model.GPUState) int64 { return model.Fragments(g, f.mix) }

// percent returns 100 / (1 + exp(-x/1000)) for x = num/den, cut to a whole number: how many of the thresholds x
// reaches.
func percent(num, den int64) int64 {
	for den > 1<<30 { // the products below must not overflow
		num, den = num/2, den/2
	}
	lo, hi := int64(0), int64(99) // the result is in [lo, hi]
	for lo < hi {
		k := (lo + hi + 1) / 2
		// x >= 1000 ln(k/(100-k)), in billionths of the logarithm: num/den >= logit/1e6.
		if limit := logit(k); reaches(num, den, limit) {
			lo = k
		} else {
			hi = k - 1
		}
	}
	return lo
}

// reaches reports whether num/den >= limit/1e6. It compares the whole part and the rest separately, so that nothing
// overflows.
func reaches(num, den, limit int64) bool {
	whole, rest := num/den, num%den // rest has the sign of num
	if rest < 0 {
		whole, rest = whole-1, rest+den
	}
	limitWhole, limitRest := limit/1_000_000, limit%1_000_000
	if limitRest < 0 {
		limitWhole, limitRest = limitWhole-1, limitRest+1_000_000
	}
	if whole != limitWhole {
		return whole > limitWhole
	}
	return rest*1_000_000 >= limitRest*den
}

// logit returns ln(k/(100-k)) in billionths, for k from 1 to 99.
func logit(k int64) int64 {
	if k < 50 {
		return -logits[50-k]
	}
	return logits[k-50]
}

// logits holds ln((50+i)/(50-i)) in billionths.
var logits = [50]int64{
	0, 40005335, 80042708, 120144312, 160342650, 200670695, 241162057, 281851152, 322773392, 363965377,
	405465108, 447312218, 489548225, 532216814, 575364145, 619039208, 663294217, 708185058, 753771802, 800119300,
	847297860, 895384047, 944461609, 994622575, 1045968555, 1098612289, 1152679510, 1208311206, 1265666373, 1324925415,
	1386294361, 1450010176, 1516347489, 1585627264, 1658228077, 1734601055, 1815289967, 1900958761, 1992430165, 2090741097,
	2197224577, 2313634929, 2442347035, 2586689344, 2751535313, 2944438979, 3178053830, 3476098690, 3891820298, 4595119850,
}

// Capabilities returns none.
func (fgd) Capabilities() search.Capabilities { return search.Capabilities{} }
