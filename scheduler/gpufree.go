package scheduler

// GPUStateOf tells what is free of the GPUs of a node.
func GPUStateOf(c *chunk, at int, o *occupancy, to *GPUState) {
	n := c.nodes[at]
	to.Free = to.Free[:0]
	if len(n.Resources.Devices) == 0 {
		return
	}
	reserve := int64(-1) // not looked up yet: only shares ask for it
	hold := holdingOr(o.hold)
	pos := 0
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		if !isGPU(g) {
			pos += len(g.Instances)
			continue
		}
		if len(c.sick[at]) == 0 && len(hold.shares) == 0 { // each is idle or given whole: no need to look at it
			for range g.Instances {
				free := int64(1000)
				if hold.devs.has(pos) {
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
				if hold.devs.has(pos) {
					free = 0
					if k, shared := findShare(hold.shares, pos); shared {
						if reserve < 0 {
							reserve = n.GPUReserveMiB()
						}
						free = freeMilli(g.Instances[j].MemoryMiB-reserve, hold.shares[k])
					}
				}
				to.Free = append(to.Free, free)
			}
			pos++
		}
	}
}

func freeMilli(capacity int64, t share) int64 {
	switch {
	case t.whole:
		return 0
	case t.mem == 0 && t.compute == 0:
		return 1000
	case capacity <= 0:
		return 0
	}
	return max(0, min(1000-(t.mem*1000+capacity-1)/capacity, 1000-10*t.compute))
}

// IdleGPUs counts the GPUs that nobody has any part of.
func IdleGPUs(free []int64) int64 {
	n := int64(0)
	for _, f := range free {
		if f == 1000 {
			n++
		}
	}
	return n
}

func SumFree(free []int64) int64 {
	n := int64(0)
	for _, f := range free {
		n += f
	}
	return n
}

// GPUState is what matters of a node to a GPURater.
type GPUState struct {
	FreeCPU int64   // MHz
	Free    []int64 // of each healthy GPU: the free share in thousandths, the scarcer one of memory and compute
	Suits   []bool  // of each shape of the mix: the node has the model that it asks for
}
