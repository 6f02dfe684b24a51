package artifact

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/muster-sched/muster/client/egress"
)

// clone fetches a repository with the node's git.
func (p *plan) clone(ctx context.Context, root *os.Root, filter *egress.Filter) error {
	if _, err := exec.LookPath("git"); err != nil {
		return refuse("this node has no git")
	}
	way, err := p.confine(ctx, filter)
	if err != nil {
		return err
	}
	defer way.close()
	run := func(args ...string) error {
		fixed := []string{"-c", "core.hooksPath=/dev/null", "-c", "protocol.file.allow=never", "-c", "protocol.ext.allow=never", "-c", "http.lowSpeedLimit=1", "-c", fmt.Sprintf("http.lowSpeedTime=%d", int(p.Spec.IdleMax.Seconds()))}
		cmd := exec.CommandContext(ctx, "git", append(append(fixed, way.args...), args...)...)
		cmd.Env = append(os.Environ(), way.env...)
		cmd.WaitDelay = time.Second
		out, err := cmd.CombinedOutput()
		switch {
		case err == nil:
			return nil
		case way.gate != nil && way.gate.Refused() != nil:
			return way.gate.Refused()
		}
		said := strings.ReplaceAll(strings.TrimSpace(string(out)), p.URL, hide(p.URL))
		if u, uerr := url.Parse(p.URL); uerr == nil { // git hides the password, but not always the options
			for _, secret := range []string{u.RawQuery, u.User.String()} {
				if secret != "" {
					said = strings.ReplaceAll(said, secret, "...")
				}
			}
		}
		return fmt.Errorf("git: %w: %.500s", err, said)
	}
	if err := run("init", "-q", "."); err != nil {
		return err
	}
	ref := p.Ref
	if ref == "" {
		ref = "HEAD"
	}
	if err := run("fetch", "-q", "--depth", "1", "--", way.url, ref); err != nil {
		return err
	}
	if err := run("checkout", "-q", "FETCH_HEAD"); err != nil {
		return err
	}
	u := unpacker{root: root, bytes: p.Spec.BytesMax, files: p.Spec.FilesMax}
	return u.check()
}

// way is how git reaches a repository at an allowed address only.
type way struct {
	url  string
	args []string
	env  []string
	gate *egress.Gate // or nil
}

func (w *way) close() {
	if w.gate != nil {
		w.gate.Close()
	}
}

// confine makes git, which connects by itself, use an allowed address. Over http and https, git goes through a proxy in
// this process, or through the operator's without following redirects. Over git and ssh it gets the address.
func (p *plan) confine(ctx context.Context, filter *egress.Filter) (*way, error) {
	u, err := url.Parse(p.URL)
	if err != nil {
		return nil, refuse("%v", err)
	}
	w := &way{url: p.URL}
	if u.Scheme == "http" || u.Scheme == "https" {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, nil)
		if err != nil {
			return nil, refuse("%v", err)
		}
		operators, err := filter.Proxy(req)
		if err != nil {
			return nil, err
		}
		if operators != nil {
			w.args = []string{"-c", "http.followRedirects=false"}
			return w, nil
		}
		if w.gate, err = filter.NewGate(); err != nil {
			return nil, err
		}
		for _, name := range []string{"http_proxy", "https_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"} {
			w.env = append(w.env, name+"="+w.gate.URL())
		}
		w.env = append(w.env, "no_proxy=", "NO_PROXY=")
		return w, nil
	}
	list, err := filter.Resolve(ctx, u.Hostname())
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no address", u.Hostname())
	}
	addr := list[0].Unmap().String()
	if u.Scheme == "ssh" {
		w.env = []string{"GIT_SSH_COMMAND=ssh -o HostName=" + addr + " -o HostKeyAlias=" + u.Hostname() + " -o ProxyCommand=none -o ProxyJump=none"}
		return w, nil
	}
	host := addr
	if port := u.Port(); port != "" {
		host = net.JoinHostPort(addr, port)
	} else if strings.Contains(addr, ":") {
		host = "[" + addr + "]"
	}
	u.Host = host
	w.url = u.String()
	return w, nil
}
