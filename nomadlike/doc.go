// Package nomadlike is the only HTTP surface of Muster: Nomad's v1 paths, field names and headers, with Muster's
// extensions. It is stateless: a request becomes one call of the Backend, and the answer becomes JSON through package
// wire.
//
// The route table (routes.go) is the list of everything served; the authorisation test walks it.
//
//go:generate go test -run TestPage -update .
package nomadlike
