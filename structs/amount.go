package structs

// Amount measures what queues, tenants and limits share out. Unlike a Vector it counts GPUs, and unlike a Grant it does
// not say which ones.
type Amount struct {
	GPUMilli     int64 // thousandths of GPUs: 1000 for a whole one, for a part the larger share of its memory and compute
	GPUMemoryMiB int64 // GPU memory; a whole GPU counts with all its memory
	CPU          int64 // MHz; reserved cores count with their MHz if the node is known, else not
	MemoryMiB    int64
	Billed       int64 // thousandths of billing units by the weights of the queue (Billing), only of what is held or used; not limited
}

// Add returns a + b.
func (a Amount) Add(b Amount) Amount {
	return Amount{a.GPUMilli + b.GPUMilli, a.GPUMemoryMiB + b.GPUMemoryMiB, a.CPU + b.CPU, a.MemoryMiB + b.MemoryMiB, a.Billed + b.Billed}
}

// Sub returns a - b.
func (a Amount) Sub(b Amount) Amount {
	return Amount{a.GPUMilli - b.GPUMilli, a.GPUMemoryMiB - b.GPUMemoryMiB, a.CPU - b.CPU, a.MemoryMiB - b.MemoryMiB, a.Billed - b.Billed}
}

// Times returns n * a.
func (a Amount) Times(n int64) Amount {
	return Amount{n * a.GPUMilli, n * a.GPUMemoryMiB, n * a.CPU, n * a.MemoryMiB, n * a.Billed}
}

// AmountNoLimit, as a component of a limit, means no limit; 0 means nothing at all.
const AmountNoLimit int64 = -1

// Exceeds returns the first component of a that is larger than the limit, and by how much, or DimensionNone. Components
// of the limit that are AmountNoLimit are not compared.
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

// GrantAmount returns what one grant of a GPU counts.
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

// AmountOf returns what an allocation counts while it holds (Holds).
func AmountOf(a *Allocation) Amount {
	out := Amount{CPU: a.Resources.CPU, MemoryMiB: a.Resources.MemoryMiB}
	for i := range a.Grants {
		out = out.Add(GrantAmount(&a.Grants[i]))
	}
	return out
}

// GroupAmount returns what one allocation of a group will count, as far as it is known before GPUs are chosen. Each GPU
// request counts with its first alternative. A part of a GPU that is requested in MiB alone counts no thousandths yet.
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

// IsGPUDevice reports whether a device request ("gpu", "nvidia/gpu", "nvidia/gpu/H100") asks for GPUs.
func IsGPUDevice(name string) bool {
	return name == "gpu" || (&Grant{Device: name + "/"}).IsGPU()
}
