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
	by := structs.Submitter{Name: "alice", UID: 4711, Accessor: structs.AccessorID{1}}
	token := structs.Submitter{Name: "alice", UID: -1, Accessor: structs.AccessorID{1}} // a token that is called so
	other := structs.Submitter{Name: "alice", UID: 4712, Accessor: structs.AccessorID{1}}
	unknown := structs.Submitter{Name: "alice", UID: -1} // access control is off: the name is not verified
	for _, c := range []struct {
		name string
		may  *RunAs
		u    *user.User
		by   structs.Submitter
		want string // part of the refusal, "" for none
	}{
		{"no rules, the submitter", nil, alice, by, ""},
		{"no rules, a submitter that nobody proved", nil, alice, unknown, "(client, run_as, allow)"},
		{"no rules, a token of the user's name", nil, alice, token, "did not log in"},
		{"no rules, the name on another machine", nil, alice, other, "allowed are submitter, nobody"},
		{"no rules, somebody else", nil, root, by, "allowed are submitter, nobody (client, run_as, allow)"},
		{"no rules, nobody", nil, &user.User{Uid: "65534", Username: "nobody"}, unknown, ""},
		{"no rules, the user of tasks without one", nil, &user.User{Uid: "77", Username: "svc"}, unknown, ""},
		{"only denials", &RunAs{Deny: []string{"root"}}, alice, token, "allowed are submitter"},
		{"a token's name", &RunAs{Allow: []string{"token-name"}}, alice, token, ""},
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
			err := c.may.may(c.u.Username, c.u, "77", c.by)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: %v, want %q", c.name, err, c.want)
			}
		})
	}
}
