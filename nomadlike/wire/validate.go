package wire

// Validate checks a canonical job.
func (j *Job) Validate() Problems { return Problems{} }
