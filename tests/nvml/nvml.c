/* A stand-in for NVIDIA's libnvidia-ml.so.1: the functions that the probe calls, with nvml.h's real structs.
 *
 * It answers from a text file named by NVML_STATE, read again whenever it changes. Lines are `key=value`; what is not
 * said has a default, so that `count=8` is a healthy machine. Keys, where <g> is a GPU's index and <m> a MIG index:
 *   init=<code>            nvmlInit and, while it is not 0, every other call answer this
 *   count=<n>  driver=<text>  cuda=<int>  hang=<function>  fail.<function>=<code>
 *   gpu<g>.uuid|name|bus=<text>  gpu<g>.minor|memory_mib|used_mib|numa|temperature|fan|utilization=<int>
 *   gpu<g>.processes|graphics=<int>  with a context; graphics processes have other pids  gpu<g>.allocated_mib=<int>
 *   gpu<g>.lost=1          every question about it answers GPU_IS_LOST
 *   gpu<g>.fail.<function>=<code>  gpu<g>.odd.<function>=<n>  (the first n calls answer UNKNOWN)
 *   gpu<g>.recovery|remap_pending|remap_failure|remap_uncorrectable|ecc_volatile|sram|slowdown|links_down=<int>
 *   gpu<g>.nvlink=switch|pair   gpu<g>.events=<mask>   gpu<g>.fabric=<clique>   gpu<g>.mig=<number of MIG devices>
 *   gpu<g>.fabric_state|fabric_status|fabric_health=<int>   (only with fabric; Completed, without an error, by default)
 *   gpu<g>.persistence|power|power_limit|power_default|margin|slowdown_margin=<int>
 *   gpu<g>.nvlink_version|nvlink_speed|nvlink_errors=<int>   gpu<g>.link<n>.nvlink_speed|nvlink_errors=<int>
 *   gpu<g>.mig<m>.uuid|gi|ci|slices|ci_slices|memory_mib|start|size|profile=...   (a uuid of - : nothing at this index;
 *                          profile: NVML_GPU_INSTANCE_PROFILE_*)
 *   events=<n>  event<i>=<gpu> <type> <data> <gi> <ci>   the first n have happened; those before a set exists are history
 *   flood=<n>              so many XIDs a second, from each GPU in turn, until there were flood_total=<n>;
 *                          flood_xid=<XID>, 13 by default
 *
 * With NVML_CALLS=<file> the name of each function that is called is added to that file.
 *
 * With -DOLD_DRIVER the functions that a driver of 2020 lacks are not exported at all.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15, UNKNOWN = 999 };
enum { XID_EVENT = 8 }; /* nvmlEventTypeXidCriticalError */
enum { MAX_GPUS = 64, MAX_MIG = 7, MAX_TEXT = 1 << 18, NVLINKS = 18 };

typedef struct { int gpu, mig; } Device;
typedef struct { int gpu, gi; } GpuInstance;
typedef struct { unsigned long long wanted[MAX_GPUS]; int next; unsigned long long flooded; double flood_began; } EventSet;

/* nvml.h */
typedef struct { char legacy[16]; unsigned domain, bus, device, pci_id, subsystem; char bus_id[32]; } PciInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } ProcessInfo;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { Device *device; unsigned long long type, data; unsigned gi, ci; } EventData;
typedef struct { unsigned field, scope; long long timestamp, latency; int type, result;
                 union { double d; unsigned ui; unsigned long long ull; } value; } FieldValue;
typedef struct { unsigned multiprocessors, copy, decoders, encoders, jpeg, ofa, gi_slices, ci_slices;
                 unsigned long long memory_mib; } Attributes;
typedef struct { Device *device; unsigned id, profile, start, size; } GpuInstanceInfo;
typedef struct { unsigned id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
                 unsigned long long memory_mib; } GpuInstanceProfileInfo;
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state;
                 unsigned health; } FabricInfo;
typedef struct { unsigned version; int margin; } MarginTemperature;
typedef struct { unsigned version; unsigned long long counters[11]; unsigned threshold_exceeded; } SramStatus;

static Device gpus[MAX_GPUS], migs[MAX_GPUS][MAX_MIG];
static GpuInstance instances[MAX_GPUS][MAX_MIG];
static char state[MAX_TEXT];
static struct timespec state_time;
static long state_size = -1, state_inode = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialised, odd_answers[MAX_GPUS];

static void refresh(void) {
    struct stat found;
    const char *path = getenv("NVML_STATE");
    if (!path || stat(path, &found)) { state[0] = 0; state_size = -1; return; }
    if (found.st_size == state_size && found.st_ino == (ino_t)state_inode && found.st_mtim.tv_sec == state_time.tv_sec &&
        found.st_mtim.tv_nsec == state_time.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    state[0] = '\n';
    size_t length = fread(state + 1, 1, MAX_TEXT - 2, file);
    state[length + 1] = 0;
    fclose(file);
    state_size = found.st_size; state_inode = found.st_ino; state_time = found.st_mtim;
}

/* The value of a key: the last line that says it, or the default. */
static const char *words(const char *key, const char *otherwise, char *out, size_t size) {
    char wanted[128];
    const char *found = NULL;
    pthread_mutex_lock(&lock);
    refresh();
    snprintf(wanted, sizeof wanted, "\n%s=", key);
    for (const char *at = state; (at = strstr(at, wanted)); at++) found = at + strlen(wanted);
    if (found) snprintf(out, size, "%.*s", (int)strcspn(found, "\n"), found);
    else snprintf(out, size, "%s", otherwise);
    pthread_mutex_unlock(&lock);
    return out;
}

static long number(const char *key, long otherwise) {
    char text[64];
    words(key, "", text, sizeof text);
    return *text ? strtol(text, NULL, 0) : otherwise;
}

static const char *gpu_words(int gpu, const char *key, const char *otherwise, char *out, size_t size) {
    char whole[96];
    snprintf(whole, sizeof whole, "gpu%d.%s", gpu, key);
    return words(whole, otherwise, out, size);
}

static long gpu_number(int gpu, const char *key, long otherwise) {
    char text[64];
    gpu_words(gpu, key, "", text, sizeof text);
    return *text ? strtol(text, NULL, 0) : otherwise;
}

/* What every call does first: hang, fail as told, or answer that the driver or the GPU is not there. */
static int checked(const char *function, int gpu) {
    char text[128], key[128];
    const char *calls = getenv("NVML_CALLS");
    FILE *counted = calls ? fopen(calls, "a") : NULL;
    if (counted) { fprintf(counted, "%s\n", function); fclose(counted); }
    while (!strcmp(words("hang", "", text, sizeof text), function)) usleep(20000);
    int code = (int)number("init", OK);
    if (code) return code;
    if (!initialised) return UNINITIALIZED;
    snprintf(key, sizeof key, "fail.%s", function);
    if ((code = (int)number(key, OK))) return code;
    if (gpu < 0) return OK;
    if (gpu_number(gpu, "lost", 0)) return GPU_IS_LOST;
    if ((code = (int)gpu_number(gpu, key, OK))) return code;
    snprintf(key, sizeof key, "odd.%s", function);
    return odd_answers[gpu] < gpu_number(gpu, key, 0) ? (odd_answers[gpu]++, UNKNOWN) : OK;
}
#define CHECK(gpu) do { int code_ = checked(__func__, gpu); if (code_) return code_; } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    char text[128];
    printf("noise of a library on the standard output\n");
    fflush(stdout);
    while (!strcmp(words("hang", "", text, sizeof text), __func__)) usleep(20000);
    int code = (int)number("init", OK);
    if (code) return code;
    for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
        gpus[gpu] = (Device){gpu, -1};
        for (int mig = 0; mig < MAX_MIG; mig++) { migs[gpu][mig] = (Device){gpu, mig}; instances[gpu][mig].gpu = gpu; }
    }
    initialised = 1;
    return OK;
}

int nvmlShutdown(void) { initialised = 0; return OK; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    CHECK(-1);
    words("driver", "570.148.08", out, size);
    return OK;
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) { CHECK(-1); *out = (int)number("cuda", 12080); return OK; }

int nvmlDeviceGetCount_v2(unsigned *out) { CHECK(-1); *out = (unsigned)number("count", 0); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) {
    if (index >= MAX_GPUS || index >= number("count", 0)) return INVALID_ARGUMENT;
    CHECK((int)index);
    *out = &gpus[index];
    return OK;
}

int nvmlDeviceGetUUID(Device *device, char *out, unsigned size) {
    CHECK(device->gpu);
    char text[96], key[32];
    if (device->mig < 0) {
        snprintf(text, sizeof text, "GPU-00000000-0000-4000-8000-%012d", device->gpu);
        gpu_words(device->gpu, "uuid", text, out, size);
    } else {
        snprintf(key, sizeof key, "mig%d.uuid", device->mig);
        snprintf(text, sizeof text, "MIG-00000000-0000-4000-8000-%06d%06d", device->gpu, device->mig);
        gpu_words(device->gpu, key, text, out, size);
    }
    return OK;
}

int nvmlDeviceGetName(Device *device, char *out, unsigned size) {
    CHECK(device->gpu);
    gpu_words(device->gpu, device->mig < 0 ? "name" : "mig_name", "NVIDIA H100 80GB HBM3", out, size);
    return OK;
}

int nvmlDeviceGetBrand(Device *device, unsigned *out) { CHECK(device->gpu); *out = 14; return OK; }

int nvmlDeviceGetMinorNumber(Device *device, unsigned *out) {
    CHECK(device->gpu);
    *out = (unsigned)gpu_number(device->gpu, "minor", device->gpu);
    return OK;
}

static void bus_id(int gpu, char *out, size_t size) {
    char text[32];
    snprintf(text, sizeof text, "00000000:%02X:00.0", 0x17 + gpu * 0x10);
    gpu_words(gpu, "bus", text, out, size);
}

int nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *out) {
    CHECK(device->gpu);
    memset(out, 0, sizeof *out);
    bus_id(device->gpu, out->bus_id, sizeof out->bus_id);
    return OK;
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *out) {
    CHECK(device->gpu);
    *out = (Memory){.total = (unsigned long long)gpu_number(device->gpu, "memory_mib", 81559) << 20,
                    .used = (unsigned long long)gpu_number(device->gpu, "used_mib", 512) << 20};
    return OK;
}

int nvmlDeviceGetFanSpeed(Device *device, unsigned *out) {
    CHECK(device->gpu);
    *out = (unsigned)gpu_number(device->gpu, "fan", 0);
    return *out ? OK : NOT_SUPPORTED; /* a board without a fan */
}

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *out) {
    CHECK(device->gpu);
    *out = (Utilization){.gpu = (unsigned)gpu_number(device->gpu, "utilization", 0)};
    return OK;
}

int nvmlDeviceGetClockInfo(Device *device, unsigned type, unsigned *out) {
    CHECK(device->gpu);
    *out = type == 1 ? 1980 : 2619; /* NVML_CLOCK_SM, NVML_CLOCK_MEM */
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor) {
    CHECK(device->gpu);
    *major = 9; *minor = 0;
    return OK;
}

int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *out) {
    CHECK(device->gpu);
    (void)sensor;
    *out = (unsigned)gpu_number(device->gpu, "temperature", 41);
    return OK;
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *out) {
    CHECK(device->gpu);
    *out = (unsigned)gpu_number(device->gpu, "power", 71000);
    return OK;
}

int nvmlDeviceGetPersistenceMode(Device *device, unsigned *out) {
    CHECK(device->gpu);
    *out = (unsigned)gpu_number(device->gpu, "persistence", 1);
    return OK;
}

int nvmlDeviceGetPcieReplayCounter(Device *device, unsigned *out) { CHECK(device->gpu); *out = 0; return OK; }

int nvmlDeviceGetTotalEccErrors(Device *device, unsigned type, unsigned counter, unsigned long long *out) {
    CHECK(device->gpu);
    *out = type == 1 && counter == 0 ? (unsigned long long)gpu_number(device->gpu, "ecc_volatile", 0) : 0;
    return OK;
}

int nvmlDeviceGetTopologyCommonAncestor(Device *one, Device *other, unsigned *out) {
    CHECK(one->gpu);
    *out = one->gpu / 4 == other->gpu / 4 ? 40 : 50;
    return OK;
}

int nvmlDeviceGetNvLinkState(Device *device, unsigned link, unsigned *out) {
    CHECK(device->gpu);
    char text[16];
    if (link >= NVLINKS) return INVALID_ARGUMENT;
    if (!*gpu_words(device->gpu, "nvlink", "", text, sizeof text)) return NOT_SUPPORTED;
    *out = link >= (unsigned)gpu_number(device->gpu, "links_down", 0);
    return OK;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *device, unsigned link, PciInfo *out) {
    CHECK(device->gpu);
    (void)link;
    memset(out, 0, sizeof *out);
    bus_id(device->gpu ^ 1, out->bus_id, sizeof out->bus_id);
    return OK;
}

int nvmlDeviceGetSupportedEventTypes(Device *device, unsigned long long *out) {
    CHECK(device->gpu);
    *out = (unsigned long long)gpu_number(device->gpu, "events", 0xffff);
    return OK;
}

int nvmlEventSetCreate(EventSet **out) {
    CHECK(-1);
    *out = calloc(1, sizeof **out);
    (*out)->next = (int)number("events", 0);
    return OK;
}

int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, EventSet *set) {
    CHECK(device->gpu);
    if (types & ~(unsigned long long)gpu_number(device->gpu, "events", 0xffff)) return NOT_SUPPORTED;
    set->wanted[device->gpu] |= types;
    return OK;
}

/* True when the flood has reached its next XID, which is in *out then. What came while nobody waited is kept. */
static int flooded(EventSet *set, EventData *out) {
    struct timespec now;
    long rate = number("flood", 0), gpu;
    if (rate <= 0) { set->flood_began = 0; return 0; }
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    if (set->flood_began == 0) { set->flood_began = seconds; set->flooded = 0; }
    if ((double)set->flooded >= (seconds - set->flood_began) * (double)rate) return 0;
    if (set->flooded >= (unsigned long long)number("flood_total", 0)) return 0;
    gpu = (long)(set->flooded++ % (unsigned long long)number("count", 1));
    *out = (EventData){&gpus[gpu], XID_EVENT, (unsigned long long)number("flood_xid", 13), ~0u, ~0u};
    return (set->wanted[gpu] & XID_EVENT) != 0;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *out, unsigned milliseconds) {
    for (unsigned waited = 0; ; waited += 10) {
        CHECK(-1);
        if (flooded(set, out)) return OK;
        while (set->next < number("events", 0)) {
            char key[32], text[128];
            int gpu = 0, gi = -1, ci = -1;
            unsigned long long type = 0, data = 0;
            snprintf(key, sizeof key, "event%d", set->next);
            words(key, "", text, sizeof text);
            if (sscanf(text, "%d %llx %llu %d %d", &gpu, &type, &data, &gi, &ci) < 3) break; /* not written whole yet */
            set->next++;
            if (gpu < 0 || gpu >= MAX_GPUS || !(set->wanted[gpu] & type)) continue;
            *out = (EventData){&gpus[gpu], type, data, (unsigned)gi, (unsigned)ci};
            return OK;
        }
        if (waited >= milliseconds) return TIMEOUT;
        usleep(10000);
    }
}

int nvmlEventSetFree(EventSet *set) { free(set); return OK; }

const char *nvmlErrorString(int code) { (void)code; return "an error of the stand-in"; }

#ifndef OLD_DRIVER /* since drivers 450 to 565 */
int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *out) {
    CHECK(device->gpu);
    out->total = (unsigned long long)gpu_number(device->gpu, "memory_mib", 81559) << 20;
    out->reserved = 600ULL << 20;
    out->used = ((unsigned long long)gpu_number(device->gpu, "allocated_mib", 1) << 20) + out->reserved;
    out->free = out->total - out->used;
    return OK;
}

static int processes(long found, unsigned first_pid, unsigned *count, ProcessInfo *out) {
    if (found > 0 && *count < (unsigned long)found) { *count = (unsigned)found; return INSUFFICIENT_SIZE; }
    *count = (unsigned)found;
    for (unsigned at = 0; at < *count; at++) out[at] = (ProcessInfo){.pid = first_pid + at};
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, ProcessInfo *out) {
    CHECK(device->gpu);
    return processes(gpu_number(device->gpu, "processes", 0), 1000, count, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *device, unsigned *count, ProcessInfo *out) {
    CHECK(device->gpu);
    return processes(gpu_number(device->gpu, "graphics", 0), 2000, count, out);
}

static long mig_number(const Device *device, const char *key, long otherwise) {
    char whole[64];
    snprintf(whole, sizeof whole, "mig%d.%s", device->mig, key);
    return gpu_number(device->gpu, whole, otherwise);
}

int nvmlDeviceGetArchitecture(Device *device, unsigned *out) { CHECK(device->gpu); *out = 9; return OK; }

int nvmlDeviceGetRemappedRows(Device *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failure) {
    CHECK(device->gpu);
    *corrected = 0;
    *uncorrected = (unsigned)gpu_number(device->gpu, "remap_uncorrectable", 0);
    *pending = (unsigned)gpu_number(device->gpu, "remap_pending", 0);
    *failure = (unsigned)gpu_number(device->gpu, "remap_failure", 0);
    return OK;
}

/* What one link says, else all of them. */
static long link_number(int gpu, unsigned link, const char *key, long otherwise) {
    char whole[64];
    snprintf(whole, sizeof whole, "link%u.%s", link, key);
    return gpu_number(gpu, whole, gpu_number(gpu, key, otherwise));
}

/* NVML_FI_DEV_*: those that the probe reads; the types are those that a driver gives. */
static void field(int gpu, FieldValue *value) {
    char text[16];
    int linked = *gpu_words(gpu, "nvlink", "", text, sizeof text) && value->scope < NVLINKS;
    value->type = 1; /* unsigned int */
    value->result = OK;
    value->value.ull = 0;
    switch (value->field) {
    case 164: value->value.ui = (unsigned)link_number(gpu, value->scope, "nvlink_speed", 26562); break;
    case 166: value->value.ui = (unsigned)gpu_number(gpu, "nvlink_version", 6); break;
    case 189: value->value.ui = (unsigned)gpu_number(gpu, "power_default", 700000); break;
    case 190: value->value.ui = (unsigned)gpu_number(gpu, "power_limit", 700000); break;
    case 194: value->type = 5; value->value.ui = (unsigned)gpu_number(gpu, "slowdown_margin", -2); break;
    case 220: value->type = 3; value->value.ull = (unsigned long long)link_number(gpu, value->scope, "nvlink_errors", 0xfff); break;
    case 230: value->value.ui = (unsigned)gpu_number(gpu, "recovery", 0); break;
    default: value->result = NOT_SUPPORTED;
    }
    if ((value->field == 164 || value->field == 166 || value->field == 220) && !linked) value->result = NOT_SUPPORTED;
}

int nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values) {
    CHECK(device->gpu);
    for (int i = 0; i < count; i++) field(device->gpu, &values[i]);
    return OK;
}

int nvmlDeviceGetMarginTemperature(Device *device, MarginTemperature *out) {
    CHECK(device->gpu);
    if (out->version != (sizeof *out | 1u << 24)) return 25;
    out->margin = (int)gpu_number(device->gpu, "margin", 45);
    return OK;
}

int nvmlDeviceGetSramEccErrorStatus(Device *device, SramStatus *out) {
    CHECK(device->gpu);
    if (out->version != (sizeof *out | 1u << 24)) return 25;
    out->threshold_exceeded = (unsigned)gpu_number(device->gpu, "sram", 0);
    return OK;
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *out) {
    CHECK(device->gpu);
    *out = (unsigned long long)gpu_number(device->gpu, "slowdown", 0);
    return OK;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Device *device, unsigned link, unsigned *out) {
    CHECK(device->gpu);
    char text[16];
    (void)link;
    *out = !strcmp(gpu_words(device->gpu, "nvlink", "", text, sizeof text), "switch") ? 2 : 0;
    return OK;
}

int nvmlDeviceGetGpuFabricInfoV(Device *device, FabricInfo *out) {
    CHECK(device->gpu);
    long clique = gpu_number(device->gpu, "fabric", -1);
    if (clique < 0) return NOT_SUPPORTED;
    if (out->version != (sizeof *out | 2u << 24)) return 25;
    memset(out->cluster, 0xab, sizeof out->cluster);
    out->clique = (unsigned)clique;
    out->status = (int)gpu_number(device->gpu, "fabric_status", OK);
    out->state = (unsigned char)gpu_number(device->gpu, "fabric_state", 3);
    out->health = (unsigned)gpu_number(device->gpu, "fabric_health", 0);
    return OK;
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    CHECK(device->gpu);
    *current = *pending = gpu_number(device->gpu, "mig", -1) >= 0;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *out) { CHECK(device->gpu); *out = MAX_MIG; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **out) {
    CHECK(device->gpu);
    char key[32], text[96];
    if (index >= MAX_MIG) return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "mig%u.uuid", index);
    gpu_words(device->gpu, key, "", text, sizeof text);
    if ((long)index >= gpu_number(device->gpu, "mig", 0) || !strcmp(text, "-")) return NOT_FOUND;
    *out = &migs[device->gpu][index];
    return OK;
}

int nvmlDeviceGetGpuInstanceId(Device *device, unsigned *out) {
    CHECK(device->gpu);
    *out = (unsigned)mig_number(device, "gi", device->mig + 1);
    return OK;
}

int nvmlDeviceGetComputeInstanceId(Device *device, unsigned *out) {
    CHECK(device->gpu);
    *out = (unsigned)mig_number(device, "ci", 0);
    return OK;
}

int nvmlDeviceGetAttributes_v2(Device *device, Attributes *out) {
    CHECK(device->gpu);
    unsigned slices = (unsigned)mig_number(device, "slices", 1), ci = (unsigned)mig_number(device, "ci_slices", slices);
    *out = (Attributes){16 * ci, slices, slices, 0, slices, 0, slices, ci,
                        (unsigned long long)mig_number(device, "memory_mib", 9984)};
    return OK;
}

int nvmlDeviceGetGpuInstanceById(Device *device, unsigned gi, GpuInstance **out) {
    CHECK(device->gpu);
    for (int mig = 0; mig < MAX_MIG; mig++)
        if (mig_number(&migs[device->gpu][mig], "gi", mig + 1) == gi) { *out = &instances[device->gpu][mig]; return OK; }
    return NOT_FOUND;
}

/* A card has numbers of its own for the profiles of nvml.h, and not all of them. */
enum { PROFILE_IDS = 19, PROFILES = 18, NOT_ON_THIS_CARD = 12 };
int nvmlDeviceGetGpuInstanceProfileInfo(Device *device, unsigned profile, GpuInstanceProfileInfo *out) {
    CHECK(device->gpu);
    if (profile >= PROFILES) return INVALID_ARGUMENT;
    if (profile == NOT_ON_THIS_CARD) return NOT_SUPPORTED;
    *out = (GpuInstanceProfileInfo){.id = PROFILE_IDS + profile, .slices = 1};
    return OK;
}

int nvmlGpuInstanceGetInfo(GpuInstance *instance, GpuInstanceInfo *out) {
    CHECK(instance->gpu);
    int mig = (int)(instance - instances[instance->gpu]);
    const Device *device = &migs[instance->gpu][mig];
    *out = (GpuInstanceInfo){&gpus[instance->gpu], (unsigned)mig_number(device, "gi", mig + 1),
                             PROFILE_IDS + (unsigned)mig_number(device, "profile", 0), (unsigned)mig_number(device, "start", mig), (unsigned)mig_number(device, "size", 1)};
    return OK;
}
#endif
