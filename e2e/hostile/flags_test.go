//go:build e2e

package hostile

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testCommandLine: wrong flags and arguments of commands.
func testCommandLine(t *testing.T, v *victim) {
	good := v.file("good.hcl", job("", "", ""))
	for _, c := range []struct {
		name string
		args []string
		has  string
	}{
		{"unknown command", []string{"jbo"}, "jbo"},
		{"unknown command below", []string{"job", "rnu"}, "rnu"},
		{"unknown flag", []string{"job", "run", "-banana", good}, "banana"},
		{"no argument", []string{"job", "run"}, "muster job run"},
		{"too many arguments", []string{"job", "run", good, good}, "muster job run"},
		{"no such file", []string{"job", "run", "/nowhere/x.hcl"}, "/nowhere/x.hcl"},
		{"a folder", []string{"job", "run", v.dir}, "directory"},
		{"an endless file", []string{"job", "run", "/dev/zero"}, "larger"},
		{"an endless variable file", []string{"job", "run", "-var-file", "/dev/zero", good}, "larger"},
		{"address of garbage", []string{"job", "status", "-address", "::://"}, ":::"},
		{"address of another protocol", []string{"job", "status", "-address", "gopher://x"}, "gopher"},
		{"address without an agent", []string{"job", "status", "-address", "http://127.0.0.1:1"}, "127.0.0.1:1"},
		{"address of the RPC port", []string{"job", "status", "-address", fmt.Sprintf("http://127.0.0.1:%d", rpcPort)}, ""},
		{"https to http", []string{"job", "status", "-address", fmt.Sprintf("https://127.0.0.1:%d", httpPort)}, "http"},
		{"CA that is not there", []string{"job", "status", "-address", "https://127.0.0.1:1", "-ca-cert", "/nowhere.pem"}, "/nowhere.pem"},
		{"variable without a value", []string{"job", "run", "-var", "x", good}, "name=value"},
		{"variable that is not declared", []string{"job", "run", "-var", "x=y", good}, "x"},
		{"number of letters", []string{"job", "scale", "hostile", "g", "many"}, "many"},
		{"job that is not there", []string{"job", "status", "nowhere"}, "nowhere"},
		{"dispatch of a job that is not there", []string{"job", "dispatch", "nowhere"}, "nowhere"},
		{"allocation of garbage", []string{"alloc", "status", "../../x"}, "x"},
		{"node of garbage", []string{"node", "drain", "-enable", "-yes", "zzz"}, "zzz"},
		{"snapshot of a text file", []string{"operator", "snapshot", "restore", good}, "snapshot"},
		{"snapshot of nothing", []string{"operator", "snapshot", "inspect", "/dev/null"}, "snapshot"},
		{"template of garbage", []string{"job", "status", "-t", "{{.X"}, "template"},
	} {
		t.Run(c.name, func(t *testing.T) {
			begin := time.Now()
			code, out := v.muster(nil, c.args...)
			if d := time.Since(begin); d > 12*time.Second {
				t.Errorf("took %s", d)
			}
			if code == 0 || code < 0 {
				t.Errorf("code %d", code)
			}
			expect(t, code, out, code, c.has)
			v.alive(t)
		})
	}
}

// testArchives restores archives that were cut or changed.
func testArchives(t *testing.T, v *victim) {
	p := filepath.Join(v.dir, "good.snap")
	if code, out := v.muster(nil, "operator", "snapshot", "save", p); code != 0 {
		t.Fatalf("save: %d %s", code, out)
	}
	good, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	flip := func(at int) string {
		b := []byte(string(good))
		b[at] ^= 0x40
		return string(b)
	}
	for _, c := range []struct{ name, text string }{
		{"cut in half", string(good[:len(good)/2])},
		{"cut at the end", string(good[:len(good)-1])},
		{"a bit in the middle", flip(len(good) / 2)},
		{"a bit at the end", flip(len(good) - 9)},
		{"gzip of garbage", gz(strings.Repeat("garbage", 10000))},
		{"gzip bomb", gz(strings.Repeat("\x00", 400<<20))},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad := v.file("bad.snap", c.text)
			code, out := v.muster(nil, "operator", "snapshot", "restore", bad)
			expect(t, code, out, 1, "snapshot")
			code, out = send("PUT", "/v1/operator/snapshot", c.text, nil)
			expect(t, code, out, 400, "snapshot")
			v.alive(t)
		})
	}
}

// testAgents starts agents that cannot work: each ends by itself with one error and starts nothing.
func testAgents(t *testing.T, v *victim) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	taken := busy.Addr().(*net.TCPAddr).Port
	dir := filepath.Join(v.dir, "agents")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	plain := v.file("plain.txt", "not a folder, not a certificate")
	const ports = "ports {\n  http = 27656\n  rpc  = 27657\n  serf = 27658\n}\n"
	server := "bind_addr = \"127.0.0.1\"\ndata_dir = \"" + filepath.Join(dir, "data") + "\"\n" + ports + "server {\n  enabled = true\n  bootstrap_expect = 1\n}\n"
	for _, c := range []struct {
		name, conf string
		args       []string
		has        string
	}{
		{"empty", "", nil, ""},
		{"binary", "\x7fELF\x00\xff\xfe", nil, ""},
		{"100 MB", strings.Repeat("# filler\n", 100<<20/9), nil, "larger"},
		{"parentheses", "data_dir = " + strings.Repeat("(", 137<<10), nil, "deep"},
		{"unknown key", server + "banana = 1\n", nil, "banana"},
		{"unknown block", server + "sever {}\n", nil, "server"},
		{"wrong type", server + "log_level = 7\n", nil, "log_level"},
		{"bad log level", server + "log_level = \"LOUD\"\n", nil, "LOUD"},
		{"data_dir is a file", strings.Replace(server, filepath.Join(dir, "data"), plain, 1), nil, plain},
		{"no data_dir", ports + "server { enabled = true }\n", nil, "data"},
		{"port in use", strings.Replace(server, "27656", fmt.Sprint(taken), 1), nil, fmt.Sprint(taken)},
		{"RPC port in use", strings.Replace(server, "27657", fmt.Sprint(taken), 1), nil, fmt.Sprint(taken)},
		{"gossip port in use", strings.Replace(server, "27658", fmt.Sprint(taken), 1), nil, fmt.Sprint(taken)},
		{"port 99999", strings.Replace(server, "27656", "99999", 1), nil, "99999"},
		{"port -1", strings.Replace(server, "27656", "-1", 1), nil, "-1"},
		{"two ports alike", strings.Replace(server, "27656", "27657", 1), nil, "27657"},
		{"address of a name", strings.Replace(server, "\"127.0.0.1\"", "\"no such host\"", 1), nil, "no such host"},
		{"address of another machine", strings.Replace(server, "\"127.0.0.1\"", "\"192.0.2.1\"", 1), nil, "192.0.2.1"},
		{"open to the network", strings.Replace(server, "\"127.0.0.1\"", "\"0.0.0.0\"", 1) + "advertise {\n  http = \"192.0.2.1\"\n  rpc = \"192.0.2.1\"\n  serf = \"192.0.2.1\"\n}\n", nil, "insecure"},
		{"name with a blank", server + "name = \"a b\"\n", nil, "a b"},
		{"name with a slash", server + "name = \"../x\"\n", nil, "../x"},
		{"region with a blank", server + "region = \"a b\"\n", nil, "a b"},
		{"datacenter with a newline", server + "datacenter = \"a\\nb\"\n", nil, "datacenter"},
		{"gossip key that is no base64", strings.Replace(server, "bootstrap_expect", "encrypt = \"%%%\"\n  bootstrap_expect", 1), nil, "encrypt"},
		{"gossip key too short", strings.Replace(server, "bootstrap_expect", "encrypt = \"AAAA\"\n  bootstrap_expect", 1), nil, "encrypt"},
		{"expects -3", strings.Replace(server, "= 1\n}", "= -3\n}", 1), nil, "bootstrap_expect"},
		{"expects a million", strings.Replace(server, "= 1\n}", "= 1000000\n}", 1), nil, "bootstrap_expect"},
		{"certificate that is not there", server + "tls {\n  http = true\n  rpc = true\n  ca_file = \"/nowhere.pem\"\n  cert_file = \"/nowhere.pem\"\n  key_file = \"/nowhere.pem\"\n}\n", nil, "/nowhere.pem"},
		{"certificate of garbage", server + fmt.Sprintf("tls {\n  http = true\n  rpc = true\n  ca_file = %q\n  cert_file = %q\n  key_file = %q\n}\n", plain, plain, plain), nil, plain},
		{"TLS without a certificate", server + "tls {\n  rpc = true\n}\n", nil, "tls"},
		{"neither server nor client", "data_dir = \"" + dir + "\"\n", nil, "server"},
		{"unknown flag", server, []string{"-banana"}, "banana"},
		{"superfluous argument", server, []string{"banana"}, "banana"},
		{"GPUs of garbage", server, []string{"-dev", "-dev-gpus", "banana"}, "banana"},
		{"GPUs without end", server, []string{"-dev", "-dev-gpus", "999999999xH100"}, "999999999"},
		{"meta without a value", server, []string{"-meta", "banana"}, "banana"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := v.file("bad-agent.hcl", c.conf)
			code, out := runBin(t, nil, 15*time.Second, append([]string{"agent", "-config", p}, c.args...)...)
			expect(t, code, out, 1, c.has)
			v.alive(t)
		})
	}
	t.Run("configuration that is not there", func(t *testing.T) {
		code, out := runBin(t, nil, 15*time.Second, "agent", "-config", "/nowhere.hcl")
		expect(t, code, out, 1, "/nowhere.hcl")
		v.alive(t)
	})
	t.Run("the data directory of another agent", func(t *testing.T) {
		conf := v.file("same.hcl", strings.Replace(server, filepath.Join(dir, "data"), filepath.Join(v.dir, "data"), 1))
		code, out := runBin(t, nil, 20*time.Second, "agent", "-config", conf)
		expect(t, code, out, 1, "data")
		v.alive(t)
	})
}
