// Package nomadapi is the contract with Nomad's clients: tests that drive the real binary through the public Go client
// github.com/hashicorp/nomad/api, and a runner for that module's own test suite. It is a separate module, so that the
// product does not depend on the client.
package nomadapi
