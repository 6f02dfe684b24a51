package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
)

type predictionsOptions struct {
	*env
	form format
}

func newSchedulerPredictions(e *env) *cobra.Command {
	o := &predictionsOptions{env: e}
	c := e.verb("predictions [options]", "Show how accurate predicted run times were",
		"Show how accurate the scheduler's predicted run times were, for the newest 8,000 to 16,000 ended batch jobs that are kept.\nThe scheduler plans with them: the order of the queue, reservations and backfilling.", `
muster operator scheduler predictions
muster operator scheduler predictions -json`, 0, 0, o.run)
	o.form.flags(c)
	return c
}

func (o *predictionsOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var p nomadlike.Predictions
	if _, err := a.get(ctx, "/v1/operator/scheduler/predictions", nil, &p); err != nil {
		return err
	}
	if done, err := o.form.done(o.env, &p); done || err != nil {
		return err
	}
	if p.Ended == 0 {
		o.println("No batch work has ended yet: nothing was predicted")
		return nil
	}
	o.println(predictionText(&p))
	return nil
}

// predictionText describes the accuracy of predictions.
func predictionText(p *nomadlike.Predictions) string {
	text := fmt.Sprintf("Run times: predicted for %.0f%% of %d pieces of work that ended", 100*p.PredictedShare, p.Ended)
	if p.Predicted > 0 {
		text += fmt.Sprintf("; median error x%.2f, mean error %s (%.0f%% of the run times), underestimated %.0f%%", p.MedianFactor, span(time.Duration(p.MeanAbsolute)), 100*p.RelativeError, 100*p.UnderestimatedShare)
	}
	return text
}
