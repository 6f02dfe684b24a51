package scheduler

// preempt looks for places that others give up for what the decision found none for (D19).
func (d *decision) preempt() {}
