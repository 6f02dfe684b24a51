package structs

import (
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// A bundle is a directory that a user sent along with a job: a tar archive compressed by gzip, named by the SHA-256 sum of
// its bytes in hexadecimal. Servers keep it in files, by namespace, and nodes fetch it as an artifact. It is neither in
// the raft log nor in the job.

// Limits of bundles.
const (
	BundleMax      = 256 << 20      // bytes of one
	BundleKeep     = 24 * time.Hour // how long one is kept that no job has used yet
	BundlesMaxMiB  = 10 << 10       // default of how much a server keeps of all bundles
	bundleSumBytes = 32
)

// BundlesAttribute is the attribute of nodes whose agent fetches bundles; older agents lack it.
const BundlesAttribute = "muster.bundles"

// bundleScheme begins the source of an artifact that is a bundle.
const bundleScheme = "muster://bundle/"

// BundleSource returns the artifact source of a bundle.
func BundleSource(sum string) string { return bundleScheme + sum }

// BundleSum returns the sum of the bundle that an artifact source names; ok is false for any other source. The sum may be
// invalid.
func BundleSum(source string) (sum string, ok bool) { return strings.CutPrefix(source, bundleScheme) }

// CheckBundleSum returns an error unless sum is the sum of a bundle.
func CheckBundleSum(sum string) error {
	if b, err := hex.DecodeString(sum); err != nil || len(b) != bundleSumBytes || strings.ToLower(sum) != sum {
		return Errorf(CodeInvalid, "%.80q does not name a bundle: want a SHA-256 sum as 64 hexadecimal digits in lower case", sum)
	}
	return nil
}

// Bundles returns the sums of all bundles that the tasks of a job fetch, without duplicates.
func (j *Job) Bundles() []string {
	var sums []string
	for _, g := range j.Groups {
		for _, t := range g.Tasks {
			for _, a := range t.Artifacts {
				if sum, ok := a.bundle(); ok && !slices.Contains(sums, sum) {
					sums = append(sums, sum)
				}
			}
		}
	}
	return sums
}

// FetchesBundle reports whether an artifact of the task is a bundle.
func (t *Task) FetchesBundle() bool {
	return slices.ContainsFunc(t.Artifacts, func(a Artifact) bool { _, ok := a.bundle(); return ok })
}

func (a Artifact) bundle() (sum string, ok bool) {
	if !strings.Contains(string(a.Raw), bundleScheme) { // saves the decoding
		return "", false
	}
	var s struct{ GetterSource string }
	if json.Unmarshal(a.Raw, &s) != nil {
		return "", false
	}
	return BundleSum(s.GetterSource)
}
