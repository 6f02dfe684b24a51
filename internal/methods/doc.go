// Package methods is the table of all remote procedures: each with its types, the side that serves it, how it is
// forwarded and which permission it needs. Routes, the authorisation matrix and the API reference are derived from it.
package methods
