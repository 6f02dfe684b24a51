package structs

import (
	"cmp"
	"time"
)

// Calendar periods of a budget, in UTC.
const (
	PeriodDay   = "day"
	PeriodWeek  = "week" // from Monday
	PeriodMonth = "month"
)

// gpuHour is a GPU hour in thousandths of GPUs times seconds, the unit of QueueUsage.
const gpuHour = 1000 * 3600

// BudgetPeriod returns the period after which the queue's GPU hours count from zero again; "" for a queue without a budget.
func (q *Queue) BudgetPeriod() string {
	if q == nil || q.GPUHoursMax == 0 && q.GPUHoursUserMax == 0 {
		return ""
	}
	return cmp.Or(q.GPUHoursPeriod, PeriodMonth)
}

// PeriodOf returns the beginning and the end of the calendar period that contains a time.
func PeriodOf(t LogTime, period string) (from, to LogTime) {
	at := t.Time().UTC()
	year, month, day := at.Date()
	var first time.Time
	months, days := 0, 0
	switch period {
	case PeriodDay:
		first, days = time.Date(year, month, day, 0, 0, 0, 0, time.UTC), 1
	case PeriodWeek:
		monday := (int(at.Weekday()) + 6) % 7 // days since
		first, days = time.Date(year, month, day-monday, 0, 0, 0, 0, time.UTC), 7
	default:
		first, months = time.Date(year, month, 1, 0, 0, 0, 0, time.UTC), 1
	}
	return LogTime(first.UnixNano()), LogTime(first.AddDate(0, months, days).UnixNano())
}

// begin makes the row count from the beginning of the period that contains t. A row that did not count yet does so from t.
// It must be called before Held changes.
func (u *QueueUsage) begin(t LogTime, period string) {
	if period == "" {
		u.PeriodAt, u.PeriodBase = 0, 0
		return
	}
	from, _ := PeriodOf(t, period)
	switch {
	case u.PeriodAt == 0:
		u.PeriodAt, u.PeriodBase = t, u.TotalAt(t).GPUMilli
	case u.PeriodAt < from:
		u.PeriodAt, u.PeriodBase = from, u.TotalAt(max(from, u.At)).GPUMilli
	}
}

// PeriodUse returns what was used in the period that contains t, in thousandths of GPUs times seconds. t is not before u.At.
func (u *QueueUsage) PeriodUse(t LogTime, period string) int64 {
	if period == "" || u.PeriodAt == 0 {
		return 0
	}
	n := *u
	n.begin(t, period)
	return max(0, n.TotalAt(t).GPUMilli-n.PeriodBase)
}

// GPUHours returns thousandths of GPUs times seconds in GPU hours, rounded up.
func GPUHours(milliSeconds int64) int64 { return (max(milliSeconds, 0) + gpuHour - 1) / gpuHour }

// OfGPUHours is the inverse of GPUHours.
func OfGPUHours(hours int64) int64 { return hours * gpuHour }
