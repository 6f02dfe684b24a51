package queue

import "github.com/muster-sched/muster/structs"

// Demand is what one user asks for under Divide: as many tasks of one shape as he can get, up to Most.
type Demand struct {
	Task   structs.Amount // of one task; nothing negative
	Weight int64          // 0 means 1
	Most   int64          // tasks; 0: no end
}

// Divide shares an amount out by dominant resource fairness (Ghodsi et al., NSDI'11, algorithm 1): again and again the
// user with the least weighted dominant share gets one more task, until nobody's next task fits. It is what Fair does
// with what can be divided finely: give it tasks that are small against the whole. The answer is tasks by user; ties go
// to the user listed first.
func Divide(total structs.Amount, users []Demand) []int64 {
	at := Scene{Total: total}
	got := make([]int64, len(users))
	done := make([]bool, len(users))
	free := total
	for {
		best, least := -1, int64(0)
		for i := range users {
			if done[i] {
				continue
			}
			d, _ := at.Dominant(users[i].Task.Times(got[i]))
			if d /= max(users[i].Weight, 1); best < 0 || d < least {
				best, least = i, d
			}
		}
		if best < 0 {
			return got
		}
		u := &users[best]
		if over, _ := u.Task.Exceeds(free); over != "" || u.Task == (structs.Amount{}) || u.Most > 0 && got[best] == u.Most {
			done[best] = true
			continue
		}
		free = free.Sub(u.Task)
		got[best]++
	}
}
