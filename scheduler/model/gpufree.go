package model

// GPUStateOf writes the free capacity of a node's GPUs to to.
func GPUStateOf(c *Chunk, at int, o *Occupancy, to *GPUState) {
	n := c.Nodes[at]
	to.Free = to.Free[:0]
	if len(n.Resources.Devices) == 0 {
		return
	}
	reserve := int64(-1) // not looked up yet: only shares ask for it
	hold := HoldingOr(o.Hold)
	pos := 0
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		if !IsGPU(g) {
			pos += len(g.Instances)
			continue
		}
		if len(c.Sick[at]) == 0 && len(hold.Shares) == 0 { // each is idle or allocated whole: no need to look at it
			for range g.Instances {
				free := int64(1000)
				if hold.Devs.Has(pos) {
					free = 0
				}
				to.Free = append(to.Free, free)
				pos++
			}
			continue
		}
		for j := range g.Instances {
			if g.Instances[j].Healthy {
				free := int64(1000)
				if hold.Devs.Has(pos) {
					free = 0
					if k, shared := FindShare(hold.Shares, pos); shared {
						if reserve < 0 {
							reserve = n.GPUReserveMiB()
						}
						free = FreeMilli(g.Instances[j].MemoryMiB-reserve, hold.Shares[k])
					}
				}
				to.Free = append(to.Free, free)
			}
			pos++
		}
	}
}

// FreeMilli returns the free share of a GPU of the given capacity in thousandths: the scarcer one of memory and
// compute.
func FreeMilli(capacity int64, t Share) int64 {
	switch {
	case t.Whole:
		return 0
	case t.Mem == 0 && t.Compute == 0:
		return 1000
	case capacity <= 0:
		return 0
	}
	return max(0, min(1000-(t.Mem*1000+capacity-1)/capacity, 1000-10*t.Compute))
}

// IdleGPUs counts the GPUs that are not used at all.
func IdleGPUs(free []int64) int64 {
	n := int64(0)
	for _, f := range free {
		if f == 1000 {
			n++
		}
	}
	return n
}

// SumFree adds up the free thousandths of GPUs.
func SumFree(free []int64) int64 {
	n := int64(0)
	for _, f := range free {
		n += f
	}
	return n
}

// GPUState is what a GPURater sees of a node.
type GPUState struct {
	FreeCPU int64   // MHz
	Free    []int64 // of each healthy GPU: the free share in thousandths, the scarcer one of memory and compute
	Suits   []bool  // for each shape of the mix: whether the node has the model that it asks for
}
