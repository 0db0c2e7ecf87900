/*
 * A library with NVML's symbols, for tests: what there is, it reads from the file that the environment
 * variable FAKE_NVML names, anew at each call. Lines:
 *
 *   init CODE                                nvmlInit fails with CODE
 *   hang FUNCTION                            a function does not return while the line is there
 *   gpu UUID MINOR BUSID MIG MEMORY NAME     MIG: 0, 1, or - where the GPU has none
 *   lost UUID                                every question about the GPU is answered "lost"
 *   slice GPU_INDEX UUID GI CI G C MEMORY    a MIG device: instances, slices of each, MiB
 *   link GPU_INDEX BUSID                     an active NVLink of a GPU to a GPU or a switch
 *   named                                    names of slices tell their profiles
 *   event NUMBER GPU_INDEX XID GI CI         told once, in the order of the numbers; - for the whole GPU
 *   void N                                   nothing works before it was begun N times
 *   wait CODE                                waiting for events fails with CODE
 *
 * It counts how often it was begun in the file FAKE_NVML.begun.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS, UNINITIALIZED, INVALID, NOT_SUPPORTED, PERMISSION, ALREADY, NOT_FOUND, TIMEOUT = 10, LOST = 15 };

#define MOST 64

struct gpu { char uuid[96], name[96], bus[32], mig[4]; int minor, lost; unsigned long long memory; };
struct slice { char uuid[96], profile[32]; int gpu, gi, ci, g, c; unsigned long long memory; };
struct link { int gpu; char bus[32]; };
struct state { int links; struct link link[MOST]; int init, wait, voided, named, gpus, slices; struct gpu gpu[MOST]; struct slice slice[MOST]; char hang[64]; };
struct event { void *device; unsigned long long type, data; unsigned gi, ci; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; };
struct attributes { unsigned counts[6], g, c; unsigned long long memory; };
struct memory { unsigned long long total, free, used; };

static int begun, begun_ever, told;

static const char *path(void) { const char *p = getenv("FAKE_NVML"); return p ? p : "/nonexistent"; }

static void read_state(struct state *s) {
    char line[512], uuid[96];
    FILE *f = fopen(path(), "r");
    memset(s, 0, sizeof *s);
    if (!f) { s->init = 9; return; }
    while (fgets(line, sizeof line, f)) {
        struct gpu *g = &s->gpu[s->gpus];
        struct slice *m = &s->slice[s->slices];
        if (sscanf(line, "init %d", &s->init) == 1 || sscanf(line, "wait %d", &s->wait) == 1) continue;
        if (sscanf(line, "void %d", &s->voided) == 1) continue;
        if (sscanf(line, "hang %63s", s->hang) == 1) continue;
        if (!strncmp(line, "named", 5)) s->named = 1;
        if (s->gpus < MOST && sscanf(line, "gpu %95s %d %31s %3s %llu %95[^\n]", g->uuid, &g->minor, g->bus, g->mig, &g->memory, g->name) == 6) s->gpus++;
        else if (s->slices < MOST && sscanf(line, "slice %d %95s %d %d %d %d %llu", &m->gpu, m->uuid, &m->gi, &m->ci, &m->g, &m->c, &m->memory) == 7) s->slices++;
        else if (s->links < MOST && sscanf(line, "link %d %31s", &s->link[s->links].gpu, s->link[s->links].bus) == 2) s->links++;
        else if (sscanf(line, "lost %95s", uuid) == 1)
            for (int i = 0; i < s->gpus; i++) if (!strcmp(s->gpu[i].uuid, uuid)) s->gpu[i].lost = 1;
    }
    fclose(f);
}

static int start(struct state *s, const char *function) {
    do {
        read_state(s);
        if (strcmp(s->hang, function)) break;
        usleep(5000);
    } while (1);
    return begun && begun_ever >= s->voided ? SUCCESS : UNINITIALIZED;
}

/* Handles: 1, 2, … for GPUs, 1001, 1002, … for slices. */
static int find(struct state *s, const char *function, void *handle, struct gpu **g, struct slice **m) {
    long n = (long)handle;
    int code = start(s, function);
    if (code) return code;
    *m = NULL;
    if (n > 1000 && n - 1001 < s->slices) { *m = &s->slice[n - 1001]; n = (*m)->gpu + 1; }
    if (n < 1 || n > s->gpus) return INVALID;
    *g = &s->gpu[n - 1];
    return (*g)->lost ? LOST : SUCCESS;
}

#define FIND(function) struct state s; struct gpu *g; struct slice *m; \
    int code = find(&s, function, d, &g, &m); (void)m; if (code) return code

int nvmlInitWithFlags(unsigned flags) {
    struct state s; char name[512]; FILE *f;
    (void)flags;
    start(&s, "nvmlInitWithFlags");
    if (s.init) return s.init;
    begun++;
    begun_ever++;
    snprintf(name, sizeof name, "%s.begun", path());
    if ((f = fopen(name, "a"))) { fputc('x', f); fclose(f); }
    return SUCCESS;
}
int nvmlShutdown(void) { if (!begun) return UNINITIALIZED; begun--; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *n) {
    struct state s; int code = start(&s, "nvmlDeviceGetCount_v2");
    if (!code) *n = (unsigned)s.gpus;
    return code;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) {
    struct state s; int code = start(&s, "nvmlDeviceGetHandleByIndex_v2");
    if (code) return code;
    if (i >= (unsigned)s.gpus) return INVALID;
    if (s.gpu[i].lost) return LOST;
    *d = (void *)(long)(i + 1);
    return SUCCESS;
}
int nvmlDeviceGetUUID(void *d, char *out, unsigned n) { FIND("nvmlDeviceGetUUID"); snprintf(out, n, "%s", m ? m->uuid : g->uuid); return SUCCESS; }
int nvmlDeviceGetName(void *d, char *out, unsigned n) {
    FIND("nvmlDeviceGetName");
    if (m && s.named) snprintf(out, n, "%s MIG %dg.%dgb+me", g->name, m->g, (int)((m->memory + 512) / 1024));
    else snprintf(out, n, "%s", g->name);
    return SUCCESS;
}
int nvmlDeviceGetMinorNumber(void *d, unsigned *n) { FIND("nvmlDeviceGetMinorNumber"); if (g->minor < 0) return NOT_SUPPORTED; *n = (unsigned)g->minor; return SUCCESS; }
int nvmlDeviceGetPciInfo_v3(void *d, struct pci *p) { FIND("nvmlDeviceGetPciInfo_v3"); memset(p, 0, sizeof *p); snprintf(p->address, sizeof p->address, "%s", g->bus); return SUCCESS; }
/* The number-th link of a GPU; NULL where it has fewer. */
static struct link *link_of(struct state *s, struct gpu *g, unsigned number) {
    for (int i = 0; i < s->links; i++)
        if (s->link[i].gpu == g - s->gpu && !number--) return &s->link[i];
    return NULL;
}
int nvmlDeviceGetNvLinkState(void *d, unsigned number, unsigned *on) { FIND("nvmlDeviceGetNvLinkState"); if (!link_of(&s, g, number)) return NOT_SUPPORTED; *on = 1; return SUCCESS; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *d, unsigned number, struct pci *p) { FIND("nvmlDeviceGetNvLinkRemotePciInfo_v2"); struct link *l = link_of(&s, g, number); if (!l) return INVALID; memset(p, 0, sizeof *p); snprintf(p->address, sizeof p->address, "%s", l->bus); return SUCCESS; }
int nvmlDeviceGetMemoryInfo(void *d, struct memory *p) { FIND("nvmlDeviceGetMemoryInfo"); memset(p, 0, sizeof *p); p->total = (m ? m->memory : g->memory) << 20; return SUCCESS; }
int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *later) { FIND("nvmlDeviceGetMigMode"); if (g->mig[0] == '-') return NOT_SUPPORTED; *now = *later = g->mig[0] == '1'; return SUCCESS; }
int nvmlDeviceGetMaxMigDeviceCount(void *d, unsigned *n) { FIND("nvmlDeviceGetMaxMigDeviceCount"); *n = 7; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *d, unsigned index, void **out) {
    FIND("nvmlDeviceGetMigDeviceHandleByIndex");
    /* As on real GPUs, indices may have gaps: every second one is free. */
    for (int i = 0, n = 0; i < s.slices; i++)
        if (&s.gpu[s.slice[i].gpu] == g && (unsigned)(2 * n++) == index) { *out = (void *)(long)(1001 + i); return SUCCESS; }
    return NOT_FOUND;
}
int nvmlDeviceGetGpuInstanceId(void *d, unsigned *n) { FIND("nvmlDeviceGetGpuInstanceId"); if (!m) return INVALID; *n = (unsigned)m->gi; return SUCCESS; }
int nvmlDeviceGetComputeInstanceId(void *d, unsigned *n) { FIND("nvmlDeviceGetComputeInstanceId"); if (!m) return INVALID; *n = (unsigned)m->ci; return SUCCESS; }
int nvmlDeviceGetAttributes_v2(void *d, struct attributes *p) { FIND("nvmlDeviceGetAttributes_v2"); if (!m) return INVALID; memset(p, 0, sizeof *p); p->g = (unsigned)m->g; p->c = (unsigned)m->c; p->memory = m->memory; return SUCCESS; }
int nvmlEventSetCreate(void **set) { if (!begun) return UNINITIALIZED; *set = (void *)7; return SUCCESS; }
int nvmlEventSetFree(void *set) { (void)set; return begun ? SUCCESS : UNINITIALIZED; }
int nvmlDeviceGetSupportedEventTypes(void *d, unsigned long long *types) { FIND("nvmlDeviceGetSupportedEventTypes"); *types = strstr(g->name, "old") ? 0 : 0x1f; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *d, unsigned long long types, void *set) { FIND("nvmlDeviceRegisterEvents"); (void)set; return types ? SUCCESS : INVALID; }
int nvmlEventSetWait_v2(void *set, struct event *e, unsigned timeout) {
    char line[512], gi[16], ci[16];
    (void)set;
    for (unsigned waited = 0; waited <= timeout; waited += 5) {
        struct state s; int number, gpu; unsigned long long xid; FILE *f;
        int code = start(&s, "nvmlEventSetWait_v2");
        if (code || s.wait) return code ? code : s.wait;
        if ((f = fopen(path(), "r"))) {
            while (fgets(line, sizeof line, f))
                if (sscanf(line, "event %d %d %llu %15s %15s", &number, &gpu, &xid, gi, ci) == 5 && number > told) {
                    fclose(f);
                    told = number;
                    memset(e, 0, sizeof *e);
                    e->device = (void *)(long)(gpu + 1);
                    /* XID 0 stands for an event of another kind. */
                    e->type = xid ? 8 : 1;
                    e->data = xid;
                    e->gi = gi[0] == '-' ? 0xFFFFFFFFu : (unsigned)atoi(gi);
                    e->ci = ci[0] == '-' ? 0xFFFFFFFFu : (unsigned)atoi(ci);
                    return SUCCESS;
                }
            fclose(f);
        }
        usleep(5000);
    }
    return TIMEOUT;
}
