// Package queue holds the ordering policies of pending work, one small file each, and the rule by which a workload may
// be skipped because nothing that happened could cure what it waits for.
package queue
