// Package structs is the glossary: the nouns of a cluster, their typed ids, the commands and events of the replicated
// log, and the few pure functions that all components must agree on (Holds, Usage). It imports the standard library
// only.
//
// What leaves the state store is immutable: clone, change the clone, send a command.
package structs
