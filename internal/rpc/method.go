package rpc

// Method names one remote procedure together with the types on both of its ends, so that a caller cannot send the
// wrong request. The table of all of them is internal/methods.
type Method[Req, Resp any] struct {
	Name string // "Job.Register"
}

// StreamMethod names a procedure that, after its request, goes on as a two-way stream of frames (logs, exec, monitor).
type StreamMethod[Req any] struct {
	Name string // "Alloc.Exec"
}
