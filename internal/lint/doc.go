// Package lint holds the rules of the source tree as ordinary tests. Each failure says what the rule protects and what to
// do instead. A rule is silenced by name, with a reason, in the one table of exceptions (exceptions.go), and an
// exception that no longer silences anything fails too.
package lint
