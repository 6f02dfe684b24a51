package rpc

// byteFrame is the number of bytes that Writer sends in one frame.
const byteFrame = 256 << 10

// Writer writes bytes to a stream, as frames.
type Writer struct{ Stream *Stream }

// Write implements io.Writer.
func (w Writer) Write(b []byte) (int, error) {
	n := 0
	for len(b) > 0 {
		k := min(len(b), byteFrame)
		if err := w.Stream.Send(b[:k]); err != nil {
			return n, err
		}
		n, b = n+k, b[k:]
	}
	return n, nil
}

// Reader reads the frames of a stream as bytes.
type Reader struct {
	Stream *Stream
	left   []byte
}

// Read implements io.Reader.
func (r *Reader) Read(b []byte) (int, error) {
	for len(r.left) == 0 {
		f, err := r.Stream.Recv()
		if err != nil {
			return 0, err
		}
		r.left = f
	}
	n := copy(b, r.left)
	r.left = r.left[n:]
	return n, nil
}
