// What is known of the driver: which functions are ours, how the real ones are found, and dlsym.

// ---- what is known of the driver ----

#define HOOKS(X)                                                                                                              \
	X(cuGetProcAddress) X(cuGetProcAddress_v2) X(cuMemAlloc_v2) X(cuMemAllocPitch_v2) X(cuMemAllocManaged)                 \
	X(cuMemAllocAsync) X(cuMemAllocAsync_ptsz) X(cuMemAllocFromPoolAsync) X(cuMemAllocFromPoolAsync_ptsz) X(cuMemCreate)    \
	X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemRetainAllocationHandle) X(cuArrayCreate_v2) X(cuArray3DCreate_v2)      \
	X(cuMipmappedArrayCreate) X(cuArrayDestroy) X(cuMipmappedArrayDestroy) X(cuMemFree_v2) X(cuMemFreeAsync)                \
	X(cuMemFreeAsync_ptsz) X(cuMemPoolCreate) X(cuMemPoolDestroy) X(cuMemGetInfo_v2) X(cuDeviceTotalMem_v2)                 \
	X(cuCtxDestroy) X(cuCtxDestroy_v2) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxReset)  \
	X(cuDevicePrimaryCtxRelease_v2) X(cuDevicePrimaryCtxReset_v2)                                                           \
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
