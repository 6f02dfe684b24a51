package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/sim"
	"github.com/muster-sched/muster/structs"
)

// simInputs are files with the objects of a real cluster, for a replay. "": none.
type simInputs struct {
	queues, quotas, namespaces, reservations, events string
	start                                            string // RFC 3339
	storages                                         string // limits on saves
	saves                                            int64  // the same for the cluster
}

// read reads the files as the commands do that apply them.
func (in *simInputs) read(e *env) (*sim.Cluster, error) {
	c := &sim.Cluster{Events: in.events, MaxCheckpoints: in.saves}
	if in.storages != "" {
		var err error
		if c.CheckpointStorage, err = readSaves(nil, in.storages); err != nil {
			return nil, fmt.Errorf("-checkpoint-storage %w", err)
		}
	}
	if in.queues != "" {
		list, err := e.queueSpecs(in.queues)
		if err != nil {
			return nil, err
		}
		for _, w := range list {
			q, err := w.ToStructs()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", in.queues, err)
			}
			c.Queues = append(c.Queues, q)
		}
	}
	if err := in.readQuotas(e, c); err != nil {
		return nil, err
	}
	return c, in.readReservations(e, c)
}

func (in *simInputs) readQuotas(e *env, c *sim.Cluster) error {
	if (in.quotas == "") != (in.namespaces == "") {
		return errors.New("a quota limits the namespaces that name it: give both -quotas and -namespaces")
	}
	if in.quotas == "" {
		return nil
	}
	specs, err := e.quotaSpecs(in.quotas)
	if err != nil {
		return err
	}
	for _, s := range specs {
		w := &wire.QuotaSpec{}
		if err := s.Decode("quota", w); err != nil {
			return err
		}
		q, err := w.ToStructs()
		if err != nil {
			return fmt.Errorf("%s: %w", in.quotas, err)
		}
		c.Quotas = append(c.Quotas, q)
	}
	specs, err = e.specBlocks(in.namespaces, "namespace")
	if err != nil {
		return err
	}
	c.Namespaces = map[string]string{}
	for _, s := range specs {
		w := &wire.Namespace{}
		if err := s.Decode("namespace", w); err != nil {
			return err
		}
		c.Namespaces[w.Name] = w.Quota
	}
	return nil
}

func (in *simInputs) readReservations(e *env, c *sim.Cluster) error {
	start := sim.Epoch.Time()
	if in.start != "" {
		at, err := time.Parse(time.RFC3339, in.start)
		if err != nil {
			return fmt.Errorf("-start is %q; want a time such as 2026-01-31T08:00:00Z", in.start)
		}
		start = at
	}
	if in.reservations == "" {
		return nil
	}
	list, err := e.reservationSpecs(in.reservations)
	if err != nil {
		return err
	}
	shift := sim.Epoch.Sub(structs.LogTimeOf(start))
	for _, w := range list {
		if in.start == "" && (!w.Start.IsZero() || !w.End.IsZero()) {
			return fmt.Errorf("reservation %q has dates: say with -start when the trace begins", w.ID)
		}
		names := w.Nodes
		w.Nodes = nil
		r, err := w.ToStructs(start)
		if err != nil {
			return fmt.Errorf("%s: %w", in.reservations, err)
		}
		r.Start, r.End = r.Start.Add(shift), r.End.Add(shift)
		c.Reservations = append(c.Reservations, sim.Reserve{Reservation: r, Names: names})
	}
	return nil
}
