package member

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

func TestNextFormat(t *testing.T) {
	server := func(name string, newest structs.Format, err string) methods.UpgradeServer {
		return methods.UpgradeServer{Name: name, Error: err, Speaks: structs.Speaks{Muster: "0.0.9", Oldest: 1, Newest: newest}}
	}
	const newest = 5
	for name, c := range map[string]struct {
		now     structs.Format
		servers []methods.UpgradeServer
		next    structs.Format
		why     string // a part of it
	}{
		"all speak it":        {newest - 1, []methods.UpgradeServer{server("a", newest, ""), server("b", newest+1, "")}, newest, ""},
		"already in force":    {newest, []methods.UpgradeServer{server("a", newest, "")}, newest, ""},
		"one is older":        {newest - 1, []methods.UpgradeServer{server("a", newest, ""), server("b", newest-1, "")}, newest - 1, "server b runs Muster 0.0.9"},
		"one is silent":       {newest - 1, []methods.UpgradeServer{server("a", newest, ""), server("b", 0, "no route")}, newest - 1, "server b does not answer (no route)"},
		"half of the way":     {newest - 2, []methods.UpgradeServer{server("a", newest, ""), server("b", newest-1, "")}, newest - 1, ""},
		"older, but so is it": {newest, []methods.UpgradeServer{server("a", newest-1, "")}, newest, ""},
	} {
		next, why := nextFormat(c.now, newest, c.servers)
		if next != c.next || !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
			t.Errorf("%s: got format %d, %q; want %d, %q", name, next, why, c.next, c.why)
		}
	}
}
