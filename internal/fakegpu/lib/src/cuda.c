// A fake libcuda.so.1: devices, contexts and memory of the driver interface. Nothing is computed and nothing is stored;
// every byte "allocated" is charged to {GPU, process} in the state file of state.h, where the fake NVML reports it, and an
// allocation beyond what is free is refused as a GPU refuses it. Charges of processes that are gone do not count and are
// swept by the next writer.
#include "state.h"

#define API __attribute__((visibility("default")))

typedef int CUresult, CUdevice;
typedef u64 CUdeviceptr;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NOT_FOUND = 500 };

struct context { int device, primary; };
struct pool;
struct chunk { CUdeviceptr at; u64 bytes; int device, pool, refs; }; // pool is 1 more than its index; refs: handle and mappings

// All of these are guarded by mu.
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static int ready, ndevice;
static char device_uuid[GPUS][UUID]; // visible devices, in order
static u64 charged[GPUS];            // by device: contexts and allocations
static int contexts[GPUS], primaries[GPUS];
static struct context primary[GPUS];
static struct chunk *chunk;
static size_t nchunk, chunks;
static CUdeviceptr next_at = 0x7f0000000000ull;

static __thread struct context *stack[16];
static __thread int depth;

// size_of is the memory of a GPU or MIG instance that processes can have, in all; called with state_mu held.
static u64 size_of(const char *uuid, int *gpu) {
	int m = mig_by_uuid(&state, uuid);
	*gpu = gpu_by_uuid(&state, uuid);
	if (m >= 0) return state.mig[m].memory;
	if (*gpu < 0 || state.gpu[*gpu].lost) return 0;
	struct gpu *g = &state.gpu[*gpu];
	return g->memory - g->reserved - g->used;
}

// limit_of is what this process's control group may have of a GPU, and what it has; 0 when there is no limit. Called with
// state_mu held. Who cannot see the group's other processes sees those of its own pid namespace: a task is one.
static int limit_of(const char *uuid, u64 *hard, u64 *used) {
	char mine[1024], group[1024];
	if (!state.dmem || !state.nlimit || !group_of(getpid(), mine, sizeof mine)) return 0;
	for (int i = 0; i < state.nlimit; i++) {
		struct limit *l = &state.limit[i];
		if (strcmp(l->uuid, uuid) || !in_group(mine, l->group)) continue;
		*hard = l->hard, *used = 0;
		for (int k = 0; k < state.nproc; k++) {
			struct proc *p = &state.proc[k];
			if (!strcmp(p->uuid, uuid) && p->ns == own_ns() && start_of(p->pid) == p->start && group_of(p->pid, group, sizeof group) && in_group(group, l->group)) *used += p->bytes;
		}
		return 1;
	}
	return 0;
}

// charge makes a device's charge of this process be now, if there is room for it. Called with mu held.
static CUresult charge(int device, u64 now) {
	const char *uuid = device_uuid[device], *path = state_path();
	char name[4096];
	if ((size_t)snprintf(name, sizeof name, "%s.lock", path) >= sizeof name) return INVALID_VALUE;
	int lock = open(name, O_RDONLY | O_CREAT | O_CLOEXEC, 0666);
	if (lock < 0) return NO_DEVICE;
	CUresult r = OK;
	char *text = 0, *out = 0;
	struct stat st;
	while (flock(lock, LOCK_EX) && errno == EINTR) {
	}
	pthread_mutex_lock(&state_mu);
	if (!(text = read_text(&st)) || !(out = malloc((size_t)st.st_size + 256))) {
		r = NO_DEVICE;
		goto done;
	}
	{
		char *copy = strdup(text);
		if (!copy) {
			r = OUT_OF_MEMORY;
			goto done;
		}
		parse_text(copy);
		free(copy);
		memset(&state_seen, 0, sizeof state_seen); // what others write is read afresh
	}
	int gpu, pid = getpid();
	u64 size = size_of(uuid, &gpu), start = start_of(pid), mine = own_ns(), others = used_of(&state, gpu, uuid) - charged[device];
	u64 hard, held;
	if (now > charged[device] && limit_of(uuid, &hard, &held) && held - charged[device] + now > hard) {
		r = OUT_OF_MEMORY;
		goto done;
	}
	if (now > charged[device] && (now > size || others > size - now)) {
		r = OUT_OF_MEMORY;
		goto done;
	}
	size_t n = 0;
	char *save = 0;
	for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(0, "\n", &save)) {
		char id[UUID];
		int p;
		u64 began, bytes, ns = 0;
		if (sscanf(l, "charge %79s %d %llu %llu %llu", id, &p, &began, &bytes, &ns) >= 4 && (!ns || ns == mine) &&
		    ((p == pid && !strcmp(id, uuid)) || start_of(p) != began))
			continue;
		n += (size_t)sprintf(out + n, "%s\n", l);
	}
	if (now) n += (size_t)sprintf(out + n, "charge %s %d %llu %llu %llu\n", uuid, pid, start, now, mine);
	snprintf(name, sizeof name, "%s.%llu.%d.tmp", path, mine, pid);
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0 || write(fd, out, n) != (ssize_t)n || rename(name, path)) r = NO_DEVICE;
	if (fd >= 0) fchmod(fd, st.st_mode & 0777), close(fd);
	if (!r) charged[device] = now;
done:
	pthread_mutex_unlock(&state_mu);
	close(lock);
	free(text);
	free(out);
	return r;
}

static CUresult begin(const char *symbol) {
	unsigned code;
	int file = inject(symbol, &code);
	pthread_mutex_unlock(&state_mu);
	return !file ? NO_DEVICE : (CUresult)code;
}

// CALL begins a function: faults first; mu is held until it returns.
static void unlock(int *held) {
	if (*held) pthread_mutex_unlock(&mu);
}
#define CALL_RAW(fn)                                    \
	CUresult code_ = begin(#fn);                    \
	if (code_) return code_;                        \
	pthread_mutex_lock(&mu);                        \
	__attribute__((cleanup(unlock))) int held_ = 1; \
	(void)held_;
#define CALL(fn) CALL_RAW(fn) if (!ready) return NOT_INITIALIZED;
#define DEVICE(fn) CALL(fn) if (device < 0 || device >= ndevice) return INVALID_DEVICE;
#define CONTEXT(fn)                           \
	CALL(fn)                              \
	if (!depth || !stack[depth - 1]) return INVALID_CONTEXT; \
	int device = stack[depth - 1]->device; \
	(void)device;

static void show(const char *uuid) {
	for (int i = 0; i < ndevice; i++)
		if (!strcmp(device_uuid[i], uuid)) return;
	if (ndevice < GPUS) COPY(device_uuid[ndevice++], uuid);
}

// visible fills the devices from CUDA_VISIBLE_DEVICES: indices and UUIDs, or beginnings of UUIDs, up to the first that
// means nothing. A GPU in MIG mode stands for its first instance.
static void visible(void) {
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	ndevice = 0;
	pthread_mutex_lock(&state_mu);
	refresh();
	char buf[8192], *save = 0;
	if (!list) {
		for (int i = 0; i < state.ngpu; i++)
			if (!state.gpu[i].lost && state.gpu[i].mig != 1) show(state.gpu[i].uuid);
		for (int i = 0; i < state.nmig && !ndevice; i++) show(state.mig[i].uuid);
	} else {
		COPY(buf, list);
		for (char *w = strtok_r(buf, ", ", &save); w; w = strtok_r(0, ", ", &save)) {
			char *end;
			long n = strtol(w, &end, 10);
			const char *uuid = 0;
			if (!*end && n >= 0 && n < state.ngpu) uuid = state.gpu[n].uuid;
			for (int i = 0; i < state.ngpu && *end && !uuid; i++)
				if (!strncmp(state.gpu[i].uuid, w, strlen(w))) uuid = state.gpu[i].uuid;
			for (int i = 0; i < state.nmig && *end && !uuid; i++)
				if (!strncmp(state.mig[i].uuid, w, strlen(w))) uuid = state.mig[i].uuid;
			int g = uuid ? gpu_by_uuid(&state, uuid) : -1;
			if (!uuid || (g >= 0 && state.gpu[g].lost)) break;
			for (int i = 0; g >= 0 && state.gpu[g].mig == 1 && i < state.nmig; i++)
				if (state.mig[i].gpu == g) {
					uuid = state.mig[i].uuid;
					break;
				}
			show(uuid);
		}
	}
	pthread_mutex_unlock(&state_mu);
}

API CUresult cuInit(unsigned flags) {
	CALL_RAW(cuInit)
	if (flags) return INVALID_VALUE;
	if (!ready) visible();
	if (!ndevice) return NO_DEVICE;
	ready = 1;
	return OK;
}
API CUresult cuDriverGetVersion(int *v) {
	CALL_RAW(cuDriverGetVersion)
	pthread_mutex_lock(&state_mu);
	refresh();
	*v = state.cuda;
	pthread_mutex_unlock(&state_mu);
	return OK;
}
API CUresult cuDeviceGetCount(int *n) { CALL(cuDeviceGetCount) *n = ndevice; return OK; }
API CUresult cuDeviceGet(CUdevice *out, int device) { DEVICE(cuDeviceGet) *out = device; return OK; }

// about copies what the file says of a device.
static void about(int device, struct gpu *g, u64 *memory) {
	int i, m;
	pthread_mutex_lock(&state_mu);
	refresh();
	*memory = size_of(device_uuid[device], &i);
	if (i < 0 && (m = mig_by_uuid(&state, device_uuid[device])) >= 0) i = state.mig[m].gpu;
	memset(g, 0, sizeof *g);
	if (i >= 0) *g = state.gpu[i];
	pthread_mutex_unlock(&state_mu);
}
API CUresult cuDeviceGetName(char *v, int n, CUdevice device) {
	DEVICE(cuDeviceGetName)
	struct gpu g;
	u64 memory;
	about(device, &g, &memory);
	snprintf(v, (size_t)n, "%s", g.name);
	return OK;
}
static CUresult uuid_of(unsigned char *v, CUdevice device) {
	const char *s = strchr(device_uuid[device], '-');
	memset(v, 0, 16);
	for (int i = 0; s && *s && i < 16; s++) {
		unsigned c;
		if (*s != '-' && sscanf(s, "%2x", &c) == 1) v[i++] = (unsigned char)c, s++;
		if (!*s) break;
	}
	return OK;
}
API CUresult cuDeviceGetUuid(unsigned char *v, CUdevice device) { DEVICE(cuDeviceGetUuid) return uuid_of(v, device); }
API CUresult cuDeviceGetUuid_v2(unsigned char *v, CUdevice device) { DEVICE(cuDeviceGetUuid_v2) return uuid_of(v, device); }
API CUresult cuDeviceTotalMem_v2(size_t *v, CUdevice device) {
	DEVICE(cuDeviceTotalMem_v2)
	struct gpu g;
	u64 memory;
	about(device, &g, &memory);
	*v = memory;
	return OK;
}
API CUresult cuDeviceTotalMem(size_t *v, CUdevice device) { return cuDeviceTotalMem_v2(v, device); }
API CUresult cuDeviceGetAttribute(int *v, int attribute, CUdevice device) {
	DEVICE(cuDeviceGetAttribute)
	struct gpu g;
	u64 memory;
	about(device, &g, &memory);
	switch (attribute) {
	case 16: *v = (int)g.sms; return OK;     // multiprocessors
	case 75: *v = (int)g.ccmajor; return OK; // compute capability
	case 76: *v = (int)g.ccminor; return OK;
	case 33: *v = (int)g.bus; return OK;
	case 34: *v = (int)g.dev; return OK;
	case 50: *v = (int)g.domain; return OK;
	case 41: case 102: case 115: *v = 1; return OK; // unified addressing, virtual memory management, memory pools
	default: *v = 0; return OK;
	}
}

// A context takes memory of its own when it is the first of this process on a device.
static CUresult enter(int device) {
	u64 more;
	pthread_mutex_lock(&state_mu);
	refresh();
	more = contexts[device] ? 0 : state.context;
	pthread_mutex_unlock(&state_mu);
	CUresult r = more ? charge(device, charged[device] + more) : OK;
	if (!r) contexts[device]++;
	return r;
}
static void empty_pools(int device);
static void leave(int device) {
	if (--contexts[device]) return;
	size_t keep = 0;
	for (size_t i = 0; i < nchunk; i++)
		if (chunk[i].device != device) chunk[keep++] = chunk[i];
	nchunk = keep;
	empty_pools(device);
	charge(device, 0);
}
static CUresult create(struct context **out, int device) {
	struct context *c = calloc(1, sizeof *c);
	if (!c) return OUT_OF_MEMORY;
	CUresult r = depth == 16 ? INVALID_CONTEXT : enter(device);
	if (r) {
		free(c);
		return r;
	}
	c->device = device;
	stack[depth++] = *out = c;
	return OK;
}
API CUresult cuCtxCreate(struct context **out, unsigned flags, CUdevice device) { (void)flags; DEVICE(cuCtxCreate) return create(out, device); }
API CUresult cuCtxCreate_v2(struct context **out, unsigned flags, CUdevice device) { (void)flags; DEVICE(cuCtxCreate_v2) return create(out, device); }
static CUresult destroy(struct context *c) {
	if (!c || c->primary) return INVALID_CONTEXT;
	for (int i = depth - 1; i >= 0; i--)
		if (stack[i] == c) memmove(&stack[i], &stack[i + 1], (size_t)(--depth - i) * sizeof *stack);
	leave(c->device);
	free(c);
	return OK;
}
API CUresult cuCtxDestroy(struct context *c) { CALL(cuCtxDestroy) return destroy(c); }
API CUresult cuCtxDestroy_v2(struct context *c) { CALL(cuCtxDestroy_v2) return destroy(c); }
API CUresult cuCtxSetCurrent(struct context *c) {
	CALL(cuCtxSetCurrent)
	if (!depth) depth = 1;
	stack[depth - 1] = c;
	return OK;
}
API CUresult cuCtxGetCurrent(struct context **c) { CALL(cuCtxGetCurrent) *c = depth ? stack[depth - 1] : 0; return OK; }
API CUresult cuCtxGetDevice(CUdevice *v) { CONTEXT(cuCtxGetDevice) *v = device; return OK; }
API CUresult cuCtxPushCurrent_v2(struct context *c) {
	CALL(cuCtxPushCurrent_v2)
	if (!c || depth == 16) return INVALID_CONTEXT;
	stack[depth++] = c;
	return OK;
}
API CUresult cuCtxPopCurrent_v2(struct context **c) {
	CONTEXT(cuCtxPopCurrent_v2)
	depth--;
	if (c) *c = stack[depth];
	return OK;
}
API CUresult cuCtxSynchronize(void) { CONTEXT(cuCtxSynchronize) return OK; }
API CUresult cuDevicePrimaryCtxRetain(struct context **out, CUdevice device) {
	DEVICE(cuDevicePrimaryCtxRetain)
	CUresult r = primaries[device] ? OK : enter(device);
	if (r) return r;
	primaries[device]++;
	primary[device] = (struct context){device, 1};
	*out = &primary[device];
	return OK;
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
	DEVICE(cuDevicePrimaryCtxGetState)
	*flags = 0, *active = primaries[device] > 0;
	return OK;
}
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
	DEVICE(cuDevicePrimaryCtxReset_v2)
	if (primaries[device]) {
		primaries[device] = 0;
		leave(device);
	}
	return OK;
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
	DEVICE(cuDevicePrimaryCtxRelease_v2)
	if (!primaries[device]) return INVALID_CONTEXT;
	if (!--primaries[device]) leave(device);
	return OK;
}

static CUresult shrink(struct pool *p, u64 keep);
static struct pool *pool_at(int n);
static void pool_give(struct pool *p, u64 bytes);

static CUresult remember(CUdeviceptr *at, u64 bytes, int device, int pool) {
	if (nchunk == chunks) {
		size_t n = chunks ? 2 * chunks : 64;
		struct chunk *c = realloc(chunk, n * sizeof *c);
		if (!c) return OUT_OF_MEMORY;
		chunk = c, chunks = n;
	}
	*at = next_at;
	next_at += (bytes + 0x1fffff) & ~0x1fffffull;
	chunk[nchunk++] = (struct chunk){*at, bytes, device, pool, 1};
	return OK;
}
static CUresult take(CUdeviceptr *at, u64 bytes, int device) {
	if (!bytes) return INVALID_VALUE;
	CUresult r = charge(device, charged[device] + bytes);
	return r ? r : remember(at, bytes, device, 0);
}
static CUresult give(CUdeviceptr at) {
	if (!at) return OK;
	for (size_t i = 0; i < nchunk; i++)
		if (chunk[i].at == at) {
			if (--chunk[i].refs > 0) return OK;
			struct chunk c = chunk[i];
			chunk[i] = chunk[--nchunk];
			if (!c.pool) return charge(c.device, charged[c.device] - c.bytes);
			pool_give(pool_at(c.pool), c.bytes);
			return OK;
		}
	return INVALID_VALUE;
}
#define ALLOC(fn) API CUresult fn(CUdeviceptr *at, size_t n) { CONTEXT(fn) return take(at, n, device); }
#define FREE(fn) API CUresult fn(CUdeviceptr at) { CALL(fn) return give(at); }
#define FREE_ASYNC(fn) API CUresult fn(CUdeviceptr at, void *stream) { (void)stream; CALL(fn) return give(at); }
ALLOC(cuMemAlloc)
ALLOC(cuMemAlloc_v2)
FREE(cuMemFree)
FREE(cuMemFree_v2)
// Pools keep what is freed until they are trimmed or more than their threshold is spare; a pool takes memory from the
// device in steps of 2 MiB.
enum { POOLS = 16, STEP = 2 << 20 };
struct pool { int used, device, own; u64 reserved, taken, threshold; };
static struct pool pool[POOLS];
static struct pool *default_pool(int device) {
	for (int i = 0; i < POOLS; i++)
		if (pool[i].used && !pool[i].own && pool[i].device == device) return &pool[i];
	for (int i = 0; i < POOLS; i++)
		if (!pool[i].used) {
			pool[i] = (struct pool){1, device, 0, 0, 0, 0};
			return &pool[i];
		}
	return 0;
}
static int is_pool(void *p) { return (char *)p >= (char *)pool && (char *)p < (char *)(pool + POOLS) && ((struct pool *)p)->used; }
static CUresult shrink(struct pool *p, u64 keep) {
	u64 now = (p->taken + STEP - 1) / STEP * STEP;
	if (now < keep) now = keep < p->reserved ? keep : p->reserved;
	if (now >= p->reserved) return OK;
	CUresult r = charge(p->device, charged[p->device] - (p->reserved - now));
	if (!r) p->reserved = now;
	return r;
}
static CUresult pool_take(struct pool *p, CUdeviceptr *at, u64 bytes) {
	if (!bytes || !p) return INVALID_VALUE;
	u64 want = (p->taken + bytes + STEP - 1) / STEP * STEP;
	CUresult r = want > p->reserved ? charge(p->device, charged[p->device] + want - p->reserved) : OK;
	if (r) return r;
	if (want > p->reserved) p->reserved = want;
	r = remember(at, bytes, p->device, (int)(p - pool) + 1);
	if (!r) p->taken += bytes;
	return r;
}
static struct pool *pool_at(int n) { return &pool[n - 1]; }
static void empty_pools(int device) {
	for (int i = 0; i < POOLS; i++)
		if (pool[i].used && pool[i].device == device) pool[i].reserved = pool[i].taken = 0;
}
static void pool_give(struct pool *p, u64 bytes) {
	p->taken -= bytes;
	if (p->reserved - p->taken > p->threshold) shrink(p, p->threshold);
}
#define POOL_FUNCTIONS(suffix)                                                                                                \
	API CUresult cuMemAllocAsync##suffix(CUdeviceptr *at, size_t n, void *stream) {                                        \
		(void)stream;                                                                                                  \
		CONTEXT(cuMemAllocAsync##suffix) return pool_take(default_pool(device), at, n);                                \
	}                                                                                                                      \
	API CUresult cuMemAllocFromPoolAsync##suffix(CUdeviceptr *at, size_t n, void *p, void *stream) {                       \
		(void)stream;                                                                                                  \
		CONTEXT(cuMemAllocFromPoolAsync##suffix) return is_pool(p) ? pool_take(p, at, n) : INVALID_VALUE;              \
	}
POOL_FUNCTIONS()
POOL_FUNCTIONS(_ptsz)
FREE_ASYNC(cuMemFreeAsync)
FREE_ASYNC(cuMemFreeAsync_ptsz)
API CUresult cuDeviceGetDefaultMemPool(void **out, CUdevice device) { DEVICE(cuDeviceGetDefaultMemPool) *out = default_pool(device); return *out ? OK : OUT_OF_MEMORY; }
API CUresult cuDeviceGetMemPool(void **out, CUdevice device) { DEVICE(cuDeviceGetMemPool) *out = default_pool(device); return *out ? OK : OUT_OF_MEMORY; }
struct pool_properties { int type, handles, location, device; };
API CUresult cuMemPoolCreate(void **out, const struct pool_properties *p) {
	int device = p->device;
	DEVICE(cuMemPoolCreate)
	for (int i = 0; i < POOLS; i++)
		if (!pool[i].used) {
			pool[i] = (struct pool){1, device, 1, 0, 0, 0};
			*out = &pool[i];
			return OK;
		}
	return OUT_OF_MEMORY;
}
API CUresult cuMemPoolDestroy(void *p) {
	CALL(cuMemPoolDestroy)
	if (!is_pool(p) || !((struct pool *)p)->own) return INVALID_VALUE;
	((struct pool *)p)->taken = 0;
	CUresult r = shrink(p, 0);
	((struct pool *)p)->used = 0;
	return r;
}
API CUresult cuMemPoolTrimTo(void *p, size_t keep) { CALL(cuMemPoolTrimTo) return is_pool(p) ? shrink(p, keep) : INVALID_VALUE; }
API CUresult cuMemPoolGetAttribute(void *h, int which, void *v) {
	CALL(cuMemPoolGetAttribute)
	if (!is_pool(h)) return INVALID_VALUE;
	struct pool *p = h;
	switch (which) {
	case 4: *(u64 *)v = p->threshold; return OK;
	case 5: *(u64 *)v = p->reserved; return OK;
	case 7: *(u64 *)v = p->taken; return OK;
	}
	return INVALID_VALUE;
}
API CUresult cuMemPoolSetAttribute(void *h, int which, void *v) {
	CALL(cuMemPoolSetAttribute)
	if (!is_pool(h) || which != 4) return INVALID_VALUE;
	((struct pool *)h)->threshold = *(u64 *)v;
	return OK;
}
API CUresult cuMemAllocManaged(CUdeviceptr *at, size_t n, unsigned flags) { (void)flags; CONTEXT(cuMemAllocManaged) return take(at, n, device); }
API CUresult cuMemAllocPitch_v2(CUdeviceptr *at, size_t *pitch, size_t width, size_t height, unsigned element) {
	(void)element;
	CONTEXT(cuMemAllocPitch_v2)
	*pitch = (width + 511) & ~(size_t)511;
	return take(at, *pitch * height, device);
}
// Virtual memory management: physical memory is charged; addresses mean nothing.
struct properties { int type, handles, location, device; };
API CUresult cuMemCreate(u64 *handle, size_t n, const struct properties *p, u64 flags) {
	(void)flags;
	int device = p->device;
	DEVICE(cuMemCreate)
	return take(handle, n, device);
}
API CUresult cuMemRelease(u64 handle) { CALL(cuMemRelease) return give(handle); }
// Mappings: addresses are whatever the program says. Memory lives until its handle and its mappings are gone.
struct mapping { CUdeviceptr at; u64 bytes, handle; };
static struct mapping mapping[4096];
static int nmapping;
API CUresult cuMemAddressReserve(CUdeviceptr *at, size_t n, size_t align, CUdeviceptr want, u64 flags) {
	(void)align, (void)want, (void)flags;
	CALL(cuMemAddressReserve)
	*at = next_at;
	next_at += (n + 0x1fffff) & ~0x1fffffull;
	return OK;
}
API CUresult cuMemAddressFree(CUdeviceptr at, size_t n) { (void)at, (void)n; CALL(cuMemAddressFree) return OK; }
API CUresult cuMemMap(CUdeviceptr at, size_t n, size_t offset, u64 handle, u64 flags) {
	(void)offset, (void)flags;
	CALL(cuMemMap)
	for (size_t i = 0; i < nchunk && nmapping < 4096; i++)
		if (chunk[i].at == handle) {
			chunk[i].refs++;
			mapping[nmapping++] = (struct mapping){at, n, handle};
			return OK;
		}
	return INVALID_VALUE;
}
API CUresult cuMemUnmap(CUdeviceptr at, size_t n) {
	CALL(cuMemUnmap)
	int found = 0;
	for (int i = 0; i < nmapping;) {
		struct mapping m = mapping[i];
		if (m.at < at || m.at >= at + n) {
			i++;
			continue;
		}
		mapping[i] = mapping[--nmapping];
		give(m.handle);
		found = 1;
	}
	return found ? OK : INVALID_VALUE;
}
API CUresult cuMemRetainAllocationHandle(u64 *handle, void *at) {
	CALL(cuMemRetainAllocationHandle)
	for (int i = 0; i < nmapping; i++)
		if (mapping[i].at == (CUdeviceptr)(uintptr_t)at)
			for (size_t k = 0; k < nchunk; k++)
				if (chunk[k].at == mapping[i].handle) {
					chunk[k].refs++;
					*handle = chunk[k].at;
					return OK;
				}
	return INVALID_VALUE;
}
// Arrays are as large as their elements.
struct array2 { size_t width, height; int format; unsigned channels; };
struct array3 { size_t width, height, depth; int format; unsigned channels, flags; };
static u64 size_of_array(u64 w, u64 h, u64 d, int format, unsigned channels) {
	u64 e = format == 1 || format == 8 ? 1 : format == 2 || format == 9 || format == 0x10 ? 2 : 4;
	return w * (h ? h : 1) * (d ? d : 1) * channels * e;
}
API CUresult cuArrayCreate_v2(CUdeviceptr *out, const struct array2 *a) { CONTEXT(cuArrayCreate_v2) return take(out, size_of_array(a->width, a->height, 1, a->format, a->channels), device); }
API CUresult cuArray3DCreate_v2(CUdeviceptr *out, const struct array3 *a) {
	CONTEXT(cuArray3DCreate_v2)
	if (a->flags & 0xC0) return remember(out, 0, device, 0); // memory is mapped into it later
	return take(out, size_of_array(a->width, a->height, a->depth, a->format, a->channels), device);
}
API CUresult cuMipmappedArrayCreate(CUdeviceptr *out, const struct array3 *a, unsigned levels) {
	CONTEXT(cuMipmappedArrayCreate)
	u64 n = 0;
	for (unsigned l = 0; l < levels && l < 20; l++) n += size_of_array((a->width >> l) + !(a->width >> l), (a->height >> l) + !(a->height >> l), a->depth, a->format, a->channels);
	return take(out, n, device);
}
API CUresult cuMipmappedArrayDestroy(CUdeviceptr a) { CALL(cuMipmappedArrayDestroy) return give(a); }
// Memory of the machine that the device reaches, and memory of another process: nobody's charge here.
API CUresult cuMemAllocHost_v2(void **out, size_t n) { CONTEXT(cuMemAllocHost_v2) (void)device; return (*out = malloc(n < 4096 ? n : 4096)) ? OK : OUT_OF_MEMORY; }
API CUresult cuMemHostAlloc(void **out, size_t n, unsigned flags) { CONTEXT(cuMemHostAlloc) (void)device, (void)flags; return (*out = malloc(n < 4096 ? n : 4096)) ? OK : OUT_OF_MEMORY; }
API CUresult cuMemFreeHost(void *at) { CALL(cuMemFreeHost) free(at); return OK; }
struct ipc { char bytes[64]; };
API CUresult cuIpcGetMemHandle(struct ipc *out, CUdeviceptr at) { CALL(cuIpcGetMemHandle) memset(out, 0, sizeof *out), memcpy(out, &at, sizeof at); return OK; }
API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, struct ipc handle, unsigned flags) { CONTEXT(cuIpcOpenMemHandle_v2) (void)device, (void)flags; memcpy(out, &handle, sizeof *out); return OK; }
API CUresult cuIpcCloseMemHandle(CUdeviceptr at) { (void)at; CALL(cuIpcCloseMemHandle) return OK; }
API CUresult cuArrayDestroy(CUdeviceptr a) { CALL(cuArrayDestroy) return give(a); }
API CUresult cuMemGetAllocationGranularity(size_t *v, const struct properties *p, int option) {
	(void)p, (void)option;
	CALL(cuMemGetAllocationGranularity)
	*v = 2 << 20;
	return OK;
}

static CUresult info(size_t *avail, size_t *total, int device) {
	int gpu;
	pthread_mutex_lock(&state_mu);
	refresh();
	u64 size = size_of(device_uuid[device], &gpu), used = used_of(&state, gpu, device_uuid[device]), hard, held;
	if (limit_of(device_uuid[device], &hard, &held) && hard < size) size = hard, used = held;
	pthread_mutex_unlock(&state_mu);
	*total = size, *avail = size > used ? size - used : 0;
	return OK;
}
API CUresult cuMemGetInfo(size_t *avail, size_t *total) { CONTEXT(cuMemGetInfo) return info(avail, total, device); }
API CUresult cuMemGetInfo_v2(size_t *avail, size_t *total) { CONTEXT(cuMemGetInfo_v2) return info(avail, total, device); }

API CUresult cuGetErrorName(CUresult r, const char **v) {
	static const struct { CUresult code; const char *name; } names[] = {
		{OK, "CUDA_SUCCESS"}, {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"}, {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
		{NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"}, {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"}, {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
		{INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
	};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].code == r) {
			*v = names[i].name;
			return OK;
		}
	*v = 0;
	return INVALID_VALUE;
}
API CUresult cuGetErrorString(CUresult r, const char **v) { return cuGetErrorName(r, v); }

API CUresult cuGetProcAddress_v2(const char *symbol, void **f, int version, u64 flags, int *status);
API CUresult cuGetProcAddress(const char *symbol, void **f, int version, u64 flags) { return cuGetProcAddress_v2(symbol, f, version, flags, 0); }

// The newest variant of a name that the asker's version knows, as the driver chooses; flag 2 asks for per-thread streams.
API CUresult cuGetProcAddress_v2(const char *symbol, void **f, int version, u64 flags, int *status) {
	static const struct { const char *name; void *f, *ptsz; int since; } table[] = {
#define NEW(name, since) {#name, (void *)name##_v2, 0, since}, {#name, (void *)name, 0, 0}
#define ONE(name) {#name, (void *)name, 0, 0}
		ONE(cuInit), ONE(cuDriverGetVersion), ONE(cuDeviceGetCount), ONE(cuDeviceGet), ONE(cuDeviceGetName), NEW(cuDeviceGetUuid, 11040),
		NEW(cuDeviceTotalMem, 3020), ONE(cuDeviceGetAttribute), NEW(cuCtxCreate, 3020), NEW(cuCtxDestroy, 4000), ONE(cuCtxSetCurrent),
		ONE(cuCtxGetCurrent), ONE(cuCtxGetDevice), ONE(cuCtxSynchronize), ONE(cuDevicePrimaryCtxRetain), NEW(cuMemAlloc, 3020),
		NEW(cuMemFree, 3020), NEW(cuMemGetInfo, 3020), ONE(cuMemAllocManaged), ONE(cuMemCreate), ONE(cuMemRelease),
		ONE(cuMemGetAllocationGranularity), ONE(cuGetErrorName), ONE(cuGetErrorString), NEW(cuGetProcAddress, 12000),
		{"cuDevicePrimaryCtxRelease", (void *)cuDevicePrimaryCtxRelease_v2, 0, 11000}, {"cuCtxPushCurrent", (void *)cuCtxPushCurrent_v2, 0, 4000},
		{"cuCtxPopCurrent", (void *)cuCtxPopCurrent_v2, 0, 4000}, {"cuMemAllocPitch", (void *)cuMemAllocPitch_v2, 0, 3020},
		ONE(cuMemMap), ONE(cuMemUnmap), ONE(cuMemRetainAllocationHandle), ONE(cuMemAddressReserve), ONE(cuMemAddressFree),
		ONE(cuDeviceGetDefaultMemPool), ONE(cuDeviceGetMemPool), ONE(cuMemPoolCreate), ONE(cuMemPoolDestroy), ONE(cuMemPoolTrimTo),
		ONE(cuMemPoolGetAttribute), ONE(cuMemPoolSetAttribute), ONE(cuArrayDestroy), ONE(cuDevicePrimaryCtxGetState),
		ONE(cuMipmappedArrayCreate), ONE(cuMipmappedArrayDestroy), ONE(cuMemHostAlloc), ONE(cuMemFreeHost), ONE(cuIpcGetMemHandle),
		ONE(cuIpcCloseMemHandle), {"cuMemAllocHost", (void *)cuMemAllocHost_v2, 0, 3020}, {"cuIpcOpenMemHandle", (void *)cuIpcOpenMemHandle_v2, 0, 11000},
		{"cuArrayCreate", (void *)cuArrayCreate_v2, 0, 3020}, {"cuArray3DCreate", (void *)cuArray3DCreate_v2, 0, 3020},
		{"cuDevicePrimaryCtxReset", (void *)cuDevicePrimaryCtxReset_v2, 0, 11000},
		{"cuMemAllocFromPoolAsync", (void *)cuMemAllocFromPoolAsync, (void *)cuMemAllocFromPoolAsync_ptsz, 11020},
		{"cuMemAllocAsync", (void *)cuMemAllocAsync, (void *)cuMemAllocAsync_ptsz, 11020},
		{"cuMemFreeAsync", (void *)cuMemFreeAsync, (void *)cuMemFreeAsync_ptsz, 11020},
	};
	CUresult code = begin("cuGetProcAddress");
	if (code && code != NO_DEVICE) return code;
	*f = 0;
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (!strcmp(table[i].name, symbol) && version >= table[i].since) {
			*f = flags & 2 && table[i].ptsz ? table[i].ptsz : table[i].f;
			break;
		}
	if (status) *status = *f ? 0 : 1;
	return *f || status ? OK : NOT_FOUND;
}
