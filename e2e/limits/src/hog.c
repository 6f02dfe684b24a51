// A program that takes more than its share, one way at a time, and says how far it got:
//
//   hog cpu PROCESSES SECONDS    burns; prints thousandths of a core that it got
//   hog mem MIB                  touches memory; prints each MiB
//   hog child MIB                has a child do so, and exits with 1 when that was killed
//   hog file PATH MIB            writes a file; prints each MiB, then sleeps
//   hog pids                     forks until it may not; prints how many processes there are
//   hog bomb SECONDS             every process forks as fast as it can
//   hog fds                      opens /dev/null until it may not; prints how many descriptors it has
//   hog fdbomb PROCESSES SECONDS so many processes do that and hold them; prints the sum
//   hog beat                     does a millisecond of work every 10 ms; prints "beat P50 P99 MAX" in us every 2 s
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void say(const char *what, long n) {
	char b[64];
	int l = snprintf(b, sizeof b, "%s %ld\n", what, n);
	if (write(1, b, (size_t)l) != l) _exit(9);
}

static void burn(double until) {
	volatile unsigned x = 1;
	while (now() < until)
		for (int i = 0; i < 20000; i++) x = x * 1664525u + 1013904223u;
}

static double used(int who) {
	struct rusage r;
	getrusage(who, &r);
	return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

static int cpu(int n, double seconds) {
	double start = now();
	for (int i = 1; i < n; i++)
		if (fork() == 0) {
			burn(start + seconds);
			_exit(0);
		}
	burn(start + seconds);
	while (wait(0) > 0) {}
	say("cpu", (long)(1000 * (used(RUSAGE_SELF) + used(RUSAGE_CHILDREN)) / (now() - start)));
	return 0;
}

static int mem(long mib) {
	for (long i = 1; i <= mib; i++) {
		char *p = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED) return 3;
		memset(p, (int)i, 1 << 20);
		say("mem", i);
	}
	return 0;
}

static int child(long mib) {
	pid_t p = fork();
	int st = 0;
	if (p == 0) _exit(mem(mib));
	waitpid(p, &st, 0);
	return WIFSIGNALED(st) ? 1 : 0;
}

static int file(const char *path, long mib) {
	static char b[1 << 20];
	int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
	if (fd < 0) return 3;
	memset(b, 7, sizeof b);
	for (long i = 1; i <= mib; i++) {
		if (write(fd, b, sizeof b) != sizeof b) return 4;
		say("file", i);
	}
	sleep(1000);
	return 0;
}

static int pids(void) {
	long n = 1;
	for (;;) {
		pid_t p = fork();
		if (p == 0) {
			pause();
			_exit(0);
		}
		if (p < 0) break;
		n++;
	}
	say("pids", n);
	return errno == EAGAIN ? 0 : 3;
}

static int bomb(double seconds) {
	double until = now() + seconds;
	pid_t first = getpid();
	while (now() < until)
		if (fork() < 0) usleep(1000);
	if (getpid() == first) say("bomb", 0);
	return 0;
}

static long fds(void) {
	long n = 3;
	while (open("/dev/null", O_RDONLY) >= 0) n++;
	return n;
}

static int fdbomb(int n, double seconds) {
	long *sum = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < n; i++)
		if (fork() == 0) {
			__atomic_add_fetch(sum, fds(), __ATOMIC_SEQ_CST);
			sleep((unsigned)seconds);
			_exit(0);
		}
	while (wait(0) > 0) {}
	say("fdbomb", *sum);
	return 0;
}

static int cmp(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static int beat(void) {
	static double took[200];
	volatile unsigned x = 1;
	double due = now();
	for (;;) {
		for (int i = 0; i < 200; i++) {
			due += 0.01;
			double d = due - now();
			if (d < -0.5) due = now(); // far behind: do not answer for ever for one pause
			struct timespec t = {(time_t)due, (long)((due - (double)(time_t)due) * 1e9)};
			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0);
			for (int k = 0; k < 600000; k++) x = x * 1664525u + 1013904223u;
			took[i] = now() - due;
		}
		qsort(took, 200, sizeof took[0], cmp);
		char b[96];
		int l = snprintf(b, sizeof b, "beat %ld %ld %ld\n", (long)(took[100] * 1e6), (long)(took[197] * 1e6), (long)(took[199] * 1e6));
		if (write(1, b, (size_t)l) != l) return 9;
	}
}

int main(int n, char **a) {
	const char *what = n > 1 ? a[1] : "";
	double x = n > 2 ? atof(a[2]) : 0, y = n > 3 ? atof(a[3]) : 0;
	if (!strcmp(what, "cpu")) return cpu((int)x, y);
	if (!strcmp(what, "mem")) return mem((long)x);
	if (!strcmp(what, "child")) return child((long)x);
	if (!strcmp(what, "file")) return file(a[2], (long)y);
	if (!strcmp(what, "pids")) return pids();
	if (!strcmp(what, "bomb")) return bomb(x);
	if (!strcmp(what, "fds")) {
		say("fds", fds());
		return 0;
	}
	if (!strcmp(what, "fdbomb")) return fdbomb((int)x, y);
	if (!strcmp(what, "beat")) return beat();
	return 2;
}
