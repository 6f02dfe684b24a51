package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

func newReservation(e *env) *cobra.Command {
	return e.group("reservation", "Nodes or amounts kept free for a time", "A reservation keeps nodes, or an amount, free for some users or queues in a window of time, or for maintenance.", `
muster reservation apply maintenance.hcl
muster reservation list`, newReservationApply, newReservationInspect, newReservationList, newReservationDelete)
}

func newReservationApply(e *env) *cobra.Command {
	o := &objectOptions{env: e}
	c := e.verb("apply [options] FILE", "Make or change reservations", "Make or change reservations from a file in HCL or JSON, which names nodes by name or ID; \"-\" is standard input.", `muster reservation apply maintenance.hcl`, 1, 1, func(ctx context.Context, args []string) error {
		list, err := o.reservationSpecs(args[0])
		if err != nil {
			return err
		}
		a, err := o.api()
		if err != nil {
			return err
		}
		for _, r := range list {
			if err := a.nodeIDs(ctx, r.Nodes); err != nil {
				return fmt.Errorf("apply reservation %q: %w", r.ID, err)
			}
			if _, err := a.put(ctx, "/v1/reservations", nil, r, nil); err != nil {
				return fmt.Errorf("apply reservation %q: %w", r.ID, err)
			}
			o.printf("Reservation %q applied\n", r.ID)
		}
		return nil
	})
	return files(c, "hcl", "json")
}

// nodeIDs replaces names of nodes by IDs. A name counts before the beginning of an ID.
func (a *api) nodeIDs(ctx context.Context, nodes []string) error {
	var all []*wire.NodeListStub
	for i, text := range nodes {
		if _, err := structs.ParseID[structs.NodeID](text); err == nil {
			continue
		}
		if all == nil {
			if _, err := a.get(ctx, "/v1/nodes", nil, &all); err != nil {
				return fmt.Errorf("look for node %q: %w", text, err)
			}
		}
		n, err := nodeNamed(all, text)
		if err != nil {
			return err
		}
		if n == nil {
			if n, err = a.nodeStub(ctx, text); err != nil {
				return err
			}
		}
		nodes[i] = n.ID
	}
	return nil
}

// reservationSpecs reads the reservations of a file.
func (e *env) reservationSpecs(path string) ([]*wire.Reservation, error) {
	specs, err := e.specBlocks(path, "reservation")
	if err != nil {
		return nil, err
	}
	list := make([]*wire.Reservation, len(specs))
	for i, s := range specs {
		list[i] = &wire.Reservation{}
		if err := s.Decode("reservation", list[i]); err != nil {
			return nil, err
		}
		if list[i].ID == "" {
			list[i].ID = list[i].Name
		}
		list[i].Name = ""
	}
	return list, nil
}

func newReservationInspect(e *env) *cobra.Command {
	return objectInspect(e, "reservation", "/v1/reservation/", "maintenance", func() any { return &wire.Reservation{} })
}

func newReservationDelete(e *env) *cobra.Command {
	return objectDelete(e, "reservation", "/v1/reservation/", "maintenance", "Delete a reservation")
}

func newReservationList(e *env) *cobra.Command {
	o := &objectOptions{env: e}
	c := e.verb("list [options]", "List reservations, of operators and of jobs that wait", "", "muster reservation list\nmuster reservation list -o wide", 0, 0, func(ctx context.Context, _ []string) error {
		list, done, err := fetchList(ctx, &o.form, o.env, "/v1/reservations", nil, "No reservations", func(r *wire.Reservation) string { return r.ID })
		if done || err != nil {
			return err
		}
		head, rows := "NAME|POOL|FROM|UNTIL|WHAT|FOR", [][]string{}
		if o.form.wide {
			head += "|NAMESPACE|PLACES|BASIS|NODES|DESCRIPTION"
		}
		for _, r := range list {
			what, who := plural(int64(len(r.Nodes)), "node"), strings.Join(append(append([]string{}, r.Users...), r.Queues...), ", ")
			if r.Amount != nil {
				what = amountText(r.Amount)
			}
			switch {
			case r.Maintenance:
				who = "maintenance"
			case r.JobID != "":
				who = "job " + r.JobID
			}
			row := []string{r.ID, orDash(r.NodePool), at(r.Start), at(r.End), what, orDash(who)}
			if o.form.wide {
				places, nodes := "-", []string{}
				if r.Allocations > 0 {
					places = strconv.Itoa(r.Allocations)
				}
				for _, n := range r.Nodes {
					nodes = append(nodes, shortID(n, false))
				}
				row = append(row, orDash(r.Namespace), places, orDash(r.Basis), orDash(strings.Join(nodes, ",")), orDash(r.Description))
			}
			rows = append(rows, row)
		}
		o.table(head, rows)
		return nil
	})
	o.form.listFlags(c)
	o.form.wideFlag(c)
	return c
}
