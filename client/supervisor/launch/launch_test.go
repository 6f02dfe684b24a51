package launch

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReleasedProgram makes a program again in the memory of another one.
func TestReleasedProgram(t *testing.T) {
	other := func(p *Program) {
		p.Flags, p.CloneFlags = NamespaceInit, unix.CLONE_NEWPID
		p.Pre().TryWriteFile("/proc/self/oom_score_adj", "-1000")
		for range 20 {
			p.Child().Set(3, "open", unix.SYS_OPENAT, R(1), p.S("/somewhere"), R(2), N(-1), N(-1), N(-1))
		}
		p.Child().Exec("/bin/other", []string{"other", "with", "arguments"}, []string{"SECRET=1"})
	}
	mine := func(p *Program) []byte {
		p.Pre().Try(unix.SYS_SETSID)
		p.Child().Do("unmask", unix.SYS_UMASK, N(0o22))
		p.Child().Exec("/bin/true", []string{"true"}, nil)
		b, err := p.encode()
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Clone(b)
	}
	want := mine(new(Program))
	p := new(Program)
	other(p)
	if _, err := p.encode(); err != nil {
		t.Fatal(err)
	}
	p.empty()
	if bytes.Contains(p.data.AvailableBuffer()[:p.data.Available()], []byte("SECRET")) || bytes.Contains(p.encoded, []byte("SECRET")) {
		t.Error("the memory still holds the environment of the earlier program")
	}
	if got := mine(p); !bytes.Equal(got, want) {
		t.Errorf("the program in used memory is %x, want %x", got, want)
	}
}
