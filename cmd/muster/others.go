package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// others are commands of Slurm, kubectl and Nomad that do not exist here, with what does their work. The longest
// beginning of a command line counts.
var others = map[string]string{
	// Slurm.
	"salloc":                   "muster shell",
	"scontrol":                 "muster job status JOB  and  muster node status NODE",
	"scontrol show job":        "muster job status JOB",
	"scontrol show jobs":       "muster job status",
	"scontrol show node":       "muster node status NODE",
	"scontrol show nodes":      "muster node status",
	"scontrol show partition":  "muster node pool info POOL",
	"scontrol show partitions": "muster node pool list",
	"scontrol hold":            "muster job hold JOB",
	"scontrol release":         "muster job release JOB",
	"scontrol requeue":         "muster job requeue JOB",
	"scontrol suspend":         "muster job suspend JOB",
	"scontrol resume":          "muster job resume JOB",
	"scontrol update":          "muster job priority JOB PRIORITY,  muster node drain  or  muster node eligibility",
	"seff":                     "muster eff JOB",
	"sprio":                    "muster job why JOB",
	"sshare":                   "muster queue status QUEUE",
	"sstat":                    "muster alloc status ALLOCATION",
	"sattach":                  "muster job logs -f JOB",
	"sbcast":                   "muster alloc cp",
	"sreport":                  "muster acct -by user",
	"sacctmgr":                 "muster queue,  muster quota  and  muster namespace",
	"strigger":                 "muster event stream",

	// kubectl.
	"get":                "muster job status,  muster alloc status  or  muster node status",
	"get pods":           "muster alloc status",
	"get pod":            "muster alloc status ALLOCATION",
	"get po":             "muster alloc status",
	"get jobs":           "muster job status",
	"get job":            "muster job status JOB",
	"get deployments":    "muster job status",
	"get nodes":          "muster node status",
	"get node":           "muster node status NODE",
	"get namespaces":     "muster namespace list",
	"get ns":             "muster namespace list",
	"get services":       "muster service list",
	"get svc":            "muster service list",
	"get events":         "muster event stream",
	"get secrets":        "muster var list",
	"get quota":          "muster quota list",
	"get resourcequotas": "muster quota list",
	"describe":           "muster job status JOB,  muster alloc status ALLOCATION  or  muster node status NODE",
	"describe pod":       "muster alloc status ALLOCATION",
	"describe pods":      "muster alloc status ALLOCATION",
	"describe job":       "muster job status JOB",
	"describe node":      "muster node status NODE",
	"describe nodes":     "muster node status NODE",
	"apply":              "muster job run FILE",
	"create":             "muster job run FILE",
	"delete":             "muster job stop JOB",
	"delete pod":         "muster alloc stop ALLOCATION",
	"delete node":        "muster node purge NODE",
	"delete namespace":   "muster namespace delete NAME",
	"edit":               "muster job inspect -hcl JOB,  then  muster job run FILE",
	"rollout":            "muster job status -watch JOB",
	"rollout status":     "muster job status -watch JOB",
	"rollout restart":    "muster job restart JOB",
	"rollout undo":       "muster job revert JOB VERSION",
	"rollout history":    "muster job history JOB",
	"scale":              "muster job scale JOB COUNT",
	"cordon":             "muster node eligibility -disable NODE",
	"uncordon":           "muster node eligibility -enable NODE",
	"drain":              "muster node drain -enable NODE",
	"taint":              "muster node taint NODE KEY=VALUE:EFFECT",
	"label":              "muster node meta apply KEY=VALUE",
	"cp":                 "muster alloc cp",
	"port-forward":       "muster alloc port-forward ALLOCATION PORT",
	"attach":             "muster alloc exec -it ALLOCATION COMMAND",
	"wait":               "muster job wait JOB",
	"explain":            "muster help TOPIC",
	"api-resources":      "muster -help",
	"cluster-info":       "muster server members",
	"auth":               "muster acl token self",

	// What people try.
	"ps":     "muster job status,  muster alloc status  or  muster top",
	"submit": "muster job run FILE",

	// Nomad.
	"ui":                       "muster top, on the whole terminal: there are no web pages",
	"login":                    "muster context add -token-file FILE NAME",
	"node-status":              "muster node status",
	"node-drain":               "muster node drain",
	"alloc-status":             "muster alloc status",
	"eval-status":              "muster eval status",
	"server-members":           "muster server members",
	"server-join":              "muster server join",
	"client-config":            "muster agent-info",
	"keygen":                   "muster operator gossip keyring generate",
	"volume":                   "host_volume in the configuration of an agent, and volume in the group of a job: there are no CSI volumes",
	"plugin":                   "muster node status -verbose NODE, which lists drivers: there are no CSI plugins",
	"scaling":                  "muster job scale JOB COUNT",
	"setup":                    "muster agent -config FILE",
	"license":                  "nothing: there are no licences",
	"sentinel":                 "muster quota  and  muster acl policy: there is no Sentinel",
	"recommendation":           "muster eff JOB",
	"job action":               "muster job exec JOB COMMAND",
	"job scaling-events":       "muster job history JOB",
	"alloc pause":              "muster alloc suspend ALLOCATION",
	"deployment status":        "muster job deployments JOB",
	"deployment promote":       "nothing: there are no canaries, and a rolling update continues by itself",
	"deployment fail":          "muster job revert JOB VERSION",
	"deployment pause":         "muster job hold JOB",
	"deployment resume":        "muster job release JOB",
	"node config":              "client { servers } in the configuration of the agent",
	"node identity":            "muster node intro create, for a node that joins",
	"operator raft info":       "muster operator raft list-peers",
	"operator raft logs":       "muster operator decisions",
	"operator raft state":      "muster operator state-hash",
	"operator snapshot state":  "muster operator snapshot inspect FILE",
	"operator snapshot redact": "muster operator debug, whose bundle has no secrets",
	"operator client-state":    "muster operator debug",
	"operator utilization":     "muster acct -by queue",
	"monitor export":           "muster operator debug -duration 2m",
	"acl auth-method":          "acl { login_nodes } in the configuration of the servers, and the user's login at the agent's socket",
	"acl binding-rule":         "acl { login_nodes } in the configuration of the servers, and policies for groups",
	"quota init":               "muster quota inspect NAME, as a file for  muster quota apply",
	"var init":                 "muster var put PATH KEY=VALUE",
	"var lock":                 "nothing: variables have no locks",
	"tls ca info":              "openssl x509 -text -in FILE",
	"tls cert info":            "openssl x509 -text -in FILE",
}

// ofOther returns the error for a command of another scheduler, or nil. words follow the path of cmd.
func ofOther(cmd *cobra.Command, words []string) error {
	path := strings.Fields(cmd.CommandPath())[1:]
	for n := min(len(words), 3); n > 0; n-- {
		name := strings.Join(append(path[:len(path):len(path)], words[:n]...), " ")
		if own := others[name]; own != "" {
			return fmt.Errorf("no command %q; in its place:  %s", name, own)
		}
	}
	return nil
}
