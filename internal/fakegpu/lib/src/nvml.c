// A fake libnvidia-ml.so.1: the functions that Muster calls, answered from the state file of state.h. Names, numbers and
// layouts follow the published interface; layout_check.c compares the layouts with the header when that is at hand.
#define SEES_ALL 1
#include "state.h"
#include "nvml_types.h"

#define API __attribute__((visibility("default")))

static int inits;              // guarded by state_mu
static char slot[1024][UUID];  // handles: a handle is the address of its slot, for ever
static int nslot;

static void *handle_of(const char *uuid) {
	for (int i = 0; i < nslot; i++)
		if (!strcmp(slot[i], uuid)) return slot[i];
	if (nslot == 1024) return 0;
	COPY(slot[nslot], uuid);
	return slot[nslot++];
}

static void unlock(int *held) {
	if (*held) pthread_mutex_unlock(&state_mu);
}

// CALL begins a function: faults first, then whether the library is initialised; the lock is held until it returns.
#define CALL_RAW(fn)                                                  \
	unsigned code_;                                               \
	int file_ = inject(#fn, &code_);                              \
	__attribute__((cleanup(unlock))) int held_ = 1;               \
	(void)held_;                                                  \
	if (!file_) return NVML_ERROR_DRIVER_NOT_LOADED;              \
	if (code_) return (nvmlReturn_t)code_;
#define CALL(fn) CALL_RAW(fn) if (!inits) return NVML_ERROR_UNINITIALIZED;

// DEVICE begins one about a device: g is the GPU, m the MIG instance that the handle means, or 0.
#define DEVICE_ANY(fn)                                                                          \
	CALL(fn)                                                                                \
	struct gpu *g;                                                                          \
	struct mig *m;                                                                          \
	{                                                                                       \
		nvmlReturn_t r_ = find(device, &g, &m);                                         \
		if (r_) return r_;                                                              \
	}                                                                                       \
	(void)m;
#define DEVICE(fn) DEVICE_ANY(fn) if (m) return NVML_ERROR_NOT_SUPPORTED;

static nvmlReturn_t find(void *device, struct gpu **g, struct mig **m) {
	*g = 0, *m = 0;
	if ((char *)device < slot[0] || (char *)device >= slot[nslot]) return NVML_ERROR_INVALID_ARGUMENT;
	int i = gpu_by_uuid(&state, device), k;
	if (i < 0 && (k = mig_by_uuid(&state, device)) >= 0) *m = &state.mig[k], i = (*m)->gpu;
	if (i < 0 || i >= state.ngpu) return NVML_ERROR_GPU_IS_LOST;
	*g = &state.gpu[i];
	return (*g)->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

static int index_of(const struct gpu *g) { return (int)(g - state.gpu); }

static nvmlReturn_t text(char *to, unsigned length, const char *from) {
	if (strlen(from) + 1 > length) return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(to, from, strlen(from) + 1);
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlInit_v2(void) {
	CALL_RAW(nvmlInit_v2)
	inits++;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
	(void)flags;
	CALL_RAW(nvmlInitWithFlags)
	inits++;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlShutdown(void) {
	CALL(nvmlShutdown)
	inits--;
	return NVML_SUCCESS;
}
API const char *nvmlErrorString(nvmlReturn_t r) {
	switch (r) {
	case NVML_SUCCESS: return "Success";
	case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
	case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
	case NVML_ERROR_NOT_FOUND: return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case NVML_ERROR_TIMEOUT: return "Timeout";
	case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
	case NVML_ERROR_IN_USE: return "In use by another client";
	default: return "Unknown Error";
	}
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *v, unsigned n) { CALL(nvmlSystemGetDriverVersion) return text(v, n, state.driver); }
API nvmlReturn_t nvmlSystemGetNVMLVersion(char *v, unsigned n) { CALL(nvmlSystemGetNVMLVersion) return text(v, n, state.nvml); }
API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *v) { CALL(nvmlSystemGetCudaDriverVersion) *v = state.cuda; return NVML_SUCCESS; }
API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *v) { CALL(nvmlSystemGetCudaDriverVersion_v2) *v = state.cuda; return NVML_SUCCESS; }

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *n) { CALL(nvmlDeviceGetCount_v2) *n = (unsigned)state.ngpu; return NVML_SUCCESS; }
API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device) {
	CALL(nvmlDeviceGetHandleByIndex_v2)
	if (i >= (unsigned)state.ngpu) return NVML_ERROR_INVALID_ARGUMENT;
	if (state.gpu[i].lost) return NVML_ERROR_GPU_IS_LOST;
	*device = handle_of(state.gpu[i].uuid);
	return *device ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}
API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
	CALL(nvmlDeviceGetHandleByUUID)
	int i = gpu_by_uuid(&state, uuid);
	if (i < 0 && mig_by_uuid(&state, uuid) < 0) return NVML_ERROR_NOT_FOUND;
	if (i >= 0 && state.gpu[i].lost) return NVML_ERROR_GPU_IS_LOST;
	*device = handle_of(uuid);
	return *device ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

API nvmlReturn_t nvmlDeviceGetUUID(void *device, char *v, unsigned n) { DEVICE_ANY(nvmlDeviceGetUUID) return text(v, n, device); }
API nvmlReturn_t nvmlDeviceGetName(void *device, char *v, unsigned n) {
	DEVICE_ANY(nvmlDeviceGetName)
	if (!m) return text(v, n, g->name);
	char s[160];
	snprintf(s, sizeof s, "%s MIG %s", g->name, m->profile);
	return text(v, n, s);
}
API nvmlReturn_t nvmlDeviceGetSerial(void *device, char *v, unsigned n) {
	DEVICE(nvmlDeviceGetSerial)
	return g->serial[0] ? text(v, n, g->serial) : NVML_ERROR_NOT_SUPPORTED;
}

// NUMBER answers one number of a GPU.
#define NUMBER(fn, type, value) \
	API nvmlReturn_t fn(void *device, type *v) { DEVICE(fn) *v = (type)(value); return NVML_SUCCESS; }
NUMBER(nvmlDeviceGetIndex, unsigned, index_of(g))
NUMBER(nvmlDeviceGetMinorNumber, unsigned, g->minor)
NUMBER(nvmlDeviceGetBrand, unsigned, g->brand)
NUMBER(nvmlDeviceGetArchitecture, unsigned, g->arch)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, g->pciegen)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, g->pciewidth)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, g->pciegen)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, g->pciewidth)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, g->limit)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, g->limit)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, g->maxlimit)
NUMBER(nvmlDeviceGetAccountingMode, unsigned, 0)
NUMBER(nvmlDeviceGetVirtualizationMode, unsigned, 0)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, g->retiring)
NUMBER(nvmlDeviceGetPowerUsage, unsigned, g->power)
NUMBER(nvmlDeviceGetComputeMode, unsigned, g->computemode)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, g->persistence)
NUMBER(nvmlDeviceGetDisplayMode, unsigned, g->display)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, u64, g->energy)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, u64, g->throttle)
NUMBER(nvmlDeviceGetSupportedEventTypes, u64, 0xC00B) // ECC, critical XID, unavailable, recovery action
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned, g->mig >= 0 ? 7 : 0)
NUMBER(nvmlDeviceGetNumGpuCores, unsigned, g->sms * 128)

API nvmlReturn_t nvmlDeviceGetNumaNodeId(void *device, unsigned *v) {
	DEVICE(nvmlDeviceGetNumaNodeId)
	if (g->numa < 0) return NVML_ERROR_NOT_SUPPORTED;
	*v = (unsigned)g->numa;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
	DEVICE(nvmlDeviceGetCudaComputeCapability)
	*major = (int)g->ccmajor, *minor = (int)g->ccminor;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(void *device, unsigned *low, unsigned *high) {
	DEVICE(nvmlDeviceGetPowerManagementLimitConstraints)
	*low = g->minlimit, *high = g->maxlimit;
	return NVML_SUCCESS;
}
// set_limit writes a GPU's power limit into the file, which whoever calls has parsed: the Nth line of a GPU.
static int set_limit(int nth, unsigned mw) {
	struct stat st;
	char name[4096], tmp[4160];
	if ((size_t)snprintf(name, sizeof name, "%s.lock", state_path()) >= sizeof name) return 0;
	int lock = open(name, O_RDONLY | O_CREAT | O_CLOEXEC, 0666);
	if (lock < 0) return 0;
	while (flock(lock, LOCK_EX) && errno == EINTR) {
	}
	char *text = read_text(&st), *out = text ? malloc((size_t)st.st_size + 64) : 0, *save = 0;
	size_t n = 0;
	int seen = 0;
	for (char *l = out ? strtok_r(text, "\n", &save) : 0; l; l = strtok_r(0, "\n", &save)) {
		char *at = !strncmp(l, "gpu ", 4) && seen++ == nth ? strstr(l, " limit=") : 0;
		if (!at) n += (size_t)sprintf(out + n, "%s\n", l);
		else n += (size_t)sprintf(out + n, "%.*s limit=%u%s\n", (int)(at - l), l, mw, at + 7 + strspn(at + 7, "0123456789"));
	}
	snprintf(tmp, sizeof tmp, "%s.power.tmp", state_path());
	int fd = out ? open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1, ok = fd >= 0 && write(fd, out, n) == (ssize_t)n;
	if (fd >= 0) fchmod(fd, 0666), close(fd);
	ok = ok && !rename(tmp, state_path());
	close(lock);
	free(text);
	free(out);
	return ok;
}
API nvmlReturn_t nvmlDeviceSetPowerManagementLimit(void *device, unsigned mw) {
	DEVICE(nvmlDeviceSetPowerManagementLimit)
	if (mw < g->minlimit || mw > g->maxlimit) return NVML_ERROR_INVALID_ARGUMENT;
	return set_limit(index_of(g), mw) ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}
API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(void *device, unsigned type, unsigned *v) {
	DEVICE(nvmlDeviceGetTemperatureThreshold)
	*v = type == 0 ? 92 : 89; // shutdown, slowdown
	return type <= 1 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
API nvmlReturn_t nvmlDeviceGetBoardPartNumber(void *device, char *v, unsigned n) { DEVICE(nvmlDeviceGetBoardPartNumber) return text(v, n, "692-2G520-0200-000"); }
// A machine with 16 processors to each NUMA node.
API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(void *device, unsigned n, unsigned long *set, unsigned scope) {
	(void)scope;
	DEVICE(nvmlDeviceGetCpuAffinityWithinScope)
	if (g->numa < 0) return NVML_ERROR_NOT_SUPPORTED;
	for (unsigned i = 0; i < n; i++) set[i] = (unsigned)g->numa / 4 == i ? 0xFFFFul << (g->numa % 4 * 16) : 0;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetP2PStatus(void *device, void *other, unsigned index, unsigned *status) {
	DEVICE(nvmlDeviceGetP2PStatus)
	struct gpu *h;
	struct mig *k;
	nvmlReturn_t r = find(other, &h, &k);
	if (r) return r;
	*status = index == 2 && !(g->nvlink && h->nvlink) ? 5 : 0; // by NVLink: not supported; else: OK
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetMaxClockInfo(void *device, unsigned type, unsigned *v) {
	DEVICE(nvmlDeviceGetMaxClockInfo)
	*v = type == 2 ? g->memclock : g->clock;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *v) {
	(void)sensor;
	DEVICE(nvmlDeviceGetTemperature)
	*v = g->temp;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetUtilizationRates(void *device, nvmlUtilization_t *v) {
	DEVICE(nvmlDeviceGetUtilizationRates)
	v->gpu = g->util, v->memory = g->memutil;
	return g->mig == 1 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetEccMode(void *device, unsigned *now, unsigned *pending) {
	DEVICE(nvmlDeviceGetEccMode)
	if (g->ecc < 0) return NVML_ERROR_NOT_SUPPORTED;
	*now = *pending = (unsigned)g->ecc;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetTotalEccErrors(void *device, unsigned type, unsigned counter, u64 *v) {
	DEVICE(nvmlDeviceGetTotalEccErrors)
	if (g->ecc != 1) return NVML_ERROR_NOT_SUPPORTED;
	if (counter == 1) *v = type == 1 ? g->eccaggregate : g->ecccorrectedaggregate;
	else *v = type == 1 ? g->eccvolatile : g->ecccorrected;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
	DEVICE(nvmlDeviceGetRemappedRows)
	*corrected = g->rowscorrected, *uncorrected = g->rowsuncorrected, *pending = (unsigned)g->rowspending, *failed = (unsigned)g->rowsfailed;
	return g->ccmajor < 8 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(void *device, nvmlMemory_v2_t *v) {
	DEVICE_ANY(nvmlDeviceGetMemoryInfo_v2)
	if (v->version != (sizeof *v | 2u << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	v->total = m ? m->memory : g->memory, v->reserved = m ? 0 : g->reserved;
	v->used = used_of(&state, m ? -1 : index_of(g), device) + (m ? 0 : g->used);
	v->free = v->total > v->used + v->reserved ? v->total - v->used - v->reserved : 0;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetMemoryInfo(void *device, nvmlMemory_t *v) {
	DEVICE_ANY(nvmlDeviceGetMemoryInfo)
	v->total = m ? m->memory : g->memory;
	v->used = used_of(&state, m ? -1 : index_of(g), device) + (m ? 0 : g->used + g->reserved);
	v->free = v->total > v->used ? v->total - v->used : 0;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(void *device, nvmlBAR1Memory_t *v) {
	DEVICE(nvmlDeviceGetBAR1MemoryInfo)
	v->bar1Total = g->bar1, v->bar1Used = 0, v->bar1Free = g->bar1;
	return NVML_SUCCESS;
}

static void pci(nvmlPciInfo_t *v, unsigned domain, unsigned bus, unsigned dev, unsigned id) {
	memset(v, 0, sizeof *v);
	v->domain = domain, v->bus = bus, v->device = dev, v->pciDeviceId = id;
	snprintf(v->busIdLegacy, sizeof v->busIdLegacy, "%04X:%02X:%02X.0", domain & 0xFFFF, bus & 0xFF, dev & 0x1F);
	snprintf(v->busId, sizeof v->busId, "%08X:%02X:%02X.0", domain, bus & 0xFF, dev & 0x1F);
}
API nvmlReturn_t nvmlDeviceGetPciInfo_v3(void *device, nvmlPciInfo_t *v) {
	DEVICE(nvmlDeviceGetPciInfo_v3)
	pci(v, g->domain, g->bus, g->dev, 0x233010DE);
	return NVML_SUCCESS;
}

// lane finds the other end of one NVLink: 0 is a GPU, 2 a switch, -1 nothing. Links are numbered in the file's order.
static int lane(const struct gpu *g, unsigned n, int *peer) {
	int me = index_of(g);
	for (int i = 0; i < state.nlink; i++) {
		struct link *l = &state.link[i];
		if (l->a != me && l->b != me) continue;
		if (n < l->n) {
			*peer = l->a == me ? l->b : l->a;
			return *peer < 0 ? 2 : 0;
		}
		n -= l->n;
	}
	return -1;
}
API nvmlReturn_t nvmlDeviceGetNvLinkState(void *device, unsigned n, unsigned *active) {
	DEVICE(nvmlDeviceGetNvLinkState)
	int peer;
	if (!g->nvlink) return NVML_ERROR_NOT_SUPPORTED;
	if (n >= 18) return NVML_ERROR_INVALID_ARGUMENT;
	*active = g->mig != 1 && lane(g, n, &peer) >= 0 && !(g->linksdown >> n & 1);
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetNvLinkVersion(void *device, unsigned n, unsigned *v) {
	(void)n;
	DEVICE(nvmlDeviceGetNvLinkVersion)
	*v = g->nvlink;
	return g->nvlink ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned n, unsigned *v) {
	DEVICE(nvmlDeviceGetNvLinkRemoteDeviceType)
	int peer, t = lane(g, n, &peer);
	if (t < 0) return NVML_ERROR_NOT_SUPPORTED;
	*v = (unsigned)t;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned n, nvmlPciInfo_t *v) {
	DEVICE(nvmlDeviceGetNvLinkRemotePciInfo_v2)
	int peer, t = lane(g, n, &peer);
	if (t < 0) return NVML_ERROR_NOT_SUPPORTED;
	if (t == 2) pci(v, 0, 0xC0 + n % 4, 0, 0x22A310DE);
	else pci(v, state.gpu[peer].domain, state.gpu[peer].bus, state.gpu[peer].dev, 0x233010DE);
	return NVML_SUCCESS;
}
// The errors of a GPU's links are all on its first one. Drivers of compute capability 9.0 and newer tell them by link alone,
// older ones also as sums.
API nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned n, unsigned counter, u64 *v) {
	DEVICE(nvmlDeviceGetNvLinkErrorCounter)
	if (!g->nvlink) return NVML_ERROR_NOT_SUPPORTED;
	if (n >= 18 || counter > 4) return NVML_ERROR_INVALID_ARGUMENT;
	u64 of[5] = {g->nvreplay, g->nvrecovery, g->nvcrc, g->nvcrcdata, 0};
	*v = n ? 0 : of[counter];
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetPcieThroughput(void *device, unsigned counter, unsigned *v) {
	DEVICE(nvmlDeviceGetPcieThroughput)
	*v = counter ? g->pcierx : g->pcietx;
	return NVML_SUCCESS;
}
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, g->pciereplay)

// field answers one of the fields that Muster asks for.
static nvmlReturn_t field(const struct gpu *g, const nvmlFieldValue_t *f, u64 *v) {
	int peer, all = f->scopeId == 0xFFFFFFFFu, first = f->scopeId == 0, by_link = g->ccmajor >= 9;
	if (f->fieldId != 94 && f->fieldId != 230 && (!g->nvlink || g->mig == 1)) return NVML_ERROR_NOT_SUPPORTED;
	switch (f->fieldId) {
	case 230: *v = (u64)g->recovery; return NVML_SUCCESS;
	case 94: *v = g->pciereplay; return NVML_SUCCESS;
	case 138: *v = all ? g->nvtx : first ? g->nvtx : 0; return NVML_SUCCESS; // data sent and received, KiB
	case 139: *v = all ? g->nvrx : first ? g->nvrx : 0; return NVML_SUCCESS;
	case 38: *v = g->nvcrc; return by_link ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS; // sums of errors
	case 45: *v = g->nvcrcdata; return by_link ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
	case 52: *v = g->nvreplay; return by_link ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
	case 59: *v = g->nvrecovery; return by_link ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
	}
	if (f->fieldId < 161 || f->fieldId > 163 || !by_link || lane(g, f->scopeId, &peer) < 0) return NVML_ERROR_NOT_SUPPORTED;
	*v = !first ? 0 : f->fieldId == 161 ? g->nvreplay : f->fieldId == 162 ? g->nvrecovery : g->nvcrc;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetFieldValues(void *device, int n, nvmlFieldValue_t *v) {
	DEVICE(nvmlDeviceGetFieldValues)
	for (int i = 0; i < n; i++) {
		u64 x = 0;
		v[i].nvmlReturn = field(g, &v[i], &x);
		v[i].value.ullVal = 0;
		if (v[i].fieldId == 230 || v[i].fieldId == 94) v[i].valueType = 1, v[i].value.uiVal = (unsigned)x;
		else v[i].valueType = 3, v[i].value.ullVal = x;
	}
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(void *device, void *other, unsigned *level) {
	DEVICE(nvmlDeviceGetTopologyCommonAncestor)
	struct gpu *h;
	struct mig *k;
	nvmlReturn_t r = find(other, &h, &k);
	if (r) return r;
	int a = index_of(g), b = index_of(h);
	for (int i = 0; i < state.npair; i++)
		if ((state.pair[i].a == a && state.pair[i].b == b) || (state.pair[i].a == b && state.pair[i].b == a)) {
			*level = state.pair[i].level;
			return NVML_SUCCESS;
		}
	*level = a == b ? 0 : g->numa == h->numa ? 40 : 50;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(void *device, nvmlGpuFabricInfoV_t *v) {
	DEVICE(nvmlDeviceGetGpuFabricInfoV)
	memset(v->clusterUuid, 0, 16);
	v->status = NVML_SUCCESS, v->cliqueId = g->clique, v->state = (unsigned char)(g->fabricstate ? g->fabricstate : g->fabric[0] ? 3 : 0), v->healthMask = g->fabrichealth;
	for (int i = 0; i < 16 && g->fabric[2 * i] && g->fabric[2 * i + 1]; i++) {
		unsigned c = 0;
		sscanf(g->fabric + 2 * i, "%2x", &c);
		v->clusterUuid[i] = (unsigned char)c;
	}
	return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) {
	DEVICE(nvmlDeviceGetMigMode)
	if (g->mig < 0) return NVML_ERROR_NOT_SUPPORTED;
	*now = (unsigned)g->mig, *pending = (unsigned)(g->migpending < 0 ? g->mig : g->migpending);
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned n, void **out) {
	DEVICE(nvmlDeviceGetMigDeviceHandleByIndex)
	unsigned seen = 0;
	for (int i = 0; i < state.nmig && g->mig == 1; i++)
		if (state.mig[i].gpu == index_of(g) && seen++ == n) {
			*out = handle_of(state.mig[i].uuid);
			return *out ? NVML_SUCCESS : NVML_ERROR_MEMORY;
		}
	return n < 7 ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
}
API nvmlReturn_t nvmlDeviceGetAttributes_v2(void *device, nvmlDeviceAttributes_t *v) {
	DEVICE_ANY(nvmlDeviceGetAttributes_v2)
	if (!m) return NVML_ERROR_NOT_SUPPORTED;
	memset(v, 0, sizeof *v);
	v->multiprocessorCount = m->sms, v->gpuInstanceSliceCount = v->computeInstanceSliceCount = m->slices, v->memorySizeMB = m->memory >> 20;
	return NVML_SUCCESS;
}
#define OF_MIG(fn, type, value) \
	API nvmlReturn_t fn(void *device, type *v) { DEVICE_ANY(fn) if (!m) return NVML_ERROR_INVALID_ARGUMENT; *v = (type)(value); return NVML_SUCCESS; }
OF_MIG(nvmlDeviceGetGpuInstanceId, unsigned, m->gi)

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(void *device, unsigned number, nvmlGpuInstanceProfileInfo_t *v) {
	DEVICE(nvmlDeviceGetGpuInstanceProfileInfo)
	if (g->mig != 1) return NVML_ERROR_NOT_SUPPORTED;
	for (int i = 0; i < state.nprofile; i++) {
		struct profile *p = &state.profile[i];
		if (p->gpu != index_of(g) || p->number != number) continue;
		memset(v, 0, sizeof *v);
		v->id = p->id, v->sliceCount = p->slices, v->instanceCount = p->max, v->multiprocessorCount = p->sms, v->memorySizeMB = p->memory >> 20;
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_SUPPORTED;
}
API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *device, unsigned id, nvmlGpuInstancePlacement_t *v, unsigned *count) {
	DEVICE(nvmlDeviceGetGpuInstancePossiblePlacements_v2)
	if (g->mig != 1) return NVML_ERROR_NOT_SUPPORTED;
	for (int i = 0; i < state.nprofile; i++) {
		struct profile *p = &state.profile[i];
		if (p->gpu != index_of(g) || p->id != id) continue;
		for (unsigned k = 0; v && k < p->n && k < *count; k++) v[k] = (nvmlGpuInstancePlacement_t){p->start[k], p->size};
		*count = p->n;
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_SUPPORTED;
}
API nvmlReturn_t nvmlDeviceGetGpuInstanceById(void *device, unsigned id, void **v) {
	DEVICE(nvmlDeviceGetGpuInstanceById)
	for (int i = 0; i < state.nmig && g->mig == 1; i++)
		if (state.mig[i].gpu == index_of(g) && state.mig[i].gi == id) {
			*v = handle_of(state.mig[i].uuid);
			return *v ? NVML_SUCCESS : NVML_ERROR_MEMORY;
		}
	return NVML_ERROR_NOT_FOUND;
}
// A GPU instance is known by the handle of its device.
API nvmlReturn_t nvmlGpuInstanceGetInfo(void *device, nvmlGpuInstanceInfo_t *v) {
	DEVICE_ANY(nvmlGpuInstanceGetInfo)
	if (!m) return NVML_ERROR_INVALID_ARGUMENT;
	*v = (nvmlGpuInstanceInfo_t){handle_of(g->uuid), m->gi, 0, {m->start, m->size}};
	return m->size ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
OF_MIG(nvmlDeviceGetComputeInstanceId, unsigned, m->ci)
OF_MIG(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, void *, handle_of(g->uuid))

// sweep takes the charges of processes that are gone out of the file: those of a pid namespace that ended with them have
// nobody else to do it. Called with state_mu held.
static void sweep(void) {
	char name[4096], tmp[4160];
	if ((size_t)snprintf(name, sizeof name, "%s.lock", state_path()) >= sizeof name) return;
	int lock = open(name, O_RDONLY | O_CLOEXEC);
	if (lock < 0) return;
	while (flock(lock, LOCK_EX) && errno == EINTR) {
	}
	struct stat st;
	char *text = read_text(&st), *out = text ? malloc((size_t)st.st_size + 1) : 0, *save = 0;
	size_t n = 0;
	for (char *l = out ? strtok_r(text, "\n", &save) : 0; l; l = strtok_r(0, "\n", &save)) {
		struct proc p = {0};
		if (sscanf(l, "charge %79s %d %llu %llu %llu", p.uuid, &p.pid, &p.start, &p.bytes, &p.ns) == 5 && !alive(&p)) continue;
		n += (size_t)sprintf(out + n, "%s\n", l);
	}
	snprintf(tmp, sizeof tmp, "%s.sweep.tmp", state_path());
	int fd = out ? open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
	if (fd >= 0) {
		if (write(fd, out, n) == (ssize_t)n && !fchmod(fd, st.st_mode & 0777)) rename(tmp, state_path());
		close(fd);
	}
	close(lock);
	free(text);
	free(out);
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, nvmlProcessInfo_t *v) {
	DEVICE_ANY(nvmlDeviceGetComputeRunningProcesses_v3)
	unsigned have = 0;
	int gone = 0;
	for (int i = 0; i < state.nproc; i++) {
		struct proc *p = &state.proc[i];
		int k = mig_by_uuid(&state, p->uuid);
		int here = m ? !strcmp(p->uuid, m->uuid) : !strcmp(p->uuid, g->uuid) || (k >= 0 && state.mig[k].gpu == index_of(g));
		if (!here) continue;
		int pid = pid_here(p);
		if (!pid) {
			gone = 1;
			continue;
		}
		if (have < *n && v)
			v[have] = (nvmlProcessInfo_t){(unsigned)pid, p->bytes, k >= 0 ? state.mig[k].gi : 0xFFFFFFFFu, k >= 0 ? state.mig[k].ci : 0xFFFFFFFFu};
		have++;
	}
	if (gone) sweep();
	int small = have > *n || (have && !v);
	*n = have;
	return small ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
#define NO_PROCESSES(fn) \
	API nvmlReturn_t fn(void *device, unsigned *n, nvmlProcessInfo_t *v) { DEVICE_ANY(fn) (void)v; *n = 0; return NVML_SUCCESS; }
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

// The GPU's work is divided evenly among its processes, in one sample a call.
API nvmlReturn_t nvmlDeviceGetProcessUtilization(void *device, nvmlProcessUtilizationSample_t *v, unsigned *n, u64 since) {
	DEVICE(nvmlDeviceGetProcessUtilization)
	if (g->mig == 1) return NVML_ERROR_NOT_SUPPORTED;
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	u64 now = (u64)t.tv_sec * 1000000 + (u64)t.tv_nsec / 1000;
	unsigned have = 0, pids[PROCS];
	for (int i = 0; i < state.nproc && now > since; i++) {
		struct proc *p = &state.proc[i];
		int pid = !strcmp(p->uuid, g->uuid) ? pid_here(p) : 0;
		if (pid) pids[have++] = (unsigned)pid;
	}
	if (!have) return NVML_ERROR_NOT_FOUND;
	unsigned room = v ? *n : 0;
	*n = have;
	if (room < have) return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < have; i++) v[i] = (nvmlProcessUtilizationSample_t){pids[i], now, g->util / have, g->memutil / have, 0, 0};
	return NVML_SUCCESS;
}

// Limits of control groups; the fake libcuda keeps to them.
static u64 group_used(const char *uuid, const char *dir) {
	u64 sum = 0;
	for (int i = 0; i < state.nproc; i++) {
		char group[1024];
		int pid = !strcmp(state.proc[i].uuid, uuid) ? pid_here(&state.proc[i]) : 0;
		if (pid && group_of(pid, group, sizeof group) && in_group(group, dir)) sum += state.proc[i].bytes;
	}
	return sum;
}
API nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(void *device, nvmlSetMemoryLimits_v1_t *v) {
	DEVICE(nvmlDeviceSetMemoryLimits_v1)
	struct stat st;
	if (!state.dmem || g->mig == 1) return NVML_ERROR_NOT_SUPPORTED;
	if (v->softLimit > v->hardLimit || (v->hardLimit != ~0ull && v->hardLimit > g->memory)) return NVML_ERROR_INVALID_ARGUMENT;
	if (stat(v->nameSpace, &st) || !S_ISDIR(st.st_mode)) return NVML_ERROR_OPERATING_SYSTEM;
	char name[4096], tmp[4160];
	if ((size_t)snprintf(name, sizeof name, "%s.lock", state_path()) >= sizeof name) return NVML_ERROR_UNKNOWN;
	int lock = open(name, O_RDONLY | O_CREAT | O_CLOEXEC, 0666);
	if (lock < 0) return NVML_ERROR_UNKNOWN;
	while (flock(lock, LOCK_EX) && errno == EINTR) {
	}
	char *text = read_text(&st), *out = text ? malloc((size_t)st.st_size + 1024) : 0, *save = 0;
	size_t n = 0;
	for (char *l = out ? strtok_r(text, "\n", &save) : 0; l; l = strtok_r(0, "\n", &save)) {
		char id[UUID], dir[400];
		if (sscanf(l, "limit %79s %399s", id, dir) == 2 && !strcmp(id, g->uuid) && (!strcmp(dir, v->nameSpace) || stat(dir, &st))) continue;
		n += (size_t)sprintf(out + n, "%s\n", l);
	}
	if (out && v->hardLimit != ~0ull) n += (size_t)sprintf(out + n, "limit %s %s %llu %llu\n", g->uuid, v->nameSpace, v->softLimit, v->hardLimit);
	snprintf(tmp, sizeof tmp, "%s.limit.tmp", state_path());
	int fd = out ? open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1, ok = fd >= 0 && write(fd, out, n) == (ssize_t)n;
	if (fd >= 0) fchmod(fd, 0666), close(fd);
	ok = ok && !rename(tmp, state_path());
	close(lock);
	free(text);
	free(out);
	return ok ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}
API nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(void *device, nvmlGetMemoryLimits_v1_t *v) {
	DEVICE(nvmlDeviceGetMemoryLimits_v1)
	if (!state.dmem || g->mig == 1) return NVML_ERROR_NOT_SUPPORTED;
	v->softLimit = 0, v->hardLimit = ~0ull, v->currentUsed = group_used(g->uuid, v->nameSpace);
	for (int i = 0; i < state.nlimit; i++)
		if (!strcmp(state.limit[i].uuid, g->uuid) && !strcmp(state.limit[i].group, v->nameSpace)) v->softLimit = state.limit[i].soft, v->hardLimit = state.limit[i].hard;
	return NVML_SUCCESS;
}

// How busy the parts of a GPU are: a sample keeps what the file says when it is taken, and the later one of two is the answer.
struct gpm { char uuid[UUID]; unsigned active, occupied, tensor, dram; int taken; };

API nvmlReturn_t nvmlGpmQueryDeviceSupport(void *device, nvmlGpmSupport_t *v) {
	DEVICE_ANY(nvmlGpmQueryDeviceSupport)
	if (v->version != 1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	v->isSupportedDevice = g->ccmajor >= 9;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlGpmSampleAlloc(void **out) {
	CALL(nvmlGpmSampleAlloc)
	*out = calloc(1, sizeof(struct gpm));
	return *out ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}
API nvmlReturn_t nvmlGpmSampleFree(void *sample) {
	CALL(nvmlGpmSampleFree)
	free(sample);
	return NVML_SUCCESS;
}
static void gpm(struct gpm *s, const struct gpu *g, const char *uuid) {
	COPY(s->uuid, uuid);
	s->active = g->active, s->occupied = g->occupied, s->tensor = g->tensor, s->dram = g->dram, s->taken = 1;
}
API nvmlReturn_t nvmlGpmSampleGet(void *device, void *sample) {
	DEVICE(nvmlGpmSampleGet)
	if (g->ccmajor < 9) return NVML_ERROR_NOT_SUPPORTED;
	gpm(sample, g, g->uuid);
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlGpmMigSampleGet(void *device, unsigned gi, void *sample) {
	DEVICE(nvmlGpmMigSampleGet)
	if (g->ccmajor < 9 || g->mig != 1) return NVML_ERROR_NOT_SUPPORTED;
	for (int i = 0; i < state.nmig; i++)
		if (state.mig[i].gpu == index_of(g) && state.mig[i].gi == gi) {
			gpm(sample, g, state.mig[i].uuid);
			return NVML_SUCCESS;
		}
	return NVML_ERROR_INVALID_ARGUMENT;
}
API nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *v) {
	CALL(nvmlGpmMetricsGet)
	struct gpm *a = v->sample1, *b = v->sample2;
	if (v->version != 1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!a || !b || !a->taken || !b->taken || strcmp(a->uuid, b->uuid) || v->numMetrics > 477) return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < v->numMetrics; i++) {
		nvmlGpmMetric_t *m = &v->metrics[i];
		m->nvmlReturn = NVML_SUCCESS;
		switch (m->metricId) {
		case 1: m->value = b->active ? 100 : 0; break;
		case 2: m->value = b->active / 10.0; break;
		case 3: m->value = b->occupied / 10.0; break;
		case 5: m->value = b->tensor / 10.0; break;
		case 10: m->value = b->dram / 10.0; break;
		default: m->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
		}
	}
	return NVML_SUCCESS;
}

// An event set delivers the XIDs that the file gains after it was made. As with the driver of release 580, it is locked
// while somebody waits for it: who registers a GPU meanwhile waits too.
struct events { u64 seen; int registered[GPUS]; pthread_mutex_t waiting; };

API nvmlReturn_t nvmlEventSetCreate(void **out) {
	CALL(nvmlEventSetCreate)
	struct events *e = calloc(1, sizeof *e);
	if (!e) return NVML_ERROR_MEMORY;
	pthread_mutex_init(&e->waiting, 0);
	for (int i = 0; i < state.nxid; i++)
		if (state.xid[i].seq > e->seen) e->seen = state.xid[i].seq;
	*out = e;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlEventSetFree(void *set) {
	CALL(nvmlEventSetFree)
	free(set);
	return NVML_SUCCESS;
}
static void waited(pthread_mutex_t **m) { pthread_mutex_unlock(*m); }
API nvmlReturn_t nvmlDeviceRegisterEvents(void *device, u64 types, void *set) {
	(void)types;
	__attribute__((cleanup(waited))) pthread_mutex_t *m_ = &((struct events *)set)->waiting;
	pthread_mutex_lock(m_);
	DEVICE(nvmlDeviceRegisterEvents)
	((struct events *)set)->registered[index_of(g)] = 1;
	return NVML_SUCCESS;
}
API nvmlReturn_t nvmlEventSetWait_v2(void *set, nvmlEventData_t *v, unsigned ms) {
	struct events *e = set;
	__attribute__((cleanup(waited))) pthread_mutex_t *m_ = &e->waiting;
	pthread_mutex_lock(m_);
	for (unsigned passed = 0;; passed += 20) {
		{
			CALL(nvmlEventSetWait_v2)
			for (int i = 0; i < state.nxid; i++) {
				struct xid *x = &state.xid[i];
				if (x->seq <= e->seen || x->gpu < 0 || x->gpu >= state.ngpu) continue;
				e->seen = x->seq;
				if (!e->registered[x->gpu]) continue;
				memset(v, 0, sizeof *v);
				v->device = handle_of(state.gpu[x->gpu].uuid), v->eventType = 8, v->eventData = x->code;
				v->gpuInstanceId = x->gi, v->computeInstanceId = 0xFFFFFFFFu;
				return NVML_SUCCESS;
			}
		}
		if (passed >= ms) return NVML_ERROR_TIMEOUT;
		nap(20);
	}
}
