// A program that uses GPU memory, for tests: it carries out the commands on its standard input and prints what came of
// each. Commands: init, ctx DEVICE, alloc BYTES, free (the last), info, quit.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int cuInit(unsigned), cuDeviceGetCount(int *), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(unsigned long long *, size_t), cuMemFree_v2(unsigned long long), cuMemGetInfo_v2(size_t *, size_t *);

int main(void) {
	static unsigned long long at[100000];
	int n = 0, r, v;
	size_t avail, total;
	void *ctx;
	char line[256];
	setvbuf(stdout, 0, _IOLBF, 0);
	while (fgets(line, sizeof line, stdin)) {
		char *arg = strchr(line, ' ');
		unsigned long long x = arg ? strtoull(arg, 0, 10) : 0;
		if (!strncmp(line, "init", 4)) {
			v = 0;
			r = cuInit(0);
			if (!r) cuDeviceGetCount(&v);
			printf("%d %d\n", r, v);
		} else if (!strncmp(line, "ctx", 3)) {
			r = cuDevicePrimaryCtxRetain(&ctx, (int)x);
			if (!r) r = cuCtxSetCurrent(ctx);
			printf("%d\n", r);
		} else if (!strncmp(line, "alloc", 5)) {
			r = n < 100000 ? cuMemAlloc_v2(&at[n], x) : 2;
			if (!r) n++;
			printf("%d\n", r);
		} else if (!strncmp(line, "free", 4)) {
			r = n ? cuMemFree_v2(at[--n]) : 1;
			printf("%d\n", r);
		} else if (!strncmp(line, "info", 4)) {
			avail = total = 0;
			r = cuMemGetInfo_v2(&avail, &total);
			printf("%d %zu %zu\n", r, avail, total);
		} else if (!strncmp(line, "quit", 4)) {
			return 0;
		}
	}
	return 0;
}
