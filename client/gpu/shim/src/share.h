// The share of a GPU as all processes of a task see it, the lock among threads, and which processes live.

// ---- the share of one GPU; package shim holds the other end of this agreement ----

enum { SLOTS = 1023 };
#define MAGIC 0x31544f5551474d4dull // "MMGQUOT1"
struct slot {
	uint32_t pid, unused; // 0: free; as in the pid namespace ns
	u64 start;            // of the process, in ticks since boot
	u64 ns;               // inode of its pid namespace
	u64 used;             // bytes
};
struct quota {
	u64 magic, limit; // bytes; written by the agent
	u64 untracked;    // bytes that the driver says are held beyond what is booked: contexts, code; written by the agent
	u64 peak, denied; // most held at once; allocations refused
	u64 unused[3];
	struct slot slot[SLOTS];
};
_Static_assert(sizeof(struct slot) == 32 && sizeof(struct quota) == 32 * 1025, "the layout is the agent's too");

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_ACQUIRE)
#define STORE(x, v) __atomic_store_n(&(x), v, __ATOMIC_RELEASE)

// ---- a lock among threads that survives fork ----

static int owner;  // pid for which all that follows is valid; -1 while it is being made so
static int mu;     // 0 free, 1 held, 2 held and waited for
static u64 my_start, my_ns;

static void forget(void);

static void lock(void) {
	int pid = (int)syscall(SYS_getpid);
	for (int o; (o = LOAD(owner)) != pid;) {
		if (o != -1 && __atomic_compare_exchange_n(&owner, &o, -1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
			STORE(mu, 0); // a child of fork: whoever held it is not here
			forget();
			STORE(owner, pid);
		} else {
			syscall(SYS_sched_yield);
		}
	}
	int free = 0;
	if (__atomic_compare_exchange_n(&mu, &free, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
	while (__atomic_exchange_n(&mu, 2, __ATOMIC_ACQUIRE)) syscall(SYS_futex, &mu, FUTEX_WAIT_PRIVATE, 2, 0, 0, 0);
}
static void unlock(void) {
	if (__atomic_exchange_n(&mu, 0, __ATOMIC_RELEASE) == 2) syscall(SYS_futex, &mu, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
}

// ---- processes ----

// stat_of gives when a process started, or 0 when it cannot be told; *gone when nothing of it is left but its entry.
static u64 stat_of(const char *path, int *gone) {
	char buf[1024];
	*gone = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) return 0;
	ssize_t n = read(fd, buf, sizeof buf - 1);
	close(fd);
	if (n <= 0) return 0;
	buf[n] = 0;
	char *p = strrchr(buf, ')');
	if (!p || !p[1]) return 0;
	char state = p[2];
	u64 threads = 0;
	for (int field = 2; *p && field < 22; p++)
		if (*p == ' ' && ++field == 20) threads = strtoull(p, 0, 10);
	*gone = state == 'X' || (state == 'Z' && threads <= 1);
	return strtoull(p, 0, 10);
}

static int dead(const struct slot *s) {
	char path[64];
	int gone;
	if (kill((pid_t)s->pid, 0) && errno == ESRCH) return 1;
	snprintf(path, sizeof path, "/proc/%u/stat", s->pid);
	u64 start = stat_of(path, &gone);
	return gone || (start && s->start && start != s->start);
}
