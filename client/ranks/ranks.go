// Package ranks starts the ranks of a task in rank mode: copies of its command with the same namespaces and limits,
// each with RANK and LOCAL_RANK, their output as lines that begin with the rank ("3: loss 0.1"). The ranks end
// together: when one fails the others are asked to end, and its exit code is the task's. It runs as `muster ranks` in
// the place of the task.
package ranks

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Verb is the hidden verb of the program.
const Verb = "ranks"

// endPatience is how long the other ranks may take to end after one has failed.
const endPatience = 10 * time.Second

// LineMax is the length at which a line is passed on in pieces.
const LineMax = 64 << 10

// idle is how long an unfinished line is held: progress bars never end theirs.
const idle = time.Second

// MaybeRun becomes the launcher if the program was started as one; main calls it first.
func MaybeRun() {
	if len(os.Args) < 2 || os.Args[1] != Verb {
		return
	}
	how, words, ok := parse(os.Args[2:])
	if !ok {
		fmt.Fprintln(os.Stderr, "muster ranks is for agents, which start it as: muster ranks [-single] [-log PATH] [-log-error PATH] -- FILE ARGUMENT0 [ARGUMENT...]")
		os.Exit(2)
	}
	runtime.LockOSThread() // ranks are tied to the thread that started them
	os.Exit(how.run(words[0], words[1:], os.Environ(), os.Stdout, os.Stderr))
}

// Label returns the prefix of a rank's lines.
func Label(rank int) string { return strconv.Itoa(rank) + ": " }

type ended struct {
	rank int
	code int
}

// manner says how a task is started.
type manner struct {
	single             bool // one unchanged process: no ranks
	logPath, errorPath string
}

// parse reads the agent's options; words are the file and its arguments.
func parse(args []string) (how manner, words []string, ok bool) {
	for len(args) > 0 {
		switch args[0] {
		case "--":
			return how, args[1:], len(args) > 2
		case "-single":
			how.single, args = true, args[1:]
		case "-log", "-log-error":
			if len(args) < 2 {
				return how, nil, false
			}
			if args[0] == "-log" {
				how.logPath = args[1]
			} else {
				how.errorPath = args[1]
			}
			args = args[2:]
		default:
			return how, nil, false
		}
	}
	return how, nil, false
}

func (how manner) run(path string, argv, env []string, stdout, stderr io.Writer) int {
	n, first := number(env, "MUSTER_RANKS", 1), number(env, "MUSTER_FIRST_RANK", 0)
	if how.single {
		n, first = 1, 0
	}
	logs, err := how.open(n, first)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitLog
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGCONT)
	out, errs := &lines{w: stdout}, &lines{w: stderr}
	exits := make(chan ended, n)
	procs := make([]*os.Process, 0, n)
	for i := range n {
		rank := first + i
		cmd := &exec.Cmd{Path: path, Args: argv, Env: environ(env, rank, i)}
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		o, e := out.rank(rank), errs.rank(rank)
		cmd.Stdout, cmd.Stderr = logs.tee(o, i, false), logs.tee(e, i, true)
		if how.single {
			cmd.Env, cmd.Stdout, cmd.Stderr = env, logs.tee(stdout, i, false), logs.tee(stderr, i, true)
		}
		cmd.WaitDelay = time.Second // child processes of a rank may keep its output open
		if err := cmd.Start(); err != nil {
			fmt.Fprintf(stderr, "rank %d does not start: %v\n", rank, err)
			for _, p := range procs {
				_ = p.Kill() // it may have ended already
			}
			return 127
		}
		procs = append(procs, cmd.Process)
		go func() {
			_ = cmd.Wait() // the process state has the result
			o.flush()
			e.flush()
			logs.flush(i)
			exits <- ended{rank, code(cmd.ProcessState)}
		}()
	}
	result, told := 0, false
	var kill <-chan time.Time
	for left := n; left > 0; {
		select {
		case s := <-signals:
			told = told || s == syscall.SIGTERM || s == syscall.SIGINT
			for _, p := range procs {
				_ = p.Signal(s) // an error means that it has ended
			}
		case <-kill:
			for _, p := range procs {
				_ = p.Kill()
			}
		case x := <-exits:
			left--
			if x.code == 0 || result != 0 {
				continue
			}
			result = x.code
			if left == 0 || told {
				continue
			}
			fmt.Fprintf(stderr, "rank %d ended with exit code %d: ending the other ranks\n", x.rank, x.code)
			for _, p := range procs {
				_ = p.Signal(syscall.SIGTERM)
			}
			kill = time.After(endPatience)
		}
	}
	return result
}

func code(st *os.ProcessState) int {
	if st == nil {
		return 1
	}
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return st.ExitCode()
}

func number(env []string, name string, def int) int {
	if n, err := strconv.Atoi(variable(env, name)); err == nil && n >= 0 {
		return n
	}
	return def
}

// Environ returns the environment of one rank, without the variables of the whole task.
func Environ(env []string, rank, local int) []string {
	out := []string{"RANK=" + strconv.Itoa(rank), "LOCAL_RANK=" + strconv.Itoa(local)}
	if slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "SLURM_JOB_ID=") }) {
		out = append(out, "SLURM_PROCID="+strconv.Itoa(rank), "SLURM_LOCALID="+strconv.Itoa(local))
	}
	if variable(env, "MUSTER_GPUS_BY_RANK") != "" {
		out = append(out, ownGPUs(env, local)...)
	}
	return out
}

// gpuLists are the variables with an entry for each GPU, in the same order.
var gpuLists = []string{"CUDA_VISIBLE_DEVICES", "MUSTER_GPU_MEMORY_MIB", "MUSTER_GPU_COMPUTE"}

// ownGPUs returns a rank's part of the task's GPUs: consecutive entries, the same number for each rank. With more ranks
// than GPUs, consecutive ranks share one.
func ownGPUs(env []string, local int) []string {
	n := number(env, "MUSTER_RANKS", 1)
	var out []string
	for _, name := range gpuLists {
		list := variable(env, name)
		if list == "" || n == 0 || local >= n {
			continue
		}
		all := strings.Split(list, ",")
		low := local * len(all) / n
		own := all[low:max(low+1, (local+1)*len(all)/n)]
		out = append(out, name+"="+strings.Join(own, ","))
		if name == "CUDA_VISIBLE_DEVICES" {
			out = append(out, "MUSTER_GPU_COUNT="+strconv.Itoa(len(own)))
		}
	}
	return out
}

// variable returns the value of a variable, "" if it is not set.
func variable(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

func environ(env []string, rank, local int) []string {
	own := Environ(env, rank, local)
	return append(slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.ContainsFunc(own, func(o string) bool { return strings.HasPrefix(o, name+"=") })
	}), own...)
}

// lines writes whole lines of several ranks to one writer.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

// rankLines is the output of one rank.
type rankLines struct {
	to    *lines
	label string
	mu    sync.Mutex
	buf   []byte // the beginning of a line
	timer *time.Timer
}

func (l *lines) rank(rank int) *rankLines { return &rankLines{to: l, label: Label(rank)} }

// Write implements io.Writer.
func (r *rankLines) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buf = append(r.buf, b...)
	end := bytes.LastIndexByte(r.buf, '\n') + 1
	if end == 0 && len(r.buf) >= LineMax {
		end = len(r.buf)
	}
	err := r.emit(end)
	if len(r.buf) > 0 {
		if r.timer == nil {
			r.timer = time.AfterFunc(idle, r.flush)
		} else {
			r.timer.Reset(idle)
		}
	}
	return len(b), err
}

// emit passes on the first n bytes of the buffer as lines. The caller holds mu.
func (r *rankLines) emit(n int) error {
	if n == 0 {
		return nil
	}
	var text []byte
	for line := range bytes.Lines(r.buf[:n]) {
		if i := bytes.LastIndexByte(bytes.TrimRight(line, "\r\n"), '\r'); i >= 0 {
			line = line[i+1:] // of text that a terminal would overwrite, only the last part is kept
		}
		text = append(append(text, r.label...), line...)
	}
	if text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	r.buf = append(r.buf[:0], r.buf[n:]...)
	r.to.mu.Lock()
	defer r.to.mu.Unlock()
	_, err := r.to.w.Write(text)
	return err
}

// flush passes on an unfinished line.
func (r *rankLines) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.emit(len(r.buf)) // an error has no reader
}
