package docker

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"

	"github.com/muster-sched/muster/client/driver"
)

// hub is the default registry's name in the files of Docker's clients.
const hub = "https://index.docker.io/v1/"

// helperPatience limits a credentials helper.
const helperPatience = 10 * time.Second

// credentials finds the credentials of an image's registry: the job's, then those in the agent's file, then its
// helper's. Having none is not an error. The result is the value of the engine's header; it must not be logged.
func (d *Driver) credentials(ctx context.Context, ref reference.Named, v driver.Values) (string, error) {
	server := reference.Domain(ref)
	if a := v.Map("auth"); a["username"] != "" || a["password"] != "" {
		if a["server_address"] != "" {
			server = a["server_address"]
		}
		return authconfig.Encode(registry.AuthConfig{Username: a["username"], Password: a["password"], ServerAddress: server})
	}
	if server == "docker.io" {
		server = hub
	}
	a, err := d.agentCredentials(ctx, server)
	switch {
	case err != nil && !v.Bool("auth_soft_fail"):
		return "", fmt.Errorf("docker: credentials for %s: %w", server, err)
	case err != nil || a == nil:
		return "", nil
	}
	return authconfig.Encode(*a)
}

func (d *Driver) agentCredentials(ctx context.Context, server string) (*registry.AuthConfig, error) {
	if d.opt.AuthFile != "" {
		b, err := os.ReadFile(d.opt.AuthFile)
		if err != nil {
			return nil, err
		}
		a, helper, err := fromFile(b, server)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.opt.AuthFile, err)
		}
		if a != nil {
			return a, nil
		}
		if helper != "" {
			return fromHelper(ctx, helper, server)
		}
	}
	if d.opt.AuthHelper != "" {
		return fromHelper(ctx, d.opt.AuthHelper, server)
	}
	return nil, nil
}

// fromFile reads a Docker client's config.json.
func fromFile(b []byte, server string) (a *registry.AuthConfig, helper string, err error) {
	var file struct {
		Auths map[string]struct {
			Auth, IdentityToken, Username, Password string
		}
		CredHelpers map[string]string
		CredsStore  string
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, "", fmt.Errorf("not a Docker client's configuration: %w", err)
	}
	bare := func(s string) string {
		_, after, ok := strings.Cut(s, "://")
		if !ok {
			after = s
		}
		host, _, _ := strings.Cut(after, "/")
		return host
	}
	for name, helper := range file.CredHelpers {
		if bare(name) == bare(server) {
			return nil, helper, nil
		}
	}
	for name, e := range file.Auths {
		if bare(name) != bare(server) {
			continue
		}
		a = &registry.AuthConfig{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken, ServerAddress: server}
		if e.Auth != "" {
			plain, err := base64.StdEncoding.DecodeString(e.Auth)
			user, pass, ok := strings.Cut(strings.TrimRight(string(plain), "\x00"), ":")
			if err != nil || !ok {
				return nil, "", fmt.Errorf("the credentials of %s are not base64 of user:password", name)
			}
			a.Username, a.Password = user, pass
		}
		if a.Username != "" || a.IdentityToken != "" {
			return a, "", nil
		}
	}
	return nil, file.CredsStore, nil
}

var helperName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// fromHelper asks the program docker-credential-NAME.
func fromHelper(ctx context.Context, name, server string) (*registry.AuthConfig, error) {
	if !helperName.MatchString(name) {
		return nil, fmt.Errorf("%q is not the name of a credentials helper", name)
	}
	ctx, cancel := context.WithTimeout(ctx, helperPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker-credential-"+name, "get")
	cmd.Stdin = strings.NewReader(server)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		if strings.Contains(out.String(), "credentials not found") {
			return nil, nil
		}
		return nil, fmt.Errorf("docker-credential-%s: %w", name, err)
	}
	var got struct{ Username, Secret string }
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		return nil, fmt.Errorf("docker-credential-%s did not answer in JSON", name)
	}
	if got.Username == "<token>" {
		return &registry.AuthConfig{IdentityToken: got.Secret, ServerAddress: server}, nil
	}
	return &registry.AuthConfig{Username: got.Username, Password: got.Secret, ServerAddress: server}, nil
}
