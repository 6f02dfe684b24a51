package runner

import (
	"slices"
	"strings"
	"testing"

	"github.com/muster-sched/muster/structs"
)

func TestPortOf(t *testing.T) {
	a := &structs.Allocation{Ports: []structs.PortGrant{
		{Label: "http", Value: 20001, To: 80, HostIP: "192.0.2.1"}, {Label: "same", Value: 20002, HostIP: "192.0.2.1"}, {Label: "inner", Value: 20003, HostIP: "198.51.100.1"},
	}}
	group := func(mode string) *structs.Group {
		return &structs.Group{
			Tasks: []*structs.Task{{Name: "t", Driver: "exec"}},
			Networks: []structs.Network{{Mode: mode, DynamicPorts: []structs.Port{
				{Label: "http", To: 80}, {Label: "same"}, {Label: "inner", HostNetwork: "storage"},
			}}},
		}
	}
	for _, c := range []struct {
		mode, port string
		number     int
		ips        []string
		refusal    string
	}{
		{"host", "http", 20001, []string{"127.0.0.1", "192.0.2.1"}, ""},
		{"host", "20002", 20002, []string{"127.0.0.1", "192.0.2.1"}, ""},
		{"", "same", 20002, []string{"127.0.0.1", "192.0.2.1"}, ""},
		{"host", "inner", 20003, []string{"198.51.100.1"}, ""},
		{"host", "80", 0, nil, "has not reserved port 80"}, // the node's, not the allocation's
		{"host", "22", 0, nil, "has not reserved port 22"},
		{"", "22", 0, nil, "has not reserved port 22"},
		{"host", "0", 0, nil, "want a label, or a number"},
		{"host", "ftp", 0, nil, `has no port "ftp": it has http, same, inner`},
		{"bridge", "http", 80, nil, ""},
		{"bridge", "same", 20002, nil, ""},
		{"bridge", "22", 22, nil, ""},
		{"bridge", "20001", 20001, nil, ""}, // inside, where nothing may listen
		{"none", "9090", 9090, nil, ""},
		{"none", "65536", 0, nil, "want a label, or a number"},
		{"bridge", "-1", 0, nil, "want a label, or a number"},
		{"bridge", "ftp", 0, nil, `has no port "ftp"`},
	} {
		t.Run(c.mode+" "+c.port, func(t *testing.T) {
			n, ips, err := portOf(a, group(c.mode), c.port)
			if c.refusal != "" {
				if err == nil || structs.CodeOf(err) != structs.CodeInvalid || !strings.Contains(err.Error(), c.refusal) {
					t.Errorf("%d %v %v, want a refusal: %s", n, ips, err, c.refusal)
				}
				return
			}
			if err != nil || n != c.number || !slices.Equal(ips, c.ips) {
				t.Errorf("%d %v %v, want %d %v", n, ips, err, c.number, c.ips)
			}
		})
	}
}
