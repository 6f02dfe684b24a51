package structs

// Amount is what queues, tenants and limits are measured in: the resources that people share out. Unlike a Vector it
// counts GPUs, and unlike a Grant it does not say which ones.
type Amount struct {
	GPUMilli     int64 // thousandths of GPUs: 1000 for a whole one, the larger share of memory and compute for a part
	GPUMemoryMiB int64 // memory of GPUs; a whole GPU counts with all that it has
	CPU          int64 // MHz; reserved cores count with their MHz where the node is known, else not
	MemoryMiB    int64
	Billed       int64 // thousandths of billing units by the weights of the queue (Billing), only of what is held or used; no limit looks at it
}

// Add gives a + b.
func (a Amount) Add(b Amount) Amount {
	return Amount{a.GPUMilli + b.GPUMilli, a.GPUMemoryMiB + b.GPUMemoryMiB, a.CPU + b.CPU, a.MemoryMiB + b.MemoryMiB, a.Billed + b.Billed}
}

// Sub gives a - b.
func (a Amount) Sub(b Amount) Amount {
	return Amount{a.GPUMilli - b.GPUMilli, a.GPUMemoryMiB - b.GPUMemoryMiB, a.CPU - b.CPU, a.MemoryMiB - b.MemoryMiB, a.Billed - b.Billed}
}

// Times gives n * a.
func (a Amount) Times(n int64) Amount {
	return Amount{n * a.GPUMilli, n * a.GPUMemoryMiB, n * a.CPU, n * a.MemoryMiB, n * a.Billed}
}

// AmountNoLimit, as a component of a limit, means that there is none; 0 means nothing at all.
const AmountNoLimit int64 = -1

// Exceeds names the first component of a that is larger than a limit, and by how much; DimensionNone when none is. Components of
// the limit that are AmountNoLimit are not compared.
func (a Amount) Exceeds(limit Amount) (what Dimension, over int64) {
	for _, c := range [...]struct {
		what Dimension
		a, b int64
	}{{DimensionGPU, a.GPUMilli, limit.GPUMilli}, {DimensionGPUMemory, a.GPUMemoryMiB, limit.GPUMemoryMiB}, {DimensionCPU, a.CPU, limit.CPU}, {DimensionMemory, a.MemoryMiB, limit.MemoryMiB}} {
		if c.b != AmountNoLimit && c.a > c.b {
			return c.what, c.a - c.b
		}
	}
	return DimensionNone, 0
}

// GrantAmount is what one grant of a GPU counts.
func GrantAmount(g *Grant) Amount {
	switch {
	case !g.IsGPU():
		return Amount{}
	case g.MemoryMiB == 0:
		return Amount{GPUMilli: 1000, GPUMemoryMiB: g.SizeMiB}
	}
	milli := 10 * g.Compute
	if g.SizeMiB > 0 {
		milli = max(milli, (1000*g.MemoryMiB+g.SizeMiB-1)/g.SizeMiB)
	}
	return Amount{GPUMilli: milli, GPUMemoryMiB: g.MemoryMiB}
}

// AmountOf is what an allocation counts while it holds (Holds).
func AmountOf(a *Allocation) Amount {
	out := Amount{CPU: a.Resources.CPU, MemoryMiB: a.Resources.MemoryMiB}
	for i := range a.Grants {
		out = out.Add(GrantAmount(&a.Grants[i]))
	}
	return out
}

// GroupAmount is what one allocation of a group will count, as far as it can be told before GPUs are chosen: of each
// GPU request its first alternative; a part of a GPU that is asked for in MiB alone counts no thousandths yet.
func GroupAmount(g *Group) Amount {
	v := GroupVector(g)
	out := Amount{CPU: v.CPU, MemoryMiB: v.MemoryMiB}
	for _, t := range g.Tasks {
		for i := range t.Resources.Devices {
			d := &t.Resources.Devices[i]
			if IsGPUDevice(d.Name) {
				out.GPUMilli += 1000 * max(d.Count, 1)
			}
		}
		if len(t.Resources.GPU) == 0 {
			continue
		}
		r := &t.Resources.GPU[0]
		n := max(r.Count, 1)
		if !r.Shared() {
			out.GPUMilli += 1000 * n
			continue
		}
		out.GPUMilli += n * max(10*r.Share, 10*r.Compute)
		out.GPUMemoryMiB += n * r.MemoryMiB
	}
	return out
}

// IsGPUDevice reports whether the name of a device request ("gpu", "nvidia/gpu", "nvidia/gpu/H100") is of GPUs.
func IsGPUDevice(name string) bool {
	return name == "gpu" || (&Grant{Device: name + "/"}).IsGPU()
}
