// Contexts, and what the program is told of the memory.

// ---- contexts ----

#define DESTROY(fn)                                                                                                           \
	API CUresult fn(void *ctx) {                                                                                          \
		GUARD(fn)                                                                                                     \
		CUresult r = REAL(fn, void *)(ctx);                                                                           \
		lock();                                                                                                       \
		if (!r) drop(ctx);                                                                                            \
		unlock();                                                                                                     \
		return r;                                                                                                     \
	}
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)
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
// The first forms are what runtimes before 11 call.
#define LEAVE(fn) API CUresult fn(CUdevice d) { GUARD(fn) return primary_left(REAL(fn, CUdevice)(d), d); }
LEAVE(cuDevicePrimaryCtxRelease)
LEAVE(cuDevicePrimaryCtxReset)
LEAVE(cuDevicePrimaryCtxRelease_v2)
LEAVE(cuDevicePrimaryCtxReset_v2)

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
