// The books: shares by device, and what this process holds.

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
