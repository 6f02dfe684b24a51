package runner

import (
	"context"
	"errors"

	"github.com/muster-sched/muster/client/driver"
)

// elsewhere returns the driver if its tasks have their own root, or nil.
func elsewhere(d driver.Driver) driver.DirsElsewhere {
	e, _ := d.(driver.DirsElsewhere)
	return e
}

// errNotPrepared ends a preparation because the task must not start any more.
var errNotPrepared = errors.New("stopped before it started")

// prepareDriver lets the driver do slow work, such as fetching an image. A request to stop the task cancels it.
func prepareDriver(ctx context.Context, a *attempt) error {
	p, ok := a.driver.(driver.Preparer)
	if !ok {
		return nil
	}
	tell := func(message string) { a.note(event(EventDriver, message)) }
	return a.interruptibly(ctx, func(ctx context.Context) error { return p.Prepare(ctx, &a.config, tell) })
}
