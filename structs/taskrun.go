package structs

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Ulimits lists the names of limits that a task may set, as setrlimit and shells know them.
var Ulimits = []string{"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nofile", "nproc", "rss", "sigpending", "stack"}

// UlimitMemlock is how much memory a process may lock: RDMA registers memory, which locks it.
const UlimitMemlock = "memlock"

// DockerDriver is the driver of containers. DockerGPUAttribute is the attribute of nodes that says how GPUs are passed
// to their containers, DockerGPUNone if they cannot be.
const (
	DockerDriver       = "docker"
	DockerGPUAttribute = "driver.docker.gpu"
	DockerGPUNone      = "none"
)

// Modes of a group's network; "" is NetworkHost.
const (
	NetworkHost   = "host"
	NetworkNone   = "none"
	NetworkBridge = "bridge"
)

// Attributes of nodes that say which networks their allocations can have. NoneAttribute is set if they can have one
// with only a loopback interface; BridgeAttribute names the bridge. The same name with LacksSuffix says why one is not
// set.
const (
	NoneAttribute   = "network.none"
	BridgeAttribute = "network.bridge"
	LacksSuffix     = ".lacks"
)

// JoinsNetwork reports whether tasks of a driver can join the network of their allocation.
func JoinsNetwork(driver string) bool { return driver == "exec" || driver == "raw_exec" }

// NetworkMode returns the mode of the group's network.
func (g *Group) NetworkMode() string {
	if len(g.Networks) == 0 || g.Networks[0].Mode == "" {
		return NetworkHost
	}
	return g.Networks[0].Mode
}

// CheckTaskName returns an error if a task cannot have the name. It is also the name of a directory in the allocation's,
// where "alloc" is the one that the tasks share and names that begin with a dot are the agent's own.
func CheckTaskName(name string) error {
	switch {
	case name == "" || len(name) > 128 || strings.ContainsFunc(name, func(r rune) bool { return unicode.IsControl(r) || r == '/' || r == '\\' }):
		return errors.New("the name must have 1 to 128 bytes without slashes and control characters")
	case name == "alloc":
		return errors.New(`the name "alloc" is reserved for the directory that the tasks of an allocation share`)
	case name[0] == '.':
		return errors.New("the name begins with a dot; such names are reserved for the agent's own directories")
	}
	return nil
}

// CheckHostname returns an error if an allocation's host name is invalid.
func CheckHostname(name string) error {
	if len(name) == 0 || len(name) > 63 {
		return fmt.Errorf("%.80q is not a host's name: want 1 to 63 letters, digits, hyphens and dots", name)
	}
	for part := range strings.SplitSeq(name, ".") {
		ok := part != "" && part[0] != '-' && part[len(part)-1] != '-'
		for i := 0; i < len(part) && ok; i++ {
			c := part[i]
			ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-'
		}
		if !ok {
			return fmt.Errorf("%q is not a host's name: want letters, digits and hyphens, with dots between, and no hyphen at an end", name)
		}
	}
	return nil
}

// OwnNetwork returns NetworkBridge or NetworkNone for a group whose allocations need a network namespace of the node,
// else "". Tasks whose driver can do without a network do not need one.
func (g *Group) OwnNetwork() string {
	switch mode := g.NetworkMode(); mode {
	case NetworkBridge:
		return mode
	case NetworkNone:
		for _, t := range g.Tasks {
			if JoinsNetwork(t.Driver) {
				return mode
			}
		}
	}
	return ""
}

// RDMAAttribute is the attribute of nodes that names their RDMA adapters; it is absent without any.
const RDMAAttribute = "rdma.devices"

// NoLimit is the value of an absent limit.
const NoLimit = ^uint64(0)

// ParseUlimit reads a limit as jobs write it: "65536", "unlimited", or soft and hard, "1024:unlimited".
func ParseUlimit(name, text string) (soft, hard uint64, err error) {
	if !slices.Contains(Ulimits, name) {
		return 0, 0, fmt.Errorf("there is no limit %.64q: want one of %s", name, strings.Join(Ulimits, ", "))
	}
	one := func(s string) (uint64, error) {
		if s == "unlimited" || s == "-1" {
			return NoLimit, nil
		}
		n, err := strconv.ParseUint(s, 10, 63)
		if err != nil {
			return 0, fmt.Errorf("%.64q: want a number, \"unlimited\", or two of them as SOFT:HARD", text)
		}
		return n, nil
	}
	first, second, two := strings.Cut(strings.TrimSpace(text), ":")
	if soft, err = one(first); err != nil {
		return 0, 0, err
	}
	if !two {
		return soft, soft, nil
	}
	if hard, err = one(second); err != nil {
		return 0, 0, err
	}
	if soft > hard {
		return 0, 0, fmt.Errorf("%.64q: the soft limit is above the hard one", text)
	}
	return soft, hard, nil
}

// ParseUmask reads a umask as shells write it, in octal; "" is 022.
func ParseUmask(text string) (uint32, error) {
	if text == "" {
		return 0o022, nil
	}
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > 0o777 {
		return 0, fmt.Errorf("%.64q is not a umask: want octal digits such as \"0027\"", text)
	}
	return uint32(n), nil
}

// PathWords are the placeholders of a log path, as in Slurm.
var PathWords = map[byte]string{
	'j': "the job's id", 'x': "the job's name", 'u': "the user", 'N': "the node's name", 'n': "the node rank", 't': "the rank",
	'a': "the index in the array", 'A': "the job's id", '%': "a percent sign",
}

// pathWidthMax limits the width in "%4t".
const pathWidthMax = 10

// ExpandPath replaces the placeholders of a log path: %t, or %4t for a number padded with zeros. value returns the text
// of a placeholder, or false to leave it unexpanded. %% becomes % only if value returns true for it.
func ExpandPath(template string, value func(word byte) (string, bool)) (string, error) {
	var b strings.Builder
	for i := 0; i < len(template); i++ {
		if template[i] != '%' {
			b.WriteByte(template[i])
			continue
		}
		k := i + 1
		for k < len(template) && template[k] >= '0' && template[k] <= '9' {
			k++
		}
		if k == len(template) {
			return "", errors.New("a % at its end stands for nothing; write %% for a percent sign")
		}
		word := template[k]
		if _, ok := PathWords[word]; !ok {
			return "", fmt.Errorf("%q is no placeholder: there are %%j and %%A (job), %%x (its name), %%u (user), %%N (node), %%n (node rank), %%t (rank), %%a (array index) and %%%%", template[i:k+1])
		}
		width, _ := strconv.Atoi(template[i+1 : k])
		if width > pathWidthMax {
			return "", fmt.Errorf("%q: want at most %d digits", template[i:k+1], pathWidthMax)
		}
		if v, ok := value(word); ok {
			if _, err := strconv.ParseUint(v, 10, 64); err == nil {
				b.WriteString(strings.Repeat("0", max(0, width-len(v))))
			}
			b.WriteString(v)
		} else {
			b.WriteString(template[i : k+1])
		}
		i = k
	}
	return b.String(), nil
}

// CheckLogPath returns an error if the log path of a task is invalid.
func CheckLogPath(template string) error {
	_, err := ExpandPath(template, func(byte) (string, bool) { return "x", true })
	switch {
	case err != nil:
		return err
	case len(template) > 1024:
		return errors.New("want at most 1024 characters")
	case strings.HasSuffix(template, "/"):
		return errors.New("want a file, not a directory")
	}
	return nil
}
