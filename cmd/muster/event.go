package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func newEvent(e *env) *cobra.Command {
	return e.group("event", "What happens in the cluster", "", `muster event stream -topic Job:example`, newEventStream)
}

type eventStreamOptions struct {
	*env
	form   format
	topics []string
	index  uint64
}

func newEventStream(e *env) *cobra.Command {
	o := &eventStreamOptions{env: e}
	c := e.verb("stream [options]", "Follow the event stream", "Follow the event stream, one line an event. Ctrl-C ends it.", `
muster event stream
muster event stream -topic Job:example -topic 'Allocation:*'
muster event stream -json | jq .Events[].Type`, 0, 0, o.run)
	o.form.flags(c)
	c.Flags().StringArrayVar(&o.topics, "topic", nil, "TOPIC:KEY, such as Job:example or 'Node:*'; may be repeated; everything if left out")
	c.Flags().Uint64Var(&o.index, "index", 0, "events after this index, as far back as they are kept; 0: all that are kept")
	return c
}

func (o *eventStreamOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	q := url.Values{}
	for _, t := range o.topics {
		if !strings.Contains(t, ":") {
			t += ":*"
		}
		q.Add("topic", t)
	}
	if o.index > 0 {
		q.Set("index", strconv.FormatUint(o.index, 10))
	}
	rc, _, err := a.stream(ctx, http.MethodGet, "/v1/event/stream", q, nil)
	if err != nil {
		return err
	}
	defer rc.Close()
	dec := json.NewDecoder(bufio.NewReader(rc))
	for {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			if ctx.Err() != nil || err == io.EOF {
				return nil
			}
			return fmt.Errorf("event stream: %w", err)
		}
		if err := o.frame(raw); err != nil {
			return err
		}
	}
}

func (o *eventStreamOptions) frame(raw json.RawMessage) error {
	var f struct {
		wire.Events
		Error string
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		return fmt.Errorf("a frame of the event stream is not understood: %w", err)
	}
	switch {
	case f.Error != "":
		return fmt.Errorf("event stream: %s (index %d)", f.Error, f.Index)
	case len(f.Events.Events) == 0: // a heartbeat
		return nil
	case o.form.json:
		o.printf("%s\n", raw)
		return nil
	case o.form.tmpl != "":
		return o.template(o.form.tmpl, &f.Events)
	}
	for _, e := range f.Events.Events {
		key := e.Key
		if e.Namespace != "" && e.Namespace != "default" {
			key = e.Namespace + "/" + key
		}
		o.printf("%-8d %-11s %-24s %s %s\n", e.Index, e.Topic, e.Type, shortID(key, false), eventText(&e))
	}
	return nil
}

// eventText returns a short description of the change.
func eventText(e *wire.Event) string {
	m, _ := e.Payload[e.Topic].(map[string]any)
	str := func(k string) string { s, _ := m[k].(string); return s }
	switch e.Topic {
	case wire.TopicJob:
		return str("Status")
	case wire.TopicAllocation:
		return strings.TrimSpace(fmt.Sprintf("%s on %s: %s/%s", str("Name"), str("NodeName"), str("DesiredStatus"), str("ClientStatus")))
	case wire.TopicEvaluation:
		return strings.TrimSpace(fmt.Sprintf("%s by %s: %s", str("JobID"), str("TriggeredBy"), str("Status")))
	case wire.TopicNode:
		return strings.TrimSpace(fmt.Sprintf("%s: %s, %s", str("Name"), str("Status"), str("SchedulingEligibility")))
	}
	return str("Name")
}
