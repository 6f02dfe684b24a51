package structs

import (
	"fmt"
	"strconv"
	"strings"
)

// Text returns what stands in the way, in a few words: "GPU memory", "queue a: running jobs", "nvidia/gpu reserved for train".
func (o Obstacle) Text() string {
	text := o.What()
	switch o.Holder.Kind {
	case HolderNone:
	case HolderJob:
		text += " reserved for " + o.Holder.Name
	default:
		if o.Dimension < dimensionCount && strings.Contains(dimensions[o.Dimension].text, "{holder}") {
			break
		}
		if text != "" {
			text = ": " + text
		}
		text = o.Limit() + text
	}
	return text
}

// Limit returns the owner of the limit: "queue a, user eve".
func (o Obstacle) Limit() string {
	if user := o.User(); user != "" {
		return o.Holder.String() + ", user " + user
	}
	return o.Holder.String()
}

// User returns the submitter for whom a queue has the limit; "": it is a limit of all submitters together, or no limit.
func (o Obstacle) User() string {
	if o.Holder.Kind != HolderQueue {
		return ""
	}
	switch o.Dimension {
	case DimensionRunningJobs, DimensionGPUMinutes, DimensionGPUHours, DimensionGPUModel, DimensionGPU, DimensionGPUMemory, DimensionCPU, DimensionMemory:
		return o.Subject
	}
	return ""
}

// What is Text without the limit or reservation: "running jobs".
func (o Obstacle) What() string {
	if o.Dimension >= dimensionCount {
		return ""
	}
	text := o.expand(dimensions[o.Dimension].text)
	switch o.Dimension {
	case DimensionDevices, DimensionGPU, DimensionCores:
		if o.Subject != "" && o.User() == "" {
			text = o.Subject
		}
		if o.Count > 0 {
			text += fmt.Sprintf(" and %d cores", o.Count)
		}
		if o.Detail != "" {
			text += " in one " + o.Detail
		}
	case DimensionMembers, DimensionMembersStandbys:
		if o.Detail != "" {
			text += " in one " + o.Detail
		}
		if o.Subject != "" {
			text += " (" + o.Subject + ")"
		}
	case DimensionPowerLimit:
		if o.Detail == "" {
			return text + "the driver of " + o.Subject + " tells no range of power limits"
		}
		return text + o.Subject + " can be set to " + o.Detail + " W"
	case DimensionMissingMIG, DimensionMissingDevice, DimensionMissingNetwork:
		text += o.Hint()
	}
	return text
}

// TextOn is Text with the number of nodes for which it holds, which is before the hint.
func (o Obstacle) TextOn(nodes int64) string {
	if o.Hint() == "" {
		return fmt.Sprintf("%s on %d", o.Text(), nodes)
	}
	return fmt.Sprintf("%s on %d%s", o.expand(dimensions[o.Dimension].text), nodes, o.Hint())
}

// Hint returns the available alternatives to what is missing, or "".
func (o Obstacle) Hint() string {
	switch {
	case o.Dimension == DimensionMissingNetwork && o.Detail != "":
		return "; " + o.Detail
	case o.Dimension == DimensionMissingDevice && o.Detail != "":
		first, more, _ := strings.Cut(o.Detail, ", ")
		out := fmt.Sprintf("; GPUs are divided into MIG instances: gpu { mig = %q }", first)
		if more != "" {
			out += ", or " + more
		}
		return out
	case o.Dimension != DimensionMissingMIG:
		return ""
	}
	out := "; no node has MIG instances"
	if o.Detail != "" {
		out = "; nodes have instances of " + o.Detail
	}
	if o.Count > 0 {
		out += fmt.Sprintf("; GPUs in MIG mode can be divided so (%d)", o.Count)
	}
	return out
}

// expand inserts the fields of an obstacle into a text.
func (o Obstacle) expand(text string) string {
	before, rest, found := strings.Cut(text, "{")
	if !found {
		return text
	}
	b := make([]byte, 0, 128)
	for found {
		b = append(b, before...)
		var field string
		field, rest, _ = strings.Cut(rest, "}")
		switch field {
		case "subject":
			b = append(b, o.Subject...)
		case "detail":
			b = append(b, o.Detail...)
		case "holder":
			b = append(b, o.Holder.String()...)
		case "count":
			b = strconv.AppendInt(b, o.Count, 10)
		case "of":
			b = strconv.AppendInt(b, o.Of, 10)
		}
		before, rest, found = strings.Cut(rest, "{")
	}
	return string(append(b, before...))
}

// ShortText returns the missing amount with its unit: "3 GPUs", "2 GiB".
func (r Refusal) ShortText() string {
	if r.Dimension == DimensionGPU && r.Unit == UnitDevices {
		return AmountText(r.Short, UnitGPUs)
	}
	return AmountText(r.Short, r.Unit)
}

// AmountText returns an amount with its unit, as all commands and answers show it.
func AmountText(n int64, unit Unit) string {
	switch unit {
	case UnitMiB:
		return MiBText(n)
	case UnitPercent:
		return fmt.Sprintf("%d%%", n)
	case UnitMilliGPUs:
		return fourDigits(n, 1000) + " GPUs"
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", n, unit.Of(n)))
}

// MiBText returns an amount of memory in the largest unit that suits it, with four digits.
func MiBText(n int64) string {
	switch {
	case n >= 1<<20 && n%(1<<18) == 0, n >= 10<<20:
		return fourDigits(n, 1<<20) + " TiB"
	case n >= 1<<10:
		return fourDigits(n, 1<<10) + " GiB"
	}
	return fmt.Sprintf("%d MiB", n)
}

// fourDigits returns n/unit, rounded to four digits.
func fourDigits(n, unit int64) string {
	scale := int64(1000)
	for places := 3; places > 0; places-- {
		if n/unit < 10_000/scale {
			whole := (n/unit)*scale + (n%unit*scale+unit/2)/unit
			return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%d.%0*d", whole/scale, places, whole%scale), "0"), ".")
		}
		scale /= 10
	}
	return strconv.FormatInt((n+unit/2)/unit, 10)
}
