package nomadlike

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

const (
	listBuffer    = 1 << 20                // bytes of a long list that are encoded before they are sent
	nextPagePause = 100 * time.Millisecond // before another attempt to read the next page of a list
)

// invokeList answers with a list: one page if the request has per_page, else all rows. A call returns at most one page,
// because a message between servers has a limit. The next page is read when the client has taken the one before, so a
// long list needs the memory of one page.
func invokeList[Req, Resp, Row any](c *call, m rpc.Method[Req, Resp], req *Req, rows func(*Resp) []Row) (any, error) {
	whole := c.query.PerPage == 0
	resp, err := invokePage(c, m, req)
	if err != nil {
		return nil, err
	}
	page := rows(resp)
	if !whole || tokenAfter(resp) == "" && len(page) <= methods.PageMax {
		return page, nil
	}
	w := c.beginList()
	err = writeRows(w, page)
	for err == nil && tokenAfter(resp) != "" {
		if tokenAfter(resp) == c.query.NextToken {
			err = structs.Errorf(structs.CodeInternal, "the page at %q continues with itself", c.query.NextToken)
			break
		}
		c.query.NextToken, c.query.MinIndex = tokenAfter(resp), 0
		if resp, err = nextPage(c, m, req); err == nil {
			err = writeRows(w, rows(resp))
		}
	}
	if err == nil {
		err = w.end()
	}
	if err != nil {
		c.cfg.Log.Warn("a list was not sent to its end; its connection is closed, so that the client notices", "path", c.r.URL.Path, "error", err)
		panic(http.ErrAbortHandler)
	}
	return nil, errWritten
}

// tokenAfter returns the token of the next page, or "" after the last one.
func tokenAfter(resp any) string {
	if r, ok := resp.(methods.ReadResponse); ok {
		return r.MetaRef().NextToken
	}
	return ""
}

// invokePage reads one page. A page that does not fit into a message is read again with half its rows.
func invokePage[Req, Resp any](c *call, m rpc.Method[Req, Resp], req *Req) (*Resp, error) {
	for {
		resp, err := invoke(c, m, req)
		if structs.CodeOf(err) != structs.CodeTooLarge || c.query.PerPage == 1 {
			return resp, err
		}
		if c.query.PerPage == 0 {
			c.query.PerPage = methods.PageMax
		}
		c.query.PerPage /= 2
	}
}

// nextPage reads a page of a list whose answer has begun. The request gave its place back when the answer began, and
// takes another one. A refusal would break the answer, so it is tried again for as long as a call may take.
func nextPage[Req, Resp any](c *call, m rpc.Method[Req, Resp], req *Req) (*Resp, error) {
	until := time.Now().Add(callTime)
	for {
		leave, err := c.takePlace(false)
		if err == nil {
			var resp *Resp
			resp, err = invokePage(c, m, req)
			leave()
			if err == nil {
				return resp, nil
			}
		}
		switch structs.CodeOf(err) {
		case structs.CodeBusy, structs.CodeNoLeader, structs.CodeUnavailable, structs.CodeUnknown:
		default:
			return nil, err
		}
		if time.Now().After(until) {
			return nil, err
		}
		select {
		case <-c.r.Context().Done():
			return nil, c.r.Context().Err()
		case <-time.After(nextPagePause):
		}
	}
}

// rowWriter sends the rows of a JSON list while they are encoded.
type rowWriter struct {
	w      http.ResponseWriter
	z      *gzip.Writer // nil: not compressed
	buf    bytes.Buffer
	pretty bool
	rows   int
}

func (c *call) beginList() *rowWriter {
	w := &rowWriter{w: c.w}
	w.pretty, _ = c.flag("pretty")
	h := c.w.Header()
	h.Del("X-Nomad-NextToken")
	h.Set("Content-Type", "application/json")
	if strings.Contains(c.r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		w.z = gzips.Get().(*gzip.Writer)
		w.z.Reset(&w.buf)
	}
	return w
}

// writeRows encodes rows and sends what is encoded.
func writeRows[Row any](w *rowWriter, rows []Row) error {
	for i := range rows {
		b, err := w.encode(rows[i])
		if err != nil {
			return err
		}
		if err := w.add(b); err != nil {
			return err
		}
	}
	return w.send()
}

func (w *rowWriter) encode(row any) ([]byte, error) {
	if w.pretty {
		return json.MarshalIndent(row, "    ", "    ")
	}
	return json.Marshal(row)
}

// add appends an encoded row.
func (w *rowWriter) add(row []byte) error {
	sep := ","
	if w.rows == 0 {
		sep = "["
	}
	if w.pretty {
		sep += "\n    "
	}
	w.rows++
	w.put([]byte(sep))
	w.put(row)
	if w.buf.Len() < listBuffer {
		return nil
	}
	return w.send()
}

// put writes into the buffer, which never fails.
func (w *rowWriter) put(b []byte) {
	if w.z != nil {
		_, _ = w.z.Write(b)
	} else {
		_, _ = w.buf.Write(b)
	}
}

// send writes the buffer to the client, and waits while the client is slower.
func (w *rowWriter) send() error {
	_, err := w.w.Write(w.buf.Bytes())
	w.buf.Reset()
	return err
}

func (w *rowWriter) end() error {
	switch {
	case w.rows == 0:
		w.put([]byte("[]"))
	case w.pretty:
		w.put([]byte("\n]\n"))
	default:
		w.put([]byte("]"))
	}
	if w.z != nil {
		_ = w.z.Close() // into the buffer
		gzips.Put(w.z)
	}
	return w.send()
}
