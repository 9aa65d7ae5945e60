/* A false libnvidia-ml for tests. It reads its world from the file named by FALSE_NVML at every call, so a test changes
 * the world by writing that file. A device is known by its UUID: its handle stays the same when indexes change.
 *
 *   driver 580.95.05                 a process that was initialised under another driver gets 18 from every call
 *   gpu UUID key=value ...           in the order of the indexes
 *   slice UUID parent=UUID gi=1 ci=0 key=value ...
 *   proc UUID pid=42 mem=500 sm=40   a process of a GPU or slice; kind=graphics: a graphics one
 *   xid NUMBER UUID CODE [GI]        an event, delivered once to each event set that was made before it
 *   fail FUNCTION CODE [UUID]        FUNCTION may be *, which is every function of a device
 *   hang FUNCTION SECONDS [UUID]
 *   exit FUNCTION CODE               the process ends, as by a crash within the library
 *   race FUNCTION TIMES              the list grows between the question for its size and the reading, so many times
 *   empty FUNCTION                   success without an entry, where others say INSUFFICIENT_SIZE or NOT_FOUND
 *
 * A value of "none" answers NOT_SUPPORTED, one of "!15" the error 15, "+TEXT" is taken as it stands.
 */
#include <nvml.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024ULL * 1024ULL)
#define MAX_DEVICES 128
#define MAX_WORLD 65536
#define MAX_VALUE 200

typedef struct {
    char text[MAX_WORLD];
} world_t;

struct nvmlDevice_st {
    char uuid[96];
};

struct nvmlEventSet_st {
    char uuids[MAX_DEVICES][96];
    int count;
    long seen;
};

static struct nvmlDevice_st devices[MAX_DEVICES];
static int known_devices;
static char initialised_under[64];
static int initialised;
static int raced;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The world */

static void load(world_t *world) {
    const char *path = getenv("FALSE_NVML");
    FILE *file = path ? fopen(path, "re") : NULL;
    size_t length = file ? fread(world->text, 1, MAX_WORLD - 1, file) : 0;
    if (file)
        fclose(file);
    world->text[length] = '\0';
}

/* The n-th word of a line; 0 if there is none. */
static int word(const char *line, int n, char *into) {
    while (1) {
        line += strspn(line, " \t");
        size_t length = strcspn(line, " \t\n");
        if (length == 0)
            return 0;
        if (n-- == 0) {
            snprintf(into, MAX_VALUE, "%.*s", (int)(length < MAX_VALUE ? length : MAX_VALUE - 1), line);
            return 1;
        }
        line += length;
    }
}

/* The next line after `from` whose first words are `kind` and, unless it is NULL, `second`. */
static const char *next_line(const char *from, const char *kind, const char *second) {
    char one[MAX_VALUE], two[MAX_VALUE];
    for (const char *line = from; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (word(line, 0, one) && strcmp(one, kind) == 0 &&
            (!second || (word(line, 1, two) && strcmp(two, second) == 0)))
            return line;
    return NULL;
}

static const char *after(const char *line) {
    const char *end = strchr(line, '\n');
    return end ? end + 1 : line + strlen(line);
}

/* The value of key=value on a line; 0 if the key is missing. */
static int value_of(const char *line, const char *key, char *into) {
    char one[MAX_VALUE];
    size_t length = strlen(key);
    for (int n = 1; word(line, n, one); n++)
        if (strncmp(one, key, length) == 0 && one[length] == '=') {
            snprintf(into, MAX_VALUE, "%s", one + length + 1);
            return 1;
        }
    return 0;
}

static const char *device_line(const world_t *world, const char *uuid) {
    const char *line = next_line(world->text, "gpu", uuid);
    return line ? line : next_line(world->text, "slice", uuid);
}

static int is_slice(const world_t *world, nvmlDevice_t device) {
    return next_line(world->text, "slice", device->uuid) != NULL;
}

static nvmlDevice_t handle_of(const char *uuid) {
    nvmlDevice_t found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < known_devices && !found; i++)
        if (strcmp(devices[i].uuid, uuid) == 0)
            found = &devices[i];
    if (!found && known_devices < MAX_DEVICES) {
        found = &devices[known_devices++];
        snprintf(found->uuid, sizeof found->uuid, "%s", uuid);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Faults */

static int meant(const char *line, const char *function, int of_device, const char *uuid) {
    char named[MAX_VALUE], where[MAX_VALUE];
    if (!word(line, 1, named) || !(strcmp(named, function) == 0 || (of_device && strcmp(named, "*") == 0)))
        return 0;
    return !word(line, 3, where) || (uuid && strcmp(where, uuid) == 0);
}

static nvmlReturn_t enter(world_t *world, const char *function, int of_device, const char *uuid) {
    char value[MAX_VALUE], driver[MAX_VALUE] = "";
    load(world);
    for (const char *l = world->text; (l = next_line(l, "hang", NULL)); l = after(l))
        if (meant(l, function, of_device, uuid) && word(l, 2, value))
            usleep((useconds_t)(atof(value) * 1e6));
    for (const char *l = world->text; (l = next_line(l, "exit", NULL)); l = after(l))
        if (meant(l, function, of_device, uuid) && word(l, 2, value))
            _exit(atoi(value));
    for (const char *l = world->text; (l = next_line(l, "fail", NULL)); l = after(l))
        if (meant(l, function, of_device, uuid) && word(l, 2, value))
            return (nvmlReturn_t)atoi(value);
    const char *line = next_line(world->text, "driver", NULL);
    if (line)
        word(line, 1, driver);
    if (strncmp(function, "nvmlInit", 8) == 0) {
        if (!line)
            return NVML_ERROR_DRIVER_NOT_LOADED;
        snprintf(initialised_under, sizeof initialised_under, "%s", driver);
        initialised = 1;
        return NVML_SUCCESS;
    }
    if (!initialised)
        return NVML_ERROR_UNINITIALIZED;
    if (strcmp(driver, initialised_under) != 0)
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    return NVML_SUCCESS;
}

static nvmlReturn_t on_device(world_t *world, const char *function, nvmlDevice_t device) {
    if (!device)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = enter(world, function, 1, device->uuid);
    if (result == NVML_SUCCESS && !device_line(world, device->uuid))
        return NVML_ERROR_GPU_IS_LOST;
    return result;
}

/* A text of the device; `otherwise` where the scenario does not name the key. */
static nvmlReturn_t text(const char *function, nvmlDevice_t device, const char *key, const char *otherwise, char *into) {
    world_t world;
    nvmlReturn_t result = on_device(&world, function, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!value_of(device_line(&world, device->uuid), key, into)) {
        if (!otherwise)
            return NVML_ERROR_NOT_SUPPORTED;
        snprintf(into, MAX_VALUE, "%s", otherwise);
    }
    if (strcmp(into, "none") == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    return into[0] == '!' ? (nvmlReturn_t)atoi(into + 1) : NVML_SUCCESS;
}

static nvmlReturn_t number(const char *function, nvmlDevice_t device, const char *key, const char *otherwise,
                           unsigned long long *into) {
    char value[MAX_VALUE];
    nvmlReturn_t result = text(function, device, key, otherwise, value);
    if (result == NVML_SUCCESS)
        *into = strtoull(value, NULL, 10);
    return result;
}

#define UNSIGNED(name, key, otherwise)                                         \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *value) {              \
        unsigned long long read;                                               \
        nvmlReturn_t result = number(#name, device, key, otherwise, &read);    \
        if (result == NVML_SUCCESS)                                            \
            *value = (unsigned int)read;                                       \
        return result;                                                         \
    }

/* The library */

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    world_t world;
    (void)flags;
    return enter(&world, "nvmlInitWithFlags", 0, NULL);
}

nvmlReturn_t nvmlShutdown(void) {
    initialised = 0;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result) {
    static char other[32];
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_UNKNOWN: return "Unknown Error";
    default: snprintf(other, sizeof other, "Error %d", (int)result); return other;
    }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    world_t world;
    char value[MAX_VALUE];
    nvmlReturn_t result = enter(&world, "nvmlSystemGetDriverVersion", 0, NULL);
    if (result == NVML_SUCCESS && word(next_line(world.text, "driver", NULL), 1, value))
        snprintf(version, length, "%s", value);
    return result;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    world_t world;
    nvmlReturn_t result = enter(&world, "nvmlDeviceGetCount_v2", 0, NULL);
    *count = 0;
    if (result == NVML_SUCCESS)
        for (const char *l = world.text; (l = next_line(l, "gpu", NULL)); l = after(l))
            ++*count;
    return result;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    world_t world;
    char uuid[MAX_VALUE];
    unsigned int n = 0;
    nvmlReturn_t result = enter(&world, "nvmlDeviceGetHandleByIndex_v2", 0, NULL);
    if (result != NVML_SUCCESS)
        return result;
    for (const char *l = world.text; (l = next_line(l, "gpu", NULL)); l = after(l))
        if (n++ == index && word(l, 1, uuid)) {
            result = enter(&world, "nvmlDeviceGetHandleByIndex_v2", 1, uuid);
            *device = handle_of(uuid);
            return result;
        }
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    world_t world;
    nvmlReturn_t result = enter(&world, "nvmlDeviceGetHandleByUUID", 1, uuid);
    if (result != NVML_SUCCESS)
        return result;
    if (!device_line(&world, uuid))
        return NVML_ERROR_NOT_FOUND;
    *device = handle_of(uuid);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    world_t world;
    nvmlReturn_t result = on_device(&world, "nvmlDeviceGetUUID", device);
    if (result == NVML_SUCCESS)
        snprintf(uuid, length, "%s", device->uuid);
    return result;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    char value[MAX_VALUE];
    nvmlReturn_t result = text("nvmlDeviceGetName", device, "name", "NVIDIA_H100", value);
    if (result == NVML_SUCCESS) {
        for (char *at = value; *at; at++)
            if (*at == '_')
                *at = ' ';
        snprintf(name, length, "%s", value);
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    char used[MAX_VALUE];
    unsigned long long total;
    nvmlReturn_t result = number("nvmlDeviceGetMemoryInfo", device, "mem", "81559", &total);
    if (result == NVML_SUCCESS)
        result = text("nvmlDeviceGetMemoryInfo", device, "used", "0", used);
    if (result != NVML_SUCCESS)
        return result;
    memory->total = total * MIB;
    memory->used = used[0] == '+' ? strtoull(used + 1, NULL, 10) : strtoull(used, NULL, 10) * MIB;
    memory->free = memory->total - memory->used;
    return result;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    char value[MAX_VALUE];
    nvmlReturn_t result = text("nvmlDeviceGetCudaComputeCapability", device, "cc", "9.0", value);
    if (result == NVML_SUCCESS && sscanf(value, "%d.%d", major, minor) != 2)
        result = NVML_ERROR_UNKNOWN;
    return result;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    unsigned long long mode;
    nvmlReturn_t result = number("nvmlDeviceGetMigMode", device, "mig", "0", &mode);
    if (result == NVML_SUCCESS)
        *current = *pending = (unsigned int)mode;
    return result;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    world_t world;
    unsigned long long percent;
    nvmlReturn_t result = number("nvmlDeviceGetUtilizationRates", device, "util", "0", &percent);
    load(&world);
    if (result == NVML_SUCCESS && is_slice(&world, device))
        return NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS)
        *rates = (nvmlUtilization_t){.gpu = (unsigned int)percent, .memory = 0};
    return result;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                       unsigned int *pending, unsigned int *failed) {
    char value[MAX_VALUE];
    nvmlReturn_t result = text("nvmlDeviceGetRemappedRows", device, "rows", "0,0,0,0", value);
    if (result == NVML_SUCCESS && sscanf(value, "%u,%u,%u,%u", correctable, uncorrectable, pending, failed) != 4)
        result = NVML_ERROR_UNKNOWN;
    return result;
}

UNSIGNED(nvmlDeviceGetPowerUsage, "power", "70000")
UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, "limit", "700000")
UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen", "5")
UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", "16")
UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_max_gen", "5")
UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, "pcie_max_width", "16")
UNSIGNED(nvmlDeviceGetNumaNodeId, "numa", "0")
UNSIGNED(nvmlDeviceGetMaxMigDeviceCount, "max_slices", "7")
UNSIGNED(nvmlDeviceGetGpuInstanceId, "gi", NULL)
UNSIGNED(nvmlDeviceGetComputeInstanceId, "ci", NULL)

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules) {
    return number("nvmlDeviceGetTotalEnergyConsumption", device, "energy", "5000", millijoules);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius) {
    unsigned long long read;
    nvmlReturn_t result = number("nvmlDeviceGetTemperature", device, "temp", "40", &read);
    (void)sensor;
    if (result == NVML_SUCCESS)
        *celsius = (unsigned int)read;
    return result;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    unsigned long long read;
    const char *key = type == NVML_CLOCK_MEM ? "mem_clock" : "sm_clock";
    nvmlReturn_t result = number("nvmlDeviceGetClockInfo", device, key, "1980", &read);
    if (result == NVML_SUCCESS)
        *mhz = (unsigned int)read;
    return result;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return number("nvmlDeviceGetCurrentClocksEventReasons", device, "throttle", "0", reasons);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
                                         unsigned long long *count) {
    (void)counter;
    const char *key = type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? "ecc_corrected" : "ecc_uncorrected";
    return number("nvmlDeviceGetTotalEccErrors", device, key, "0", count);
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode) {
    unsigned long long read;
    nvmlReturn_t result = number("nvmlDeviceGetComputeMode", device, "compute_mode", "0", &read);
    if (result == NVML_SUCCESS)
        *mode = (nvmlComputeMode_t)read;
    return result;
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
    unsigned long long read;
    nvmlReturn_t result = number("nvmlDeviceGetPersistenceMode", device, "persistence", "1", &read);
    if (result == NVML_SUCCESS)
        *mode = (nvmlEnableState_t)read;
    return result;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    unsigned long long action = 0;
    nvmlReturn_t result = number("nvmlDeviceGetFieldValues", device, "recovery", "0", &action);
    for (int i = 0; i < count; i++) {
        int known = values[i].fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
        values[i].nvmlReturn = known ? result : NVML_ERROR_NOT_SUPPORTED;
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        values[i].value.uiVal = (unsigned int)action;
    }
    return result == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : result;
}

/* Where it is plugged in */

static nvmlReturn_t pci(const char *function, nvmlDevice_t device, const char *key, nvmlPciInfo_t *info) {
    char value[MAX_VALUE];
    nvmlReturn_t result = text(function, device, key, "00000000:01:00.0", value);
    memset(info, 0, sizeof *info);
    if (result == NVML_SUCCESS)
        snprintf(info->busId, sizeof info->busId, "%s", value);
    return result;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info) {
    return pci("nvmlDeviceGetPciInfo_v3", device, "bus", info);
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *active) {
    unsigned long long links;
    nvmlReturn_t result = number("nvmlDeviceGetNvLinkState", device, "nvlinks", "none", &links);
    if (result == NVML_SUCCESS && link >= 18)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *active = link < links ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return result;
}

/* The far end of a link: the GPU's `linked` is a list such as 00000000:41:00.0*6,switch*12. */
static nvmlReturn_t far_end(const char *function, nvmlDevice_t device, unsigned int link, char bus[MAX_VALUE]) {
    char value[MAX_VALUE], *next = NULL;
    nvmlReturn_t result = text(function, device, "linked", "none", value);
    if (result != NVML_SUCCESS)
        return result;
    for (char *part = strtok_r(value, ",", &next); part; part = strtok_r(NULL, ",", &next)) {
        char *star = strchr(part, '*');
        unsigned int many = star ? (unsigned int)atoi(star + 1) : 1;
        if (star)
            *star = 0;
        if (link < many) {
            snprintf(bus, MAX_VALUE, "%s", part);
            return NVML_SUCCESS;
        }
        link -= many;
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, nvmlIntNvLinkDeviceType_t *type) {
    char bus[MAX_VALUE];
    nvmlReturn_t result = far_end("nvmlDeviceGetNvLinkRemoteDeviceType", device, link, bus);
    if (result == NVML_SUCCESS)
        *type = strcmp(bus, "switch") == 0 ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
    return result;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *info) {
    char bus[MAX_VALUE];
    nvmlReturn_t result = far_end("nvmlDeviceGetNvLinkRemotePciInfo_v2", device, link, bus);
    memset(info, 0, sizeof *info);
    if (result == NVML_SUCCESS)
        snprintf(info->busId, sizeof info->busId, "%s", bus);
    return result;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t two, nvmlGpuTopologyLevel_t *level) {
    unsigned long long a, b;
    nvmlReturn_t result = number("nvmlDeviceGetTopologyCommonAncestor", one, "numa", "0", &a);
    if (result == NVML_SUCCESS)
        result = number("nvmlDeviceGetTopologyCommonAncestor", two, "numa", "0", &b);
    if (result == NVML_SUCCESS)
        *level = a == b ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
    return result;
}

/* Processes */

static unsigned int processes_of(const world_t *world, const char *uuid, int graphics, nvmlProcessInfo_t *into,
                                 unsigned int room) {
    char value[MAX_VALUE];
    unsigned int n = 0;
    for (const char *l = world->text; (l = next_line(l, "proc", uuid)); l = after(l)) {
        int is_graphics = value_of(l, "kind", value) && strcmp(value, "graphics") == 0;
        if (is_graphics != graphics)
            continue;
        if (into && n < room) {
            memset(&into[n], 0, sizeof into[n]);
            into[n].pid = value_of(l, "pid", value) ? (unsigned int)strtoul(value, NULL, 10) : 0;
            int known = value_of(l, "mem", value) && strcmp(value, "none") != 0;
            into[n].usedGpuMemory = known ? strtoull(value, NULL, 10) * MIB : (unsigned long long)NVML_VALUE_NOT_AVAILABLE;
            into[n].gpuInstanceId = into[n].computeInstanceId = 0xFFFFFFFF;
        }
        n++;
    }
    return n;
}

/* Whether the list has grown since the caller asked for its size. */
static int grew(const world_t *world, const char *function) {
    char times[MAX_VALUE];
    const char *line = next_line(world->text, "race", function);
    return line && word(line, 2, times) && raced++ < atoi(times);
}

static nvmlReturn_t running(const char *function, nvmlDevice_t device, int graphics, unsigned int *count,
                            nvmlProcessInfo_t *infos) {
    world_t world;
    nvmlReturn_t result = on_device(&world, function, device);
    if (result != NVML_SUCCESS)
        return result;
    unsigned int present = processes_of(&world, device->uuid, graphics, infos, *count);
    if (infos && grew(&world, function)) {
        *count = present * 4 + 20;
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    if (present > *count) {
        *count = present;
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    *count = present;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *infos) {
    return running("nvmlDeviceGetComputeRunningProcesses_v3", device, 0, count, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_t *infos) {
    return running("nvmlDeviceGetGraphicsRunningProcesses_v3", device, 1, count, infos);
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long since) {
    const char *function = "nvmlDeviceGetProcessUtilization";
    world_t world;
    char value[MAX_VALUE];
    unsigned int n = 0, room = *count;
    nvmlReturn_t result = on_device(&world, function, device);
    if (result != NVML_SUCCESS)
        return result;
    if (is_slice(&world, device))
        return NVML_ERROR_NOT_SUPPORTED;
    if (next_line(world.text, "empty", function)) {
        *count = 0;
        return NVML_SUCCESS;
    }
    for (const char *l = world.text; (l = next_line(l, "proc", device->uuid)); l = after(l)) {
        if (!value_of(l, "sm", value))
            continue;
        if (samples && n < room) {
            memset(&samples[n], 0, sizeof samples[n]);
            samples[n].smUtil = (unsigned int)strtoul(value, NULL, 10);
            samples[n].timeStamp = since + 1000;
            value_of(l, "pid", value);
            samples[n].pid = (unsigned int)strtoul(value, NULL, 10);
        }
        n++;
    }
    *count = n;
    if (n == 0)
        return NVML_ERROR_NOT_FOUND;
    if (samples && grew(&world, function)) {
        *count = n + 5;
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    return samples && room >= n ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* MIG */

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *slice) {
    world_t world;
    char parent[MAX_VALUE], uuid[MAX_VALUE];
    unsigned int n = 0;
    nvmlReturn_t result = on_device(&world, "nvmlDeviceGetMigDeviceHandleByIndex", device);
    if (result != NVML_SUCCESS)
        return result;
    for (const char *l = world.text; (l = next_line(l, "slice", NULL)); l = after(l))
        if (value_of(l, "parent", parent) && strcmp(parent, device->uuid) == 0 && n++ == index && word(l, 1, uuid)) {
            *slice = handle_of(uuid);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    unsigned long long slices, mib;
    nvmlReturn_t result = number("nvmlDeviceGetAttributes_v2", device, "slices", "1", &slices);
    if (result == NVML_SUCCESS)
        result = number("nvmlDeviceGetAttributes_v2", device, "mem", "10240", &mib);
    memset(attributes, 0, sizeof *attributes);
    attributes->gpuInstanceSliceCount = attributes->computeInstanceSliceCount = (unsigned int)slices;
    attributes->memorySizeMB = mib;
    return result;
}

/* Events */

static long newest_event(const world_t *world) {
    char value[MAX_VALUE];
    long newest = 0;
    for (const char *l = world->text; (l = next_line(l, "xid", NULL)); l = after(l))
        if (word(l, 1, value) && atol(value) > newest)
            newest = atol(value);
    return newest;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    world_t world;
    nvmlReturn_t result = enter(&world, "nvmlEventSetCreate", 0, NULL);
    if (result == NVML_SUCCESS) {
        *set = calloc(1, sizeof **set);
        (*set)->seen = newest_event(&world);
    }
    return result;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    free(set);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    world_t world;
    nvmlReturn_t result = on_device(&world, "nvmlDeviceRegisterEvents", device);
    if (result == NVML_SUCCESS && (types & nvmlEventTypeXidCriticalError) && set->count < MAX_DEVICES)
        snprintf(set->uuids[set->count++], sizeof set->uuids[0], "%s", device->uuid);
    return result;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    world_t world;
    char value[MAX_VALUE], uuid[MAX_VALUE];
    for (unsigned int waited = 0; waited <= timeout_ms; waited += 50) {
        nvmlReturn_t result = enter(&world, "nvmlEventSetWait_v2", 0, NULL);
        if (result != NVML_SUCCESS)
            return result;
        for (const char *l = world.text; (l = next_line(l, "xid", NULL)); l = after(l)) {
            if (!word(l, 1, value) || atol(value) <= set->seen || !word(l, 2, uuid))
                continue;
            set->seen = atol(value);
            for (int i = 0; i < set->count; i++)
                if (strcmp(set->uuids[i], uuid) == 0 && word(l, 3, value)) {
                    memset(data, 0, sizeof *data);
                    data->device = handle_of(uuid);
                    data->eventType = nvmlEventTypeXidCriticalError;
                    data->eventData = strtoull(value, NULL, 10);
                    data->gpuInstanceId = word(l, 4, value) ? (unsigned int)atoi(value) : 0xFFFFFFFF;
                    data->computeInstanceId = 0xFFFFFFFF;
                    return NVML_SUCCESS;
                }
        }
        usleep(50000);
    }
    return NVML_ERROR_TIMEOUT;
}
