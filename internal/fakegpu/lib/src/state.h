// The state that the fake driver libraries share: one text file of lines, named by MUSTER_FAKEGPU_STATE. It is read
// again whenever it has changed, so that whoever edits it injects faults into running processes. Writers hold
// flock(FILE.lock) and replace the file by rename. Grammar: ../state.go.
#ifndef FAKEGPU_STATE_H
#define FAKEGPU_STATE_H

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;

enum { GPUS = 64, MIGS = 448, LINKS = 1024, PAIRS = 2048, PROCS = 8192, XIDS = 512, PROFILES = 1024, FAULTS = 128, LIMITS = 1024, UUID = 80 };

struct gpu {
	char uuid[UUID], name[96], serial[30];
	unsigned domain, bus, dev, pci_id;
	u64 memory, reserved, used, bar1; // bytes; used is beyond what processes hold
	unsigned minor, temp, util, memutil, power, limit, minlimit, maxlimit; // power in mW
	unsigned clock, memclock, pciegen, pciewidth, arch, brand, nvlink, sms;
	int numa; // -1: not known
	unsigned ccmajor, ccminor;
	int ecc; // -1: not supported
	u64 eccvolatile, ecccorrected, energy, throttle;
	int lost, persistence, display, computemode, recovery, rowspending, rowsfailed, retiring;
	int mig, migpending; // -1: not supported
	char fabric[40];     // cluster UUID in hex digits, or empty
	unsigned clique;
	unsigned rowscorrected, rowsuncorrected;
	u64 eccaggregate, ecccorrectedaggregate;
	unsigned pcietx, pcierx, pciereplay; // kB/s
	u64 linksdown;                       // bits, by number of the link
	u64 nvtx, nvrx;                      // KiB over all links
	u64 nvreplay, nvrecovery, nvcrc, nvcrcdata;
	unsigned active, occupied, tensor, dram; // thousandths
	unsigned fabricstate, fabrichealth;      // state 0: 3 where there is a fabric
};

struct mig { int gpu; char uuid[UUID], profile[32]; unsigned gi, ci, slices, sms; u64 memory; unsigned start, size; };
struct profile { int gpu; unsigned number, id, slices, size, sms, max, n, start[8]; u64 memory; }; // n places
struct link { int a, b; unsigned n; }; // b is -1 for a switch
struct pair { int a, b; unsigned level; };
struct proc { char uuid[UUID]; int pid; u64 start, bytes, ns; }; // start 0: declared, not a live process; pid is that of pid namespace ns
struct xid { u64 seq; int gpu; unsigned code, gi; };
struct limit { char uuid[UUID], group[400]; u64 soft, hard; }; // group: directory of a control group of version 2
struct fault { char kind, symbol[64]; unsigned arg; }; // kinds d(elay) h(ang) c(rash) f(ail)

struct state {
	char driver[80], nvml[80];
	int cuda;
	u64 context; // bytes that every CUDA context takes
	int dmem; // the driver limits control groups
	int ngpu, nmig, nlink, npair, nproc, nxid, nfault, nlimit, nprofile;
	struct gpu gpu[GPUS];
	struct mig mig[MIGS];
	struct link link[LINKS];
	struct pair pair[PAIRS];
	struct proc proc[PROCS];
	struct xid xid[XIDS];
	struct fault fault[FAULTS];
	struct limit limit[LIMITS];
	struct profile profile[PROFILES];
};

static struct state state;                                  // guarded by state_mu
static pthread_mutex_t state_mu = PTHREAD_MUTEX_INITIALIZER; // also across everything that a call reads
static struct stat state_seen;

static inline const char *state_path(void) {
	const char *p = getenv("MUSTER_FAKEGPU_STATE");
	return p ? p : "";
}

// start_of is when a process started, in ticks since boot, or 0 when there is no such process.
static inline u64 start_of(int pid) {
	char path[64], buf[1024];
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) return 0;
	ssize_t n = read(fd, buf, sizeof buf - 1);
	close(fd);
	if (n <= 0) return 0;
	buf[n] = 0;
	char *p = strrchr(buf, ')');
	if (!p || p[1] == 0 || p[2] == 'Z' || p[2] == 'X') return 0;
	for (int field = 2; *p && field < 22; p++)
		if (*p == ' ') field++;
	return strtoull(p, 0, 10);
}

// plain undoes percent encoding in place.
static inline void plain(char *s) {
	char *w = s;
	for (; *s; s++, w++) {
		unsigned c;
		if (*s == '%' && s[1] && s[2] && sscanf(s + 1, "%2x", &c) == 1) *w = (char)c, s += 2;
		else *w = *s;
	}
	*w = 0;
}

#define COPY(to, from) snprintf((to), sizeof(to), "%s", (from))

static inline void gpu_set(struct gpu *g, const char *k, char *v) {
	plain(v);
	u64 n = strtoull(v, 0, 10);
	int i = (int)strtol(v, 0, 10);
#define TEXT(field) if (!strcmp(k, #field)) { COPY(g->field, v); return; }
#define NUM(field) if (!strcmp(k, #field)) { g->field = (__typeof__(g->field))n; return; }
#define INT(field) if (!strcmp(k, #field)) { g->field = i; return; }
	TEXT(uuid) TEXT(name) TEXT(serial) TEXT(fabric)
	NUM(memory) NUM(reserved) NUM(used) NUM(bar1) NUM(minor) NUM(temp) NUM(util) NUM(memutil) NUM(power) NUM(limit)
	NUM(minlimit) NUM(maxlimit) NUM(clock) NUM(memclock) NUM(pciegen) NUM(pciewidth) NUM(arch) NUM(brand) NUM(nvlink)
	NUM(sms) NUM(eccvolatile) NUM(ecccorrected) NUM(energy) NUM(throttle) NUM(clique)
	NUM(rowscorrected) NUM(rowsuncorrected) NUM(eccaggregate) NUM(ecccorrectedaggregate) NUM(pcietx) NUM(pcierx) NUM(pciereplay) NUM(linksdown)
	NUM(nvtx) NUM(nvrx) NUM(nvreplay) NUM(nvrecovery) NUM(nvcrc) NUM(nvcrcdata) NUM(active) NUM(occupied) NUM(tensor) NUM(dram)
	NUM(fabricstate) NUM(fabrichealth)
	INT(numa) INT(ecc) INT(lost) INT(persistence) INT(display) INT(computemode) INT(recovery) INT(rowspending)
	INT(rowsfailed) INT(retiring) INT(mig) INT(migpending)
#undef TEXT
#undef NUM
#undef INT
	if (!strcmp(k, "bus")) sscanf(v, "%x:%x:%x", &g->domain, &g->bus, &g->dev);
	if (!strcmp(k, "cc")) sscanf(v, "%u.%u", &g->ccmajor, &g->ccminor);
}

static inline int gpu_by_uuid(const struct state *s, const char *uuid) {
	for (int i = 0; i < s->ngpu; i++)
		if (!strcmp(s->gpu[i].uuid, uuid)) return i;
	return -1;
}

static inline int mig_by_uuid(const struct state *s, const char *uuid) {
	for (int i = 0; i < s->nmig; i++)
		if (!strcmp(s->mig[i].uuid, uuid)) return i;
	return -1;
}

static inline void parse_line(struct state *s, char *line) {
	char *w[128];
	int n = 0;
	char *save = 0;
	for (char *t = strtok_r(line, " \t\r", &save); t && n < 128; t = strtok_r(0, " \t\r", &save)) w[n++] = t;
	if (n < 2 || w[0][0] == '#') return;
	if (!strcmp(w[0], "driver")) COPY(s->driver, w[1]);
	else if (!strcmp(w[0], "nvml")) COPY(s->nvml, w[1]);
	else if (!strcmp(w[0], "cuda")) s->cuda = atoi(w[1]);
	else if (!strcmp(w[0], "context")) s->context = strtoull(w[1], 0, 10);
	else if (!strcmp(w[0], "gpu") && s->ngpu < GPUS) {
		struct gpu *g = &s->gpu[s->ngpu++];
		g->numa = -1, g->mig = -1, g->migpending = -1, g->ecc = -1;
		for (int i = 1; i < n; i++) {
			char *eq = strchr(w[i], '=');
			if (eq) *eq = 0, gpu_set(g, w[i], eq + 1);
		}
	} else if (!strcmp(w[0], "mig") && n >= 9 && s->nmig < MIGS) {
		struct mig *m = &s->mig[s->nmig++];
		m->gpu = atoi(w[1]);
		COPY(m->uuid, w[2]), COPY(m->profile, w[3]);
		m->gi = (unsigned)atoi(w[4]), m->ci = (unsigned)atoi(w[5]), m->slices = (unsigned)atoi(w[6]), m->sms = (unsigned)atoi(w[7]);
		m->memory = strtoull(w[8], 0, 10);
		if (n > 10) m->start = (unsigned)atoi(w[9]), m->size = (unsigned)atoi(w[10]);
	} else if (!strcmp(w[0], "migprofile") && n >= 10 && s->nprofile < PROFILES) {
		struct profile *p = &s->profile[s->nprofile++];
		p->gpu = atoi(w[1]), p->number = (unsigned)atoi(w[2]), p->id = (unsigned)atoi(w[3]), p->slices = (unsigned)atoi(w[4]);
		p->size = (unsigned)atoi(w[5]), p->sms = (unsigned)atoi(w[6]), p->max = (unsigned)atoi(w[7]), p->memory = strtoull(w[8], 0, 10);
		for (int i = 9; i < n && p->n < 8; i++) p->start[p->n++] = (unsigned)atoi(w[i]);
	} else if (!strcmp(w[0], "link") && n >= 4 && s->nlink < LINKS) {
		s->link[s->nlink++] = (struct link){atoi(w[1]), strcmp(w[2], "switch") ? atoi(w[2]) : -1, (unsigned)atoi(w[3])};
	} else if (!strcmp(w[0], "topo") && n >= 4 && s->npair < PAIRS) {
		s->pair[s->npair++] = (struct pair){atoi(w[1]), atoi(w[2]), (unsigned)atoi(w[3])};
	} else if (!strcmp(w[0], "proc") && n >= 4 && s->nproc < PROCS) {
		struct proc *p = &s->proc[s->nproc++];
		COPY(p->uuid, w[1]);
		p->pid = atoi(w[2]), p->start = 0, p->bytes = strtoull(w[3], 0, 10);
	} else if (!strcmp(w[0], "charge") && n >= 5 && s->nproc < PROCS) {
		struct proc *p = &s->proc[s->nproc++];
		COPY(p->uuid, w[1]);
		p->pid = atoi(w[2]), p->start = strtoull(w[3], 0, 10), p->bytes = strtoull(w[4], 0, 10);
		if (n > 5) p->ns = strtoull(w[5], 0, 10);
	} else if (!strcmp(w[0], "dmem")) {
		s->dmem = atoi(w[1]);
	} else if (!strcmp(w[0], "limit") && n >= 5 && s->nlimit < LIMITS) {
		struct limit *l = &s->limit[s->nlimit++];
		COPY(l->uuid, w[1]), COPY(l->group, w[2]);
		l->soft = strtoull(w[3], 0, 10), l->hard = strtoull(w[4], 0, 10);
	} else if (!strcmp(w[0], "xid") && n >= 4 && s->nxid < XIDS) {
		s->xid[s->nxid++] = (struct xid){strtoull(w[1], 0, 10), atoi(w[2]), (unsigned)atoi(w[3]), n > 4 ? (unsigned)atoi(w[4]) : 0xFFFFFFFFu};
	} else if ((!strcmp(w[0], "delay") || !strcmp(w[0], "hang") || !strcmp(w[0], "crash") || !strcmp(w[0], "fail")) && s->nfault < FAULTS) {
		struct fault *f = &s->fault[s->nfault++];
		f->kind = w[0][0];
		COPY(f->symbol, w[1]);
		f->arg = n > 2 ? (unsigned)atoi(w[2]) : 0;
	}
}

// read_text reads the whole file; the caller frees it. It is 0 when there is none.
static inline char *read_text(struct stat *st) {
	int fd = open(state_path(), O_RDONLY | O_CLOEXEC);
	if (fd < 0) return 0;
	char *text = 0;
	if (!fstat(fd, st) && st->st_size < (8 << 20) && (text = malloc((size_t)st->st_size + 1))) {
		size_t n = 0;
		ssize_t r;
		while (n < (size_t)st->st_size && (r = read(fd, text + n, (size_t)st->st_size - n)) > 0) n += (size_t)r;
		text[n] = 0;
	}
	close(fd);
	return text;
}

static inline void parse_text(char *text) {
	memset(&state, 0, sizeof state);
	char *save = 0;
	for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(0, "\n", &save)) parse_line(&state, l);
}

// refresh reads the file again if it has changed; called with state_mu held. It is 0 when there is no file.
static inline int refresh(void) {
	struct stat st;
	if (stat(state_path(), &st)) return 0;
	if (st.st_ino == state_seen.st_ino && st.st_size == state_seen.st_size && st.st_mtim.tv_sec == state_seen.st_mtim.tv_sec &&
	    st.st_mtim.tv_nsec == state_seen.st_mtim.tv_nsec)
		return 1;
	char *text = read_text(&st);
	if (!text) return 0;
	parse_text(text);
	free(text);
	state_seen = st;
	return 1;
}

// own_ns is the pid namespace of this process.
static inline u64 own_ns(void) {
	struct stat st;
	return stat("/proc/self/ns/pid", &st) ? 0 : (u64)st.st_ino;
}

// pid_here is a process's pid in the namespace of the caller, or 0 when it is gone or lives where the caller cannot see.
static inline int pid_here(const struct proc *p) {
	if (!p->start) return p->pid;
	if (!p->ns || p->ns == own_ns()) return start_of(p->pid) == p->start ? p->pid : 0;
	DIR *d = opendir("/proc");
	int found = 0;
	for (struct dirent *e; d && !found && (e = readdir(d));) {
		int pid = atoi(e->d_name), inner = 0;
		if (pid <= 0 || start_of(pid) != p->start) continue;
		char path[64], line[256];
		struct stat st;
		snprintf(path, sizeof path, "/proc/%d/ns/pid", pid);
		if (stat(path, &st) || (u64)st.st_ino != p->ns) continue;
		snprintf(path, sizeof path, "/proc/%d/status", pid);
		FILE *f = fopen(path, "re");
		while (f && fgets(line, sizeof line, f))
			if (!strncmp(line, "NSpid:", 6)) {
				char *last = strrchr(line, '\t');
				if (last) inner = atoi(last + 1);
			}
		if (f) fclose(f);
		if (inner == p->pid) found = pid;
	}
	if (d) closedir(d);
	return found;
}

// Who cannot see into other pid namespaces takes their processes for alive; the fake NVML, which the agent loads, sees
// them and sweeps.
#ifndef SEES_ALL
#define SEES_ALL 0
#endif
static inline int alive(const struct proc *p) {
	if (!SEES_ALL && p->ns && p->ns != own_ns()) return 1;
	return pid_here(p) != 0;
}

// used_of is what processes hold on a GPU, those in its MIG instances included, or in one instance.
static inline u64 used_of(const struct state *s, int gpu, const char *uuid) {
	u64 sum = 0;
	for (int i = 0; i < s->nproc; i++) {
		const struct proc *p = &s->proc[i];
		int m;
		if ((!strcmp(p->uuid, uuid) || (gpu >= 0 && (m = mig_by_uuid(s, p->uuid)) >= 0 && s->mig[m].gpu == gpu)) && alive(p)) sum += p->bytes;
	}
	return sum;
}

// group_of finds the control group of version 2 that a process is in, below its mount: "/a/b". It is 0 when unknown.
static inline int group_of(int pid, char *to, size_t size) {
	char path[64], line[1024];
	snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
	FILE *f = fopen(path, "re");
	int found = 0;
	while (f && fgets(line, sizeof line, f))
		if (!strncmp(line, "0::", 3)) {
			line[strcspn(line, "\n")] = 0;
			snprintf(to, size, "%s", line + 3);
			found = 1;
		}
	if (f) fclose(f);
	return found;
}

// in_group reports whether a group below the mount is the one that a directory names, or lies in it.
static inline int in_group(const char *group, const char *dir) {
	size_t n = strlen(dir), g = strlen(group);
	for (size_t i = 0; i <= g && g > 1; i++) { // a parent of the group, or itself, is the end of the directory's path
		if (group[i] && group[i] != '/') continue;
		if (i > 1 && i <= n && !strncmp(dir + n - i, group, i)) return 1;
	}
	return 0;
}

static inline void nap(unsigned ms) {
	struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
	nanosleep(&t, 0);
}

static inline struct fault *fault_of(const char *symbol) {
	for (int i = 0; i < state.nfault; i++)
		if (!strcmp(state.fault[i].symbol, symbol)) return &state.fault[i];
	return 0;
}

// inject does what the file says about a function and returns with state_mu held; *code is what the function must
// answer, or 0. A hang lasts as long as the file says so. It is 0 when there is no file.
static inline int inject(const char *symbol, unsigned *code) {
	*code = 0;
	int waited = 0;
	for (;;) {
		pthread_mutex_lock(&state_mu);
		if (!refresh()) return 0;
		struct fault *f = fault_of(symbol);
		if (!f) return 1;
		unsigned arg = f->arg;
		char kind = f->kind;
		if (kind == 'f') {
			*code = arg;
			return 1;
		}
		if (kind == 'd' && waited) return 1;
		pthread_mutex_unlock(&state_mu);
		if (kind == 'c') {
			signal(SIGSEGV, SIG_DFL);
			raise(SIGSEGV);
			abort();
		}
		nap(kind == 'd' ? arg : 20);
		waited = 1;
	}
}

#endif
