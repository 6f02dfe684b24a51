package rpc

// Method names a remote procedure with the types of its request and response, so that a caller cannot send the wrong
// request. Package methods lists all of them.
type Method[Req, Resp any] struct {
	Name string // "Job.Register"
}

// StreamMethod names a procedure that continues, after its request, as a two-way stream of frames (logs, exec,
// monitor).
type StreamMethod[Req any] struct {
	Name string // "Alloc.Exec"
}
