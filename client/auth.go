package client

import "github.com/muster-sched/muster/internal/methods"

// Auth proves the node, for calls that the agent makes on a user's behalf.
func (c *Client) Auth() methods.NodeAuth { return c.auth() }
