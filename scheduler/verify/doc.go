// Package verify checks a plan, part by part, against newer state than it was decided on (I1). It imports the model, and
// match for what conditions mean, but nothing that searches, so that a fault of a search cannot hide here, too.
package verify
