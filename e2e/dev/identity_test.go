//go:build e2e

package dev

import (
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/muster-sched/muster/e2e/harness"
)

// identityJob prints its tokens, then lists its own job with the default one, by the API as others reach it.
const identityJob = `job "who" {
  type = "service"
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo env=$NOMAD_TOKEN; echo file=$(cat secrets/nomad_token); stat -c mode=%a secrets/nomad_token; trap 'echo renewed=$(cat secrets/nomad_store.jwt)' HUP; echo store=$(cat secrets/nomad_store.jwt); while :; do sleep 0.1; done"]
      }
      identity {
        env  = true
        file = true
      }
      identity {
        name          = "store"
        aud           = ["store.example"]
        file          = true
        ttl           = "1m"
        change_mode   = "signal"
        change_signal = "SIGHUP"
      }
    }
  }
}
`

// TestIdentity: a task of a real agent has tokens that a library verifies with what the agent publishes; they are renewed.
func TestIdentity(t *testing.T) {
	dir, port := t.TempDir(), harness.FreePort(t)
	addr := fmt.Sprintf("http://127.0.0.1:%d", port)
	conf, job := filepath.Join(dir, "agent.hcl"), filepath.Join(dir, "who.hcl")
	for file, text := range map[string]string{job: identityJob,
		conf: fmt.Sprintf("ports {\n  http = %d\n  rpc  = %d\n  serf = %d\n}\nserver {\n  oidc_issuer = %q\n}\nplugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n", port, harness.FreePort(t), harness.FreePort(t), addr)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) (string, error) {
		cmd := exec.Command(harness.Bin(t), args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "MUSTER_ADDR="+addr)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	agent := harness.Start(t, nil, "dev", nil, "agent", "-dev", "-config", conf)
	harness.Eventually(t, 30*time.Second, "job run", func() (bool, string) {
		out, err := run("job", "run", "-detach", job)
		return err == nil, out
	})
	var logs string
	harness.Eventually(t, 60*time.Second, "the task's tokens", func() (bool, string) {
		var err error
		logs, err = run("alloc", "logs", "-stdout", "-job", "who")
		return err == nil && strings.Contains(logs, "store=ey"), logs
	})
	said := func(what string) string {
		_, rest, _ := strings.Cut(logs, what+"=")
		line, _, _ := strings.Cut(rest, "\n")
		return line
	}
	get := func(url string, into any) {
		t.Helper()
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(into); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", url, resp.Status, err)
		}
	}
	var found struct {
		Issuer string   `json:"issuer"`
		Keys   string   `json:"jwks_uri"`
		Algs   []string `json:"id_token_signing_alg_values_supported"`
	}
	get(addr+"/.well-known/openid-configuration", &found)
	verify := func(token, audience string) {
		t.Helper()
		_, err := jwt.Parse(token, func(tok *jwt.Token) (any, error) {
			var set struct {
				Keys []struct{ Kid, Kty, Alg, N, E string }
			}
			get(found.Keys, &set)
			for _, k := range set.Keys {
				if k.Kid == tok.Header["kid"] && k.Kty == "RSA" && k.Alg == "RS256" {
					n, err1 := base64.RawURLEncoding.DecodeString(k.N)
					e, err2 := base64.RawURLEncoding.DecodeString(k.E)
					if err1 != nil || err2 != nil {
						return nil, fmt.Errorf("key %s: %v, %v", k.Kid, err1, err2)
					}
					return &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(new(big.Int).SetBytes(e).Int64())}, nil
				}
			}
			return nil, fmt.Errorf("no key %v among %+v", tok.Header["kid"], set)
		}, jwt.WithValidMethods(found.Algs), jwt.WithIssuer(found.Issuer), jwt.WithAudience(audience), jwt.WithExpirationRequired(), jwt.WithLeeway(time.Second))
		if err != nil {
			t.Errorf("a token for %s: %v", audience, err)
		}
	}
	verify(said("env"), "nomadproject.io")
	verify(said("store"), "store.example")
	if said("env") != said("file") || said("mode") != "600" {
		t.Errorf("the file of the default identity: mode %s, %t", said("mode"), said("env") == said("file"))
	}
	harness.Eventually(t, 60*time.Second, "a renewed token and its signal", func() (bool, string) {
		var err error
		logs, err = run("alloc", "logs", "-stdout", "-job", "who")
		return err == nil && strings.Contains(logs, "renewed=ey"), logs
	})
	if said("renewed") == said("store") {
		t.Error("the token was not renewed")
	}
	verify(said("renewed"), "store.example")
	status, err := run("operator", "api", "/v1/job/who/allocations")
	if err != nil {
		t.Error(err)
	}
	for _, token := range []string{said("env"), said("store")} {
		if strings.Contains(agent.Log.String(), token) || strings.Contains(status, token) {
			t.Error("the agent's log or the allocation has a token")
		}
	}
	end(t, agent)
}
