package runner

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/muster-sched/muster/client/allocdir"
	"github.com/muster-sched/muster/client/driver"
)

// elsewhere returns the driver if its tasks have their own root, or nil.
func elsewhere(d driver.Driver) driver.DirsElsewhere {
	e, _ := d.(driver.DirsElsewhere)
	return e
}

// openUp lets any user of the task's own root use its directories. The directory around them keeps other users of the
// machine out; the task does not traverse it.
func openUp(t allocdir.Task, who allocdir.Owner) error {
	if err := os.Chmod(t.Root, 0o700); err != nil {
		return err
	}
	if who.UID >= 0 {
		return nil
	}
	for _, dir := range []string{t.Local, t.Secrets} {
		info, err := os.Lstat(dir)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return fmt.Errorf("%s is not a directory", dir)
		}
		if err := os.Chmod(dir, 0o777); err != nil {
			return err
		}
	}
	return nil
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
