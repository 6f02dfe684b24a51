package sim

import (
	"strings"
	"time"

	"github.com/muster-sched/muster/scheduler/predict"
	"github.com/muster-sched/muster/structs"
)

// Learner trains a predictor of the scheduler with the jobs that end in a simulation, and gives its predictions to
// decisions.
type Learner struct {
	By     predict.Predictor
	Errors predict.Errors
	// Once keeps the prediction made when a job arrives, as in published studies.
	Once bool
	// Nameless ignores the names of jobs, for traces in which they have no meaning.
	Nameless bool
	users    map[string]*learnedUser
	ended    uint64 // ended jobs that the predictor learned from
}

// learned is a Learner's state of a job: the version of its user's history that the prediction is based on.
type learned struct {
	by      *Learner
	work    predict.Work
	user    *learnedUser
	version uint64
}

// learnedUser is the version of a user's history when that many jobs had ended.
type learnedUser struct {
	version, ended uint64
}

// NewLearner returns a Learner for a predictor.
func NewLearner(by predict.Predictor) *Learner {
	return &Learner{By: by, users: map[string]*learnedUser{}, ended: 1}
}

// version returns the version of a user's history. It is computed once after each end, not once per waiting job.
func (r *Learner) version(x *learned) uint64 {
	if x.user.ended != r.ended {
		x.user.version, x.user.ended = r.By.Version(x.work.User), r.ended
	}
	return x.user.version
}

func (r *Learner) of(l *Live) *learned {
	x := l.learned
	if x == nil || x.by != r {
		j := l.Job.Job
		x = &learned{by: r, work: predict.Work{User: j.Submitter.Name, Queue: string(j.Queue), Size: l.Size, Expected: j.Runtime.Expected, Limit: limitOf(j)}}
		if !r.Nameless {
			x.work.Name = strings.Map(func(c rune) rune { // job-17 and job-18 are of the same kind
				if c >= '0' && c <= '9' {
					return -1
				}
				return c
			}, j.Name)
		}
		if x.user = r.users[x.work.User]; x.user == nil {
			x.user = &learnedUser{}
			r.users[x.work.User] = x.user
		}
		l.learned = x
	}
	return x
}

func limitOf(j *structs.Job) time.Duration {
	longest := time.Duration(0)
	for _, g := range j.Groups {
		longest = max(longest, j.RunLimit(g))
	}
	return longest
}

// Predict returns the expected run time of a job that arrived.
func (r *Learner) Predict(l *Live, _ structs.LogTime) time.Duration {
	r.Refresh(l)
	return l.work.Expect
}

// Refresh updates the prediction of a waiting job.
func (r *Learner) Refresh(l *Live) {
	x := r.of(l)
	v := r.version(x)
	if x.version == v || r.Once && x.version > 0 {
		return
	}
	x.version = v
	e := r.By.Predict(&x.work)
	l.work.Expect, l.work.Cost = e.Expect, e.Cost
}

// Learn is called for a job that ended.
func (r *Learner) Learn(l *Live, _ structs.LogTime) {
	x := r.of(l)
	r.Errors.Add(l.work.Expect, l.Run)
	r.By.Ended(&x.work, l.Run)
	r.ended++
}

// Turnover returns the mean time until held resources are released; 0 if the predictor does not compute it.
func (r *Learner) Turnover() time.Duration {
	if t, ok := r.By.(interface{ Turnover() time.Duration }); ok {
		return t.Turnover()
	}
	return 0
}

// truth is a predictor that returns the true run times.
type truth struct{}

func (truth) Predict(l *Live, now structs.LogTime) time.Duration { return max(l.Left(now), 0) }
func (truth) Learn(*Live, structs.LogTime)                       {}

// report adds the accuracy of the predictions to a result, if there were any.
func (r *Learner) report(to *Result) {
	if r == nil || r.Errors.N == 0 {
		return
	}
	to.Set("prediction_error", float64(r.Errors.Relative())/10, "%")
	to.Set("prediction_factor", float64(r.Errors.MedianFactor())/1000, "")
	to.Set("under_predicted", 100*float64(r.Errors.Under)/float64(r.Errors.N), "%")
}
