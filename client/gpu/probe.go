//go:build linux && cgo

package gpu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Built says why this program cannot query GPUs, or "".
const Built = ""

// libraries are paths of the driver's library in containers and other distributions, in addition to the linker's.
var libraries = []string{
	"libnvidia-ml.so.1",
	"/usr/lib/wsl/lib/libnvidia-ml.so.1",
	"/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1",
	"/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
	"/run/nvidia/driver/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
	"/run/opengl-driver/lib/libnvidia-ml.so.1",
	"/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1",
}

// MaybeRun becomes the child process if the program was started as such; main calls it first. For manual checks,
// `gpu-probe -dump` prints one query, `-time N` how long N queries take, and `-share DIR UUID=MIB` creates the files of
// a share (package shim).
func MaybeRun() {
	canRun.Store(true)
	if len(os.Args) < 2 || os.Args[1] != verb {
		return
	}
	if len(os.Args) > 2 {
		switch {
		case len(os.Args) == 3 && os.Args[2] == "-dump":
			os.Exit(dump(os.Stdout, os.Stderr))
		case len(os.Args) == 4 && os.Args[2] == "-time":
			os.Exit(latency(os.Args[3], os.Stdout, os.Stderr))
		case len(os.Args) == 5 && os.Args[2] == "-share":
			os.Exit(placeShare(os.Args[3], os.Args[4], os.Stdout, os.Stderr))
		}
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM) // the child ends with its standard input, that is with the agent
	serve(os.Stdin, os.Stdout)
	os.Exit(0)
}

func dump(out, errs io.Writer) int {
	p, err := open()
	if err != nil {
		fmt.Fprintln(errs, "gpu-probe:", err)
		return 1
	}
	all := struct {
		Static  *Snapshot
		Dynamic []Sample
	}{}
	if all.Static, err = p.static(); err == nil {
		if _, err = p.dynamic(false); err == nil {
			time.Sleep(2 * activityEvery) // activity is known from the second measurement on
			all.Dynamic, err = p.dynamic(true)
		}
	}
	if err != nil {
		fmt.Fprintln(errs, "gpu-probe:", err)
		return 1
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	if e.Encode(all) != nil {
		return 1
	}
	return 0
}

// probe is the initialized library.
type probe struct {
	lib   nvml.Interface
	known map[string]bool // by symbol; used by the requests' goroutine and, before it starts, by open
	at    atomic.Pointer[call]
	mu    sync.Mutex
	seen  map[string]nvml.Device // registered for events, by UUID; guarded by mu
	set   nvml.EventSet          // or nil
	heard chan struct{}          // closed once the GPUs of the first full query are registered; guarded by mu
	hears bool                   // heard is closed
	turn  sync.Mutex             // held while events of set are waited for, or a GPU is registered
	until map[string]uint64      // time of the newest sample of processes, by UUID

	tells   map[string]bool      // GPUs that report their activity, by UUID
	samples map[string]*sampling // by UUID of GPU or MIG instance
}

// call is a call that has not returned.
type call struct {
	symbol, uuid string
	since        time.Time
}

var errMissing = errors.New("no NVIDIA driver library (libnvidia-ml.so.1)")

// wakeWithin limits how long the driver may take to create its device files.
const wakeWithin = 20 * time.Second

// wake makes the driver create the device files of unified memory, which every CUDA program needs: the first program
// that runs as root creates them, and tasks do not run as root. Without this driver the program does not exist.
func wake() {
	if os.Geteuid() != 0 || os.Getenv(LibraryEnv) != "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), wakeWithin)
	defer cancel()
	c := exec.CommandContext(ctx, "nvidia-modprobe", "-u", "-c=0")
	c.WaitDelay = time.Second
	if out, err := c.CombinedOutput(); err != nil && !errors.Is(err, exec.ErrNotFound) {
		fmt.Fprintf(os.Stderr, "nvidia-modprobe -u -c=0: %v: %s\n", err, bytes.TrimSpace(out))
	}
}

func open() (*probe, error) {
	wake()
	places := libraries
	if l := os.Getenv(LibraryEnv); l != "" {
		places = []string{l}
	}
	for _, l := range places {
		p := &probe{lib: nvml.New(nvml.WithLibraryPath(l)), known: map[string]bool{}, seen: map[string]nvml.Device{}, heard: make(chan struct{}), until: map[string]uint64{}, tells: map[string]bool{}, samples: map[string]*sampling{}}
		r := p.lib.Init()
		if r == nvml.ERROR_LIBRARY_NOT_FOUND {
			continue
		}
		if r != nvml.SUCCESS {
			return nil, fmt.Errorf("nvmlInit of %s: %s", l, text(r))
		}
		for _, s := range [][]string{countSymbols, handleSymbols, {"nvmlDeviceGetUUID"}} {
			if !p.has(s...) {
				return nil, fmt.Errorf("%s lacks %s: the driver is too old", l, s[0])
			}
		}
		return p, nil
	}
	return nil, errMissing
}

var (
	countSymbols  = []string{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"}
	handleSymbols = []string{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"}
)

// text names a return code without the library's help, which a broken driver may not provide.
func text(r nvml.Return) string {
	switch r {
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "the driver is not loaded"
	case nvml.ERROR_NO_PERMISSION:
		return "no permission"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "library and kernel module are of different versions; reboot, or reload the module"
	case nvml.ERROR_GPU_IS_LOST:
		return "GPU is lost"
	}
	return fmt.Sprintf("NVML error %d", int(r))
}

// has reports whether the library has one of the symbols: calling a missing one would end the process.
func (p *probe) has(symbols ...string) bool {
	for _, s := range symbols {
		ok, seen := p.known[s]
		if !seen {
			ok = p.lib.Extensions().LookupSymbol(s) == nil
			p.known[s] = ok
		}
		if ok {
			return true
		}
	}
	return false
}

// ask calls a function if the library has it. ok is false without an answer; a lost GPU is remembered.
func ask[T any](p *probe, d *view, symbols []string, f func() (T, nvml.Return)) (v T, ok bool) {
	if !p.has(symbols...) {
		return v, false
	}
	p.at.Store(&call{symbols[0], d.uuid, time.Now()})
	v, r := stable(f)
	p.at.Store(nil)
	if r == nvml.ERROR_GPU_IS_LOST || r == nvml.ERROR_RESET_REQUIRED {
		d.lost = true
	}
	return v, r == nvml.SUCCESS
}

// stable calls a function of the binding, again where the list that the driver returns has grown between its two calls for
// it: the binding makes room for the length of the first answer, slices by that of the second, and panics.
func stable[T any](f func() (T, nvml.Return)) (v T, r nvml.Return) {
	once := func() (again bool) {
		defer func() {
			if x := recover(); x != nil {
				if _, ok := x.(runtime.Error); !ok {
					panic(x)
				}
				again = true
			}
		}()
		v, r = f()
		return false
	}
	for range 3 {
		if !once() {
			return v, r
		}
	}
	return v, nvml.ERROR_INSUFFICIENT_SIZE
}

// view is a GPU during a query.
type view struct {
	nvml.Device
	uuid string
	lost bool
}

// devices opens all GPUs; lost counts those that cannot be opened.
func (p *probe) devices() (list []*view, lost int, err error) {
	none := &view{}
	n, ok := ask(p, none, countSymbols, p.lib.DeviceGetCount)
	if !ok {
		return nil, 0, errors.New("the driver does not report how many GPUs there are")
	}
	for i := range n {
		d := &view{}
		h, ok := ask(p, d, handleSymbols, func() (nvml.Device, nvml.Return) { return p.lib.DeviceGetHandleByIndex(i) })
		if !ok {
			lost++
			continue
		}
		d.Device = h
		if d.uuid, ok = ask(p, d, []string{"nvmlDeviceGetUUID"}, h.GetUUID); !ok {
			lost++
			continue
		}
		list = append(list, d)
	}
	return list, lost, nil
}

func (p *probe) static() (*Snapshot, error) {
	none := &view{}
	s := &Snapshot{}
	s.Driver, _ = ask(p, none, []string{"nvmlSystemGetDriverVersion"}, p.lib.SystemGetDriverVersion)
	s.NVML, _ = ask(p, none, []string{"nvmlSystemGetNVMLVersion"}, p.lib.SystemGetNVMLVersion)
	if v, ok := ask(p, none, []string{"nvmlSystemGetCudaDriverVersion_v2"}, p.lib.SystemGetCudaDriverVersion_v2); ok {
		s.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	} else if v, ok := ask(p, none, []string{"nvmlSystemGetCudaDriverVersion"}, p.lib.SystemGetCudaDriverVersion); ok {
		s.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	if v, ok := ask(p, none, []string{"nvmlSystemGetConfComputeState"}, p.lib.SystemGetConfComputeState); ok {
		s.Confidential = v.CcFeature != 0
	}
	list, lost, err := p.devices()
	if err != nil {
		return nil, err
	}
	s.Lost = lost
	for _, d := range list {
		x := p.device(d)
		if d.lost {
			s.Lost++
			continue
		}
		s.Dmem = s.Dmem || x.MIGMode != "Enabled" && p.limits(d)
		s.GPUs = append(s.GPUs, x)
		p.register(d)
	}
	p.listen()
	p.peers(list, s.GPUs)
	for _, sym := range slices.Concat(sampled, wired, active) {
		p.has(sym)
	}
	for sym, ok := range p.known {
		if !ok {
			s.Absent = append(s.Absent, sym)
		}
	}
	slices.Sort(s.Absent)
	return s, nil
}

// register subscribes to the events of a GPU, once.
func (p *probe) register(d *view) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set == nil || p.seen[d.uuid] != nil {
		return
	}
	types, ok := ask(p, d, []string{"nvmlDeviceGetSupportedEventTypes"}, d.GetSupportedEventTypes)
	if !ok {
		return
	}
	p.turn.Lock()
	defer p.turn.Unlock()
	want := uint64(nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError | eventUnavailable | eventRecovery)
	if _, ok := ask(p, d, []string{"nvmlDeviceRegisterEvents"}, func() (struct{}, nvml.Return) {
		return struct{}{}, d.RegisterEvents(types&want, p.set)
	}); ok {
		p.seen[d.uuid] = d.Device
	}
}

// eventsWithin is how long one wait for events takes, and so at most how long a query waits for each new GPU that it finds.
const eventsWithin = 500 * time.Millisecond

// listen has watch begin, if a GPU is registered.
func (p *probe) listen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.seen) > 0 && !p.hears {
		p.hears = true
		close(p.heard)
	}
}

// Event types of newer drivers.
const (
	eventUnavailable = 0x4000
	eventRecovery    = 0x8000
)

// watch waits for events until the process ends, from when GPUs are registered: the driver locks an event set while
// a caller waits for it, and the first query would take as long as that wait.
func (p *probe) watch(send func(message)) {
	<-p.heard
	for {
		p.turn.Lock()
		v, r := p.set.Wait(uint32(eventsWithin / time.Millisecond))
		p.turn.Unlock()
		switch r {
		case nvml.SUCCESS:
			e := Event{GI: -1}
			p.mu.Lock()
			for uuid, d := range p.seen {
				if d == v.Device {
					e.UUID = uuid
				}
			}
			p.mu.Unlock()
			if v.EventType == nvml.EventTypeXidCriticalError {
				e.XID = int64(v.EventData)
			} else if v.EventType == nvml.EventTypeDoubleBitEccError {
				e.XID = 48
			}
			if v.GpuInstanceId != 0xFFFFFFFF {
				e.GI = int64(v.GpuInstanceId)
			}
			send(message{Event: &e})
		case nvml.ERROR_TIMEOUT:
		case nvml.ERROR_GPU_IS_LOST:
			send(message{Event: &Event{GI: -1}})
			time.Sleep(time.Second)
		default:
			time.Sleep(time.Second)
		}
	}
}

// stuckAfter is how long a call may take before the agent gets its name.
const stuckAfter = time.Second

func serve(in io.Reader, out io.Writer) {
	var mu sync.Mutex // guards out
	send := func(m message) {
		mu.Lock()
		defer mu.Unlock()
		if writeMessage(out, m) != nil {
			os.Exit(1)
		}
	}
	requests := make(chan request, 4)
	go func() {
		for {
			var r request
			if readMessage(in, &r) != nil {
				os.Exit(0) // the agent is gone; a hanging call must not keep this process
			}
			requests <- r
		}
	}()
	var p atomic.Pointer[probe]
	started := time.Now()
	go func() {
		told := (*call)(nil)
		for {
			time.Sleep(100 * time.Millisecond)
			now := p.Load()
			if now == nil {
				if told == nil && time.Since(started) > stuckAfter {
					told = &call{}
					send(message{Stuck: "nvmlInit"})
				}
				continue
			}
			if c := now.at.Load(); c != nil && c != told && time.Since(c.since) > stuckAfter {
				told = c
				name := c.symbol
				if c.uuid != "" {
					name += " of " + c.uuid
				}
				send(message{Stuck: name})
			}
		}
	}()
	o, err := open()
	if err != nil {
		send(message{Err: err.Error(), Missing: errors.Is(err, errMissing)})
		return
	}
	if o.has("nvmlEventSetCreate") && o.has("nvmlEventSetWait_v2", "nvmlEventSetWait") {
		set, ok := ask(o, &view{}, []string{"nvmlEventSetCreate"}, o.lib.EventSetCreate)
		if ok {
			o.set = set
			go o.watch(send)
		}
	}
	p.Store(o)
	send(message{Hello: true})
	for r := range requests {
		m := message{ID: r.ID}
		var err error
		switch r.Op {
		case "static":
			m.Static, err = o.static()
		case "dynamic":
			m.Dynamic, err = o.dynamic(r.Wires)
		case "limit", "limits":
			m.Limit, err = o.limit(r)
		case "power":
			m.PowerMW, err = o.power(r)
		default:
			err = fmt.Errorf("%q is no request", r.Op)
		}
		if err != nil {
			m.Err = err.Error()
		}
		send(m)
	}
}
