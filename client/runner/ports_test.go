package runner

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/muster-sched/muster/structs"
)

func TestPorts(t *testing.T) {
	p := NewPorts(20000, 32000)
	one, two := structs.AllocID{1}, structs.AllocID{2}
	free := func(port int) bool {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err == nil {
			l.Close()
		}
		return err == nil
	}
	a, err := p.Reserve(one, 0)
	if err != nil || a < rendezvousMin || free(a) {
		t.Fatalf("port %d, %v, and it is still free: %t", a, err, free(a))
	}
	if c, err := net.Dial("tcp", fmt.Sprintf("localhost:%d", a)); err == nil {
		c.Close()
		t.Error("who comes before the task is connected to nobody instead of refused")
	}
	if again, err := p.Reserve(one, 0); err != nil || again != a {
		t.Errorf("asked again: %d, %v", again, err)
	}
	if _, err := p.Reserve(two, a); err == nil || !strings.Contains(err.Error(), "rendezvous port of allocation") {
		t.Errorf("another one gets it, too: %v", err)
	}
	p.Open(one)
	if !free(a) {
		t.Error("the task cannot have its port")
	}
	if _, err := p.Reserve(two, a); err == nil {
		t.Error("another one gets it between its opening and the start of the task")
	}
	if again, err := p.Reserve(one, a); err != nil || again != a {
		t.Errorf("its second start: %d, %v", again, err)
	}
	p.Release(one)
	if b, err := p.Reserve(two, a); err != nil || b != a {
		t.Errorf("after its end: %d, %v", b, err)
	}
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := p.Reserve(one, l.Addr().(*net.TCPAddr).Port); err == nil {
		t.Error("a port that a program of this machine listens on was promised")
	}
	p.Release(two)
}
