package member

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/internal/fsync"
	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Gossip keys belong to all servers of a region. Servers that do not know the key that another one encrypts with are
// cut off from it, so every operation goes to all servers, and no key is used that a server lacks. Each server keeps its
// keys in a file before it answers. Agents without a server part have the key of their configuration only.

// keyringTimeout bounds the call of one server.
const keyringTimeout = 3 * time.Second

// Keyring lists, installs, uses or removes a gossip key (16, 24 or 32 bytes) on all servers of the region that have not
// left. It returns, for each key, how many servers have it and how many encrypt with it. A server that does not answer
// is an error, except in a list.
func (m *Members) Keyring(ctx context.Context, op string, key []byte) (has, writes map[string]int, servers int, err error) {
	if m.g == nil {
		return nil, nil, 0, structs.Errorf(structs.CodeUnprocessable, "gossip is disabled on this server")
	}
	var others []gossip.Member
	for _, x := range m.g.Servers() {
		if x.Region == m.env.Self.Region && x.ID != m.env.Self.ID && x.Status != gossip.Left {
			others = append(others, x)
		}
	}
	all := func(op string) (answers []*methods.ServerKeyringResponse, bad []string) {
		req := &methods.ServerKeyringRequest{Op: op, Key: key}
		for _, x := range others {
			actx, cancel := context.WithTimeout(ctx, keyringTimeout)
			resp, err := rpc.Invoke(actx, m.env.To(x.RPC), methods.ServerKeyring, rpc.Header{}, req)
			cancel()
			if err != nil {
				bad = append(bad, fmt.Sprintf("%s: %v", x.Name, err))
				continue
			}
			answers = append(answers, resp)
		}
		if resp, err := m.KeyringHere(req); err != nil {
			bad = append(bad, fmt.Sprintf("%s: %v", m.env.Name, err))
		} else {
			answers = append(answers, resp)
		}
		return answers, bad
	}
	if op == "use" {
		answers, bad := all("list")
		for _, r := range answers {
			if !slices.ContainsFunc(r.Keys, func(k []byte) bool { return bytes.Equal(k, key) }) {
				bad = append(bad, r.Server+": the key is not installed")
			}
		}
		if len(bad) > 0 {
			return nil, nil, 0, structs.Errorf(structs.CodeUnprocessable, "the key was not activated, because these servers do not have it: %s; install it on all servers first", strings.Join(bad, "; "))
		}
	}
	answers, bad := all(op)
	if len(bad) > 0 && op != "list" {
		return nil, nil, 0, structs.Errorf(structs.CodeUnprocessable, "%s failed on %d of %d servers: %s; repeat it when they answer", op, len(bad), len(others)+1, strings.Join(bad, "; "))
	}
	has, writes = map[string]int{}, map[string]int{}
	for _, r := range answers {
		for i, k := range r.Keys {
			text := base64.StdEncoding.EncodeToString(k)
			has[text]++
			if i == 0 {
				writes[text]++
			}
		}
	}
	return has, writes, len(others) + 1, nil
}

// KeyringHere carries out one operation on this server's keys.
func (m *Members) KeyringHere(req *methods.ServerKeyringRequest) (*methods.ServerKeyringResponse, error) {
	g := m.g
	if g == nil {
		return nil, structs.Errorf(structs.CodeUnprocessable, "gossip is disabled on this server")
	}
	var err error
	switch req.Op {
	case "list":
	case "install":
		err = g.InstallKey(req.Key)
	case "use":
		err = g.UseKey(req.Key)
	case "remove":
		err = g.RemoveKey(req.Key)
	default:
		return nil, structs.Errorf(structs.CodeInvalid, "no keyring operation %.40q: want list, install, use or remove", req.Op)
	}
	if fsync.Failed(err) {
		m.env.Exit(fmt.Sprintf("the gossip keys could not be synced to disk: %v", err))
	}
	if err != nil {
		return nil, structs.Errorf(structs.CodeUnprocessable, "%v", err)
	}
	return &methods.ServerKeyringResponse{Server: m.env.Name, Keys: g.Keys()}, nil
}
