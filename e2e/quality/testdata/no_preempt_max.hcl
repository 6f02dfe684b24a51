# The default, but for the number of times that a job may be preempted.
queue "default" {
  preempt_max = 1000000
}
