// Package methods is the one table of remote procedures: each with its types, who serves it, how it is forwarded and
// what a caller needs to be allowed. Routes, the authorisation matrix and the API reference are derived from it.
package methods
