package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func newScancel(e *env) *cobra.Command {
	var (
		pick slurmPick
		yes  bool
	)
	return e.slurmVerb("scancel [options] [ID...]", "Stop jobs as Slurm's scancel does",
		`Stop jobs by the names that sbatch printed or the numbers of SLURM_JOB_ID, or all of -u USER, --me, -n NAME, -p PARTITION (a node pool), -A ACCOUNT
(a queue) and -t STATE (pending or running); all that are given must hold. A selection asks, with the number of jobs and GPUs. Where there is no
terminal to ask at, --yes is needed.`, `
muster scancel train-1a2b
muster scancel --me -t PENDING --yes`, "muster job stop -help; a signal is sent by muster alloc signal, one index of an array is ended by muster alloc stop",
		func(f *pflag.FlagSet) {
			pick = slurmPick{}
			pick.flags(f)
			f.StringVarP(&pick.states, "state", "t", "", "")
			f.BoolVar(&yes, "yes", false, "")
			f.BoolP("quiet", "Q", false, "")
		}, func(ctx context.Context, a *api, words []string) error {
			selects := pick.me || pick.user+pick.name+pick.partition+pick.account+pick.states != ""
			if len(words) == 0 && !selects {
				return errors.New("scancel takes a job, or -u, --me, -n, -p, -A or -t")
			}
			if err := pick.users(ctx, a); err != nil {
				return err
			}
			state := strings.ToUpper(pick.states)
			if state != "" && !slices.Contains([]string{"PD", "PENDING", "R", "RUNNING"}, state) {
				return fmt.Errorf("-t %s: want PENDING or RUNNING", pick.states)
			}
			list, err := slurmJobs(ctx, a)
			if err != nil {
				return err
			}
			var meant []*wire.JobListStub
			for _, j := range list {
				if slurmLive(j) && pick.picks(j) && (state == "" || strings.HasPrefix(state, "P") == (j.Status == "pending")) &&
					(len(words) == 0 || slices.ContainsFunc(words, func(id string) bool { return slurmIs(j, id) })) {
					meant = append(meant, j)
				}
			}
			for _, id := range words {
				same := slices.DeleteFunc(slices.Clone(meant), func(j *wire.JobListStub) bool { return !slurmIs(j, id) })
				if len(same) > 1 {
					return fmt.Errorf("job %q exists in %d namespaces: choose one with -namespace", id, len(same))
				}
				if !slices.ContainsFunc(meant, func(j *wire.JobListStub) bool { return slurmIs(j, id) }) {
					if name, index, is := strings.Cut(id, "_"); is && index != "" && strings.Trim(index, "0123456789") == "" {
						return fmt.Errorf("%s: one index of an array is ended by  muster alloc stop ALLOCATION  (muster job allocs %s lists them)", id, word(name))
					}
					return fmt.Errorf("%s: no such job waits or runs (muster squeue lists them)", id)
				}
			}
			o := &jobStopOptions{env: e, yes: yes}
			switch {
			case len(meant) == 0:
				return nil
			case yes:
			case len(words) == 0:
				question, err := o.blast(ctx, a, meant)
				if err != nil {
					return err
				}
				if err := e.confirm(ctx, false, "%s", question); err != nil {
					return err
				}
			default:
				for _, j := range meant {
					if err := o.sure(ctx, a, j.ID, j); err != nil {
						return err
					}
				}
			}
			var errs []error
			for _, j := range meant {
				_, err := o.deregister(ctx, a, j)
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		})
}
