// Stream-ordered memory.

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
