package gpu

import (
	"context"
	"errors"
	"time"
)

// limitCall is a request about a control group's GPU memory or a power limit, with the channel of its answer.
type limitCall struct {
	request request
	reply   chan limitReply
}

type limitReply struct {
	limit MemoryLimit
	power int64 // milliwatts
	err   error
}

// Limit makes the driver limit the GPU memory of all processes of a control group, named by its directory; -1 removes
// the limit. It waits for the driver, within ctx.
func (n *NVIDIA) Limit(ctx context.Context, group, uuid string, bytes int64) error {
	_, err := n.limits(ctx, request{Op: "limit", Group: group, UUID: uuid, Bytes: bytes})
	return err
}

// LimitOf asks the driver for a control group's limit and use of a GPU.
func (n *NVIDIA) LimitOf(ctx context.Context, group, uuid string) (MemoryLimit, error) {
	return n.limits(ctx, request{Op: "limits", Group: group, UUID: uuid})
}

func (n *NVIDIA) limits(ctx context.Context, r request) (MemoryLimit, error) {
	a, err := n.call(ctx, r)
	return a.limit, err
}

// call passes a request to the child and waits for the answer.
func (n *NVIDIA) call(ctx context.Context, r request) (limitReply, error) {
	l := limitCall{r, make(chan limitReply, 1)}
	select {
	case n.lim <- l:
	case <-ctx.Done():
		return limitReply{}, n.noAnswer(ctx.Err())
	case <-n.done:
		return limitReply{}, errClosed
	}
	select {
	case a := <-l.reply:
		return a, a.err
	case <-ctx.Done():
		return limitReply{}, n.noAnswer(ctx.Err())
	case <-n.done:
		return limitReply{}, errClosed
	}
}

// limit passes a call to the child. A refusal by the driver is the caller's error, not the session's.
func (n *NVIDIA) limit(c *child, l limitCall) (time.Duration, error) {
	c.next++
	l.request.ID = c.next
	fail := func(err error) error {
		l.reply <- limitReply{err: err}
		return err
	}
	if err := writeMessage(c.in, l.request); err != nil {
		return 0, fail(c.died())
	}
	m, rest, err := n.await(c, n.cfg.ReplyWithin, func(m message) bool { return m.ID == c.next })
	switch {
	case rest > 0:
		l.reply <- limitReply{err: errors.New("the NVIDIA driver was let go on request")}
		return rest, nil
	case err != nil:
		return 0, fail(err)
	case m.Err != "":
		l.reply <- limitReply{err: errors.New(m.Err)}
	case l.request.Op == "power":
		l.reply <- limitReply{power: m.PowerMW}
	case m.Limit == nil:
		l.reply <- limitReply{err: errors.New("the process that asks the NVIDIA driver gave no answer")}
	default:
		l.reply <- limitReply{limit: *m.Limit}
	}
	return 0, nil
}
