package fakegpu

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const mib = 1 << 20

// model holds the properties of GPUs of one kind.
type model struct {
	name             string
	memory, reserved int64 // MiB
	bar1             int64 // MiB
	cc               string
	arch, brand      int64
	links, nvlink    int  // NVLinks per GPU, 0 for none, and NVML's number for their version
	switched         bool // links lead to switches
	island           int  // GPUs that links join when they are not switched
	sms, watts       int64
	clock, memclock  int64
	gen              int64
	mig              bool
}

var models = map[string]model{
	"A10":       {name: "NVIDIA A10", memory: 23028, reserved: 512, bar1: 32768, cc: "8.6", arch: 7, brand: 14, sms: 72, watts: 150, clock: 1695, memclock: 6251, gen: 4},
	"A100":      {name: "NVIDIA A100-SXM4-80GB", memory: 81920, reserved: 698, bar1: 131072, cc: "8.0", arch: 7, brand: 14, links: 12, nvlink: 5, switched: true, sms: 108, watts: 400, clock: 1410, memclock: 1593, gen: 4, mig: true},
	"A100-40GB": {name: "NVIDIA A100-SXM4-40GB", memory: 40960, reserved: 698, bar1: 65536, cc: "8.0", arch: 7, brand: 14, links: 12, nvlink: 5, switched: true, sms: 108, watts: 400, clock: 1410, memclock: 1215, gen: 4, mig: true},
	"B200":      {name: "NVIDIA B200", memory: 183359, reserved: 740, bar1: 262144, cc: "10.0", arch: 10, brand: 14, links: 18, nvlink: 7, switched: true, sms: 148, watts: 1000, clock: 1965, memclock: 3996, gen: 6, mig: true},
	"H100":      {name: "NVIDIA H100 80GB HBM3", memory: 81559, reserved: 563, bar1: 131072, cc: "9.0", arch: 9, brand: 14, links: 18, nvlink: 6, switched: true, sms: 132, watts: 700, clock: 1980, memclock: 2619, gen: 5, mig: true},
	"H200":      {name: "NVIDIA H200", memory: 143771, reserved: 607, bar1: 262144, cc: "9.0", arch: 9, brand: 14, links: 18, nvlink: 6, switched: true, sms: 132, watts: 700, clock: 1980, memclock: 3201, gen: 5, mig: true},
	"L4":        {name: "NVIDIA L4", memory: 23034, reserved: 508, bar1: 32768, cc: "8.9", arch: 8, brand: 14, sms: 58, watts: 72, clock: 2040, memclock: 6251, gen: 4},
	"L40S":      {name: "NVIDIA L40S", memory: 46068, reserved: 600, bar1: 65536, cc: "8.9", arch: 8, brand: 14, sms: 142, watts: 350, clock: 2520, memclock: 9001, gen: 4},
	"T4":        {name: "Tesla T4", memory: 15360, reserved: 450, bar1: 256, cc: "7.5", arch: 6, brand: 14, sms: 40, watts: 70, clock: 1590, memclock: 5001, gen: 3},
	"V100":      {name: "Tesla V100-SXM2-32GB", memory: 32768, reserved: 268, bar1: 32768, cc: "7.0", arch: 5, brand: 14, links: 6, nvlink: 2, island: 4, sms: 80, watts: 300, clock: 1530, memclock: 877, gen: 3},
}

// gpusMax is how many GPUs the fake libraries support.
const gpusMax = 64

// New describes a machine with the GPUs of spec, "8xH100" or several, "4xA100,2xT4". "4xH100:mig" divides each GPU into seven
// instances of the smallest profile, "4xH100:mig=3g+2g+1g" into those that it names. Machines with different seeds have
// different UUIDs; the same seed gives the same ones.
func New(spec, seed string) (*State, error) {
	s := &State{Driver: "580.159.04", NVML: "13.580.159.04", CUDA: 13000}
	for _, part := range strings.Split(spec, ",") {
		n, name, _ := strings.Cut(strings.TrimSpace(part), "x")
		name, divided, divide := strings.Cut(name, ":")
		name = strings.ToUpper(name)
		count, err := strconv.Atoi(n)
		m, ok := models[name]
		if err != nil || count < 1 || !ok {
			return nil, fmt.Errorf("gpus %q: want a count and a model such as 8xH100; models are %s", part, strings.Join(Models(), ", "))
		}
		if len(s.GPUs)+count > gpusMax {
			return nil, fmt.Errorf("gpus %q: more than %d on one machine", spec, gpusMax)
		}
		first := len(s.GPUs)
		for i := range count {
			s.add(m, name, seed, i, count)
		}
		s.connect(m, first, count)
		if !divide {
			continue
		}
		if !m.mig {
			return nil, fmt.Errorf("gpus %q: a %s has no MIG mode", part, name)
		}
		profiles, err := migSplit(divided)
		if err != nil {
			return nil, fmt.Errorf("gpus %q: %w", part, err)
		}
		for i := range count {
			if err := s.divide(first+i, profiles); err != nil {
				return nil, fmt.Errorf("gpus %q: %w", part, err)
			}
		}
	}
	return s, nil
}

// migSplit reads what follows the colon of "4xH100:mig=3g+2g+1g": the slices of each instance. It is seven times 1 for "mig" alone.
func migSplit(text string) ([]int64, error) {
	if text == "mig" {
		return []int64{1, 1, 1, 1, 1, 1, 1}, nil
	}
	list, ok := strings.CutPrefix(text, "mig=")
	var parts []int64
	for word := range strings.SplitSeq(list, "+") {
		n, err := strconv.ParseInt(strings.TrimSuffix(word, "g"), 10, 64)
		if ok = ok && err == nil && strings.HasSuffix(word, "g"); !ok {
			return nil, fmt.Errorf("want  :mig  or the instances of each GPU, such as  :mig=3g+2g+1g")
		}
		parts = append(parts, n)
	}
	return parts, nil
}

func (s *State) add(m model, name, seed string, i, count int) {
	index := len(s.GPUs)
	sum := sha256.Sum256([]byte(seed + "\x00" + name + "\x00" + strconv.Itoa(index)))
	g := GPU{
		UUID: UUID("GPU", sum[:16]), Name: m.name, Serial: fmt.Sprintf("16530231%05d", int(sum[16])<<8|int(sum[17])),
		Bus: fmt.Sprintf("0000:%02x:00", 0x10+index), CC: m.cc, Minor: int64(index),
		Memory: m.memory * mib, Reserved: m.reserved * mib, BAR1: m.bar1 * mib,
		Temp: 30 + int64(index%8), Power: m.watts * 100, Limit: m.watts * 1000, MinLimit: m.watts * 300, MaxLimit: m.watts * 1000,
		Clock: m.clock, MemClock: m.memclock, PCIeGen: m.gen, PCIeWidth: 16, Arch: m.arch, Brand: m.brand, NVLink: int64(m.nvlink), SMs: m.sms,
		NUMA: int64(i * 2 / count), ECC: 1, Persistence: 1, MIG: -1, MIGPending: -1,
	}
	if m.mig {
		g.MIG, g.MIGPending = 0, 0
	}
	s.GPUs = append(s.GPUs, g)
}

func (s *State) connect(m model, first, count int) {
	for i := range count {
		switch {
		case m.switched:
			s.Links = append(s.Links, Link{first + i, -1, m.links})
		case m.island > 0:
			for j := i + 1; j < count && j/m.island == i/m.island; j++ {
				s.Links = append(s.Links, Link{first + i, first + j, m.links / (m.island - 1)})
			}
		}
	}
}

// Island returns how many GPUs the fast links of a GPU join, itself included: as many as there can be if they lead to switches,
// and 0 without links.
func (s *State) Island(gpu int) int {
	n := 0
	for _, l := range s.Links {
		switch {
		case l.A == gpu && l.B < 0:
			return gpusMax
		case l.A == gpu || l.B == gpu:
			n = max(n, 1) + 1
		}
	}
	return n
}

// ShortNames renames the GPUs to the names in New's argument, "H100", instead of the vendor's.
func (s *State) ShortNames() {
	short := map[string]string{}
	for name, m := range models {
		short[m.name] = name
	}
	for i := range s.GPUs {
		if n := short[s.GPUs[i].Name]; n != "" {
			s.GPUs[i].Name = n
		}
	}
}

// UUID formats 16 bytes as a device id with a prefix, "GPU" or "MIG".
func UUID(prefix string, b []byte) string {
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", prefix, b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// migProfiles are the MIG profiles of a GPU with 8 memory slots and 7 slices, with the driver's numbers.
var migProfiles = []Profile{
	{Number: 0, ID: 19, Slices: 1, Size: 1, Max: 7, Starts: []int64{0, 1, 2, 3, 4, 5, 6}},
	{Number: 1, ID: 14, Slices: 2, Size: 2, Max: 3, Starts: []int64{0, 2, 4}},
	{Number: 2, ID: 9, Slices: 3, Size: 4, Max: 2, Starts: []int64{0, 4}},
	{Number: 3, ID: 5, Slices: 4, Size: 4, Max: 1, Starts: []int64{0}},
	{Number: 4, ID: 0, Slices: 7, Size: 8, Max: 1, Starts: []int64{0}},
	{Number: 9, ID: 15, Slices: 1, Size: 2, Max: 4, Starts: []int64{0, 2, 4, 6}},
}

// Split puts a GPU into MIG mode with instances of 1g each, as many as count (up to 7).
func (s *State) Split(gpu, count int) {
	if err := s.divide(gpu, slices.Repeat([]int64{1}, min(count, 7))); err != nil {
		panic(err) // seven always have room
	}
}

// divide puts a GPU into MIG mode with an instance of as many slices as each number says, each in the first memory slots that are
// free.
func (s *State) divide(gpu int, parts []int64) error {
	g := &s.GPUs[gpu]
	g.MIG, g.MIGPending = 1, 1
	slice := g.Memory / 8
	for _, p := range migProfiles {
		p.GPU, p.SMs, p.Memory = gpu, g.SMs*p.Slices/8, slice*p.Size
		s.Profiles = append(s.Profiles, p)
	}
	var used [8]bool
	for i, n := range parts {
		p := slices.IndexFunc(migProfiles, func(p Profile) bool { return p.Slices == n })
		if p < 0 {
			return fmt.Errorf("there is no MIG instance of %d slices; want 1g, 2g, 3g, 4g or 7g", n)
		}
		at := slices.IndexFunc(migProfiles[p].Starts, func(at int64) bool { return !slices.Contains(used[at:at+migProfiles[p].Size], true) })
		if at < 0 {
			return fmt.Errorf("the GPU has no room for a MIG instance of %dg after the others", n)
		}
		start, size := migProfiles[p].Starts[at], migProfiles[p].Size
		for k := range size {
			used[start+k] = true
		}
		sum := sha256.Sum256([]byte(g.UUID + " mig " + strconv.Itoa(i)))
		s.MIGs = append(s.MIGs, MIG{
			GPU: gpu, UUID: UUID("MIG", sum[:16]), Profile: fmt.Sprintf("%dg.%dgb", n, (slice*size+1<<29)>>30),
			GI: int64(7 + i), CI: 0, Slices: n, SMs: g.SMs * n / 8, Memory: slice * size, Start: start, Size: size,
		})
	}
	return nil
}
