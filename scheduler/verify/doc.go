// Package verify checks a plan, part by part, against newer state than it was decided on (I1). It knows the model and
// nothing of how decisions are made, so that a fault of a search cannot hide here, too.
package verify
