package runner

import (
	"os/user"
	"strings"
	"testing"

	"github.com/muster-sched/muster/structs"
)

func TestRunAs(t *testing.T) {
	alice := &user.User{Uid: "4711", Gid: "4711", Username: "alice"}
	root := &user.User{Uid: "0", Gid: "0", Username: "root"}
	by := structs.Submitter{Name: "alice", Accessor: structs.AccessorID{1}}
	unknown := structs.Submitter{Name: "alice", UID: -1} // access control is off: the name is not verified
	for _, c := range []struct {
		name string
		may  *RunAs
		u    *user.User
		by   structs.Submitter
		want string // part of the refusal, "" for none
	}{
		{"no rules", nil, alice, unknown, ""},
		{"the submitter", &RunAs{Allow: []string{"submitter"}}, alice, by, ""},
		{"another than the submitter", &RunAs{Allow: []string{"submitter"}}, root, by, `submitted by "alice"`},
		{"a submitter that nobody proved", &RunAs{Allow: []string{"submitter"}}, alice, unknown, "access control is off"},
		{"a name", &RunAs{Allow: []string{"bob", "al*"}}, alice, unknown, ""},
		{"no name", &RunAs{Allow: []string{"bob"}}, alice, by, "allowed are bob"},
		{"nobody", &RunAs{Allow: []string{}}, alice, by, "does not let"},
		{"denied", &RunAs{Deny: []string{"root"}}, root, by, "deny"},
		{"denied by number", &RunAs{Allow: []string{"*"}, Deny: []string{"0"}}, root, by, "deny"},
		{"denied wins over the submitter", &RunAs{Allow: []string{"submitter"}, Deny: []string{"alice"}}, alice, by, "deny"},
		{"a group", &RunAs{Allow: []string{"@root"}}, root, unknown, ""},
		{"no such group", &RunAs{Allow: []string{"@no-such-group"}}, root, unknown, "allowed are @no-such-group"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.may.may(c.u.Username, c.u, c.by)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: %v, want %q", c.name, err, c.want)
			}
		})
	}
}
