package agentconfig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const key = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="

func write(t *testing.T, dir, name, body string) string {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.WriteFile(p, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func options(paths ...string) Options {
	return Options{
		Paths:     paths,
		Hostname:  func() (string, error) { return "host", nil },
		DefaultIP: func() (string, error) { return "10.9.8.7", nil },
	}
}

func load(t *testing.T, name, body string) (*Config, error) {
	t.Helper()
	return Load(options(write(t, t.TempDir(), name, body)))
}

func good(t *testing.T, name, body string) *Config {
	t.Helper()
	c, err := load(t, name, body)
	if err != nil {
		t.Fatalf("%s\n%v", body, err)
	}
	return c
}

const base = "data_dir = \"/var/lib/x\"\nserver {\n  enabled = true\n  bootstrap_expect = 1\n}\n"

func TestBad(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"empty", "", "the file is empty"},
		{"blanks", " \n\t\n", "the file is empty"},
		{"binary", "\x7fELF\x02\x01\x01\x00\x00", "not text in UTF-8"},
		{"latin-1", "name = \"caf\xe9\"\n", "not text in UTF-8"},
		{"2 MiB", base + strings.Repeat("# filler\n", 2<<20/9), "larger than 1 MiB"},
		{"deep HCL", "a = " + strings.Repeat("[", 300_000), "a.hcl:1:37: nested more than 32 deep"},
		{"deep blocks", strings.Repeat("a {\n", 1000), "nested more than 32 deep"},
		{"deep JSON", `{"a":` + strings.Repeat("[", 300_000), "nested more than 32 deep"},
		{"YAML", "# settings\n---\ndata_dir: /var/lib/muster\nserver:\n  enabled: true\n", "a.hcl:1:1: this is YAML; settings are HCL or JSON"},
		{"operators", "a = " + strings.Repeat("!", 500_000) + "true", "more than 256 operators"},
		{"HCL syntax", "name = \n", "a.hcl:1:8: Invalid expression"},
		{"unclosed block", "server {\n", "a.hcl:1:8: Unclosed configuration block"},
		{"one-line block", base + "ports { http = 1 rpc = 2 }\n", "Invalid single-argument block definition"},
		{"JSON syntax", "{\n  \"name\": \"a\",\n  oops\n}", "a.hcl:3:3: not JSON"},
		{"JSON cut", `{"name": "a"`, "ends in the middle of a value"},
		{"JSON twice", "{\n\"name\": \"a\",\n\"name\": \"b\"}", "a.hcl:3:1: name is set twice; first at line 2"},
		{"JSON tail", `{"name": "a"} {}`, "something follows the end"},
		{"JSON huge number", `{"ports": {"http": 1e999999999}}`, "out of range"},
		{"HCL huge number", "ports {\n  http = 1e99999\n}\n", "out of range"},
		{"variable", base + "name = foo\n", "Variables not allowed"},
		{"function", base + "name = upper(\"x\")\n", "Function calls not allowed"},
		{"twice", base + "server {\n  enabled = true\n}\n", "a.hcl:6:1: server is given twice; first at line 2"},
		{"volume twice", base + strings.Repeat("client {\n  host_volume \"x\" {\n    path = \"/x\"\n  }\n  host_volume \"x\" {\n    path = \"/y\"\n  }\n}\n", 1), `host_volume "x" is given twice`},
		{"unknown", base + "datadir = \"x\"\n", "a.hcl:6:1: datadir: there is no such setting at the top; did you mean \"data_dir\"?"},
		{"typo in a block", base + "ports {\n  htpp = 1\n}\n", "a.hcl:7:3: htpp: there is no such setting in ports; did you mean \"http\"?"},
		{"typo of a section", base + "clinet {\n}\n", "did you mean \"client\"?"},
		{"wrong place", base + "bootstrap_expect = 3\n", "it belongs into server { }"},
		{"typo in JSON", "{\"data_dir\": \"/x\",\n \"server\": {\"enabld\": true}}", "a.hcl:2:13: enabld: there is no such setting in server; did you mean \"enabled\"?"},
		{"text for number", base + "ports {\n  http = \"abc\"\n}\n", "a.hcl:7:3: ports.http: want a whole number, found \"abc\""},
		{"quoted number", base + "ports {\n  http = \"4646\"\n}\n", "want 4646 without quotes"},
		{"fraction", base + "ports {\n  http = 46.5\n}\n", "want a whole number, found 46.5"},
		{"number beyond", base + "log_rotate_bytes = 99999999999999999999\n", "want a whole number"},
		{"quoted bool", base + "log_json = \"true\"\n", "want true without quotes"},
		{"number for bool", base + "log_json = 1\n", "want true or false, found 1"},
		{"number for text", base + "name = 5\n", "name: want text in quotes, found 5"},
		{"text for list", base + "client {\n  servers = \"10.0.0.1\"\n}\n", "client.servers: want a list"},
		{"numbers in list", base + "client {\n  servers = [5]\n}\n", "client.servers[0]: want text in quotes"},
		{"text for block", base + "ports = \"x\"\n", "ports: want a block, found text"},
		{"list for block", base + "ports = [1]\n", "ports: want a block, found a list"},
		{"block in meta", base + "client {\n  meta {\n    a {\n    }\n  }\n}\n", "client.meta.a: want text, found a block"},
		{"negative port", base + "ports {\n  http = -1\n}\n", "ports.http: -1: want 0 to 65535"},
		{"large port", base + "ports {\n  serf = 65536\n}\n", "ports.serf: 65536: want 0 to 65535"},
		{"statsd without port", base + "telemetry {\n  statsd_address = \"10.0.0.1\"\n}\n", "telemetry.statsd_address: \"10.0.0.1\": want HOST:PORT"},
		{"statsite with a bad port", base + "telemetry {\n  statsite_address = \"a:0\"\n}\n", "telemetry.statsite_address: \"a:0\": want HOST:PORT"},
		{"DogStatsD without port", base + "telemetry {\n  datadog_address = \"a\"\n}\n", "telemetry.datadog_address: \"a\": want HOST:PORT"},
		{"hasty telemetry", base + "telemetry {\n  collection_interval = \"1ms\"\n}\n", "telemetry.collection_interval: 1ms: want 100ms or more"},
		{"filter without sign", base + "telemetry {\n  prefix_filter = [\"muster.raft\"]\n}\n", "telemetry.prefix_filter: \"muster.raft\": want + or - before the prefix"},
		{"equal ports", base + "ports {\n  rpc = 4646\n}\n", "as is ports.http"},
		{"bad duration", base + "log_rotate_duration = \"5 parsecs\"\n", "want a duration such as \"30s\""},
		{"number for duration", base + "log_rotate_duration = 30\n", "want a duration in quotes"},
		{"negative duration", base + "log_rotate_duration = \"-5s\"\n", "not negative"},
		{"no data_dir", "server {\n  enabled = true\n}\n", "data_dir: is required"},
		{"data_dir is a file", strings.Replace(base, "/var/lib/x", "/dev/null", 1), "/dev/null is not a directory"},
		{"nothing enabled", "data_dir = \"/x\"\n", "neither server nor client is enabled"},
		{"expect 10", strings.Replace(base, "= 1", "= 10", 1), "10: want 1 to 9"},
		{"expect -1", strings.Replace(base, "= 1", "= -1", 1), "-1: want 1 to 9"},
		{"expect without server", strings.Replace(base, "true", "false", 1) + "client {\n  enabled = true\n  servers = [\"a\"]\n}\n", "server.enabled is not true"},
		{"client without servers", "data_dir = \"/x\"\nclient {\n  enabled = true\n}\n", "client.servers: a client needs at least one"},
		{"bad server address", "data_dir = \"/x\"\nclient {\n  enabled = true\n  servers = [\"a:b:c:99999\", \"a:0\"]\n}\n", "port from 1 to 65535"},
		{"server address without host", "data_dir = \"/x\"\nclient {\n  enabled = true\n  servers = [\":4646\"]\n}\n", "client.servers: \":4646\": no host before the port: want HOST:PORT, such as \"10.0.0.1:4647\""},
		{"server address as URL", "data_dir = \"/x\"\nclient {\n  enabled = true\n  servers = [\"http://a:4647\"]\n}\n", "client.servers: \"http://a:4647\": want HOST or HOST:PORT, not a URL"},
		{"log level", base + "log_level = \"LOUD\"\n", "\"LOUD\": want one of TRACE"},
		{"name", base + "name = \"a b\"\n", "without spaces"},
		{"empty region", base + "region = \"\"\n", "region: must not be empty"},
		{"block in the wrong place", base + "server_join {\n}\n", "it belongs into"},
		{"short gossip key", strings.Replace(base, "enabled = true", "enabled = true\n  encrypt = \"c2hvcnQ=\"", 1), "want 16, 24 or 32 bytes"},
		{"ACLs without proof", acls(""), "server.join_key: is required: ACLs are enabled without tls.rpc"},
		{"ACLs without proof, joining", strings.Replace(acls("retry_join = [\"127.0.0.1:9999\"]"), "= 3", "= 1", 1), "server.join_key: is required"},
		{"short join key", acls("join_key = \"c2hvcnQ=\""), "server.join_key: want 32 bytes in base64; make a key with `muster operator join-key generate`"},
		{"gossip key as join key", acls("encrypt = \"" + key + "\"\n  join_key = \"" + key + "\""), "is the gossip key, which client agents hold too"},
		{"join key of a client", "data_dir = \"/x\"\nserver {\n  join_key = \"" + joinKey + "\"\n}\nclient {\n  enabled = true\n  servers = [\"a\"]\n}\n", "only servers may have it"},
		{"tls without files", base + "tls {\n  http = true\n}\n", "tls.ca_file: is required"},
		{"tls missing file", base + "tls {\n  http = true\n  ca_file = \"/nowhere/ca.pem\"\n  cert_file = \"/dev/null\"\n  key_file = \"/dev/null\"\n}\n", "/nowhere/ca.pem: no such file"},
		{"bind name", base + "bind_addr = \"node-1\"\n", "\"node-1\" is not an IP address"},
		{"bind template", base + "bind_addr = \"{{ GetPrivateIP }}\"\n", "templates are not supported"},
		{"bind list", base + "addresses {\n  http = \"127.0.0.1 10.0.0.1\"\n}\n", "one address, please"},
		{"advertise all", base + "advertise {\n  rpc = \"0.0.0.0\"\n}\n", "not an address that others can reach"},
		{"open", base + "bind_addr = \"0.0.0.0\"\n", "without TLS, ACLs and a gossip key"},
		{"open, one port", base + "addresses {\n  http = \"10.0.0.1\"\n}\n", "a.hcl:7:3: this agent would listen beyond this machine (http 10.0.0.1:4646)"},
		{"open with TLS", base + secure + "bind_addr = \"10.0.0.1\"\n", "without ACLs and a gossip key"},
		{"open with TLS and ACLs", base + secure + "acl {\n  enabled = true\n}\nbind_addr = \"10.0.0.1\"\n", "without a gossip key"},
		{"open client", "data_dir = \"/x\"\nbind_addr = \"0.0.0.0\"\nclient {\n  enabled = true\n  servers = [\"a\"]\n}\n", "without TLS and ACLs, so"},
		{"volume without path", base + "client {\n  host_volume \"x\" {\n  }\n}\n", "client.host_volume.x: path is required"},
		{"relative volume", base + "client {\n  host_volume \"x\" {\n    path = \"x\"\n  }\n}\n", "must be absolute"},
		{"volume without label", base + "client {\n  host_volume {\n    path = \"/x\"\n  }\n}\n", "want a block, found text"},
		{"ports range", base + "client {\n  reserved {\n    reserved_ports = \"9-1\"\n  }\n}\n", "want numbers and ranges"},
		{"dynamic ports", base + "client {\n  min_dynamic_port = 9\n  max_dynamic_port = 8\n}\n", "9 is above client.max_dynamic_port"},
		{"per cent", base + "client {\n  gc_disk_usage_threshold = 101\n}\n", "101: want 0 to 100"},
		{"gc of nothing", serverOf("job_gc_threshold = \"1ms\""), "server.job_gc_threshold: 1ms: want 1s to 87600h, or 0 for the default"},
		{"gc interval", serverOf("job_gc_interval = \"25h\""), "server.job_gc_interval: 25h0m0s: want 1s to 24h"},
		{"gc backwards", serverOf("node_gc_threshold = \"-1h\""), "server.node_gc_threshold: want a duration that is not negative"},
		{"too many records", serverOf("acct_max_records = 100001"), "server.acct_max_records: 100001: want 100 to 100000"},
		{"threshold beyond", base + pressureOf("share = [80, 101]"), "client.gpu_pressure.share: 101: want 1 to 100 percent"},
		{"thresholds descending", base + pressureOf("device = [95, 80]"), "80 comes after 95: want them ascending"},
		{"threshold in quotes", base + pressureOf("device = [\"95\"]"), "client.gpu_pressure.device[0]: want 95 without quotes"},
		{"idle too soon", base + "client {\n  gpu_idle = \"1s\"\n}\n", "client.gpu_idle: 1s: want 5s or more, or 0s for never"},
		{"XID zero", base + xidOf("ignore = [0]"), "a.hcl:9:7: plugin.nvidia.config.xid.ignore: 0: want numbers of 1 to 999"},
		{"XID beyond", base + xidOf("degrade = [74, 1000]"), "plugin.nvidia.config.xid.degrade: 1000: want numbers of 1 to 999"},
		{"XID in words", base + xidOf("ignore = [\"fell\"]"), "plugin.nvidia.config.xid.ignore[0]: want a whole number, found \"fell\""},
		{"XID in two lists", base + xidOf("ignore = [74]\n degrade = [74]"), "plugin.nvidia.config.xid.degrade: 74 is also in ignore; want it in one list"},
		{"XID twice", base + xidOf("program = [74, 74]"), "plugin.nvidia.config.xid.program: 74 is there twice"},
		{"XID of the driver's wishes", base + xidOf("ignore = [154]"), "154 announces that the driver asks for something else"},
		{"XID list of another name", base + xidOf("quarantined = [74]"), "did you mean \"quarantine\"?"},
		{"relative command", base + pressureOf("command {\n command = [\"x\"]\n}"), "client.gpu_pressure.command.command: \"x\" must be absolute"},
		{"webhook without address", base + pressureOf("webhook \"w\" {\n}"), "client.gpu_pressure.webhook.w: url is required"},
		{"webhook elsewhere", base + pressureOf("webhook \"w\" {\n url = \"ftp://h/secret\"\n}"), "webhook.w.url: want http://HOST/PATH or https://HOST/PATH"},
		{"webhook header", base + pressureOf("webhook \"w\" {\n url = \"http://h\"\n headers = { \"a b\" = \"c\" }\n}"), "\"a b\" cannot be a header"},
		{"restriction", base + "client {\n  disable_remote_exec = true\n}\n", "to ignore it would allow what it forbids"},
		{"driver list", base + "client {\n  options = {\n    \"driver.denylist\" = \"exec\"\n  }\n}\n", "driver.denylist is not supported"},
		{"option", base + "client {\n  options = {\n    \"driver.raw_exec.enable\" = \"perhaps\"\n  }\n}\n", "want \"1\" or \"0\""},
		{"meta key", base + "client {\n  meta = {\n    \"a b\" = \"x\"\n  }\n}\n", "cannot be a key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir)
			write(t, dir, "a.hcl", c.body)
			_, err := Load(options("a.hcl"))
			if err == nil {
				t.Fatal("accepted")
			}
			var list Errors
			if !errors.As(err, &list) {
				t.Errorf("error is a %T", err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error does not say %q:\n%v", c.want, err)
			}
		})
	}
}

const secure = "tls {\n  http = true\n  rpc = true\n  ca_file = \"/dev/null\"\n  cert_file = \"/dev/null\"\n  key_file = \"/dev/null\"\n}\n"

const joinKey = "YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXphYmNkZWY="

// acls is a server of three with ACLs and without TLS.
func acls(setting string) string {
	return strings.Replace(base, "bootstrap_expect = 1", "bootstrap_expect = 3\n  "+setting, 1) + "acl {\n  enabled = true\n}\n"
}

// TestJoinKey: a server with peers needs the key only where ACLs are enabled and TLS is off, and is warned where the key
// changes nothing.
func TestJoinKey(t *testing.T) {
	if c := good(t, "a.hcl", acls("join_key = \""+joinKey+"\"")); len(c.JoinKey()) != 32 || warned(c, "join_key") {
		t.Error(c.JoinKey(), c.Warnings)
	}
	good(t, "a.hcl", strings.Replace(acls(""), "= 3", "= 1", 1)) // it has no peers
	good(t, "a.hcl", strings.Replace(acls(""), "acl {\n  enabled = true", "acl {\n  enabled = false", 1))
	good(t, "a.hcl", acls("encrypt = \""+key+"\"")+secure)
	if c := good(t, "a.hcl", acls("join_key = \""+joinKey+"\"")+secure); !warned(c, "server.join_key has no effect: with tls.rpc") {
		t.Error(c.Warnings)
	}
	if c := good(t, "a.hcl", strings.Replace(acls("join_key = \""+joinKey+"\""), "acl {\n  enabled = true", "acl {\n  enabled = false", 1)); !warned(c, "server.join_key has no effect: acl.enabled is not true") {
		t.Error(c.Warnings)
	}
}

func TestErrorLooksLikeACompilers(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, ".", "a.hcl", "data_dir = \"/x\"\nserver {\n\tenabld = true\n\tencrypt = 5\n}\n")
	_, err := Load(options("a.hcl"))
	want := "a.hcl:3:2: enabld: there is no such setting in server; did you mean \"enabled\"?\n    \tenabld = true\n    \t^\n" +
		"a.hcl:4:2: server.encrypt: want text in quotes, found 5\n    \tencrypt = 5\n    \t^"
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
	write(t, ".", "c.hcl", "data_dir = \"/x\"\nbind_addr = \"10.0.0.1:4646\"\nserver {\n\tenabled = true\n}\n")
	if _, err = Load(options("c.hcl")); err == nil || strings.Count(err.Error(), "is not an IP address") != 1 {
		t.Errorf("one cause, more than one error:\n%v", err)
	}
	var b strings.Builder
	for i := range 50 {
		fmt.Fprintf(&b, "x%d = 1\n", i)
	}
	write(t, ".", "b.hcl", b.String())
	_, err = Load(options("b.hcl"))
	if n := strings.Count(err.Error(), "no such setting"); n != errorsMax || !strings.Contains(err.Error(), "and 30 more problems") {
		t.Errorf("%d problems are told:\n%v", n, err)
	}
}

func TestMissingFile(t *testing.T) {
	if _, err := Load(options("/nowhere/a.hcl")); err == nil || err.Error() != "configuration /nowhere/a.hcl: no such file or directory" {
		t.Error(err)
	}
}

// pairs say the same in both syntaxes.
var pairs = []struct{ hcl, json string }{
	{base, `{"data_dir": "/var/lib/x", "server": {"enabled": true, "bootstrap_expect": 1}}`},
	{"data_dir = \"/x\"\nserver = {\n  enabled = true\n}\nports = { http = 9000, rpc = 9001, serf = 9002 }\n",
		`{"data_dir": "/x", "server": [{"enabled": true}], "ports": {"http": 9000, "rpc": 9001, "serf": 9002}}`},
	{"data_dir = \"/x\"\nclient {\n  enabled = true\n  servers = [\"10.0.0.1\", \"10.0.0.2:9\"]\n  options {\n    \"driver.raw_exec.enable\" = true\n  }\n  meta {\n    a = 1\n    b = \"x\"\n  }\n  host_volume \"v\" {\n    path = \"/v\"\n  }\n  host_volume \"w\" {\n    path = \"/w\"\n    read_only = true\n  }\n}\nplugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n",
		`{"data_dir": "/x", "client": {"enabled": true, "servers": ["10.0.0.1", "10.0.0.2:9"], "options": {"driver.raw_exec.enable": "true"},
		"meta": {"a": "1", "b": "x"}, "host_volume": [{"v": {"path": "/v"}}, {"w": [{"path": "/w", "read_only": true}]}]}, "plugin": [{"raw_exec": [{"config": [{"enabled": true}]}]}]}`},
}

func TestBothSyntaxesMeanTheSame(t *testing.T) {
	for i, p := range pairs {
		h := strings.ReplaceAll(p.hcl, "options {\n    \"driver.raw_exec.enable\" = true\n  }", "options = {\n    \"driver.raw_exec.enable\" = true\n  }")
		a, b := good(t, "a.hcl", h), good(t, "a.json", p.json)
		if !same(a.tree, b.tree) && i == 0 {
			t.Errorf("pair %d: trees differ", i)
		}
		a.tree, b.tree, a.Files, b.Files, a.Warnings, b.Warnings = nil, nil, nil, nil, nil, nil
		if !reflect.DeepEqual(a, b) {
			t.Errorf("pair %d:\n%+v\n%+v", i, a, b)
		}
	}
	c := good(t, "x", pairs[2].json) // any name: JSON is detected by its first byte
	if got := c.ClientServers(); !slices.Equal(got, []string{"10.0.0.1:4647", "10.0.0.2:9"}) {
		t.Error(got)
	}
	if !c.Plugin.RawExec.Config.Enabled || c.Client.Meta["a"] != "1" || !c.Client.HostVolumes["w"].ReadOnly {
		t.Errorf("%+v", c)
	}
}

func TestMerge(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "20-b.json", `{"client": {"meta": {"b": "2", "c": "2"}, "servers": ["z"]}, "log_level": "warn"}`)
	write(t, dir, "10-a.hcl", base+"client {\n  enabled = true\n  servers = [\"x\", \"y\"]\n  node_class = \"k\"\n  meta {\n    a = \"1\"\n    b = \"1\"\n  }\n}\n")
	write(t, dir, "README.md", "not a setting")
	write(t, dir, ".hidden.hcl", "not a setting")
	o := options(dir)
	o.Flags = []Flag{{"-node-class", "client.node_class", "flag"}, {"-meta", "client.meta", map[string]string{"c": "3"}}}
	c, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"a": "1", "b": "2", "c": "3"}; !reflect.DeepEqual(c.Client.Meta, want) {
		t.Error("meta", c.Client.Meta)
	}
	if got := c.Client.Servers; !slices.Equal(got, []string{"z:4647"}) {
		t.Error("lists replace", got)
	}
	if c.Client.NodeClass != "flag" || c.LogLevel != "WARN" || !c.Server.Enabled || len(c.Files) != 2 {
		t.Errorf("%+v", c)
	}
	write(t, dir, "30-c.hcl", "log_level = \"DEBUG\"\nname = \"other\"\n")
	now, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	if got := Changes(c, now); !slices.Equal(got, []string{"name"}) || now.Reloadable().LogLevel != "DEBUG" {
		t.Error(got, now.LogLevel)
	}
	if got := Changes(now, c); !slices.Equal(got, []string{"name"}) {
		t.Error(got)
	}
}

func TestFlagsAreNamed(t *testing.T) {
	o := options(write(t, t.TempDir(), "a.hcl", base))
	o.Flags = []Flag{{"-bind", "bind_addr", "10.0.0.1"}}
	_, err := Load(o)
	if err == nil || !strings.HasPrefix(err.Error(), "flag -bind: this agent would listen") {
		t.Error(err)
	}
}

func TestDev(t *testing.T) {
	c, err := Load(Options{Dev: true, Hostname: func() (string, error) { return "host", nil }})
	if err != nil {
		t.Fatal(err)
	}
	if !c.Server.Enabled || !c.Client.Enabled || !c.Plugin.RawExec.Config.Enabled || c.ACL.Enabled || c.DataDir != "" ||
		c.Bind != (Addresses{"127.0.0.1:4646", "127.0.0.1:4647", "127.0.0.1:4648"}) || c.Public != c.Bind || len(c.Warnings) > 0 {
		t.Errorf("%+v", c)
	}
	// The configuration that Nomad's own client tests give an agent, together with -dev.
	data := filepath.Join(t.TempDir(), "x")
	p := write(t, t.TempDir(), "nomad1234", `{"name":"node-9000","data_dir":"`+data+`","log_level":"ERROR","disable_update_check":true,"ports":{"http":9000,"rpc":9001,"serf":9002},"server":{"enabled":true,"bootstrap_expect":1},"client":{"enabled":false},"vault":{"enabled":false},"acl":{"enabled":false}}`)
	for _, dev := range []bool{false, true} {
		o := options(p)
		o.Dev = dev
		c, err := Load(o)
		if err != nil {
			t.Fatal(err)
		}
		if c.Name != "node-9000" || c.Bind.HTTP != "127.0.0.1:9000" || c.Client.Enabled != dev || !c.Server.Enabled || c.DataDir != data || c.LogLevel != "ERROR" {
			t.Errorf("dev %v: %+v", dev, c)
		}
		for _, w := range c.Warnings {
			if strings.Contains(w, "no effect") {
				t.Error(w)
			}
		}
	}
}

func TestBindDefaults(t *testing.T) {
	tls := "tls {\n  http = true\n  rpc = true\n  ca_file = \"/dev/null\"\n  cert_file = \"/dev/null\"\n  key_file = \"/dev/null\"\n}\nacl {\n  enabled = true\n}\n"
	c := good(t, "a.hcl", base)
	if c.BindAddr != "127.0.0.1" || !warned(c, "listening on 127.0.0.1 only, because TLS, ACLs and a gossip key are not configured") {
		t.Error(c.BindAddr, c.Warnings)
	}
	c = good(t, "a.hcl", strings.Replace(base, "enabled", "encrypt = \""+key+"\"\n  enabled", 1)+tls)
	if c.BindAddr != "0.0.0.0" || c.Bind.RPC != "0.0.0.0:4647" || c.Public.RPC != "10.9.8.7:4647" || !warned(c, "listening on all addresses") {
		t.Error(c.Bind, c.Public, c.Warnings)
	}
	c = good(t, "a.hcl", base+"bind_addr = \"0.0.0.0\"\ninsecure = true\nadvertise {\n  http = \"1.2.3.4\"\n  rpc = \"[fd00::1]:5\"\n}\n")
	if c.Public != (Addresses{"1.2.3.4:4646", "[fd00::1]:5", "10.9.8.7:4648"}) || !warned(c, "INSECURE") {
		t.Error(c.Public, c.Warnings)
	}
	c = good(t, "a.hcl", base+"bind_addr = \"::1\"\nports {\n  http = 0\n}\n")
	if c.Bind.HTTP != "[::1]:0" || c.Public.HTTP != "" || c.Public.RPC != "[::1]:4647" {
		t.Error(c.Bind, c.Public)
	}
	// A client that does not gossip needs no gossip key.
	c = good(t, "a.hcl", "data_dir = \"/x\"\nclient {\n  enabled = true\n  servers = [\"a\"]\n}\nbind_addr = \"10.0.0.1\"\n"+tls)
	if c.Bind != (Addresses{HTTP: "10.0.0.1:4646"}) {
		t.Error(c.Bind)
	}
}

func warned(c *Config, what string) bool {
	return slices.ContainsFunc(c.Warnings, func(w string) bool { return strings.Contains(w, what) })
}

func TestNoEffect(t *testing.T) {
	c := good(t, "a.hcl", base+"consul {\n  address = \"127.0.0.1:8500\"\n}\nvault {\n  enabled = false\n}\nplugin \"podman\" {\n  config {\n  }\n}\ntelemetry {\n  circonus_api_token = \"x\"\n}\n")
	for _, w := range []string{":6:1: consul has no effect", "plugin.podman has no effect: there is no such driver", "telemetry.circonus_api_token has no effect"} {
		if !warned(c, w) {
			t.Errorf("no warning %q in %q", w, c.Warnings)
		}
	}
	if warned(c, "vault") {
		t.Error(c.Warnings)
	}
}

func serverOf(text string) string { return strings.Replace(base, "enabled", text+"\n  enabled", 1) }

func logStoreOf(text string) string {
	return strings.Replace(base, "enabled", "raft_logstore {\n    "+text+"\n  }\n  enabled", 1)
}

func TestRaftLogStore(t *testing.T) {
	c := good(t, "a.hcl", logStoreOf("backend = \"boltdb\"\n disable_log_cache = true\n boltdb {\n no_freelist_sync = true\n }"))
	if s := c.Server.RaftLogStore; s.Backend != "boltdb" || !s.DisableLogCache || !s.BoltDB.NoFreelistSync || warned(c, "raft_") {
		t.Errorf("read %+v, warnings %q", s, c.Warnings)
	}
	for text, want := range map[string]string{
		"boltdb {\n no_freelist_sync = true\n }":                  "boltdb.no_freelist_sync has no effect: server.raft_logstore.backend is not \"boltdb\"",
		"backend = \"boltdb\"\n wal {\n segment_size_mb = 64\n }": "wal.segment_size_mb has no effect: server.raft_logstore.backend is not \"wal\"",
		"verification {\n enabled = true\n }":                     "raft_logstore.verification has no effect: every entry has a checksum",
		"}\n raft_boltdb {\n no_freelist_sync = true\n":           "raft_boltdb.no_freelist_sync has no effect",
	} {
		if c := good(t, "a.hcl", logStoreOf(text)); !warned(c, want) {
			t.Errorf("%q: no warning %q in %q", text, want, c.Warnings)
		}
	}
	for text, want := range map[string]string{
		"backend = \"sqlite\"":                   "\"sqlite\": want \"wal\" or \"boltdb\"",
		"wal {\n segment_size_mb = 1025\n }":     "want 0 to 1024",
		"wal {\n segment_size_mb = -1\n }":       "want 0 to 1024",
		"boltdb {\n no_freelist_sink = true\n }": "no_freelist_sync",
	} {
		if _, err := load(t, "a.hcl", logStoreOf(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestAllowedHosts(t *testing.T) {
	c := good(t, "a.hcl", base+`http_allowed_hosts = ["Muster.Example.com", "*.proxy.example"]`)
	if want := []string{"muster.example.com", "*.proxy.example"}; !slices.Equal(c.HTTPAllowedHosts, want) {
		t.Errorf("got %q, want %q", c.HTTPAllowedHosts, want)
	}
	for _, h := range []string{"", "*", "https://muster.example.com", "muster.example.com:4646", "a b", "*.", "a..b", "x.*"} {
		if _, err := load(t, "a.hcl", base+fmt.Sprintf("http_allowed_hosts = [%q]", h)); err == nil || !strings.Contains(err.Error(), "http_allowed_hosts") {
			t.Errorf("%q: got %v, want a refusal", h, err)
		}
	}
}

func TestLoginNodes(t *testing.T) {
	if c := good(t, "a.hcl", base+"acl {\n  login_nodes = [\"*\"]\n}\n"); !slices.Equal(c.ACL.LoginNodes, []string{AllNodes}) {
		t.Errorf("got %q", c.ACL.LoginNodes)
	}
	for _, n := range []string{"", "login1", "b8a1f3a0", "b8a1f3a0-6d1c-4f0e-9f62-0d1f6a3d7c5*"} {
		if _, err := load(t, "a.hcl", base+fmt.Sprintf("acl {\n  login_nodes = [%q]\n}\n", n)); err == nil || !strings.Contains(err.Error(), "acl.login_nodes") {
			t.Errorf("%q: got %v, want a refusal", n, err)
		}
	}
}

func TestExample(t *testing.T) {
	b, err := os.ReadFile("testdata/example.hcl")
	if err != nil {
		t.Fatal(err)
	}
	c := good(t, "a.hcl", string(b))
	for _, w := range c.Warnings {
		t.Error(w)
	}
	for _, k := range Keys() {
		if c.tree.get(strings.Split(strings.Replace(k, ".*", ".scratch", 1), ".")...) == nil {
			t.Errorf("the example does not show %s", k)
		}
	}
	if c.Client.DrainOnShutdown.Deadline != time.Minute || c.GossipKey() == nil {
		t.Errorf("%+v; want c.Client.DrainOnShutdown.Deadline = %v", c.Client, time.Minute)
	}
}

// TestTables finds keys that mean something and nothing at once, and sections that do not exist.
func TestTables(t *testing.T) {
	keys := map[string]bool{}
	sections := map[string]bool{"": true}
	for _, k := range Keys() {
		keys[k] = true
		for i, r := range k {
			if r == '.' {
				sections[k[:i]] = true
			}
		}
	}
	for _, table := range []map[string]map[string]string{noEffect, refused} {
		for s, m := range table {
			if !sections[s] {
				t.Errorf("there is no section %q", s)
			}
			for k := range m {
				if keys[strings.TrimPrefix(s+"."+k, ".")] {
					t.Errorf("%s.%s has a meaning", s, k)
				}
			}
		}
	}
}

func TestRanges(t *testing.T) {
	for in, want := range map[string][]int{"": nil, "22": {22}, "3-5,4, 1": {1, 3, 4, 5}} {
		if got, err := ParseRanges(in, 0, 100); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"x", "1-", "-1", "5-3", "101", "1,,2"} {
		if _, err := ParseRanges(in, 0, 100); err == nil {
			t.Errorf("%q is accepted", in)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, p := range pairs {
		f.Add([]byte(p.hcl))
		f.Add([]byte(p.json))
	}
	f.Add([]byte("a = <<E\n${\"x\"}\nE\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var errs problems
		if n := parse("f", b, &errs); n == nil && errs.err() == nil {
			t.Error("neither a configuration nor a problem")
		}
		_ = fmt.Sprint(errs.err())
	})
}

func xidOf(text string) string {
	return "plugin \"nvidia\" {\n  config {\n    xid {\n      " + text + "\n    }\n  }\n}\n"
}

func pressureOf(text string) string {
	return "client {\n  gpu_pressure {\n    " + text + "\n  }\n}\n"
}

func TestPressureConfig(t *testing.T) {
	c := good(t, "a.hcl", base+pressureOf("share = []\n device = [80, 95]\n clear = 3\n webhook \"w\" {\n url = \"https://h/p\"\n secret_file = \"/k\"\n timeout = \"2s\"\n attempts = 3\n headers {\n X-Token = \"t\"\n }\n }"))
	p := c.Client.GPUPressure
	if p.Share == nil || len(p.Share) != 0 || !slices.Equal(p.Device, []int{80, 95}) || p.Clear != 3 || p.Webhooks["w"].URL != "https://h/p" || p.Webhooks["w"].Headers["X-Token"] != "t" || p.Webhooks["w"].Attempts != 3 {
		t.Errorf(`%+v; want len(p.Share) = 0, p.Device = %v, p.Clear = 3, p.Webhooks["w"].URL = "https://h/p", p.Webhooks["w"].Headers["X-Token"] = "t", p.Webhooks["w"].Attempts = 3`, p, []int{80, 95})
	}
	if c := good(t, "a.hcl", base); c.Client.GPUPressure.Share != nil {
		t.Errorf("%+v", c.Client.GPUPressure)
	}
}

// TestWrongPortsOfServers: an address with the port of something else is a warning where this agent has the default ports.
func TestWrongPortsOfServers(t *testing.T) {
	client := func(addr, more string) *Config {
		return good(t, "a.hcl", "data_dir = \"/x\"\nclient {\n  enabled = true\n  servers = [\""+addr+"\"]\n}\n"+more)
	}
	if c := client("10.0.0.1:4646", ""); !slices.ContainsFunc(c.Warnings, func(w string) bool {
		return strings.Contains(w, `a.hcl:4`) && strings.Contains(w, `"10.0.0.1:4646" has the default port of the HTTP API; here the port of the servers' RPC (ports.rpc) is needed, by default 4647`)
	}) {
		t.Errorf("%q", c.Warnings)
	}
	for _, c := range []*Config{client("10.0.0.1:4647", ""), client("10.0.0.1:9000", ""), client("10.0.0.1:4646", "ports {\n  rpc = 4646\n  http = 4650\n}\n")} {
		if slices.ContainsFunc(c.Warnings, func(w string) bool { return strings.Contains(w, "has the default port of") }) {
			t.Errorf("%v: %q", c.Client.Servers, c.Warnings)
		}
	}
}
