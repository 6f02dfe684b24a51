package structs

import (
	"iter"
	"strings"
)

// QueuePath is the place of a queue in the tree: "research/nightly" is the queue nightly below the queue research.
// Top-level queues have a path of one part; above them is only the root (QueueRoot). In usage rows a path may also be a
// namespace: see UseNamespace.
type QueuePath string

// QueueRoot is the path of the root of the tree: the parent of the top-level queues. It has no jobs itself, and its
// limits are those of the whole cluster.
const QueueRoot QueuePath = "root"

// QueueDefault is the queue of jobs that name none. It exists in every cluster, with the defaults of a Queue.
const QueueDefault QueuePath = "default"

// Parent returns the queue directly above; the root for a top-level queue, and "" for the root.
func (p QueuePath) Parent() QueuePath {
	if p == QueueRoot || p == "" {
		return ""
	}
	if i := strings.LastIndexByte(string(p), '/'); i >= 0 {
		return p[:i]
	}
	return QueueRoot
}

// Ancestors returns the queues above, nearest first. The last one is the root, which has none.
func (p QueuePath) Ancestors() iter.Seq[QueuePath] {
	return func(yield func(QueuePath) bool) {
		for p = p.Parent(); p != "" && yield(p); p = p.Parent() {
		}
	}
}

// Lineage returns the queue itself, then its ancestors.
func (p QueuePath) Lineage() iter.Seq[QueuePath] {
	return func(yield func(QueuePath) bool) {
		for ; p != "" && yield(p); p = p.Parent() {
		}
	}
}

// Contains reports whether a queue is this one or below it.
func (p QueuePath) Contains(q QueuePath) bool {
	return p == QueueRoot || p == q || len(q) > len(p) && q[len(p)] == '/' && q[:len(p)] == p
}

// Base returns the last part of the path.
func (p QueuePath) Base() string { return string(p[strings.LastIndexByte(string(p), '/')+1:]) }

// UseNamespace returns the path of a namespace in usage rows. No queue can have it.
func UseNamespace(name string) QueuePath { return QueuePath("@" + name) }

// Namespace returns the namespace of a usage row's path; ok is false if the path is a queue's.
func (p QueuePath) Namespace() (name string, ok bool) { return strings.CutPrefix(string(p), "@") }

// IsNamespace reports whether the path of a usage row is a namespace's.
func (p QueuePath) IsNamespace() bool { return strings.HasPrefix(string(p), "@") }
