// Makes user-mode Linux run on processors whose vector state is larger than it knows (AMX: 11 KiB).
//
// Linux takes a process's extended state from ptrace(PTRACE_SETREGSET, NT_X86_XSTATE) only as a whole, in the size that the
// machine has, and user-mode Linux 6.1 offers the 2,696 bytes of AVX-512; its first process then dies with "put_fp_registers".
// on-cgroup2 preloads this: what was refused is laid over the process's present state and offered again.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

enum {
	components = 512,       // offset of XSTATE_BV, one bit for each part of the state in use (Intel SDM 1, 13.4.2)
	tiles = 1 << 17 | 1 << 18 // AMX, which no program of that kernel can have asked for
};

typedef long call(enum __ptrace_request, pid_t, void *, void *);

long ptrace(enum __ptrace_request request, ...) {
	static call *next;
	va_list l;
	va_start(l, request);
	pid_t pid = va_arg(l, pid_t);
	void *addr = va_arg(l, void *), *data = va_arg(l, void *);
	va_end(l);
	if (!next)
		next = (call *)dlsym(RTLD_NEXT, "ptrace");
	long r = next(request, pid, addr, data);
	if (request != PTRACE_SETREGSET || (uintptr_t)addr != NT_X86_XSTATE || r == 0 || errno == ESRCH)
		return r;

	int refused = errno;
	static __thread uint8_t state[64 << 10];
	struct iovec *given = data, whole = {state, sizeof state};
	if (given->iov_len < components + 8 || next(PTRACE_GETREGSET, pid, addr, &whole) < 0 || whole.iov_len <= given->iov_len) {
		errno = refused;
		return -1;
	}
	memcpy(state, given->iov_base, given->iov_len);
	uint64_t used;
	memcpy(&used, state + components, sizeof used);
	used &= ~(uint64_t)tiles;
	memcpy(state + components, &used, sizeof used);
	return next(request, pid, addr, &whole);
}
