package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func newOperatorUpgrade(e *env) *cobra.Command {
	return e.group("upgrade", "Upgrades of the servers to a new release", "", `
muster operator upgrade status
muster operator upgrade finish`, newUpgradeStatus, newUpgradeFinish)
}

type upgradeOptions struct {
	*env
	form format
	yes  bool
}

func newUpgradeStatus(e *env) *cobra.Command {
	o := &upgradeOptions{env: e}
	c := e.verb("status [options]", "Show which format is in force and what every server speaks", "Show which format of log and state is in force, what every server speaks, and what finishing the upgrade would allow.", `
muster operator upgrade status
muster operator upgrade status -json`, 0, 0, o.status)
	o.form.flags(c)
	return c
}

func (o *upgradeOptions) status(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var st wire.UpgradeStatus
	if _, err := a.get(ctx, "/v1/operator/upgrade", nil, &st); err != nil {
		return err
	}
	if done, err := o.form.done(o.env, &st); done || err != nil {
		return err
	}
	o.kv([][2]string{{"Format in force", strconv.FormatUint(st.Format, 10)}, {"Put in force by", "Muster " + orNone(st.By)}, {"Upgrade", upgradeState(&st)}})
	o.println()
	rows := [][]string{}
	for _, s := range st.Servers {
		rows = append(rows, []string{s.Name, s.Address, orNone(s.Muster), orNone(s.Formats), strconv.FormatUint(s.RPC, 10), strconv.FormatBool(s.Voter), strconv.FormatBool(s.Leader), s.Error})
	}
	o.table("Name|Address|Version|Formats|RPC|Voter|Leader|Error", rows)
	if len(st.Gates) == 0 {
		return nil
	}
	o.println()
	rows = [][]string{}
	for _, g := range st.Gates {
		rows = append(rows, []string{g.Name, strconv.FormatUint(g.Format, 10), map[bool]string{true: "works", false: "waits for finish"}[g.Open], g.Allows})
	}
	o.table("Feature|Format|Status|Allows", rows)
	return nil
}

func upgradeState(st *wire.UpgradeStatus) string {
	switch {
	case st.Why != "":
		return "cannot be finished: " + st.Why
	case st.Next > st.Format:
		return fmt.Sprintf("can be finished: every server speaks format %d. Until then every server can go back to the release before", st.Next)
	}
	return "nothing to finish"
}

func newUpgradeFinish(e *env) *cobra.Command {
	o := &upgradeOptions{env: e}
	c := e.verb("finish [options]", "Let the servers use what the new release added", "Let the servers use what the new release added. Every server must run and speak the new format. Afterwards no server can go back to the release before.", `
muster operator upgrade finish
muster operator upgrade finish -yes`, 0, 0, o.finish)
	o.form.flags(c)
	c.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	return c
}

func (o *upgradeOptions) finish(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	if err := o.confirm(ctx, o.yes, "Finish the upgrade? No server can go back to the release before."); err != nil {
		return err
	}
	var resp wire.UpgradeFinish
	if _, err := a.put(ctx, "/v1/operator/upgrade/finish", nil, nil, &resp); err != nil {
		return fmt.Errorf("finish the upgrade: %w", err)
	}
	if done, err := o.form.done(o.env, &resp); done || err != nil {
		return err
	}
	o.printf("Format %d is in force\n", resp.Format)
	return nil
}
