// The library that holds a program to its share of a GPU's memory (backend "shim"). It is preloaded into tasks, stands
// between the program and the driver library, and refuses what goes beyond the share with CUDA_ERROR_OUT_OF_MEMORY, as
// a full GPU does. It is written from the manual of the CUDA driver interface; no header of it is needed.
//
// A program finds the driver's functions in three ways, and all of them lead here: it is linked with the library (the
// names below come first), it asks dlsym (which is ours), or it asks cuGetProcAddress (which is found by one of the other
// two). There the driver chooses the version, and what it answers is recognised by its address.
//
// The shares are files beside this library, one a GPU, named by its UUID: struct quota, mapped by every process of the
// task. Who allocates takes the file's lock, sums what the processes hold, and books before the driver is asked; the sum
// over the slots is the only truth, so that a process that dies between two instructions leaves nothing behind but its
// own slot. Slots of processes that are gone are freed by the agent, and here before anything is refused.
//
// This is no wall against a hostile program, which can do without the library: the agent watches for that.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

// The oldest versions of what moved between libraries, so that the file works in old systems as well.
#if defined(__x86_64__)
__asm__(".symver dlvsym,dlvsym@GLIBC_2.2.5\n.symver dladdr,dladdr@GLIBC_2.2.5\n.symver dlopen,dlopen@GLIBC_2.2.5");
#define OLD_DLSYM "GLIBC_2.2.5"
#elif defined(__aarch64__)
__asm__(".symver dlvsym,dlvsym@GLIBC_2.17\n.symver dladdr,dladdr@GLIBC_2.17\n.symver dlopen,dlopen@GLIBC_2.17");
#define OLD_DLSYM "GLIBC_2.17"
#endif

#define API __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))

typedef uint64_t u64;
typedef int CUresult, CUdevice;
typedef u64 CUdeviceptr;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3 };

// The parts are one translation unit: nothing of them can be seen from outside but the functions that are meant to be.
#include "share.h"
#include "lookup.h"
#include "books.h"
#include "memory.h"
#include "pools.h"
#include "virtual.h"
#include "told.h"

// ---- cuGetProcAddress ----

// ours gives the wrapper for what the driver answered. Where its address is none that dlsym knows, the name decides.
static void *ours(const char *symbol, void *f, u64 flags) {
	char name[96];
	for (int h = 0; f && h < NHOOKS; h++)
		if (LOAD(real[h]) == f || wrapper(h) == f) return wrapper(h);
	for (const char *const *suffix = flags & 2 ? (const char *const[]){"_ptsz", "_v2", "", 0} : (const char *const[]){"_v2", "", 0}; f && *suffix; suffix++) {
		snprintf(name, sizeof name, "%s%s", symbol, *suffix);
		int h = hook_of(name);
		if (h < 0) continue;
		STORE(real[h], f);
		return wrapper(h);
	}
	return f;
}
API CUresult cuGetProcAddress(const char *symbol, void **f, int version, u64 flags) {
	GUARD(cuGetProcAddress)
	CUresult r = REAL(cuGetProcAddress, const char *, void **, int, u64)(symbol, f, version, flags);
	if (!r && f) *f = ours(symbol, *f, flags);
	return r;
}
API CUresult cuGetProcAddress_v2(const char *symbol, void **f, int version, u64 flags, int *status) {
	GUARD(cuGetProcAddress_v2)
	CUresult r = REAL(cuGetProcAddress_v2, const char *, void **, int, u64, int *)(symbol, f, version, flags, status);
	if (!r && f) *f = ours(symbol, *f, flags);
	return r;
}

static void *wrapper(int h) {
	static void *const list[] = {
#define X(f) (void *)f,
		HOOKS(X)
#undef X
	};
	return h < NHOOKS ? list[h] : 0;
}
