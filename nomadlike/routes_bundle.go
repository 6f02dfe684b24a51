package nomadlike

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Bundle describes a directory that was sent along with a job: GET and PUT /v1/bundle/:sum.
type Bundle struct {
	Sum    string // SHA-256 of the tar archive, compressed by gzip, in hexadecimal
	Source string // of an artifact that is this bundle
	Size   int64  // bytes
	Copies int    `json:",omitempty"` // after PUT: how many servers have it
}

func bundleRoutes() []route {
	return []route{
		{methods: "GET", pattern: "/v1/bundle/{sum}", rpc: methods.BundleStat.Name, handle: bundleStat},
		{methods: "PUT,POST", pattern: "/v1/bundle/{sum}", rpc: methods.BundlePut.Name, handle: bundlePut},
	}
}

func bundleStat(c *call) (any, error) {
	sum := c.params["sum"]
	resp, err := invoke(c, methods.BundleStat, &methods.BundleRequest{Sum: sum})
	if err != nil {
		return nil, err
	}
	return &Bundle{Sum: sum, Source: structs.BundleSource(sum), Size: resp.Size}, nil
}

func bundlePut(c *call) (any, error) {
	sum, size := c.params["sum"], c.r.ContentLength
	st, err := rpc.OpenStream(c.r.Context(), c.cfg.Backend, methods.BundlePut, c.hdr, &methods.BundlePutRequest{Sum: sum, Size: size})
	if err != nil {
		return nil, err
	}
	defer st.Close(nil)
	var resp methods.BundleResponse
	if size < 0 {
		size = structs.BundleMax // the server refuses a size that is not known
	}
	if err := c.upload(st, size, "bundle", &resp); err != nil {
		return nil, err
	}
	return &Bundle{Sum: sum, Source: structs.BundleSource(sum), Size: resp.Size, Copies: resp.Copies}, nil
}

// upload sends the body of a request, of at most max bytes, to a stream and receives the answer. what names the body in errors.
func (c *call) upload(st *rpc.Stream, max int64, what string, answer any) error {
	body := http.MaxBytesReader(c.w, c.r.Body, max)
	rc := http.NewResponseController(c.w)
	buf := make([]byte, 256<<10)
	for {
		_ = rc.SetReadDeadline(time.Now().Add(bodyReadTime))
		n, err := body.Read(buf)
		if n > 0 {
			if serr := st.Send(buf[:n]); serr != nil {
				break // Recv below returns the refusal
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			st.Close(err)
			return structs.Errorf(structs.CodeInvalid, "the %s could not be read: %v", what, err)
		}
	}
	if err := st.CloseWrite(); err != nil && !errors.Is(err, io.EOF) {
		if _, rerr := st.Recv(); rerr != nil && !errors.Is(rerr, io.EOF) {
			return rerr
		}
		return err
	}
	return st.RecvMsg(answer)
}
