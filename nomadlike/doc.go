// Package nomadlike is the only HTTP surface of Muster: Nomad's v1 paths, field names and headers, with our additions
// beside them. It holds no state of its own: a request becomes one call of the Backend, an answer becomes JSON through
// package wire.
//
// The route table (routes.go) is the list of everything served; the authorisation test walks it.
//
//go:generate go test -run TestPage -update .
package nomadlike
