// A program that uses GPU memory, for tests: it carries out the commands on its standard input and prints what came of
// each. The functions are found as the first argument says: "linked" (the default), "dlsym", "proc" (cuGetProcAddress, as
// the CUDA runtime does), "ptsz" (the same with per-thread streams), "deepbind" (the library opened so that it prefers its own), or
// "dlvsym", which goes around dlsym. With "hold MIB" it holds that much until it is killed.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;
#define FUNCTIONS(X) \
	X(cuInit, "") X(cuDeviceGetCount, "") X(cuDevicePrimaryCtxRetain, "") X(cuDevicePrimaryCtxReset, "_v2") X(cuCtxSetCurrent, "") \
	X(cuMemAlloc, "_v2") X(cuMemFree, "_v2") X(cuMemGetInfo, "_v2") X(cuMemAllocManaged, "") X(cuMemAllocPitch, "_v2") \
	X(cuMemAllocAsync, "") X(cuMemFreeAsync, "") X(cuMemCreate, "") X(cuMemRelease, "") X(cuMemMap, "") X(cuMemUnmap, "") \
	X(cuArrayCreate, "_v2") X(cuArrayDestroy, "") X(cuDeviceTotalMem, "_v2") X(cuMemPoolCreate, "") X(cuMemAllocFromPoolAsync, "") \
	X(cuMipmappedArrayCreate, "") X(cuMipmappedArrayDestroy, "") X(cuArray3DCreate, "_v2") X(cuMemAllocHost, "_v2") X(cuIpcGetMemHandle, "") \
	X(cuIpcOpenMemHandle, "_v2") X(cuIpcCloseMemHandle, "") X(cuMemPoolDestroy, "") X(cuCtxCreate, "_v2") X(cuCtxDestroy, "_v2") \
	X(cuDeviceGetMemPool, "") X(cuMemPoolSetAttribute, "") X(cuMemPoolTrimTo, "")
#define X(name, version) static int (*name)() __asm__("p_" #name); // another name than the function's, for the linker
FUNCTIONS(X)
#undef X

#ifdef LOADER // not linked with the driver's library
#define X(name, version) enum { name##_linked };
#else
#define X(name, version) extern int name##_linked() __asm__(#name version);
#endif
FUNCTIONS(X)
#undef X

// find_ gives a function under its name and version, and its per-thread-stream form where there is one.
static void *(*lookup)(void *, const char *);
static void *library;
static int (*proc)(const char *, void **, int, u64, int *);
static u64 flags;

static void *find_(const char *name, const char *version, void *linked) {
	char full[96];
	void *f = 0;
	snprintf(full, sizeof full, "%s%s", name, version);
	if (proc) {
		int status;
		return proc(name, &f, 12080, flags, &status) ? 0 : f;
	}
	return lookup ? lookup(library, full) : linked;
}

static void find_all(const char *how) {
	if (strcmp(how, "linked")) {
		library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | (strcmp(how, "deepbind") ? 0 : RTLD_DEEPBIND));
		lookup = dlsym;
		if (!strcmp(how, "dlvsym")) {
			lookup = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
			if (!lookup) lookup = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
		}
		if (!strcmp(how, "proc") || !strcmp(how, "ptsz")) {
			int (*first)(const char *, void **, int, u64, int *) = (int (*)(const char *, void **, int, u64, int *))dlsym(library, "cuGetProcAddress_v2");
			int status;
			if (first) first("cuGetProcAddress", (void **)&proc, 12080, 0, &status); // as the runtime: asked for once more by itself
			flags = !strcmp(how, "ptsz") ? 2 : 0;
		}
	}
#define X(name, version) name = (int (*)())find_(#name, version, (void *)name##_linked);
	FUNCTIONS(X)
#undef X
}

struct held { u64 at; char kind; };
static struct held list[100000];
static int n;

static int put(int r, const u64 *at, char kind) {
	if (!r && n < 100000) list[n++] = (struct held){*at, kind};
	return r;
}
static int drop(void) {
	if (!n) return 1;
	struct held h = list[--n];
	switch (h.kind) {
	case 's': return cuMemFreeAsync(h.at, (void *)0);
	case 'c': return cuMemRelease(h.at);
	case 'y': return cuArrayDestroy(h.at);
	case 'm': return cuMipmappedArrayDestroy(h.at);
	default: return cuMemFree(h.at);
	}
}

// racer allocates and frees at random until its time is over, and then allocates what it still can.
struct race { unsigned seed; int rounds; u64 step, got; void *ctx; };
static void *racer(void *arg) {
	struct race *r = arg;
	u64 mine[64];
	int have = 0;
	cuCtxSetCurrent(r->ctx);
	for (int i = 0; i < r->rounds; i++) {
		if (have == 64 || (have && rand_r(&r->seed) % 3 == 0)) cuMemFree(mine[--have]);
		else if (!cuMemAlloc(&mine[have], (size_t)r->step)) have++;
	}
	u64 at;
	r->got = (u64)have * r->step;
	while (!cuMemAlloc(&at, (size_t)r->step)) r->got += r->step;
	return 0;
}

// hold allocates so many MiB, or what it gets, in steps of 256, says so, and holds them.
static int hold(u64 mib) {
	size_t avail = 0, total = 0;
	u64 at, got = 0;
	void *ctx;
	find_all("dlsym");
	if (!cuInit || cuInit(0) || cuDevicePrimaryCtxRetain(&ctx, 0) || cuCtxSetCurrent(ctx) || cuMemGetInfo(&avail, &total)) {
		printf("no GPU\n");
		return 1;
	}
	printf("the GPU has %zu MiB, %zu MiB are free\n", total >> 20, avail >> 20);
	while (got < mib) {
		u64 step = mib - got < 256 ? mib - got : 256;
		if (cuMemAlloc(&at, (size_t)(step << 20))) {
			printf("CUDA_ERROR_OUT_OF_MEMORY after %llu MiB\n", got);
			break;
		}
		got += step;
	}
	printf("holding %llu MiB\n", got);
	for (;;) pause();
}

// bench gives the nanoseconds of a round: 'a' allocate and free, 's' the same in stream order, 'i' ask what is free.
static double bench(char kind, u64 rounds, u64 bytes) {
	struct timespec from, to;
	u64 at;
	size_t avail, total;
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (u64 i = 0; i < rounds; i++)
		switch (kind) {
		case 'a': cuMemAlloc(&at, (size_t)bytes), cuMemFree(at); break;
		case 's': cuMemAllocAsync(&at, (size_t)bytes, (void *)0), cuMemFreeAsync(at, (void *)0); break;
		default: cuMemGetInfo(&avail, &total);
		}
	clock_gettime(CLOCK_MONOTONIC, &to);
	return ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / (double)rounds;
}

int main(int argc, char **argv) {
	u64 x, y, v, at;
	int r, count;
	size_t avail, total;
	void *ctx = 0;
	char line[256], what[32];
	setvbuf(stdout, 0, _IOLBF, 0);
	if (argc == 3 && !strcmp(argv[1], "hold")) return hold(strtoull(argv[2], 0, 10));
	find_all(argc > 1 ? argv[1] : "linked");
	setvbuf(stdin, 0, _IONBF, 0); // what follows "exec" is the next program's
	while (fgets(line, sizeof line, stdin)) {
		x = y = v = 0;
		if (sscanf(line, "%31s %llu %llu %llu", what, &x, &y, &v) < 1) continue;
#define IS(name) if (!strcmp(what, name))
		IS("init") {
			count = 0;
			r = cuInit ? cuInit(0) : 999;
			if (!r) cuDeviceGetCount(&count);
			printf("%d %d\n", r, count);
		} else IS("ctx") {
			r = cuDevicePrimaryCtxRetain(&ctx, (int)x);
			if (!r) r = cuCtxSetCurrent(ctx);
			printf("%d\n", r);
		} else IS("reset") printf("%d\n", cuDevicePrimaryCtxReset((int)x));
		else IS("alloc") printf("%d\n", put(cuMemAlloc(&at, (size_t)x), &at, 'a'));
		else IS("managed") printf("%d\n", put(cuMemAllocManaged(&at, (size_t)x, 1), &at, 'a'));
		else IS("async") printf("%d\n", put(cuMemAllocAsync(&at, (size_t)x, (void *)0), &at, 's'));
		else IS("pitch") {
			size_t pitch;
			printf("%d\n", put(cuMemAllocPitch(&at, &pitch, (size_t)x, (size_t)y, 4), &at, 'a'));
		} else IS("array") {
			struct { size_t w, h; int format; unsigned channels; } d = {x, y, 0x20, 1};
			printf("%d\n", put(cuArrayCreate(&at, &d), &at, 'y'));
		} else IS("array3") { // x by y by v
			struct { size_t w, h, d; int format; unsigned channels, flags; } d = {x, y, v, 0x20, 1, 0};
			printf("%d\n", put(cuArray3DCreate(&at, &d), &at, 'y'));
		} else IS("sparse") { // the same with memory to be mapped later
			struct { size_t w, h, d; int format; unsigned channels, flags; } d = {x, y, v, 0x20, 1, 0x40};
			printf("%d\n", put(cuArray3DCreate(&at, &d), &at, 'y'));
		} else IS("mipmap") { // x by y, v levels
			struct { size_t w, h, d; int format; unsigned channels, flags; } d = {x, y, 1, 0x20, 1, 0};
			printf("%d\n", put(cuMipmappedArrayCreate(&at, &d, (unsigned)v), &at, 'm'));
		} else IS("host") {
			void *p;
			printf("%d\n", cuMemAllocHost(&p, (size_t)x));
		} else IS("ipc") { // the last allocation, opened as another process would
			struct { char bytes[64]; } handle;
			r = n ? cuIpcGetMemHandle(&handle, list[n - 1].at) : 1;
			if (!r) r = cuIpcOpenMemHandle(&at, handle, 1u);
			if (!r) r = cuIpcCloseMemHandle(at);
			printf("%d\n", r);
		} else IS("context") { // x bytes in a context of its own, which is then destroyed
			void *own;
			r = cuCtxCreate(&own, 0u, 0);
			if (!r) r = cuMemAlloc(&at, (size_t)x);
			if (own) cuCtxDestroy(own);
			if (ctx) cuCtxSetCurrent(ctx);
			printf("%d\n", r);
		} else IS("bench") { // x: kind's letter as a number
			printf("%.0f\n", bench((char)x, y, v));
		} else IS("create") {
			struct { int type, handles, location, device; u64 more[4]; } p = {1, 0, 1, (int)y, {0}};
			printf("%d\n", put(cuMemCreate(&at, (size_t)x, &p, 0ull), &at, 'c'));
		} else IS("mapped") { // memory whose handle is released while it is mapped; "unmap" ends it
			struct { int type, handles, location, device; u64 more[4]; } p = {1, 0, 1, 0, {0}};
			r = cuMemCreate(&at, (size_t)x, &p, 0ull);
			if (!r) r = cuMemMap(0x100000000000ull + y, (size_t)x, (size_t)0, at, 0ull);
			if (!r) r = cuMemRelease(at);
			printf("%d\n", r);
		} else IS("unmap") printf("%d\n", cuMemUnmap(0x100000000000ull + y, (size_t)x));
		else IS("pool") { // x bytes from a pool of its own
			struct { int type, handles, location, device; u64 more[10]; } p = {1, 0, 1, 0, {0}};
			static void *pool;
			r = pool ? 0 : cuMemPoolCreate(&pool, &p);
			if (!r) r = put(cuMemAllocFromPoolAsync(&at, (size_t)x, pool, (void *)0), &at, 's');
			printf("%d\n", r);
		} else IS("threshold") {
			void *pool;
			r = cuDeviceGetMemPool(&pool, 0);
			if (!r) r = cuMemPoolSetAttribute(pool, 4, &x);
			printf("%d\n", r);
		} else IS("fill") { // steps of x until refused, how many
			for (count = 0; !(r = put(cuMemAlloc(&at, (size_t)x), &at, 'a')); count++) {
			}
			printf("%d %d\n", r, count);
		} else IS("free") printf("%d\n", drop());
		else IS("freeall") {
			for (r = 0; n;) r |= drop();
			printf("%d\n", r);
		} else IS("info") {
			avail = total = 0;
			r = cuMemGetInfo(&avail, &total);
			printf("%d %zu %zu\n", r, avail, total);
		} else IS("total") {
			total = 0;
			r = cuDeviceTotalMem(&total, (int)x);
			printf("%d %zu\n", r, total);
		} else IS("race") { // x threads, y rounds, steps of v: what all hold in the end
			struct race race[64] = {0};
			pthread_t t[64];
			u64 sum = 0;
			for (u64 i = 0; i < x && i < 64; i++) {
				race[i] = (struct race){(unsigned)(getpid() * 64 + (int)i), (int)y, v, 0, ctx};
				pthread_create(&t[i], 0, racer, &race[i]);
			}
			for (u64 i = 0; i < x && i < 64; i++) pthread_join(t[i], 0), sum += race[i].got;
			printf("%llu\n", sum);
		} else IS("fork") { // a child that asks how much is free, with threads of the parent alive
			fflush(stdout);
			pid_t pid = fork();
			if (!pid) {
				r = cuMemGetInfo(&avail, &total);
				_exit(r > 99 ? 99 : r);
			}
			int status = 0;
			for (int i = 0; i < 500 && waitpid(pid, &status, WNOHANG) == 0; i++) usleep(10000);
			printf("%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
			kill(pid, SIGKILL);
		} else IS("exec") {
			fflush(stdout);
			execv("/proc/self/exe", argv);
			printf("999\n");
		} else IS("sleep") {
			usleep((useconds_t)x * 1000);
			printf("0\n");
		} else IS("pid") printf("%d\n", getpid());
		else IS("quit") return 0;
		else printf("998\n");
	}
	return 0;
}
