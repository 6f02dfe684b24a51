//go:build e2e

package docker

import (
	"strings"
	"testing"
)

// gangs: a container of a gang has the hostfile, and the program for muster rsh, which nothing in it can change.
func (n *node) gangs(t *testing.T) {
	const launch = "count = 1\nlaunch = {\n mode = \"node\"\n ranks = 3\n compat = [\"mpi\"]\n}\n"
	n.run(t, "hostfile", "batch", box("cat", "/muster.hostfile"), launch)
	if out := n.logs(t, n.alloc(t, "hostfile", "complete"), "stdout"); !strings.HasSuffix(out, " slots=3\n") {
		t.Errorf("the hostfile is %q", out)
	}
	n.run(t, "program", "batch", box("open", "/usr/local/bin/muster", "/muster.hostfile"), launch)
	wantText(t, "the files", n.logs(t, n.alloc(t, "program", "complete"), "stdout"),
		"/usr/local/bin/muster open /usr/local/bin/muster: text file busy", "/muster.hostfile open /muster.hostfile: read-only file system")
	n.run(t, "variables", "batch", box("env"), launch)
	wantText(t, "the environment", n.logs(t, n.alloc(t, "variables", "complete"), "stdout"), "OMPI_MCA_plm_rsh_agent=/usr/local/bin/muster rsh\n", "OMPI_MCA_orte_default_hostfile=/muster.hostfile\n")
}
