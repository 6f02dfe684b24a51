// Compiled, not run: the layouts of nvml_types.h against those of the published header, which the test puts on the
// include path.
#include <stddef.h>
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include "nvml.h"
#define REAL(type) real_##type
typedef nvmlPciInfo_t REAL(nvmlPciInfo_t);
typedef nvmlMemory_t REAL(nvmlMemory_t);
typedef nvmlMemory_v2_t REAL(nvmlMemory_v2_t);
typedef nvmlBAR1Memory_t REAL(nvmlBAR1Memory_t);
typedef nvmlUtilization_t REAL(nvmlUtilization_t);
typedef nvmlProcessInfo_t REAL(nvmlProcessInfo_t);
typedef nvmlDeviceAttributes_t REAL(nvmlDeviceAttributes_t);
typedef nvmlEventData_t REAL(nvmlEventData_t);
typedef nvmlFieldValue_t REAL(nvmlFieldValue_t);
typedef nvmlProcessUtilizationSample_t REAL(nvmlProcessUtilizationSample_t);
typedef nvmlSetMemoryLimits_v1_t REAL(nvmlSetMemoryLimits_v1_t);
typedef nvmlGetMemoryLimits_v1_t REAL(nvmlGetMemoryLimits_v1_t);
typedef nvmlGpuInstanceProfileInfo_t REAL(nvmlGpuInstanceProfileInfo_t);
typedef nvmlGpuInstanceInfo_t REAL(nvmlGpuInstanceInfo_t);
typedef nvmlGpmMetricsGet_t REAL(nvmlGpmMetricsGet_t);
typedef nvmlGpmSupport_t REAL(nvmlGpmSupport_t);
typedef nvmlGpuFabricInfo_v2_t REAL(nvmlGpuFabricInfo_v2_t);
_Static_assert(NVML_ERROR_GPU_IS_LOST == 15 && NVML_ERROR_ARGUMENT_VERSION_MISMATCH == 25 && NVML_FI_DEV_GET_GPU_RECOVERY_ACTION == 230, "numbers");
#undef nvmlProcessInfo_t
#undef nvmlEventData_t
#define nvmlReturn_t fake_nvmlReturn_t
#define nvmlProcessUtilizationSample_t fake_nvmlProcessUtilizationSample_t
#define nvmlSetMemoryLimits_v1_t fake_nvmlSetMemoryLimits_v1_t
#define nvmlGetMemoryLimits_v1_t fake_nvmlGetMemoryLimits_v1_t
#define nvmlGpmMetric_t fake_nvmlGpmMetric_t
#define nvmlGpmMetricsGet_t fake_nvmlGpmMetricsGet_t
#define nvmlGpmSupport_t fake_nvmlGpmSupport_t
#define nvmlPciInfo_t fake_nvmlPciInfo_t
#define nvmlMemory_t fake_nvmlMemory_t
#define nvmlMemory_v2_t fake_nvmlMemory_v2_t
#define nvmlBAR1Memory_t fake_nvmlBAR1Memory_t
#define nvmlUtilization_t fake_nvmlUtilization_t
#define nvmlProcessInfo_t fake_nvmlProcessInfo_t
#define nvmlDeviceAttributes_t fake_nvmlDeviceAttributes_t
#define nvmlEventData_t fake_nvmlEventData_t
#define nvmlFieldValue_t fake_nvmlFieldValue_t
#define nvmlGpuInstanceProfileInfo_t fake_nvmlGpuInstanceProfileInfo_t
#define nvmlGpuInstancePlacement_t fake_nvmlGpuInstancePlacement_t
#define nvmlGpuInstanceInfo_t fake_nvmlGpuInstanceInfo_t
#define nvmlGpuFabricInfoV_t fake_nvmlGpuFabricInfoV_t
#define NVML_SUCCESS FAKE_0
#define NVML_ERROR_UNINITIALIZED FAKE_1
#define NVML_ERROR_INVALID_ARGUMENT FAKE_2
#define NVML_ERROR_NOT_SUPPORTED FAKE_3
#define NVML_ERROR_NO_PERMISSION FAKE_4
#define NVML_ERROR_NOT_FOUND FAKE_6
#define NVML_ERROR_INSUFFICIENT_SIZE FAKE_7
#define NVML_ERROR_DRIVER_NOT_LOADED FAKE_9
#define NVML_ERROR_TIMEOUT FAKE_10
#define NVML_ERROR_GPU_IS_LOST FAKE_15
#define NVML_ERROR_OPERATING_SYSTEM FAKE_17
#define NVML_ERROR_UNKNOWN FAKE_999
#define NVML_ERROR_IN_USE FAKE_19
#define NVML_ERROR_MEMORY FAKE_20
#define NVML_ERROR_ARGUMENT_VERSION_MISMATCH FAKE_25
#include "nvml_types.h"
#define SAME_SIZE(type) _Static_assert(sizeof(real_##type) == sizeof(fake_##type), #type);
#define SAME(type, field) _Static_assert(offsetof(real_##type, field) == offsetof(fake_##type, field), #type "." #field);
SAME_SIZE(nvmlPciInfo_t) SAME(nvmlPciInfo_t, domain) SAME(nvmlPciInfo_t, pciDeviceId) SAME(nvmlPciInfo_t, busId)
SAME_SIZE(nvmlMemory_t) SAME(nvmlMemory_t, free) SAME(nvmlMemory_t, used)
SAME_SIZE(nvmlMemory_v2_t) SAME(nvmlMemory_v2_t, reserved) SAME(nvmlMemory_v2_t, free) SAME(nvmlMemory_v2_t, used)
SAME_SIZE(nvmlBAR1Memory_t) SAME_SIZE(nvmlUtilization_t)
SAME_SIZE(nvmlProcessInfo_t) SAME(nvmlProcessInfo_t, usedGpuMemory) SAME(nvmlProcessInfo_t, gpuInstanceId)
SAME_SIZE(nvmlDeviceAttributes_t) SAME(nvmlDeviceAttributes_t, gpuInstanceSliceCount) SAME(nvmlDeviceAttributes_t, memorySizeMB)
SAME_SIZE(nvmlGpuInstanceProfileInfo_t) SAME(nvmlGpuInstanceProfileInfo_t, instanceCount) SAME(nvmlGpuInstanceProfileInfo_t, memorySizeMB)
SAME_SIZE(nvmlGpuInstanceInfo_t) SAME(nvmlGpuInstanceInfo_t, profileId) SAME(nvmlGpuInstanceInfo_t, placement)
SAME_SIZE(nvmlEventData_t) SAME(nvmlEventData_t, eventData) SAME(nvmlEventData_t, gpuInstanceId)
SAME_SIZE(nvmlFieldValue_t) SAME(nvmlFieldValue_t, valueType) SAME(nvmlFieldValue_t, value)
_Static_assert(offsetof(real_nvmlGpuFabricInfo_v2_t, cliqueId) == offsetof(fake_nvmlGpuFabricInfoV_t, cliqueId), "clique");
_Static_assert(offsetof(real_nvmlGpuFabricInfo_v2_t, healthMask) == offsetof(fake_nvmlGpuFabricInfoV_t, healthMask), "health");
SAME_SIZE(nvmlProcessUtilizationSample_t) SAME(nvmlProcessUtilizationSample_t, smUtil)
SAME_SIZE(nvmlSetMemoryLimits_v1_t) SAME(nvmlSetMemoryLimits_v1_t, hardLimit) SAME_SIZE(nvmlGetMemoryLimits_v1_t) SAME(nvmlGetMemoryLimits_v1_t, currentUsed)
SAME_SIZE(nvmlGpmMetricsGet_t) SAME(nvmlGpmMetricsGet_t, sample1) SAME(nvmlGpmMetricsGet_t, metrics) SAME(nvmlGpmMetricsGet_t, metrics[1].value) SAME_SIZE(nvmlGpmSupport_t)
