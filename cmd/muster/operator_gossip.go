package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

const gossipKeyBytes = 32 // AES-256

func newOperatorGossip(e *env) *cobra.Command {
	return e.group("gossip", "The gossip between agents", "", `muster operator gossip keyring generate`, func(e *env) *cobra.Command {
		return e.group("keyring", "The keys that encrypt gossip", "Keys that encrypt gossip. To change the key without a pause: install the new one, use it, remove the old one. The servers keep their keys across restarts, whatever server.encrypt says then; put the new key there for new servers, and for nodes, which these commands do not reach.", `
muster operator gossip keyring generate
muster operator gossip keyring list`, newKeyringGenerate, newKeyringList, newKeyringDo("install", "Add a key to all servers, for reading"),
			newKeyringDo("use", "Make an installed key the one to write with"), newKeyringDo("remove", "Remove a key that is not in use"))
	})
}

type keyringOptions struct {
	*env
	form format
	op   string
}

func newKeyringGenerate(e *env) *cobra.Command {
	o := &keyringOptions{env: e}
	c := e.verb("generate", "Make a new gossip key", "Make a new gossip key, for server { encrypt = \"...\" } of the configuration. No agent is asked.", `muster operator gossip keyring generate`, 0, 0, o.generate)
	o.form.flags(c)
	return c
}

func (o *keyringOptions) generate(context.Context, []string) error {
	b := make([]byte, gossipKeyBytes)
	if _, err := rand.Read(b); err != nil {
		return fmt.Errorf("read random bytes: %w", err)
	}
	key := base64.StdEncoding.EncodeToString(b)
	if done, err := o.form.done(o.env, map[string]string{"Key": key}); done || err != nil {
		return err
	}
	o.println(key)
	return nil
}

func newKeyringList(e *env) *cobra.Command {
	o := &keyringOptions{env: e}
	c := e.verb("list [options]", "List the gossip keys, on how many servers each is installed, and on how many it is in use", "", `muster operator gossip keyring list`, 0, 0, o.list)
	o.form.flags(c)
	return c
}

func (o *keyringOptions) list(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var resp wire.KeyringResponse
	if _, err := a.get(ctx, "/v1/agent/keyring/list", nil, &resp); err != nil {
		return err
	}
	if done, err := o.form.done(o.env, &resp); done || err != nil {
		return err
	}
	if len(resp.Keys) == 0 {
		o.println("No gossip keys: gossip is not encrypted")
		return nil
	}
	rows := [][]string{}
	for _, k := range sortedKeys(resp.Keys) {
		row := []string{k}
		for _, n := range []int{resp.Keys[k], resp.PrimaryKeys[k]} {
			row = append(row, strconv.Itoa(n)+"/"+strconv.Itoa(resp.NumNodes))
		}
		rows = append(rows, row)
	}
	o.table("Key|Members|In Use", rows)
	return nil
}

func newKeyringDo(op, short string) func(*env) *cobra.Command {
	return func(e *env) *cobra.Command {
		o := &keyringOptions{env: e, op: op}
		c := e.verb(op+" [options] KEY", short, "", "muster operator gossip keyring "+op+" HtLRbzCBTdZ8G2IlTqYyzNQVTWHFfmy0nm2oyRMGZSQ=", 1, 1, o.do)
		o.form.flags(c)
		return c
	}
}

func (o *keyringOptions) do(ctx context.Context, args []string) error {
	b, err := base64.StdEncoding.DecodeString(args[0])
	if err != nil || (len(b) != 16 && len(b) != 24 && len(b) != 32) {
		return fmt.Errorf("the key is not 16, 24 or 32 bytes in base64; muster operator gossip keyring generate makes one")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	var resp wire.KeyringResponse
	if _, err := a.put(ctx, "/v1/agent/keyring/"+o.op, nil, wire.KeyringRequest{Key: args[0]}, &resp); err != nil {
		return fmt.Errorf("%s the gossip key: %w", o.op, err)
	}
	if done, err := o.form.done(o.env, &resp); done || err != nil {
		return err
	}
	o.println(map[string]string{"install": "Key installed", "use": "Key in use", "remove": "Key removed"}[o.op])
	return nil
}
