package memnet

import (
	"context"
	"io"
	"testing"
)

// A write whose bytes were all taken succeeds, even if the other end reads them, answers and closes before the writer's
// goroutine runs again; and the answer still arrives. So an answered request never fails.
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
