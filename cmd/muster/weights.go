package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// weightNames are the terms with a configurable weight, in display order.
var weightNames = []string{"fit", "affinity", "load", "spread", "locality", "cost", "reliability"}

func weightOf(w *wire.ScoreWeights, i int) **int {
	return []**int{&w.Fit, &w.Affinity, &w.Load, &w.Spread, &w.Locality, &w.Cost, &w.Reliability}[i]
}

// weightsText formats the weights that are set.
func weightsText(w *wire.ScoreWeights) string {
	var out []string
	for i, name := range weightNames {
		if w != nil && *weightOf(w, i) != nil {
			out = append(out, name+"="+strconv.Itoa(**weightOf(w, i)))
		}
	}
	return cmp.Or(strings.Join(out, ","), "default")
}

// readWeights applies changes such as "fit=30,cost=default"; "default" alone removes all.
func readWeights(old *wire.ScoreWeights, text string) (*wire.ScoreWeights, error) {
	out := &wire.ScoreWeights{}
	if text == "default" {
		return nil, nil
	}
	if old != nil {
		*out = *old
	}
	for _, word := range strings.Split(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(word), "=")
		at := -1
		for i, n := range weightNames {
			if n == name {
				at = i
			}
		}
		if at < 0 || !ok {
			return nil, fmt.Errorf("%q: want terms such as cost=40%s; there are: %s", word, suggest.DidYouMean(name, weightNames), strings.Join(weightNames, ", "))
		}
		if value == "default" {
			*weightOf(out, at) = nil
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 || n > structs.WeightMax {
			return nil, fmt.Errorf("%q: want 0 to %d, or default", word, structs.WeightMax)
		}
		*weightOf(out, at) = &n
	}
	return out, nil
}
