package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/internal/identity"
	"github.com/muster-sched/muster/nomadlike/wire"
)

func newOperatorRoot(e *env) *cobra.Command {
	return e.group("root", "The keys that encrypt variables and sign identities", "", `muster operator root keyring list`, func(e *env) *cobra.Command {
		return e.group("keyring", "The keys that encrypt variables and sign identities", "Keys that encrypt variables (aes256-gcm) or sign the identities of tasks (RS256). They are in the keystores of the servers; here are their names and states only.", `
muster operator root keyring list
muster operator root keyring rotate -full
muster operator root keyring remove 3f6c3a5a8d0f4a43a5a9d3b9f1d0c2e7`, newRootKeyList, newRootKeyRotate, newRootKeyRemove)
	})
}

type rootKeyOptions struct {
	*env
	form format
	full bool
}

func newRootKeyList(e *env) *cobra.Command {
	o := &rootKeyOptions{env: e}
	c := e.verb("list [options]", "List the keys that encrypt variables and sign identities", "", `muster operator root keyring list`, 0, 0, o.list)
	o.form.listFlags(c)
	return c
}

func (o *rootKeyOptions) list(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var keys []*wire.RootKeyMeta
	if _, err := a.get(ctx, "/v1/operator/keyring/keys", nil, &keys); err != nil {
		return err
	}
	if done, err := listed(&o.form, o.env, keys, "", func(k *wire.RootKeyMeta) string { return k.KeyID }); done || err != nil {
		return err
	}
	if len(keys) == 0 {
		o.println("No keys: the first variable and the first identity make theirs")
		return nil
	}
	o.keys(keys)
	o.warn(missingKeys(keys))
	return nil
}

// missingKeys says which servers lack the files of keys, and what to do; "" if none is known to.
func missingKeys(keys []*wire.RootKeyMeta) string {
	var b strings.Builder
	unknown := []string(nil)
	for _, k := range keys {
		if len(k.Missing) > 0 {
			fmt.Fprintf(&b, "The file of key %s is missing or damaged on %s: copy server/keystore/%s.key into the data directory there, from another server or a backup\n", k.KeyID, strings.Join(k.Missing, ", "), k.KeyID)
		}
		if len(k.Unknown) > 0 {
			unknown = k.Unknown
		}
	}
	if b.Len() > 0 {
		b.WriteString("A server that was not restarted since has the key in memory. If there is no file of it, rotate before any is restarted: muster operator root keyring rotate -full\n")
	}
	if len(unknown) > 0 {
		fmt.Fprintf(&b, "Whether %s has the files is not known: no answer\n", strings.Join(unknown, ", "))
	}
	return b.String()
}

func (o *rootKeyOptions) keys(keys []*wire.RootKeyMeta) {
	rows := [][]string{}
	for _, k := range keys {
		rows = append(rows, []string{k.KeyID, k.Algorithm, k.State, strconv.FormatInt(k.Variables, 10), time.Unix(0, k.CreateTime).UTC().Format(time.RFC3339)})
	}
	o.table("Key|Algorithm|State|Variables|Create Time", rows)
}

func newRootKeyRotate(e *env) *cobra.Command {
	o := &rootKeyOptions{env: e}
	c := e.verb("rotate [options]", "Encrypt variables and sign identities with new keys", "Make a new key on all servers and encrypt with it what is written from now on. Earlier variables keep their key unless -full is given. If tasks have identities, their key is replaced, too; the earlier one verifies tokens until they expire.", `
muster operator root keyring rotate
muster operator root keyring rotate -full`, 0, 0, o.rotate)
	c.Flags().BoolVar(&o.full, "full", false, "also encrypt all existing variables again, in the background")
	o.form.flags(c)
	return c
}

func (o *rootKeyOptions) rotate(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	q := url.Values{}
	queryFlag(q, "full", o.full)
	var resp wire.RotateResponse
	if _, err := a.put(ctx, "/v1/operator/keyring/rotate", q, nil, &resp); err != nil {
		return fmt.Errorf("rotate the keys: %w", err)
	}
	if done, err := o.form.done(o.env, &resp); done || err != nil {
		return err
	}
	if resp.Key != nil {
		o.printf("Key %s encrypts variables from now on\n", resp.Key.KeyID)
	}
	var keys []*wire.RootKeyMeta // the answer, which is Nomad's, has room for one
	if _, err := a.get(ctx, "/v1/operator/keyring/keys", nil, &keys); err != nil {
		return fmt.Errorf("the keys were replaced; read which one signs identities: %w", err)
	}
	for _, k := range keys {
		if k.Algorithm == identity.Algorithm && k.State == "active" {
			o.printf("Key %s signs identities from now on\n", k.KeyID)
		}
	}
	if o.full {
		o.hint("variables are encrypted again in the background: muster operator root keyring list shows how many are left under each key")
	}
	return nil
}

func newRootKeyRemove(e *env) *cobra.Command {
	o := &rootKeyOptions{env: e}
	return e.verb("remove KEY", "Remove a key that no variable is encrypted with", "Remove a key that no variable is encrypted with, and its file from the keystores, or an earlier key for identities: tokens signed with it are then invalid. Snapshots from the time of the key cannot be read without it: keep a copy with them.", `muster operator root keyring remove 3f6c3a5a8d0f4a43a5a9d3b9f1d0c2e7`, 1, 1, o.remove)
}

func (o *rootKeyOptions) remove(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	if _, err := a.delete(ctx, "/v1/operator/keyring/key/"+url.PathEscape(args[0]), nil, nil); err != nil {
		return fmt.Errorf("remove key %q: %w", args[0], err)
	}
	o.printf("Key %s removed\n", args[0])
	return nil
}
