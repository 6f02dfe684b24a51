package docker

import (
	"bytes"
	"testing"

	"github.com/distribution/reference"
)

// FuzzLogStream cuts any bytes as the engine's log stream: no more data comes out than went in, and messages that were
// framed come back.
func FuzzLogStream(f *testing.F) {
	f.Add(frames([]message{{0, stamp(1), []byte("a b\n")}, {1, stamp(1), []byte("x\n")}}), false)
	f.Add([]byte(stamp(1)+" one\r\nrest\n"), true)
	f.Fuzz(func(t *testing.T, b []byte, tty bool) {
		total := 0
		_ = split(bytes.NewReader(b), tty, func(m message) bool {
			if tty && len(m.data) > pieceMax+1 {
				t.Fatalf("a message of %d bytes", len(m.data))
			}
			total += len(m.data)
			return true
		})
		if total > len(b) {
			t.Fatalf("%d bytes became %d", len(b), total)
		}
		var got []byte
		in := message{1, stamp(3), b}
		if err := split(bytes.NewReader(frames([]message{in})), false, func(m message) bool { got = m.data; return true }); len(b) < frameMax/2 && (err != nil || !bytes.Equal(got, b)) {
			t.Fatalf("%q came back as %q, %v", b, got, err)
		}
	})
}

// FuzzCredentials reads any bytes as a Docker client's configuration, for any image: credentials are those of the
// image's registry or none, and no error shows them.
func FuzzCredentials(f *testing.F) {
	f.Add([]byte(`{"auths": {"https://r.example/v1/": {"auth": "dTpTRUNSRVQ="}}, "credHelpers": {"x": "y"}}`), "r.example/a:b")
	f.Add([]byte(`{"auths": {"r.example": {"auth": "U0VDUkVU"}}}`), "r.example/a@sha256:0000000000000000000000000000000000000000000000000000000000000000")
	f.Fuzz(func(t *testing.T, b []byte, image string) {
		ref, err := reference.ParseNormalizedNamed(image)
		if err != nil {
			return
		}
		a, helper, err := fromFile(b, reference.Domain(ref))
		if a != nil && (a.ServerAddress != reference.Domain(ref) || helper != "" || err != nil) {
			t.Fatalf("%q: %+v, %q, %v", image, a, helper, err)
		}
		if err != nil && bytes.Contains([]byte(err.Error()), []byte("SECRET")) && !bytes.Contains(b, []byte(`"SECRET`)) {
			t.Fatalf("the error shows a password: %v", err)
		}
	})
}
