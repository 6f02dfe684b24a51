// Plain memory: allocation and release.

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
