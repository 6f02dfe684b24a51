package memnet

import (
	"context"
	"io"
	"testing"
)

// A write whose bytes were all taken has succeeded, even when the other end reads them, answers and closes before the
// writer's goroutine goes on; and the answer still arrives. So a request is never called failed that was answered.
func TestWriteThatWasReadSucceeds(t *testing.T) {
	n := New()
	l, err := n.Host("a").Listen(1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 3)
			io.ReadFull(c, b)
			c.Write(b)
			c.Close()
		}
	}()
	for i := range 20_000 {
		c, err := n.Host("b").Dial(context.Background(), "a:1")
		if err != nil {
			t.Fatal(err)
		}
		if k, err := c.Write([]byte("ask")); k != 3 || err != nil {
			t.Fatalf("write %d: %d bytes, %v", i, k, err)
		}
		if b, err := io.ReadAll(c); string(b) != "ask" || err != nil {
			t.Fatalf("answer %d: %q, %v", i, b, err)
		}
		c.Close()
	}
}
