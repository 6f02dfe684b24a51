// Virtual memory and arrays.

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
// Arrays whose memory is mapped later have none of their own: it comes from cuMemCreate.
enum { SPARSE = 0x40, DEFERRED = 0x80 };
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
	MADE(cuArray3DCreate_v2, ARRAY, a->flags & (SPARSE | DEFERRED) ? 0 : volume(a->width, a->height, a->depth, a->format, a->channels), REAL(cuArray3DCreate_v2, void **, const void *)(out, a))
}
API CUresult cuMipmappedArrayCreate(void **out, const struct array3 *a, unsigned levels) {
	GUARD(cuMipmappedArrayCreate)
	u64 n = 0, w = a->width, h = a->height, z = a->depth;
	for (unsigned l = 0; l < levels && l < 32 && !(a->flags & (SPARSE | DEFERRED)); l++) {
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
