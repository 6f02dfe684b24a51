package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestGossipKeysAreKept changes the gossip key of a server by its HTTP API and restarts it with the old configuration: it
// has the new key only, and its log names the file of the keys and no key.
func TestGossipKeysAreKept(t *testing.T) {
	old, next, join := strings.Repeat("A", 43)+"=", strings.Repeat("I", 43)+"=", strings.Repeat("E", 43)+"="
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cfg := serverConfig(t, "s", fmt.Sprintf(`"ports": {"http": 0, "rpc": %d, "serf": %d}, "server": {"enabled": true, "bootstrap_expect": 1, "encrypt": %q, "join_key": %q}`,
		freePort(t), freePort(t), old, join), log)
	addr, stop := startStoppable(t, cfg)
	var boss struct{ SecretID string }
	wait(t, "the bootstrap", func() bool {
		status, b := ask(t, 5*time.Second, addr, "PUT", "/v1/acl/bootstrap", "", "")
		return status == 200 && json.Unmarshal(b, &boss) == nil
	})
	file := filepath.Join(cfg.DataDir, "server", "gossip.keyring")
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("a file of keys before they were changed, so that the configuration would not count: %v", err)
	}
	for _, step := range [][2]string{{"install", next}, {"use", next}, {"remove", old}} {
		if status, b := ask(t, 10*time.Second, addr, "PUT", "/v1/agent/keyring/"+step[0], boss.SecretID, fmt.Sprintf(`{"Key": %q}`, step[1])); status != 200 {
			t.Fatalf("%s: status %d: %s", step[0], status, b)
		}
	}
	stop()
	addr = startAgent(t, cfg)
	var answer struct{ Keys, PrimaryKeys map[string]int }
	wait(t, "the list of keys", func() bool {
		status, b := ask(t, 5*time.Second, addr, "GET", "/v1/agent/keyring/list", boss.SecretID, "")
		return status == 200 && json.Unmarshal(b, &answer) == nil
	})
	if !maps.Equal(answer.Keys, map[string]int{next: 1}) || !maps.Equal(answer.PrimaryKeys, answer.Keys) {
		t.Errorf("after a restart the keys are %v, and %v are in use; want %s alone", answer.Keys, answer.PrimaryKeys, next)
	}
	text, err := os.ReadFile(log.Name())
	if err != nil || strings.Count(string(text), "server.encrypt is not the gossip key in use") != 1 || !strings.Contains(string(text), file) {
		t.Errorf("the log does not warn once, at the restart, with %s: %v\n%s", file, err, text)
	}
	if strings.Contains(string(text), old) || strings.Contains(string(text), next) {
		t.Errorf("a key is in the log:\n%s", text)
	}
}
