// The launcher: the process that stays beside every task, 20 KiB of it, so that the task's exit status and its output
// pipes outlive agent and supervisor. It has no policy: it runs a list of system calls that Go wrote for it.
//
//   fd 0,1,2   the task's standard streams
//   fd 3,4     read ends of the task's output pipes, held open so that the writer never sees SIGPIPE
//   fd 5       SOCK_SEQPACKET to whoever started us: {1,0,0} hello (the kernel adds the pid), {2,op,errno} failure
//   fd 6       exit record, 64 bytes
//   fd 7       the program: header, operations, data
//
//   run ops "pre" -> clone -> child: hello, run ops "child", the last of which is execve
//                          -> parent: reap until the child has ended, write the record, wait until the pipes are
//                             empty or the record's file is deleted, exit. As pid 1 of a pid namespace its exit ends everything that is left in it.
//
// Built by build.sh into launch_<arch>.bin, which is committed: building muster needs no C compiler.
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long u64;

#if defined(__x86_64__)
static long sys(long n, long a, long b, long c, long d, long e, long f) {
	long r;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return r;
}
#define N_close 3
#define N_fstat 5
#define N_mmap 9
#define N_munmap 11
#define N_ioctl 16
#define N_pread 17
#define N_pwrite 18
#define N_nanosleep 35
#define N_sendto 44
#define N_clone 56
#define N_wait4 61
#define N_kill 62
#define N_exit 231
#define N_clock_gettime 228
#define links(st) st[2] // st_nlink
#elif defined(__aarch64__)
static long sys(long n, long a, long b, long c, long d, long e, long f) {
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}
#define N_close 57
#define N_fstat 80
#define N_mmap 222
#define N_munmap 215
#define N_ioctl 29
#define N_pread 67
#define N_pwrite 68
#define N_nanosleep 101
#define N_sendto 206
#define N_clone 220
#define N_wait4 260
#define N_kill 129
#define N_exit 94
#define N_clock_gettime 113
#define links(st) (st[2] >> 32) // st_nlink, behind st_mode
#endif

struct op {
	u32 nr;
	u8 flags;   // 1: ignore failure
	u8 dst;     // register that receives the result, 255: none
	u8 regs;    // bit i: argument i is a register number
	u8 pad;
	u64 a[6];
};

struct header {
	u64 magic;
	u32 size;
	u32 flags;  // 1: no record, exit as the child did; 2: pid 1 of a namespace: kill all when the child ends
	u64 clone_flags;
	u32 npre, pre;     // count, offset
	u32 nchild, child;
};

// Where the program is mapped: its pointers are made for that address, so that nothing has to be written into it and
// nobody gets a copy of its pages. There is nothing else: the launcher itself lies below 8 MiB, stack and vdso at the top.
#define PROGRAM_BASE 0x40000000UL

struct record {
	u64 magic;
	u32 status;
	u32 child;
	u64 sec, nsec;
	u64 utime_us, stime_us;
	u64 maxrss_kb;
	u64 check;
};

#define PROGRAM_MAGIC 0x324c544d55534d4cUL
#define RECORD_MAGIC 0x315445584d55534dUL

static void leave(int code) {
	for (;;) sys(N_exit, code, 0, 0, 0, 0, 0);
}

static void tell(u32 kind, u32 op, long err) {
	u32 m[3];
	m[0] = kind;
	m[1] = op;
	m[2] = (u32)err;
	sys(N_sendto, 5, (long)m, 12, 0x4000, 0, 0); // MSG_NOSIGNAL: who started us may be dead
}

static long run(const struct op *o, u32 n, u32 base) {
	u64 reg[8];
	for (int j = 0; j < 8; j++) reg[j] = 0;
	for (u32 i = 0; i < n; i++, o++) {
		u64 a[6];
		for (int j = 0; j < 6; j++) a[j] = (o->regs >> j & 1) ? reg[o->a[j] & 7] : o->a[j];
		long r = sys(o->nr, a[0], a[1], a[2], a[3], a[4], a[5]);
		if (r < 0 && r > -4096 && !(o->flags & 1)) {
			tell(2, base + i, -r);
			return -1;
		}
		if (o->dst != 255) reg[o->dst & 7] = (u64)r;
	}
	return 0;
}

__attribute__((used)) void launch(void) {
	struct header h;
	if (sys(N_pread, 7, (long)&h, sizeof h, 0, 0, 0) != sizeof h || h.magic != PROGRAM_MAGIC) {
		tell(2, ~0u, 8);
		leave(127);
	}
	u8 *p = (u8 *)sys(N_mmap, PROGRAM_BASE, h.size, 1, 0x100002, 7, 0); // PROT_READ, MAP_PRIVATE|MAP_FIXED_NOREPLACE
	if ((u64)p != PROGRAM_BASE) {
		tell(2, ~0u, (long)p < 0 && (long)p > -4096 ? -(long)p : 17); // EEXIST
		leave(127);
	}
	sys(N_close, 7, 0, 0, 0, 0, 0);
	if (run((struct op *)(p + h.pre), h.npre, 0) < 0) leave(127);
	long child = sys(N_clone, h.clone_flags, 0, 0, 0, 0, 0);
	if (child == 0) {
		tell(1, 0, 0);
		run((struct op *)(p + h.child), h.nchild, h.npre);
		leave(127);
	}
	if (child < 0) {
		tell(2, ~1u, -child);
		leave(127);
	}
	sys(N_munmap, (long)p, h.size, 0, 0, 0, 0);
	sys(N_close, 0, 0, 0, 0, 0, 0);
	sys(N_close, 1, 0, 0, 0, 0, 0);
	sys(N_close, 2, 0, 0, 0, 0, 0);
	sys(N_close, 5, 0, 0, 0, 0, 0);
	u32 status = 0;
	u64 ru[18];
	for (;;) {
		long r = sys(N_wait4, -1, (long)&status, 0, (long)ru, 0, 0);
		if (r == child) break;
		if (r < 0 && r != -4) leave(126);
	}
	if (h.flags & 1) {
		if (status & 0x7f) leave(128 + (status & 0x7f));
		leave(status >> 8 & 0xff);
	}
	struct record rec;
	u64 ts[2];
	sys(N_clock_gettime, 0, (long)ts, 0, 0, 0, 0);
	rec.magic = RECORD_MAGIC;
	rec.status = status;
	rec.child = (u32)child;
	rec.sec = ts[0];
	rec.nsec = ts[1];
	rec.utime_us = ru[0] * 1000000 + ru[1];
	rec.stime_us = ru[2] * 1000000 + ru[3];
	rec.maxrss_kb = ru[4];
	rec.check = rec.magic ^ rec.status ^ (rec.sec << 20) ^ rec.nsec ^ rec.utime_us ^ rec.stime_us ^ rec.maxrss_kb;
	sys(N_pwrite, 6, (long)&rec, sizeof rec, 0, 0, 0);
	if (h.flags & 2) sys(N_kill, -1, 9, 0, 0, 0, 0);
	else sys(N_kill, -child, 9, 0, 0, 0, 0);
	// Whoever pumps the logs may be dead just now: what is in the pipes lives as long as we hold them.
	u64 wait[2];
	wait[0] = 0;
	wait[1] = 200000;
	for (;;) {
		int n1 = 0, n2 = 0;
		sys(N_ioctl, 3, 0x541b, (long)&n1, 0, 0, 0); // FIONREAD
		sys(N_ioctl, 4, 0x541b, (long)&n2, 0, 0, 0);
		if (n1 == 0 && n2 == 0) break;
		// Nobody finds us again without the file: the data directory was deleted.
		u64 st[32];
		if (sys(N_fstat, 6, (long)st, 0, 0, 0, 0) == 0 && links(st) == 0) break;
		sys(N_nanosleep, (long)wait, 0, 0, 0, 0, 0);
		if (wait[1] < 50000000) wait[1] *= 2;
	}
	leave(0);
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n xor %ebp,%ebp\n and $-16,%rsp\n call launch\n hlt\n");
#elif defined(__aarch64__)
__asm__(".globl _start\n_start:\n mov x29,#0\n bl launch\n brk #0\n");
#endif
