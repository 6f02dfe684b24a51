// Package fakegpu describes GPUs that do not exist. Its State is a file that a fake libnvidia-ml.so.1 and libcuda.so.1
// (package lib below) read on every call, so that the real bindings, real processes and real tools see the GPUs in it,
// and see them break when a test edits the file. Memory that processes allocate through the fake libcuda is charged to
// them in the same file.
//
// The file is text, a line each:
//
//	driver VERSION          nvml VERSION          cuda 13000          context BYTES (that each CUDA context takes)
//	gpu KEY=VALUE ...       keys: fields of GPU; text percent-encoded; bytes, milliwatts, MHz; the order is the index
//	mig GPU UUID PROFILE GI CI SLICES SMS BYTES [START SIZE]
//	migprofile GPU NUMBER ID SLICES SIZE SMS MAX BYTES START...
//	link A B|switch COUNT   NVLinks of GPU A
//	topo A B LEVEL          10 one PCIe switch, 20 several, 30 host bridge, 40 NUMA node, 50 system
//	proc UUID PID BYTES     a process that is only claimed
//	charge UUID PID START BYTES NS   one that allocates through the fake libcuda; START as in /proc/PID/stat, PID as in the pid namespace NS
//	dmem 1                  the driver limits the memory of control groups (nvmlDeviceSetMemoryLimits_v1)
//	limit UUID DIR SOFT HARD   what processes of the control group DIR may have of a GPU
//	xid SEQ GPU CODE [GI]   delivered to event sets made while the highest SEQ was lower
//	delay|hang|crash|fail SYMBOL [MS|CODE]
//
// Writers hold flock(FILE.lock) and replace the file by rename.
package fakegpu

import (
	"bufio"
	"fmt"
	"net/url"
	"os"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Env is the environment variable with the path of the state file, DirEnv the one with the directory of the libraries.
const (
	Env    = "MUSTER_FAKEGPU_STATE"
	DirEnv = "MUSTER_FAKEGPU"
)

// State is all data that the fake libraries report.
type State struct {
	Driver, NVML string
	CUDA         int64 // 13000 is 13.0
	Context      int64 // bytes
	GPUs         []GPU
	MIGs         []MIG
	Profiles     []Profile
	Links        []Link
	Pairs        []Pair
	Procs        []Proc
	XIDs         []XID
	Faults       []Fault
	Dmem         bool
	Limits       []Limit
}

// Limit is how much memory of a GPU a control group (version 2), named by its directory, may use.
type Limit struct {
	UUID, Group string
	Soft, Hard  uint64
}

// GPU is one device. Memory is in bytes, power in mW, clocks in MHz, energy in mJ; -1 in NUMA, ECC and MIG means "not
// supported". Booleans are 0 and 1.
type GPU struct {
	UUID, Name, Serial, Bus, CC, Fabric               string // Bus "0000:18:00", CC "9.0", Fabric 32 hex digits
	Memory, Reserved, Used, BAR1                      int64
	Minor, Temp, Util, MemUtil, Power, Limit          int64
	MinLimit, MaxLimit, Clock, MemClock               int64
	PCIeGen, PCIeWidth, Arch, Brand, NVLink, SMs      int64 // NVLink is NVML's number for the version, 0 for none
	NUMA, ECC, ECCVolatile, ECCCorrected, Energy      int64
	Throttle, Lost, Persistence, Display, ComputeMode int64
	Recovery, RowsPending, RowsFailed, Retiring       int64
	MIG, MIGPending, Clique                           int64
	RowsCorrected, RowsUncorrected                    int64 // rows that were remapped
	ECCAggregate, ECCCorrectedAggregate               int64 // over the GPU's lifetime
	PCIeTx, PCIeRx, PCIeReplay                        int64 // kB/s
	LinksDown                                         int64 // bits, by number of the NVLink
	NVTx, NVRx                                        int64 // KiB over all NVLinks
	NVReplay, NVRecovery, NVCRC, NVCRCData            int64 // errors of all NVLinks
	Active, Occupied, Tensor, DRAM                    int64 // thousandths, of GPUs of compute capability 9.0 and newer
	FabricState, FabricHealth                         int64 // State 0: completed (3) where Fabric is there, else none
}

// MIG is an instance of a GPU in MIG mode.
type MIG struct {
	GPU           int
	UUID, Profile string
	GI, CI        int64
	Slices, SMs   int64
	Memory        int64 // bytes
	Start, Size   int64 // in memory slots; Size 0: not reported
}

// Profile is a kind of instance that a GPU in MIG mode may have.
type Profile struct {
	GPU          int
	Number, ID   int64 // NVML's number of the profile, and the driver's id
	Slices, Size int64 // of compute and of memory
	SMs, Max     int64
	Memory       int64 // bytes
	Starts       []int64
}

// Link is Count NVLinks between two GPUs; B is -1 for a switch.
type Link struct{ A, B, Count int }

// Pair is the level of the PCIe topology at which two GPUs meet.
type Pair struct{ A, B, Level int }

// Proc is a process with memory on a GPU or MIG instance. Start 0: the process does not exist, only its record.
type Proc struct {
	UUID  string
	PID   int
	Start uint64
	Bytes int64
	NS    uint64 // inode of PID's pid namespace; 0 with Start 0
}

// XID is an error event. GI is -1 for the whole GPU.
type XID struct {
	Seq       int64
	GPU, Code int
	GI        int64
}

// Fault is a fault of one function: delay (Arg ms), hang (until the fault is removed), crash, fail (with return code
// Arg).
type Fault struct {
	Kind, Symbol string
	Arg          int64
}

// fields pairs the names in the file with the fields of a GPU, in the order of writing.
func (g *GPU) fields() []field {
	return []field{
		{"uuid", &g.UUID, nil}, {"name", &g.Name, nil}, {"serial", &g.Serial, nil}, {"bus", &g.Bus, nil}, {"cc", &g.CC, nil}, {"fabric", &g.Fabric, nil},
		{"memory", nil, &g.Memory}, {"reserved", nil, &g.Reserved}, {"used", nil, &g.Used}, {"bar1", nil, &g.BAR1}, {"minor", nil, &g.Minor},
		{"temp", nil, &g.Temp}, {"util", nil, &g.Util}, {"memutil", nil, &g.MemUtil}, {"power", nil, &g.Power}, {"limit", nil, &g.Limit},
		{"minlimit", nil, &g.MinLimit}, {"maxlimit", nil, &g.MaxLimit}, {"clock", nil, &g.Clock}, {"memclock", nil, &g.MemClock},
		{"pciegen", nil, &g.PCIeGen}, {"pciewidth", nil, &g.PCIeWidth}, {"arch", nil, &g.Arch}, {"brand", nil, &g.Brand}, {"nvlink", nil, &g.NVLink},
		{"sms", nil, &g.SMs}, {"numa", nil, &g.NUMA}, {"ecc", nil, &g.ECC}, {"eccvolatile", nil, &g.ECCVolatile}, {"ecccorrected", nil, &g.ECCCorrected},
		{"energy", nil, &g.Energy}, {"throttle", nil, &g.Throttle}, {"lost", nil, &g.Lost}, {"persistence", nil, &g.Persistence},
		{"display", nil, &g.Display}, {"computemode", nil, &g.ComputeMode}, {"recovery", nil, &g.Recovery}, {"rowspending", nil, &g.RowsPending},
		{"rowsfailed", nil, &g.RowsFailed}, {"retiring", nil, &g.Retiring}, {"mig", nil, &g.MIG}, {"migpending", nil, &g.MIGPending}, {"clique", nil, &g.Clique},
		{"rowscorrected", nil, &g.RowsCorrected}, {"rowsuncorrected", nil, &g.RowsUncorrected}, {"eccaggregate", nil, &g.ECCAggregate},
		{"ecccorrectedaggregate", nil, &g.ECCCorrectedAggregate}, {"pcietx", nil, &g.PCIeTx}, {"pcierx", nil, &g.PCIeRx}, {"pciereplay", nil, &g.PCIeReplay},
		{"linksdown", nil, &g.LinksDown}, {"nvtx", nil, &g.NVTx}, {"nvrx", nil, &g.NVRx}, {"nvreplay", nil, &g.NVReplay}, {"nvrecovery", nil, &g.NVRecovery},
		{"nvcrc", nil, &g.NVCRC}, {"nvcrcdata", nil, &g.NVCRCData}, {"active", nil, &g.Active}, {"occupied", nil, &g.Occupied}, {"tensor", nil, &g.Tensor},
		{"dram", nil, &g.DRAM}, {"fabricstate", nil, &g.FabricState}, {"fabrichealth", nil, &g.FabricHealth},
	}
}

type field struct {
	name string
	text *string
	num  *int64
}

// String returns the text of the state file.
func (s *State) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "driver %s\nnvml %s\ncuda %d\ncontext %d\n", s.Driver, s.NVML, s.CUDA, s.Context)
	for i := range s.GPUs {
		b.WriteString("gpu")
		for _, f := range s.GPUs[i].fields() {
			if f.text != nil {
				if *f.text != "" {
					fmt.Fprintf(&b, " %s=%s", f.name, url.PathEscape(*f.text))
				}
			} else {
				fmt.Fprintf(&b, " %s=%d", f.name, *f.num)
			}
		}
		b.WriteByte('\n')
	}
	for _, m := range s.MIGs {
		fmt.Fprintf(&b, "mig %d %s %s %d %d %d %d %d", m.GPU, m.UUID, m.Profile, m.GI, m.CI, m.Slices, m.SMs, m.Memory)
		if m.Size > 0 {
			fmt.Fprintf(&b, " %d %d", m.Start, m.Size)
		}
		b.WriteByte('\n')
	}
	for _, p := range s.Profiles {
		fmt.Fprintf(&b, "migprofile %d %d %d %d %d %d %d %d", p.GPU, p.Number, p.ID, p.Slices, p.Size, p.SMs, p.Max, p.Memory)
		for _, at := range p.Starts {
			fmt.Fprintf(&b, " %d", at)
		}
		b.WriteByte('\n')
	}
	for _, l := range s.Links {
		to := "switch"
		if l.B >= 0 {
			to = strconv.Itoa(l.B)
		}
		fmt.Fprintf(&b, "link %d %s %d\n", l.A, to, l.Count)
	}
	for _, p := range s.Pairs {
		fmt.Fprintf(&b, "topo %d %d %d\n", p.A, p.B, p.Level)
	}
	if s.Dmem {
		b.WriteString("dmem 1\n")
	}
	for _, l := range s.Limits {
		fmt.Fprintf(&b, "limit %s %s %d %d\n", l.UUID, l.Group, l.Soft, l.Hard)
	}
	for _, p := range s.Procs {
		if p.Start == 0 {
			fmt.Fprintf(&b, "proc %s %d %d\n", p.UUID, p.PID, p.Bytes)
		} else {
			fmt.Fprintf(&b, "charge %s %d %d %d %d\n", p.UUID, p.PID, p.Start, p.Bytes, p.NS)
		}
	}
	for _, x := range s.XIDs {
		fmt.Fprintf(&b, "xid %d %d %d", x.Seq, x.GPU, x.Code)
		if x.GI >= 0 {
			fmt.Fprintf(&b, " %d", x.GI)
		}
		b.WriteByte('\n')
	}
	for _, f := range s.Faults {
		fmt.Fprintf(&b, "%s %s %d\n", f.Kind, f.Symbol, f.Arg)
	}
	return b.String()
}

// Parse reads the text of a state file. It refuses lines that it does not know; the libraries skip them.
func Parse(text string) (*State, error) {
	s := &State{}
	sc := bufio.NewScanner(strings.NewReader(text))
	for n := 1; sc.Scan(); n++ {
		if err := s.line(strings.Fields(sc.Text())); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return s, sc.Err()
}

func (s *State) line(w []string) error {
	if len(w) == 0 || strings.HasPrefix(w[0], "#") {
		return nil
	}
	bad := error(nil)
	num := func(i int) int64 {
		if i >= len(w) {
			bad = fmt.Errorf("%s: %d words, want more", w[0], len(w))
			return 0
		}
		v, err := strconv.ParseInt(w[i], 10, 64)
		if err != nil {
			bad = fmt.Errorf("%s: %q is not a number", w[0], w[i])
		}
		return v
	}
	text := func(i int) string {
		if i >= len(w) {
			bad = fmt.Errorf("%s: %d words, want more", w[0], len(w))
			return ""
		}
		return w[i]
	}
	switch w[0] {
	case "driver":
		s.Driver = text(1)
	case "nvml":
		s.NVML = text(1)
	case "cuda":
		s.CUDA = num(1)
	case "context":
		s.Context = num(1)
	case "gpu":
		g := GPU{NUMA: -1, ECC: -1, MIG: -1, MIGPending: -1}
		for _, kv := range w[1:] {
			if err := g.set(kv); err != nil {
				return err
			}
		}
		s.GPUs = append(s.GPUs, g)
	case "mig":
		m := MIG{GPU: int(num(1)), UUID: text(2), Profile: text(3), GI: num(4), CI: num(5), Slices: num(6), SMs: num(7), Memory: num(8)}
		if len(w) > 9 {
			m.Start, m.Size = num(9), num(10)
		}
		s.MIGs = append(s.MIGs, m)
	case "migprofile":
		p := Profile{GPU: int(num(1)), Number: num(2), ID: num(3), Slices: num(4), Size: num(5), SMs: num(6), Max: num(7), Memory: num(8), Starts: []int64{num(9)}}
		for i := 10; i < len(w); i++ {
			p.Starts = append(p.Starts, num(i))
		}
		s.Profiles = append(s.Profiles, p)
	case "link":
		l := Link{A: int(num(1)), B: -1, Count: int(num(3))}
		if text(2) != "switch" {
			l.B = int(num(2))
		}
		s.Links = append(s.Links, l)
	case "topo":
		s.Pairs = append(s.Pairs, Pair{int(num(1)), int(num(2)), int(num(3))})
	case "proc":
		s.Procs = append(s.Procs, Proc{text(1), int(num(2)), 0, num(3), 0})
	case "charge":
		p := Proc{text(1), int(num(2)), uint64(num(3)), num(4), 0}
		if len(w) > 5 {
			p.NS = uint64(num(5))
		}
		s.Procs = append(s.Procs, p)
	case "dmem":
		s.Dmem = num(1) != 0
	case "limit":
		s.Limits = append(s.Limits, Limit{text(1), text(2), uint64(num(3)), uint64(num(4))})
	case "xid":
		x := XID{num(1), int(num(2)), int(num(3)), -1}
		if len(w) > 4 {
			x.GI = num(4)
		}
		s.XIDs = append(s.XIDs, x)
	case "delay", "hang", "crash", "fail":
		f := Fault{Kind: w[0], Symbol: text(1)}
		if len(w) > 2 {
			f.Arg = num(2)
		}
		s.Faults = append(s.Faults, f)
	default:
		return fmt.Errorf("%q means nothing here", w[0])
	}
	return bad
}

func (g *GPU) set(kv string) error {
	k, v, ok := strings.Cut(kv, "=")
	for _, f := range g.fields() {
		if f.name != k || !ok {
			continue
		}
		if f.text != nil {
			t, err := url.PathUnescape(v)
			*f.text = t
			return err
		}
		n, err := strconv.ParseInt(v, 10, 64)
		*f.num = n
		return err
	}
	return fmt.Errorf("gpu: %q means nothing here", kv)
}

// File is a state file.
type File struct{ Path string }

// Create writes a new state file.
func Create(path string, s *State) (*File, error) {
	f := &File{path}
	return f, f.Edit(func(now *State) { *now = *s })
}

// Read returns the current content of the file.
func (f *File) Read() (*State, error) {
	b, err := os.ReadFile(f.Path)
	if err != nil {
		return nil, err
	}
	s, err := Parse(string(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path, err)
	}
	return s, nil
}

// Edit changes the file. Running processes see the change at their next call.
func (f *File) Edit(change func(*State)) error {
	lock, err := os.OpenFile(f.Path+".lock", os.O_RDONLY|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer lock.Close()
	for {
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	s, err := f.Read()
	if os.IsNotExist(err) {
		s, err = &State{}, nil
	}
	if err != nil {
		return err
	}
	change(s)
	tmp := fmt.Sprintf("%s.%d.tmp", f.Path, os.Getpid())
	if err := os.WriteFile(tmp, []byte(s.String()), 0o666); err != nil {
		return err
	}
	return os.Rename(tmp, f.Path)
}

// Lose makes a GPU fall off the bus; Find brings it back.
func (f *File) Lose(gpu int) error { return f.Edit(func(s *State) { s.GPUs[gpu].Lost = 1 }) }

// Find undoes Lose.
func (f *File) Find(gpu int) error { return f.Edit(func(s *State) { s.GPUs[gpu].Lost = 0 }) }

// XID reports an error event of a GPU.
func (f *File) XID(gpu, code int) error {
	return f.Edit(func(s *State) {
		seq := int64(1)
		for _, x := range s.XIDs {
			seq = max(seq, x.Seq+1)
		}
		s.XIDs = append(s.XIDs, XID{seq, gpu, code, -1})
	})
}

// Hang makes a function block until Heal.
func (f *File) Hang(symbol string) error { return f.fault(Fault{"hang", symbol, 0}) }

// Crash makes a function kill its process with a signal.
func (f *File) Crash(symbol string) error { return f.fault(Fault{"crash", symbol, 0}) }

// Delay makes a function take ms longer.
func (f *File) Delay(symbol string, ms int64) error { return f.fault(Fault{"delay", symbol, ms}) }

// Heal removes all faults of a function.
func (f *File) Heal(symbol string) error {
	return f.Edit(func(s *State) { s.Faults = without(s.Faults, symbol) })
}

func (f *File) fault(x Fault) error {
	return f.Edit(func(s *State) { s.Faults = append(without(s.Faults, x.Symbol), x) })
}

func without(list []Fault, symbol string) []Fault {
	var keep []Fault
	for _, x := range list {
		if x.Symbol != symbol {
			keep = append(keep, x)
		}
	}
	return keep
}

// Used sums the memory of the processes by UUID of GPU or MIG instance, of dead processes too.
func (s *State) Used() map[string]int64 {
	out := map[string]int64{}
	for _, p := range s.Procs {
		out[p.UUID] += p.Bytes
	}
	return out
}

// UUIDs lists the UUIDs of the GPUs by index.
func (s *State) UUIDs() []string {
	var out []string
	for i := range s.GPUs {
		out = append(out, s.GPUs[i].UUID)
	}
	return out
}

// Models returns the names that New knows.
func Models() []string {
	var out []string
	for name := range models {
		out = append(out, name)
	}
	sort.Strings(out)
	return out
}
