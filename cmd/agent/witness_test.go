package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/muster-sched/muster/internal/agentconfig"
)

// setting is a value of a key other than its default, with the other settings under which it matters.
type setting struct {
	value any
	with  map[string]any
	warns bool // nothing changes but that the operator is warned
}

// accepted are the keys that change nothing, as their comments say: they are in files of Nomad's agents.
var accepted = []string{
	"disable_update_check", "disable_anonymous_signature",
	"telemetry.prometheus_metrics", "telemetry.publish_allocation_metrics", "telemetry.publish_node_metrics",
}

var tlsFiles = map[string]any{"tls.ca_file": aFile, "tls.cert_file": aFile, "tls.key_file": aFile}

// aFile is a path that any machine has.
var aFile = func() string {
	p, err := filepath.Abs("witness_test.go")
	if err != nil {
		panic(err)
	}
	return p
}()

// settings has a row for each key of the configuration. Values are valid: a refusal is no witness.
var settings = map[string]setting{
	"name":                                         {value: "w7"},
	"region":                                       {value: "w7"},
	"datacenter":                                   {value: "w7"},
	"data_dir":                                     {value: "/srv/muster"},
	"bind_addr":                                    {value: "127.0.0.2"},
	"addresses.http":                               {value: "127.0.0.3"},
	"addresses.rpc":                                {value: "127.0.0.3"},
	"addresses.serf":                               {value: "127.0.0.3"},
	"advertise.http":                               {value: "127.0.0.4"},
	"advertise.rpc":                                {value: "127.0.0.4"},
	"advertise.serf":                               {value: "127.0.0.4"},
	"ports.http":                                   {value: 7},
	"ports.rpc":                                    {value: 7},
	"ports.serf":                                   {value: 7},
	"server.enabled":                               {value: false, with: map[string]any{"client.servers": []string{"127.0.0.1:4647"}, "server.bootstrap_expect": 0}},
	"server.bootstrap_expect":                      {value: 3},
	"server.encrypt":                               {value: "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="},
	"server.join_key":                              {value: "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", with: map[string]any{"acl.enabled": true}},
	"server.oidc_issuer":                           {value: "https://muster.example.com"},
	"server.server_join.start_join":                {value: []string{"127.0.0.1:4648"}},
	"server.server_join.retry_join":                {value: []string{"127.0.0.1:4648"}},
	"server.server_join.retry_interval":            {value: "7m"},
	"server.start_join":                            {value: []string{"127.0.0.1:4648"}},
	"server.retry_join":                            {value: []string{"127.0.0.1:4648"}},
	"server.retry_interval":                        {value: "7m", with: map[string]any{"server.retry_join": []string{"127.0.0.1:4648"}}},
	"server.decision_log":                          {value: "/var/log/muster/decisions.jsonl"},
	"server.restart_grace":                         {value: "7m"},
	"server.gossip_nodes":                          {value: 7},
	"server.job_max_priority":                      {value: 7},
	"server.job_default_priority":                  {value: 7},
	"server.job_gc_interval":                       {value: "7m"},
	"server.job_gc_threshold":                      {value: "7m"},
	"server.eval_gc_threshold":                     {value: "7m"},
	"server.batch_eval_gc_threshold":               {value: "7m"},
	"server.node_gc_threshold":                     {value: "7m"},
	"server.acct_retention":                        {value: "7m"},
	"server.acct_max_records":                      {value: 700},
	"server.raft_multiplier":                       {value: 7},
	"server.raft_trailing_logs":                    {value: 7},
	"server.raft_snapshot_threshold":               {value: 7},
	"server.raft_snapshot_interval":                {value: "7m"},
	"server.bundles_max_mb":                        {value: 7},
	"server.raft_logstore.backend":                 {value: "boltdb"},
	"server.raft_logstore.disable_log_cache":       {value: true},
	"server.raft_logstore.boltdb.no_freelist_sync": {value: true},
	"server.raft_logstore.wal.segment_size_mb":     {value: 7},
	"server.raft_boltdb.no_freelist_sync":          {value: true},
	"client.enabled":                               {value: false},
	"client.servers":                               {value: []string{"127.0.0.1:4999"}, with: map[string]any{"client.servers": []string{"127.0.0.1:4647"}, "server.enabled": false, "server.bootstrap_expect": 0}},
	"client.server_join.start_join":                {value: []string{"127.0.0.1:4999"}, with: map[string]any{"client.servers": []string{"127.0.0.1:4647"}, "server.enabled": false, "server.bootstrap_expect": 0}},
	"client.server_join.retry_join":                {value: []string{"127.0.0.1:4999"}, with: map[string]any{"client.servers": []string{"127.0.0.1:4647"}, "server.enabled": false, "server.bootstrap_expect": 0}},
	"client.server_join.retry_interval":            {value: "7m", warns: true},
	"client.intro_token":                           {value: "w7"},
	"client.gossip_join":                           {value: []string{"127.0.0.1:4999"}},
	"client.options":                               {value: map[string]string{"w7": "x"}},
	"client.meta":                                  {value: map[string]string{"w7": "x"}},
	"client.node_class":                            {value: "w7"},
	"client.node_pool":                             {value: "w7"},
	"client.reserved.cpu":                          {value: 7},
	"client.reserved.memory":                       {value: 7},
	"client.reserved.disk":                         {value: 7},
	"client.reserved.cores":                        {value: "0-1"},
	"client.reserved.reserved_ports":               {value: "22,8000-8099"},
	"client.host_volume.*.path":                    {value: "/srv", with: map[string]any{"client.host_volume.*.path": "/var/tmp"}},
	"client.host_volume.*.read_only":               {value: true, with: map[string]any{"client.host_volume.*.path": "/var/tmp"}},
	"client.network_interface":                     {value: "lo"},
	"client.bridge_network_name":                   {value: "w7"},
	"client.bridge_network_subnet":                 {value: "172.27.64.0/20"},
	"client.network_speed":                         {value: 7},
	"client.cpu_total_compute":                     {value: 7},
	"client.memory_total_mb":                       {value: 7},
	"client.disk_total_mb":                         {value: 7},
	"client.alloc_dir":                             {value: "/srv/allocs"},
	"client.min_dynamic_port":                      {value: 21000},
	"client.max_dynamic_port":                      {value: 31000},
	"client.max_kill_timeout":                      {value: "7m"},
	"client.drain_on_shutdown.deadline":            {value: "7m", with: map[string]any{"client.drain_on_shutdown.force": true}},
	"client.drain_on_shutdown.force":               {value: true, with: map[string]any{"client.drain_on_shutdown.deadline": "7m"}},
	"client.drain_on_shutdown.ignore_system_jobs":  {value: true, with: map[string]any{"client.drain_on_shutdown.deadline": "7m"}},
	"client.run_as.allow":                          {value: []string{"w7"}, with: map[string]any{"client.run_as.deny": []string{"root"}}},
	"client.run_as.deny":                           {value: []string{"w7"}, with: map[string]any{"client.run_as.allow": []string{"ann"}}},
	"client.egress.allow":                          {value: []string{"10.1.0.0/16"}},
	"client.egress.deny":                           {value: []string{"10.1.0.0/16"}},
	"client.fabric.interfaces":                     {value: []string{"ib0"}},
	"client.fabric.hcas":                           {value: []string{"mlx5_0:1"}},
	"client.fabric.leaf":                           {value: "w7"},
	"client.fabric.service_level":                  {value: 7},
	"client.fabric.traffic_class":                  {value: 7},
	"client.fabric.rdma_dir":                       {value: "/dev/other"},
	"client.fabric.env":                            {value: map[string]string{"NCCL_IB_GID_INDEX": "3"}},
	"client.hooks.prolog.command":                  {value: []string{"/bin/true"}},
	"client.hooks.prolog.timeout":                  {value: "7m", with: map[string]any{"client.hooks.prolog.command": []string{"/bin/true"}}},
	"client.hooks.epilog.command":                  {value: []string{"/bin/true"}},
	"client.hooks.epilog.timeout":                  {value: "7m", with: map[string]any{"client.hooks.epilog.command": []string{"/bin/true"}}},
	"client.hooks.health.command":                  {value: []string{"/bin/true"}},
	"client.hooks.health.timeout":                  {value: "7m", with: map[string]any{"client.hooks.health.command": []string{"/bin/true"}}},
	"client.hooks.health.interval":                 {value: "7m", with: map[string]any{"client.hooks.health.command": []string{"/bin/true"}}},
	"client.gpu_idle":                              {value: "7m"},
	"client.gpu_pressure.share":                    {value: []int{70}},
	"client.gpu_pressure.device":                   {value: []int{70}},
	"client.gpu_pressure.clear":                    {value: 7},
	"client.gpu_pressure.command.command":          {value: []string{"/bin/true"}},
	"client.gpu_pressure.command.timeout":          {value: "7m", with: map[string]any{"client.gpu_pressure.command.command": []string{"/bin/true"}}},
	"client.gpu_pressure.webhook.*.url":            {value: "https://hooks.example.com/gpu"},
	"client.gpu_pressure.webhook.*.headers":        {value: map[string]string{"X-Token": "t"}, with: map[string]any{"client.gpu_pressure.webhook.*.url": "https://x.example.com"}},
	"client.gpu_pressure.webhook.*.secret_file":    {value: aFile, with: map[string]any{"client.gpu_pressure.webhook.*.url": "https://x.example.com"}},
	"client.gpu_pressure.webhook.*.timeout":        {value: "9s", with: map[string]any{"client.gpu_pressure.webhook.*.url": "https://x.example.com"}},
	"client.gpu_pressure.webhook.*.attempts":       {value: 7, with: map[string]any{"client.gpu_pressure.webhook.*.url": "https://x.example.com"}},
	"client.gc_interval":                           {value: "7m"},
	"client.gc_disk_usage_threshold":               {value: 7},
	"client.gc_inode_usage_threshold":              {value: 7},
	"client.gc_max_allocs":                         {value: 7},
	"client.gc_max_age":                            {value: "7m"},
	"client.gc_parallel_destroys":                  {value: 7},
	"plugin.raw_exec.config.enabled":               {value: true},
	"plugin.exec.config.default_user":              {value: "w7"},
	"plugin.exec.config.denied_users":              {value: []string{"w7"}},
	"plugin.exec.config.allow_caps":                {value: []string{"ipc_lock"}},
	"plugin.exec.config.seccomp":                   {value: "off"},
	"plugin.exec.config.nofile":                    {value: 65536},
	"plugin.exec.config.rootfs_dirs":               {value: []string{"/srv/images"}},
	"plugin.docker.config.enabled":                 {value: false},
	"plugin.docker.config.endpoint":                {value: "unix:///run/other.sock"},
	"plugin.docker.config.allow_privileged":        {value: true},
	"plugin.docker.config.allow_caps":              {value: []string{"chown"}},
	"plugin.docker.config.allow_runtimes":          {value: []string{"w7"}},
	"plugin.docker.config.allow_devices":           {value: []string{"/dev/fuse"}},
	"plugin.docker.config.volumes.enabled":         {value: true},
	"plugin.docker.config.auth.config":             {value: "/root/.docker/config.json"},
	"plugin.docker.config.auth.helper":             {value: "w7"},
	"plugin.docker.config.pull_activity_timeout":   {value: "7m"},
	"plugin.docker.config.gc.image":                {value: false},
	"plugin.docker.config.gc.image_delay":          {value: "7m"},
	"plugin.docker.config.gpu":                     {value: "cdi"},
	"plugin.docker.config.cdi_dir":                 {value: "/etc/cdi"},
	"plugin.nvidia.config.enabled":                 {value: false},
	"plugin.nvidia.config.ignored_gpu_ids":         {value: []string{"GPU-00000000-0000-0000-0000-000000000000"}},
	"plugin.nvidia.config.fingerprint_period":      {value: "7m"},
	"plugin.nvidia.config.library":                 {value: "/opt/libnvidia-ml.so.1"},
	"plugin.nvidia.config.xid.ignore":              {value: []int{77}},
	"plugin.nvidia.config.xid.program":             {value: []int{77}},
	"plugin.nvidia.config.xid.degrade":             {value: []int{77}},
	"plugin.nvidia.config.xid.quarantine":          {value: []int{77}},
	"acl.enabled":                                  {value: true},
	"acl.login_nodes":                              {value: []string{"*"}},
	"tls.http":                                     {value: true, with: tlsFiles},
	"tls.rpc":                                      {value: true, with: tlsFiles},
	"tls.ca_file":                                  {value: "ca.pem"},
	"tls.cert_file":                                {value: "w7"},
	"tls.key_file":                                 {value: "w7"},
	"tls.verify_server_hostname":                   {value: false, with: map[string]any{"tls.rpc": true, "tls.ca_file": aFile, "tls.cert_file": aFile, "tls.key_file": aFile}, warns: true},
	"tls.verify_https_client":                      {value: true},
	"limits.http_max_conns_per_client":             {value: 7},
	"limits.http_max_conns":                        {value: 7},
	"limits.http_max_rate_per_client":              {value: 7},
	"limits.http_max_rate_per_token":               {value: 7},
	"limits.http_wrong_token_delay":                {value: "7ms"},
	"limits.rpc_max_conns_per_client":              {value: 7},
	"limits.alloc_max_rate_per_token":              {value: 7},
	"telemetry.unauthenticated_metrics_access":     {value: true},
	"telemetry.statsd_address":                     {value: "127.0.0.1:8125"},
	"telemetry.statsite_address":                   {value: "127.0.0.1:8125"},
	"telemetry.datadog_address":                    {value: "127.0.0.1:8125"},
	"telemetry.datadog_tags":                       {value: []string{"team:ml"}, with: map[string]any{"telemetry.datadog_address": "127.0.0.1:8125"}},
	"telemetry.collection_interval":                {value: "7m"},
	"telemetry.disable_hostname":                   {value: true},
	"telemetry.use_node_name":                      {value: true},
	"telemetry.prefix_filter":                      {value: []string{"-muster.raft"}},
	"telemetry.filter_default":                     {value: false},
	"enable_debug":                                 {value: true},
	"insecure":                                     {value: true},
	"http_allowed_hosts":                           {value: []string{"muster.example.com"}},
}

// configured returns what an agent with some settings is made of.
func configured(t *testing.T, set map[string]any) (made string, warnings []string) {
	t.Helper()
	tree := map[string]any{}
	for path, v := range set {
		at, keys := tree, strings.Split(strings.ReplaceAll(path, "*", "scratch"), ".")
		for _, k := range keys[:len(keys)-1] {
			if at[k] == nil {
				at[k] = map[string]any{}
			}
			at = at[k].(map[string]any)
		}
		at[keys[len(keys)-1]] = v
	}
	text, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "agent.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := agentconfig.Load(agentconfig.Options{Paths: []string{file}, Hostname: func() (string, error) { return "host", nil },
		DefaultIP: func() (string, error) { return "127.0.0.1", nil }})
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	cfg, err := FromConfig(c, nil)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	cfg.Effective = nil // it is shown, which is no effect
	var b strings.Builder
	dump(&b, reflect.ValueOf(cfg))
	for i, w := range c.Warnings {
		c.Warnings[i] = strings.ReplaceAll(w, file, "")
	}
	return b.String(), c.Warnings
}

// dump writes a value with what its pointers lead to.
func dump(b *strings.Builder, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			b.WriteString("nil")
			return
		}
		b.WriteString("&")
		dump(b, v.Elem())
	case reflect.Struct:
		b.WriteString("{")
		for i := range v.NumField() {
			fmt.Fprint(b, v.Type().Field(i).Name, ":")
			dump(b, v.Field(i))
			b.WriteString(" ")
		}
		b.WriteString("}")
	case reflect.Slice:
		fmt.Fprint(b, v.Len(), "[")
		for i := range v.Len() {
			dump(b, v.Index(i))
			b.WriteString(" ")
		}
		b.WriteString("]")
	case reflect.Map:
		var rows []string
		for _, k := range v.MapKeys() {
			var row strings.Builder
			dump(&row, k)
			row.WriteString(":")
			dump(&row, v.MapIndex(k))
			rows = append(rows, row.String())
		}
		slices.Sort(rows)
		fmt.Fprint(b, rows)
	case reflect.Func, reflect.Chan:
		fmt.Fprint(b, v.IsNil())
	default:
		fmt.Fprintf(b, "%v", v)
	}
}

// TestWitnessesOfSettings: every key of the configuration changes what the agent is made of, or warns. What the parts of
// an agent do with it is shown by their own tests, which internal/lint/testdata/witnesses.txt names.
func TestWitnessesOfSettings(t *testing.T) {
	keys := agentconfig.Keys()
	for _, k := range keys {
		s, ok := settings[k]
		if slices.Contains(accepted, k) || program[k] != "" {
			if ok {
				t.Errorf("%s is in two tables", k)
			}
			continue
		}
		if !ok {
			t.Errorf("%s has no witness. Add a value to settings; if only the program reads it, say in program where", k)
			continue
		}
		t.Run(k, func(t *testing.T) {
			base := map[string]any{"data_dir": "/var/lib/muster", "server.enabled": true, "client.enabled": true, "server.bootstrap_expect": 1}
			maps.Copy(base, s.with)
			before, calm := configured(t, base)
			base[k] = s.value
			after, warned := configured(t, base)
			if s.warns {
				if slices.Equal(calm, warned) {
					t.Errorf("%s = %v warns of nothing", k, s.value)
				}
				return
			}
			if before == after {
				t.Errorf("%s = %v changes nothing: it is inert, or its row sets it where it does not matter", k, s.value)
			}
		})
	}
	for _, table := range []map[string]bool{has(settings), has(program)} {
		for k := range table {
			if !slices.Contains(keys, k) {
				t.Errorf("there is no key %s", k)
			}
		}
	}
}

func has[V any](m map[string]V) map[string]bool {
	out := map[string]bool{}
	for k := range m {
		out[k] = true
	}
	return out
}

// program are the keys that the program reads before there is an agent, with the test that shows what they do.
var program = map[string]string{
	"log_level": "cmd/muster TestLogSettings", "log_json": "cmd/muster TestLogSettings", "log_include_location": "cmd/muster TestLogSettings", "log_file": "cmd/muster TestLogSettings",
	"log_rotate_bytes": "cmd/muster TestLogSettings", "log_rotate_duration": "cmd/muster TestLogSettings", "log_rotate_max_files": "cmd/muster TestLogSettings",
	"leave_on_interrupt": "cmd/muster TestLeaveOnSignals", "leave_on_terminate": "cmd/muster TestLeaveOnSignals",
}
