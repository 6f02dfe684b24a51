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

// ---- the share of one GPU; package shim holds the other end of this agreement ----

enum { SLOTS = 1023 };
#define MAGIC 0x31544f5551474d4dull // "MMGQUOT1"
struct slot {
	uint32_t pid, unused; // 0: free; as in the pid namespace ns
	u64 start;            // of the process, in ticks since boot
	u64 ns;               // inode of its pid namespace
	u64 used;             // bytes
};
struct quota {
	u64 magic, limit; // bytes; written by the agent
	u64 untracked;    // bytes that the driver says are held beyond what is booked: contexts, code; written by the agent
	u64 peak, denied; // most held at once; allocations refused
	u64 unused[3];
	struct slot slot[SLOTS];
};
_Static_assert(sizeof(struct slot) == 32 && sizeof(struct quota) == 32 * 1025, "the layout is the agent's too");

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_ACQUIRE)
#define STORE(x, v) __atomic_store_n(&(x), v, __ATOMIC_RELEASE)

// ---- a lock among threads that survives fork ----

static int owner;  // pid for which all that follows is valid; -1 while it is being made so
static int mu;     // 0 free, 1 held, 2 held and waited for
static u64 my_start, my_ns;

static void forget(void);

static void lock(void) {
	int pid = (int)syscall(SYS_getpid);
	for (int o; (o = LOAD(owner)) != pid;) {
		if (o != -1 && __atomic_compare_exchange_n(&owner, &o, -1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
			STORE(mu, 0); // a child of fork: whoever held it is not here
			forget();
			STORE(owner, pid);
		} else {
			syscall(SYS_sched_yield);
		}
	}
	int free = 0;
	if (__atomic_compare_exchange_n(&mu, &free, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
	while (__atomic_exchange_n(&mu, 2, __ATOMIC_ACQUIRE)) syscall(SYS_futex, &mu, FUTEX_WAIT_PRIVATE, 2, 0, 0, 0);
}
static void unlock(void) {
	if (__atomic_exchange_n(&mu, 0, __ATOMIC_RELEASE) == 2) syscall(SYS_futex, &mu, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
}

// ---- processes ----

// stat_of gives when a process started, or 0 when it cannot be told; *gone when nothing of it is left but its entry.
static u64 stat_of(const char *path, int *gone) {
	char buf[1024];
	*gone = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) return 0;
	ssize_t n = read(fd, buf, sizeof buf - 1);
	close(fd);
	if (n <= 0) return 0;
	buf[n] = 0;
	char *p = strrchr(buf, ')');
	if (!p || !p[1]) return 0;
	char state = p[2];
	u64 threads = 0;
	for (int field = 2; *p && field < 22; p++)
		if (*p == ' ' && ++field == 20) threads = strtoull(p, 0, 10);
	*gone = state == 'X' || (state == 'Z' && threads <= 1);
	return strtoull(p, 0, 10);
}

static int dead(const struct slot *s) {
	char path[64];
	int gone;
	if (kill((pid_t)s->pid, 0) && errno == ESRCH) return 1;
	snprintf(path, sizeof path, "/proc/%u/stat", s->pid);
	u64 start = stat_of(path, &gone);
	return gone || (start && s->start && start != s->start);
}

// ---- what is known of the driver ----

#define HOOKS(X)                                                                                                              \
	X(cuGetProcAddress) X(cuGetProcAddress_v2) X(cuMemAlloc_v2) X(cuMemAllocPitch_v2) X(cuMemAllocManaged)                 \
	X(cuMemAllocAsync) X(cuMemAllocAsync_ptsz) X(cuMemAllocFromPoolAsync) X(cuMemAllocFromPoolAsync_ptsz) X(cuMemCreate)    \
	X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemRetainAllocationHandle) X(cuArrayCreate_v2) X(cuArray3DCreate_v2)      \
	X(cuMipmappedArrayCreate) X(cuArrayDestroy) X(cuMipmappedArrayDestroy) X(cuMemFree_v2) X(cuMemFreeAsync)                \
	X(cuMemFreeAsync_ptsz) X(cuMemPoolCreate) X(cuMemPoolDestroy) X(cuMemGetInfo_v2) X(cuDeviceTotalMem_v2)                 \
	X(cuCtxDestroy_v2) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease_v2) X(cuDevicePrimaryCtxReset_v2)            \
	X(nvmlDeviceGetMemoryInfo) X(nvmlDeviceGetMemoryInfo_v2)
// Functions that are only called.
#define USED(X)                                                                                                               \
	X(cuCtxGetDevice) X(cuCtxGetCurrent) X(cuDeviceGetUuid) X(cuDeviceGetUuid_v2) X(cuDeviceGetMemPool)                     \
	X(cuMemPoolGetAttribute) X(cuMemPoolTrimTo) X(cuDevicePrimaryCtxGetState) X(nvmlDeviceGetUUID)

enum {
#define X(f) H_##f,
	HOOKS(X) NHOOKS, H_last = NHOOKS - 1, USED(X) NALL
#undef X
};
static const char *const name_of[NALL] = {
#define X(f) #f,
	HOOKS(X) USED(X)
#undef X
};
static void *real[NALL];
static void *wrapper(int h);

static void *(*dlsym_)(void *, const char *);
HIDDEN void *muster_dlsym; // the same for the assembler below
static char home[PATH_MAX];

static void begin(void) {
	if (LOAD(muster_dlsym)) return;
	for (const char *const *v = (const char *const[]){"GLIBC_2.34", OLD_DLSYM, 0}; *v && !dlsym_; v++)
		dlsym_ = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", *v);
	Dl_info me;
	if (!dladdr((void *)begin, &me) || strlen(me.dli_fname) >= sizeof home) me.dli_fname = "";
	char dir[PATH_MAX];
	snprintf(dir, sizeof dir, "%s", me.dli_fname);
	char *slash = strrchr(dir, '/');
	if (slash) slash[1] = 0;
	memcpy(home, slash ? dir : "", slash ? strlen(dir) + 1 : 1);
	STORE(muster_dlsym, (void *)dlsym_);
}
__attribute__((constructor)) static void loaded(void) { begin(); }

// learn finds all functions in the library in which one of them is.
static void learn(void *one) {
	Dl_info i;
	void *lib = dladdr(one, &i) ? dlopen(i.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : 0;
	int nvml = lib && !!dlsym_(lib, "nvmlDeviceGetCount_v2");
	for (int h = 0; lib && h < NALL; h++)
		if (!LOAD(real[h]) && !!strncmp(name_of[h], "nvml", 4) != nvml) {
			void *f = dlsym_(lib, name_of[h]);
			if (f != wrapper(h)) STORE(real[h], f);
		}
}

static void *resolve(int h) {
	void *f = LOAD(real[h]);
	if (f) return f;
	begin();
	if ((f = dlsym_(RTLD_NEXT, name_of[h]))) {
		STORE(real[h], f);
		learn(f);
	}
	return f;
}
#define CAN(fn) (resolve(H_##fn) != 0)
#define REAL(fn, ...) ((CUresult(*)(__VA_ARGS__))resolve(H_##fn))

static int hook_of(const char *name) {
	if (name[0] != 'c' && name[0] != 'n') return -1;
	for (int h = 0; h < NHOOKS; h++)
		if (!strcmp(name_of[h], name)) return h;
	return -1;
}

// muster_pick answers dlsym where the name is one of ours and the place that is asked has it.
HIDDEN void *muster_pick(void *handle, const char *name) {
	begin();
	int h = name ? hook_of(name) : -1;
	if (h < 0) return 0;
	void *f = dlsym_(handle == RTLD_DEFAULT ? RTLD_NEXT : handle, name);
	if (!f) return 0;
	if (f == wrapper(h)) return f;
	if (!LOAD(real[h])) {
		STORE(real[h], f);
		learn(f);
	}
	return wrapper(h);
}

// dlsym itself: what is not ours goes on to the real one with the caller's return address, by which that knows what
// RTLD_NEXT means.
#if defined(__x86_64__)
__asm__(".text\n.globl dlsym\n.type dlsym,@function\ndlsym:\n"
	"push %rdi\npush %rsi\nsub $8,%rsp\ncall muster_pick\nadd $8,%rsp\npop %rsi\npop %rdi\n"
	"test %rax,%rax\njne 1f\nmov muster_dlsym(%rip),%rax\njmp *%rax\n1:ret\n.size dlsym,.-dlsym\n");
#elif defined(__aarch64__)
__asm__(".text\n.globl dlsym\n.type dlsym,%function\ndlsym:\n"
	"stp x29,x30,[sp,#-32]!\nstp x0,x1,[sp,#16]\nbl muster_pick\nmov x2,x0\nldp x0,x1,[sp,#16]\nldp x29,x30,[sp],#32\n"
	"cbnz x2,1f\nadrp x16,muster_dlsym\nldr x16,[x16,:lo12:muster_dlsym]\nbr x16\n1:mov x0,x2\nret\n.size dlsym,.-dlsym\n");
#endif

// ---- shares of devices; guarded by mu ----

enum { DEVICES = 128 };
struct region { struct quota *q; struct slot *mine; char path[PATH_MAX + 64]; int known; };
static struct region region[DEVICES]; // by ordinal of the driver

static void map(struct region *r, const char *uuid) {
	r->known = 1;
	if (snprintf(r->path, sizeof r->path, "%s%s", home, uuid) >= (int)sizeof r->path) return;
	int fd = open(r->path, O_RDWR | O_CLOEXEC);
	if (fd < 0) return; // no share: the whole GPU
	void *m = mmap(0, sizeof(struct quota), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	off_t size = lseek(fd, 0, SEEK_END);
	close(fd);
	if (m == MAP_FAILED) return;
	if (size < (off_t)sizeof(struct quota) || ((struct quota *)m)->magic != MAGIC) munmap(m, sizeof(struct quota));
	else r->q = m;
}

static void text_of(const unsigned char *b, char *to) {
	char *p = to + sprintf(to, "GPU-");
	for (int i = 0; i < 16; i++) p += sprintf(p, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", b[i]);
}

// share is the region of a device, or 0 when its memory is not divided. Called with mu held.
static struct region *share(CUdevice device) {
	if (device < 0 || device >= DEVICES) return 0;
	struct region *r = &region[device];
	if (!r->known) {
		unsigned char b[16];
		char uuid[64];
		int code = CAN(cuDeviceGetUuid_v2) ? REAL(cuDeviceGetUuid_v2, unsigned char *, CUdevice)(b, device) : CAN(cuDeviceGetUuid) ? REAL(cuDeviceGetUuid, unsigned char *, CUdevice)(b, device) : INVALID_VALUE;
		if (code) return 0;
		text_of(b, uuid);
		map(r, uuid);
	}
	return r->q ? r : 0;
}

static int current(void) {
	CUdevice d = -1;
	return CAN(cuCtxGetDevice) && !REAL(cuCtxGetDevice, CUdevice *)(&d) ? d : -1;
}
static void *context(void) {
	void *c = 0;
	return CAN(cuCtxGetCurrent) && !REAL(cuCtxGetCurrent, void **)(&c) ? c : 0;
}

static u64 held(const struct quota *q) {
	u64 sum = 0;
	for (int i = 0; i < SLOTS; i++) sum += LOAD(q->slot[i].used);
	return sum;
}

static u64 room(const struct quota *q) {
	u64 limit = LOAD(q->limit), used = held(q) + LOAD(q->untracked);
	return used < limit ? limit - used : 0;
}

static struct slot *slot_of(struct quota *q) {
	struct slot *free = 0;
	for (int i = 0; i < SLOTS; i++) {
		struct slot *s = &q->slot[i];
		if (s->pid == (uint32_t)owner && s->ns == my_ns) {
			STORE(s->used, 0); // of what this process was before it became another program
			s->start = my_start;
			return s;
		}
		if (!s->pid && !free) free = s;
	}
	if (free) {
		free->start = my_start, free->ns = my_ns;
		STORE(free->used, 0);
		STORE(free->pid, (uint32_t)owner);
	}
	return free;
}

static void sweep(struct quota *q) {
	for (int i = 0; i < SLOTS; i++) {
		struct slot *s = &q->slot[i];
		if (s->pid && s->ns == my_ns && s->pid != (uint32_t)owner && dead(s)) {
			STORE(s->used, 0);
			STORE(s->pid, 0);
		}
	}
}

// reserve books bytes if they are within the share; with force in any case. Called with mu held.
static int reserve(struct region *r, u64 bytes, int force) {
	int fd = open(r->path, O_RDWR | O_CLOEXEC);
	if (fd < 0) return force; // the share cannot be told: nothing more is given
	while (flock(fd, LOCK_EX) && errno == EINTR) {
	}
	if (!my_ns) {
		int gone;
		char link[64];
		ssize_t n = readlink("/proc/self/ns/pid", link, sizeof link - 1);
		link[n > 0 ? n : 0] = 0;
		my_ns = strtoull(strchr(link, '[') ? strchr(link, '[') + 1 : "1", 0, 10);
		my_start = stat_of("/proc/self/stat", &gone);
	}
	struct quota *q = r->q;
	if (!r->mine || r->mine->pid != (uint32_t)owner || r->mine->ns != my_ns) r->mine = slot_of(q);
	int ok = r->mine && (force || bytes <= room(q));
	if (!ok) {
		sweep(q);
		if (!r->mine) r->mine = slot_of(q);
		ok = r->mine && (force || bytes <= room(q));
	}
	if (ok) {
		__atomic_add_fetch(&r->mine->used, bytes, __ATOMIC_ACQ_REL);
		u64 now = held(q) + LOAD(q->untracked);
		if (now > LOAD(q->peak)) STORE(q->peak, now);
	} else {
		__atomic_add_fetch(&q->denied, 1, __ATOMIC_ACQ_REL);
	}
	flock(fd, LOCK_UN); // not only close: a child that was forked meanwhile has the file open as well
	close(fd);
	return ok;
}

static void release(struct region *r, u64 bytes) {
	if (!r || !r->mine) return;
	u64 used = LOAD(r->mine->used);
	while (!__atomic_compare_exchange_n(&r->mine->used, &used, used > bytes ? used - bytes : 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
	}
}

// ---- what this process holds; guarded by mu ----

enum kind { FREE, POINTER, POOLED, HANDLE, ARRAY, MIPMAP, GONE };
struct item { u64 key, bytes; void *ctx; int device, kind, refs, maps; };
static struct item *item;
static size_t items, nitem; // size, a power of 2; slots in use, those that are GONE included

static size_t spot(u64 key, int kind) {
	u64 x = (key ^ (u64)kind << 60) * 0x9E3779B97F4A7C15ull;
	return (size_t)(x >> 20) & (items - 1);
}
static struct item *find(u64 key, int kind) {
	for (size_t i = items ? spot(key, kind) : 0, n = 0; n < items; n++, i = (i + 1) & (items - 1)) {
		if (item[i].kind == FREE) return 0;
		if (item[i].key == key && item[i].kind == kind) return &item[i];
	}
	return 0;
}
static int keep(struct item it) {
	if (4 * (nitem + 1) > 3 * items) {
		size_t was = items, live = 0;
		for (size_t i = 0; i < was; i++) live += item[i].kind != FREE && item[i].kind != GONE;
		size_t size = 1024;
		while (size < 4 * (live + 1)) size *= 2;
		struct item *old = item, *n = calloc(size, sizeof *n);
		if (!n) return 0;
		item = n, items = size, nitem = 0;
		for (size_t i = 0; i < was; i++)
			if (old[i].kind != FREE && old[i].kind != GONE) keep(old[i]);
		free(old);
	}
	size_t i = spot(it.key, it.kind);
	while (item[i].kind != FREE && item[i].kind != GONE) i = (i + 1) & (items - 1);
	if (item[i].kind == FREE) nitem++;
	item[i] = it;
	return 1;
}

struct mapping { u64 at, bytes, handle; };
static struct mapping *mapping;
static size_t nmapping, mappings;

struct pool { void *handle; int device; u64 charged; };
static struct pool pool[64];
static int npool;
static void *primary[DEVICES];

static void forget(void) {
	for (int i = 0; i < DEVICES; i++) region[i].mine = 0, primary[i] = 0;
	my_ns = my_start = 0;
	if (items) memset(item, 0, items * sizeof *item);
	nitem = nmapping = 0, npool = 0;
}

__attribute__((destructor)) static void leaving(void) {
	if (LOAD(owner) != (int)syscall(SYS_getpid)) return;
	for (int i = 0; i < DEVICES; i++)
		if (region[i].mine && region[i].mine->pid == (uint32_t)owner) {
			STORE(region[i].mine->used, 0);
			STORE(region[i].mine->pid, 0);
		}
}

// drop uncharges what a context held.
static void drop(void *ctx) {
	for (size_t i = 0; ctx && i < items; i++)
		if (item[i].ctx == ctx && (item[i].kind == POINTER || item[i].kind == ARRAY || item[i].kind == MIPMAP)) {
			release(share(item[i].device), item[i].bytes);
			item[i].kind = GONE;
		}
}

// ---- allocation ----

// take books bytes on a device; it is 0 when they are refused. Called without mu.
static int take(int device, u64 bytes) {
	lock();
	struct region *r = share(device);
	int ok = !r || reserve(r, bytes, 0);
	unlock();
	return ok;
}
static void give(int device, u64 bytes) {
	lock();
	release(share(device), bytes);
	unlock();
}
// took remembers an allocation that was booked.
static void took(u64 key, int kind, int device, u64 bytes) {
	void *ctx = kind == HANDLE ? 0 : context();
	lock();
	if (share(device)) keep((struct item){key, bytes, ctx, device, kind, 1, 0});
	unlock();
}
// let forgets an allocation before the driver frees it; *was is what to take back if the driver does not.
static int let(u64 key, int kind, struct item *was) {
	lock();
	struct item *it = find(key, kind);
	if (it) *was = *it, it->kind = GONE;
	unlock();
	return it != 0;
}
static CUresult freed(CUresult code, int have, struct item *was) {
	lock();
	if (have && code) keep(*was);
	else if (have) release(share(was->device), was->bytes);
	unlock();
	return code;
}

// GUARD makes a function fail as an uninitialised driver does when there is none.
#define GUARD(fn) if (!CAN(fn)) return NOT_INITIALIZED;

API CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t n) {
	GUARD(cuMemAlloc_v2)
	int d = current();
	if (!take(d, n)) return OUT_OF_MEMORY;
	CUresult r = REAL(cuMemAlloc_v2, CUdeviceptr *, size_t)(at, n);
	r ? give(d, n) : took(*at, POINTER, d, n);
	return r;
}
// Managed memory may be moved out of the GPU, but while it is in use it is there: it counts in full.
API CUresult cuMemAllocManaged(CUdeviceptr *at, size_t n, unsigned flags) {
	GUARD(cuMemAllocManaged)
	int d = current();
	if (!take(d, n)) return OUT_OF_MEMORY;
	CUresult r = REAL(cuMemAllocManaged, CUdeviceptr *, size_t, unsigned)(at, n, flags);
	r ? give(d, n) : took(*at, POINTER, d, n);
	return r;
}
API CUresult cuMemAllocPitch_v2(CUdeviceptr *at, size_t *pitch, size_t width, size_t height, unsigned element) {
	GUARD(cuMemAllocPitch_v2)
	int d = current();
	u64 n = (u64)((width + 511) & ~(size_t)511) * height, is; // rows are padded, to what the driver tells afterwards
	if (!take(d, n)) return OUT_OF_MEMORY;
	CUresult r = REAL(cuMemAllocPitch_v2, CUdeviceptr *, size_t *, size_t, size_t, unsigned)(at, pitch, width, height, element);
	if (r) {
		give(d, n);
		return r;
	}
	is = (u64)*pitch * height;
	if (is < n) give(d, n - is);
	lock();
	struct region *s = share(d);
	if (is > n && s) reserve(s, is - n, 1);
	unlock();
	took(*at, POINTER, d, is);
	return r;
}
API CUresult cuMemFree_v2(CUdeviceptr at) {
	GUARD(cuMemFree_v2)
	struct item was;
	int have = let(at, POINTER, &was);
	return freed(REAL(cuMemFree_v2, CUdeviceptr)(at), have, &was);
}

// Memory of pools: a pool keeps what is freed, so what counts is what it has reserved, and its spare memory costs nothing.
enum { RESERVED_NOW = 5, USED_NOW = 7 };
static int attribute(void *p, int which, u64 *v) {
	return CAN(cuMemPoolGetAttribute) && !REAL(cuMemPoolGetAttribute, void *, int, void *)(p, which, v);
}
// settle charges a pool what it holds now. Called with mu held; so are the next two.
static void settle(struct pool *p) {
	u64 now;
	struct region *r = share(p->device);
	if (!r || !attribute(p->handle, RESERVED_NOW, &now)) return;
	if (now > p->charged) reserve(r, now - p->charged, 1);
	else release(r, p->charged - now);
	p->charged = now;
}
static void settle_all(int device) {
	for (int i = 0; i < npool; i++)
		if (pool[i].device == device) settle(&pool[i]);
}
static struct pool *pool_of(void *handle, int device) {
	u64 v;
	for (int i = 0; i < npool; i++)
		if (pool[i].handle == handle) return &pool[i];
	if (!handle || npool == sizeof pool / sizeof *pool || !attribute(handle, RESERVED_NOW, &v)) return 0;
	pool[npool] = (struct pool){handle, device, 0};
	return &pool[npool++];
}

typedef CUresult (*from_pool)(CUdeviceptr *, size_t, void *, void *);
typedef CUresult (*from_default)(CUdeviceptr *, size_t, void *);
typedef CUresult (*free_async)(CUdeviceptr, void *);

// pooled allocates from a pool: that of the device when handle is 0.
static CUresult pooled(int h, int free_hook, int own, CUdeviceptr *at, size_t n, void *handle, void *stream) {
	void *f = resolve(h);
	if (!f) return NOT_INITIALIZED;
	int d = current();
	if (!own && (!CAN(cuDeviceGetMemPool) || REAL(cuDeviceGetMemPool, void **, CUdevice)(&handle, d))) handle = 0;
	lock();
	struct pool *p = pool_of(handle, d);
	struct region *r = share(p ? p->device : d);
	if (!r) {
		unlock();
		return own ? ((from_pool)f)(at, n, handle, stream) : ((from_default)f)(at, n, stream);
	}
	u64 used, need = n;
	if (p) {
		settle_all(p->device);
		if (attribute(handle, USED_NOW, &used) && used < p->charged) need = n > p->charged - used ? n - (p->charged - used) : 0;
	}
	if (need && !reserve(r, need, 0)) {
		int ok = 0;
		if (CAN(cuMemPoolTrimTo)) { // spare memory of pools may be all that is in the way
			for (int i = 0; i < npool; i++)
				if (pool[i].device == (p ? p->device : d)) REAL(cuMemPoolTrimTo, void *, size_t)(pool[i].handle, 0);
			settle_all(p ? p->device : d);
			ok = reserve(r, need = n, 0);
		}
		if (!ok) {
			unlock();
			return OUT_OF_MEMORY;
		}
	}
	CUresult code = own ? ((from_pool)f)(at, n, handle, stream) : ((from_default)f)(at, n, stream);
	if (!p) {
		unlock();
		code ? give(d, n) : took(*at, POINTER, d, n);
		return code;
	}
	release(r, need);
	u64 before = p->charged;
	settle(p);
	if (!code && p->charged > before && held(r->q) + LOAD(r->q->untracked) > LOAD(r->q->limit) && resolve(free_hook)) {
		// The pool took more than was asked for, beyond the share.
		((free_async)resolve(free_hook))(*at, stream);
		if (CAN(cuMemPoolTrimTo)) REAL(cuMemPoolTrimTo, void *, size_t)(handle, 0);
		settle(p);
		__atomic_add_fetch(&r->q->denied, 1, __ATOMIC_ACQ_REL);
		code = OUT_OF_MEMORY;
	}
	unlock();
	return code;
}
static CUresult pooled_free(int h, CUdeviceptr at, void *stream) {
	void *f = resolve(h);
	if (!f) return NOT_INITIALIZED;
	struct item was;
	int have = let(at, POINTER, &was);
	CUresult r = freed(((free_async)f)(at, stream), have, &was);
	lock();
	for (int i = 0; i < npool; i++) settle(&pool[i]);
	unlock();
	return r;
}
#define ASYNC(suffix)                                                                                                         \
	API CUresult cuMemAllocAsync##suffix(CUdeviceptr *at, size_t n, void *stream) {                                        \
		return pooled(H_cuMemAllocAsync##suffix, H_cuMemFreeAsync##suffix, 0, at, n, 0, stream);                       \
	}                                                                                                                      \
	API CUresult cuMemAllocFromPoolAsync##suffix(CUdeviceptr *at, size_t n, void *handle, void *stream) {                  \
		return pooled(H_cuMemAllocFromPoolAsync##suffix, H_cuMemFreeAsync##suffix, 1, at, n, handle, stream);          \
	}                                                                                                                      \
	API CUresult cuMemFreeAsync##suffix(CUdeviceptr at, void *stream) { return pooled_free(H_cuMemFreeAsync##suffix, at, stream); }
ASYNC()
ASYNC(_ptsz)

struct location { int type, id; };
struct pool_properties { int type, handles; struct location location; };
API CUresult cuMemPoolCreate(void **out, const struct pool_properties *p) {
	GUARD(cuMemPoolCreate)
	CUresult r = REAL(cuMemPoolCreate, void **, const void *)(out, p);
	lock();
	if (!r && p->location.type == 1) pool_of(*out, p->location.id);
	unlock();
	return r;
}
API CUresult cuMemPoolDestroy(void *handle) {
	GUARD(cuMemPoolDestroy)
	CUresult r = REAL(cuMemPoolDestroy, void *)(handle);
	lock();
	for (int i = 0; i < npool && !r; i++)
		if (pool[i].handle == handle) {
			release(share(pool[i].device), pool[i].charged);
			pool[i] = pool[--npool];
			break;
		}
	unlock();
	return r;
}

// Virtual memory: memory is held until its handle is released and the last mapping is gone.
struct properties { int type, handles; struct location location; };
API CUresult cuMemCreate(u64 *handle, size_t n, const struct properties *p, u64 flags) {
	GUARD(cuMemCreate)
	int d = p && p->location.type == 1 ? p->location.id : -1; // memory of the machine is not counted
	if (!take(d, n)) return OUT_OF_MEMORY;
	CUresult r = REAL(cuMemCreate, u64 *, size_t, const void *, u64)(handle, n, p, flags);
	r ? give(d, n) : took(*handle, HANDLE, d, n);
	return r;
}
static void handle_done(struct item *it) {
	if (it->refs > 0 || it->maps > 0) return;
	release(share(it->device), it->bytes);
	it->kind = GONE;
}
API CUresult cuMemRelease(u64 handle) {
	GUARD(cuMemRelease)
	CUresult r = REAL(cuMemRelease, u64)(handle);
	lock();
	struct item *it = r ? 0 : find(handle, HANDLE);
	if (it) it->refs--, handle_done(it);
	unlock();
	return r;
}
API CUresult cuMemRetainAllocationHandle(u64 *handle, void *at) {
	GUARD(cuMemRetainAllocationHandle)
	CUresult r = REAL(cuMemRetainAllocationHandle, u64 *, void *)(handle, at);
	lock();
	struct item *it = r ? 0 : find(*handle, HANDLE);
	if (it) it->refs++;
	unlock();
	return r;
}
API CUresult cuMemMap(CUdeviceptr at, size_t n, size_t offset, u64 handle, u64 flags) {
	GUARD(cuMemMap)
	CUresult r = REAL(cuMemMap, CUdeviceptr, size_t, size_t, u64, u64)(at, n, offset, handle, flags);
	lock();
	struct item *it = r ? 0 : find(handle, HANDLE);
	if (it && nmapping == mappings) {
		size_t more = mappings ? 2 * mappings : 256;
		struct mapping *m = realloc(mapping, more * sizeof *m);
		if (m) mapping = m, mappings = more;
	}
	if (it && nmapping < mappings) {
		it->maps++;
		mapping[nmapping++] = (struct mapping){at, n, handle};
	}
	unlock();
	return r;
}
API CUresult cuMemUnmap(CUdeviceptr at, size_t n) {
	GUARD(cuMemUnmap)
	CUresult r = REAL(cuMemUnmap, CUdeviceptr, size_t)(at, n);
	lock();
	for (size_t i = 0; i < nmapping && !r;) {
		struct mapping m = mapping[i];
		if (m.at < at || m.at >= at + n) {
			i++;
			continue;
		}
		mapping[i] = mapping[--nmapping];
		struct item *it = find(m.handle, HANDLE);
		if (it) it->maps--, handle_done(it);
	}
	unlock();
	return r;
}

// Arrays: the driver does not tell their size, so it is computed; what it adds for alignment is seen as untracked.
struct array2 { size_t width, height; int format; unsigned channels; };
struct array3 { size_t width, height, depth; int format; unsigned channels, flags; };
static u64 element(int format) {
	switch (format) {
	case 0x01: case 0x08: return 1; // 8 bits
	case 0x02: case 0x09: case 0x10: return 2;
	default: return 4;
	}
}
static u64 volume(u64 w, u64 h, u64 d, int format, unsigned channels) { return w * (h ? h : 1) * (d ? d : 1) * channels * element(format); }
#define MADE(fn, kind, n, ...)                                                     \
	int d = current();                                                         \
	u64 bytes = n;                                                             \
	if (!take(d, bytes)) return OUT_OF_MEMORY;                                 \
	CUresult r = __VA_ARGS__;                                                  \
	r ? give(d, bytes) : took((u64)(uintptr_t)*out, kind, d, bytes);           \
	return r;
API CUresult cuArrayCreate_v2(void **out, const struct array2 *a) {
	GUARD(cuArrayCreate_v2)
	MADE(cuArrayCreate_v2, ARRAY, volume(a->width, a->height, 1, a->format, a->channels), REAL(cuArrayCreate_v2, void **, const void *)(out, a))
}
API CUresult cuArray3DCreate_v2(void **out, const struct array3 *a) {
	GUARD(cuArray3DCreate_v2)
	MADE(cuArray3DCreate_v2, ARRAY, volume(a->width, a->height, a->depth, a->format, a->channels), REAL(cuArray3DCreate_v2, void **, const void *)(out, a))
}
API CUresult cuMipmappedArrayCreate(void **out, const struct array3 *a, unsigned levels) {
	GUARD(cuMipmappedArrayCreate)
	u64 n = 0, w = a->width, h = a->height, z = a->depth;
	for (unsigned l = 0; l < levels && l < 32; l++) {
		n += volume(w, h, z, a->format, a->channels);
		w = w > 1 ? w / 2 : w, h = h > 1 ? h / 2 : h, z = z > 1 ? z / 2 : z;
	}
	MADE(cuMipmappedArrayCreate, MIPMAP, n, REAL(cuMipmappedArrayCreate, void **, const void *, unsigned)(out, a, levels))
}
API CUresult cuArrayDestroy(void *a) {
	GUARD(cuArrayDestroy)
	struct item was;
	int have = let((u64)(uintptr_t)a, ARRAY, &was);
	return freed(REAL(cuArrayDestroy, void *)(a), have, &was);
}
API CUresult cuMipmappedArrayDestroy(void *a) {
	GUARD(cuMipmappedArrayDestroy)
	struct item was;
	int have = let((u64)(uintptr_t)a, MIPMAP, &was);
	return freed(REAL(cuMipmappedArrayDestroy, void *)(a), have, &was);
}

// ---- contexts ----

API CUresult cuCtxDestroy_v2(void *ctx) {
	GUARD(cuCtxDestroy_v2)
	CUresult r = REAL(cuCtxDestroy_v2, void *)(ctx);
	lock();
	if (!r) drop(ctx);
	unlock();
	return r;
}
API CUresult cuDevicePrimaryCtxRetain(void **ctx, CUdevice d) {
	GUARD(cuDevicePrimaryCtxRetain)
	CUresult r = REAL(cuDevicePrimaryCtxRetain, void **, CUdevice)(ctx, d);
	lock();
	if (!r && d >= 0 && d < DEVICES) primary[d] = *ctx;
	unlock();
	return r;
}
static CUresult primary_left(CUresult r, CUdevice d) {
	unsigned flags;
	int active = 0;
	if (r || d < 0 || d >= DEVICES) return r;
	if (CAN(cuDevicePrimaryCtxGetState)) REAL(cuDevicePrimaryCtxGetState, CUdevice, unsigned *, int *)(d, &flags, &active);
	lock();
	if (!active) {
		drop(primary[d]);
		settle_all(d);
	}
	unlock();
	return r;
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) {
	GUARD(cuDevicePrimaryCtxRelease_v2)
	return primary_left(REAL(cuDevicePrimaryCtxRelease_v2, CUdevice)(d), d);
}
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice d) {
	GUARD(cuDevicePrimaryCtxReset_v2)
	return primary_left(REAL(cuDevicePrimaryCtxReset_v2, CUdevice)(d), d);
}

// ---- what the program is told ----

API CUresult cuMemGetInfo_v2(size_t *avail, size_t *total) {
	GUARD(cuMemGetInfo_v2)
	CUresult code = REAL(cuMemGetInfo_v2, size_t *, size_t *)(avail, total);
	if (code) return code;
	int d = current();
	lock();
	struct region *r = share(d);
	if (r) {
		settle_all(d);
		u64 limit = LOAD(r->q->limit), left = room(r->q);
		if (limit < *total) *total = limit;
		if (left < *avail) *avail = left;
	}
	unlock();
	return code;
}
API CUresult cuDeviceTotalMem_v2(size_t *total, CUdevice d) {
	GUARD(cuDeviceTotalMem_v2)
	CUresult code = REAL(cuDeviceTotalMem_v2, size_t *, CUdevice)(total, d);
	if (code) return code;
	lock();
	struct region *r = share(d);
	if (r && LOAD(r->q->limit) < *total) *total = LOAD(r->q->limit);
	unlock();
	return code;
}
static struct quota *quota_of(void *device) {
	static struct region seen[DEVICES];
	static char uuids[DEVICES][80];
	char uuid[80];
	if (!CAN(nvmlDeviceGetUUID) || REAL(nvmlDeviceGetUUID, void *, char *, unsigned)(device, uuid, sizeof uuid) || strchr(uuid, '/')) return 0;
	struct quota *q = 0;
	lock();
	for (int i = 0; i < DEVICES; i++) {
		if (!uuids[i][0]) {
			strcpy(uuids[i], uuid);
			map(&seen[i], uuid);
		}
		if (!strcmp(uuids[i], uuid)) {
			q = seen[i].q;
			break;
		}
	}
	unlock();
	return q;
}
struct memory { u64 total, free, used; };
struct memory2 { unsigned version; u64 total, reserved, free, used; };
API CUresult nvmlDeviceGetMemoryInfo(void *device, struct memory *m) {
	GUARD(nvmlDeviceGetMemoryInfo)
	CUresult r = REAL(nvmlDeviceGetMemoryInfo, void *, void *)(device, m);
	struct quota *q = r ? 0 : quota_of(device);
	if (q && LOAD(q->limit) < m->total) {
		u64 left = room(q);
		m->total = LOAD(q->limit);
		m->free = left < m->free ? left : m->free;
		m->used = m->total - m->free;
	}
	return r;
}
API CUresult nvmlDeviceGetMemoryInfo_v2(void *device, struct memory2 *m) {
	GUARD(nvmlDeviceGetMemoryInfo_v2)
	CUresult r = REAL(nvmlDeviceGetMemoryInfo_v2, void *, void *)(device, m);
	struct quota *q = r ? 0 : quota_of(device);
	if (q && LOAD(q->limit) < m->total) {
		u64 left = room(q);
		m->total = LOAD(q->limit), m->reserved = 0;
		m->free = left < m->free ? left : m->free;
		m->used = m->total - m->free;
	}
	return r;
}

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
