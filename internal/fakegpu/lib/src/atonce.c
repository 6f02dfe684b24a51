// A driver that does nothing and answers at once: what a call costs through it is what stands between it and the program.
typedef unsigned long long u64;
#define API __attribute__((visibility("default")))
static u64 at;
API int cuInit(unsigned f) { (void)f; return 0; }
API int cuDeviceGetCount(int *n) { *n = 1; return 0; }
API int cuDeviceGetUuid_v2(unsigned char *b, int d) { for (int i = 0; i < 16; i++) b[i] = (unsigned char)(i + d); return 0; }
API int cuDevicePrimaryCtxRetain(void **c, int d) { (void)d; *c = &at; return 0; }
API int cuCtxSetCurrent(void *c) { (void)c; return 0; }
API int cuCtxGetCurrent(void **c) { *c = &at; return 0; }
API int cuCtxGetDevice(int *d) { *d = 0; return 0; }
API int cuMemAlloc_v2(u64 *p, u64 n) { *p = at += n; return 0; }
API int cuMemFree_v2(u64 p) { (void)p; return 0; }
API int cuMemAllocAsync(u64 *p, u64 n, void *s) { (void)s; *p = at += n; return 0; }
API int cuMemFreeAsync(u64 p, void *s) { (void)p, (void)s; return 0; }
API int cuDeviceGetMemPool(void **p, int d) { (void)d; *p = &at; return 0; }
API int cuMemPoolGetAttribute(void *p, int which, u64 *v) { (void)p; *v = which == 5 ? 1ull << 30 : 0; return 0; } // all of it is spare
API int cuMemGetInfo_v2(u64 *avail, u64 *total) { *avail = *total = 1ull << 36; return 0; }
