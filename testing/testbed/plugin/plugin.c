/*
 * A plugin for openvpn that does as its arguments say, for tests. Compile it with -DINTERFACE=1, 2 or 3.
 *
 *   mask=NUMBER        the calls that it wants
 *   log=FILE           records each call, with arguments and environment
 *   go=FILE            deferred answers wait until this file exists
 *   on=KIND:ACTION     the action for a call; without one it succeeds
 *   open=fail          the initialization fails
 *   open=list          the initialization returns a list
 *
 * Actions: ok, refuse, reason, crash, block (until the file of go= exists), code7, list, long, circle, defer (never answers),
 * defer0, defer1, defer1now (answers an earlier call), defer1pending, defer0reason, twice, connect (writes a configuration), connectdefer0, connectdefer1,
 * again (deferred once, then as list), log, depth.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef INTERFACE
#define INTERFACE 3
#endif

struct list {
    struct list *next;
    char *name;
    char *value;
};

struct callbacks {
    void (*log)(int flags, const char *name, const char *format, ...);
    void (*vlog)(int flags, const char *name, const char *format, va_list arguments);
    void (*wipe)(void *data, size_t length);
    int (*encode)(const void *data, int size, char **text);
    int (*decode)(const char *text, void *data, int size);
};

struct open_in {
    const int mask;
    const char **const argv;
    const char **const envp;
    struct callbacks *callbacks;
    const int ssl_api;
    const char *version;
    const unsigned int major;
    const unsigned int minor;
    const char *const patch;
};

struct open_out {
    int mask;
    void *handle;
    struct list **list;
};

struct call_in {
    const int kind;
    const char **const argv;
    const char **const envp;
    void *handle;
    void *client;
    int depth;
    void *certificate;
};

struct call_out {
    struct list **list;
};

struct state {
    char **argv;
    char *log;
    char *go;
    int again;
    struct callbacks *callbacks;
};

static const char *variable(const char **envp, const char *name)
{
    size_t length = strlen(name);
    for (; envp && *envp; envp++) {
        if (strncmp(*envp, name, length) == 0 && (*envp)[length] == '=') {
            return *envp + length + 1;
        }
    }
    return NULL;
}

static const char *argument(char **argv, const char *name)
{
    return variable((const char **)(argv + 1), name);
}

static void record(struct state *state, const char *format, ...)
{
    if (!state->log) {
        return;
    }
    char line[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length < 0) {
        return;
    }
    if ((size_t)length >= sizeof line) {
        length = sizeof line - 1;
    }
    int file = open(state->log, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (file >= 0) {
        /* Another user may write the next line. */
        (void)fchmod(file, 0666);
        if (write(file, line, length) < 0) {
            perror("plugin");
        }
        close(file);
    }
}

static void put(const char *path, const char *text)
{
    if (!path) {
        return;
    }
    int file = open(path, O_WRONLY | O_TRUNC);
    if (file >= 0) {
        if (write(file, text, strlen(text)) < 0) {
            perror("plugin");
        }
        close(file);
    }
}

/* Waits for the file. If the log is gone, the test has ended, and with it its directory. */
static void wait_for_go(struct state *state)
{
    struct stat unused;
    while (state->go && stat(state->go, &unused) != 0) {
        if (state->log && stat(state->log, &unused) != 0) {
            _exit(1);
        }
        usleep(5000);
    }
}

static struct list *entry(const char *name, const char *value, struct list *next)
{
    struct list *one = malloc(sizeof *one);
    one->name = strdup(name);
    one->value = strdup(value);
    one->next = next;
    return one;
}

static struct state *begin(const char **argv, const char **envp, struct callbacks *callbacks)
{
    int count = 0;
    while (argv[count]) {
        count++;
    }
    struct state *state = calloc(1, sizeof *state);
    state->argv = calloc(count + 1, sizeof *state->argv);
    for (int i = 0; i < count; i++) {
        state->argv[i] = strdup(argv[i]);
    }
    const char *log = argument(state->argv, "log"), *go = argument(state->argv, "go");
    state->log = log ? strdup(log) : NULL;
    state->go = go ? strdup(go) : NULL;
    state->callbacks = callbacks;
    record(state, "open %d uid=%d\n", INTERFACE, (int)geteuid());
    for (int i = 0; i < count; i++) {
        record(state, "open arg %d=%s\n", i, argv[i]);
    }
    for (; envp && *envp; envp++) {
        record(state, "open env %s\n", *envp);
    }
    const char *how = argument(state->argv, "open");
    return how && strcmp(how, "fail") == 0 ? NULL : state;
}

static unsigned int mask_of(struct state *state)
{
    const char *mask = argument(state->argv, "mask");
    return mask ? (unsigned int)strtoul(mask, NULL, 0) : 0;
}

#if INTERFACE >= 2
static void list_of_open(struct state *state, struct list **list)
{
    const char *how = argument(state->argv, "open");
    if (list && how && strcmp(how, "list") == 0) {
        *list = entry("config", "verb 5", NULL);
    }
}
#endif

static const char *action(struct state *state, int kind)
{
    for (char **argv = state->argv + 1; *argv; argv++) {
        char *end;
        if (strncmp(*argv, "on=", 3) == 0 && strtol(*argv + 3, &end, 10) == kind && *end == ':') {
            return end + 1;
        }
    }
    return "ok";
}

/* Answers from a process of its own. */
static int later(struct state *state, const char *file, const char *first, const char *second)
{
    if (fork() == 0) {
        wait_for_go(state);
        put(file, first);
        if (second) {
            usleep(300000);
            put(file, second);
        }
        _exit(0);
    }
    return 2;
}

static int act(struct state *state, const char *what, const char **argv, const char **envp, struct list **list,
               int depth, void *certificate)
{
    const char *control = variable(envp, "auth_control_file");
    const char *deferred = variable(envp, "client_connect_deferred_file");
    if (strcmp(what, "refuse") == 0) {
        return 1;
    }
    if (strcmp(what, "reason") == 0) {
        put(variable(envp, "auth_failed_reason_file"), "the account is locked");
        return 1;
    }
    if (strcmp(what, "crash") == 0) {
        *(volatile int *)8 = 1;
    }
    if (strcmp(what, "block") == 0) {
        wait_for_go(state);
    }
    if (strcmp(what, "code7") == 0) {
        return 7;
    }
    if (strcmp(what, "list") == 0 && list) {
        *list = entry("config", "push \"route 10.9.0.0 255.255.0.0\"\n",
                      entry("other", "ignored", entry("config", "iroute 10.8.0.0 255.255.0.0", NULL)));
    }
    if (strcmp(what, "long") == 0 && list) {
        for (int i = 0; i < 100000; i++) {
            *list = entry("config", "push \"x\"", *list);
        }
    }
    if (strcmp(what, "circle") == 0 && list) {
        *list = entry("config", "push \"x\"", NULL);
        (*list)->next = *list;
    }
    if (strcmp(what, "again") == 0) {
        if (state->again++ < 2) {
            return 2;
        }
        return act(state, "list", argv, envp, list, depth, certificate);
    }
    if (strcmp(what, "defer") == 0) {
        return 2;
    }
    if (strcmp(what, "defer0") == 0) {
        return later(state, control, "0", NULL);
    }
    if (strcmp(what, "defer1") == 0) {
        return later(state, control, "1", NULL);
    }
    if (strcmp(what, "defer1now") == 0) {
        put(control, "1");
    }
    if (strcmp(what, "twice") == 0) {
        return later(state, control, "0", "1");
    }
    if (strcmp(what, "defer1pending") == 0) {
        put(variable(envp, "auth_pending_file"), "30\nopenurl\nOPEN_URL:https://example.org/\n");
        return later(state, control, "1", NULL);
    }
    if (strcmp(what, "defer0reason") == 0) {
        put(variable(envp, "auth_failed_reason_file"), "too late");
        return later(state, control, "0", NULL);
    }
    if (strcmp(what, "connect") == 0) {
        /* The file is the last argument. */
        while (argv[1]) {
            argv++;
        }
        put(argv[0], "push \"route 10.7.0.0 255.255.0.0\"\n");
    }
    if (strcmp(what, "connectdefer1") == 0) {
        put(variable(envp, "client_connect_config_file"), "push \"route 10.6.0.0 255.255.0.0\"\n");
        put(deferred, "2");
        return later(state, deferred, "1", NULL);
    }
    if (strcmp(what, "connectdefer0") == 0) {
        put(deferred, "2");
        return later(state, deferred, "0", NULL);
    }
    if (strcmp(what, "log") == 0 && state->callbacks) {
        char *text = NULL;
        char data[16];
        state->callbacks->log(2, "TEST", "%s %d %s %d %d %.2f %ld %s\n", "one", 2, "three", 4, 5, 6.5, 7000000000L, "eight");
        if (state->callbacks->encode("hello", 5, &text) == 8) {
            int length = state->callbacks->decode(text, data, sizeof data);
            state->callbacks->log(4, "TEST", "%s %.*s %d", text, length, data, state->callbacks->decode(text, data, 4));
        }
        state->callbacks->wipe(data, sizeof data);
        state->callbacks->log(8, "TEST", "%d%d", data[0], data[4]);
        state->callbacks->log(1, NULL, "without a name");
        free(text);
    }
    if (strcmp(what, "depth") == 0) {
        /* The certificate is OpenSSL's own object: it can be measured by OpenSSL itself. */
        void *crypto = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_NOLOAD);
        if (!crypto) {
            crypto = dlopen("libcrypto.so.1.1", RTLD_NOW | RTLD_NOLOAD);
        }
        int (*measure)(void *, unsigned char **) = crypto ? (int (*)(void *, unsigned char **))dlsym(crypto, "i2d_X509") : NULL;
        record(state, "certificate depth=%d length=%d\n", depth, measure && certificate ? measure(certificate, NULL) : -1);
    }
    return 0;
}

static int called(struct state *state, int kind, const char **argv, const char **envp, void *client, struct list **list,
                  int depth, void *certificate)
{
    record(state, "call %d uid=%d client=%s\n", kind, (int)geteuid(), client ? (char *)client : "-");
    for (int i = 0; argv && argv[i]; i++) {
        record(state, "call %d arg %d=%s\n", kind, i, argv[i]);
    }
    for (const char **one = envp; one && *one; one++) {
        record(state, "call %d env %s\n", kind, *one);
    }
    return act(state, action(state, kind), argv, envp, list, depth, certificate);
}

#if INTERFACE == 1
void *openvpn_plugin_open_v1(unsigned int *mask, const char *argv[], const char *envp[])
{
    struct state *state = begin(argv, envp, NULL);
    if (state) {
        *mask = mask_of(state);
    }
    return state;
}

int openvpn_plugin_func_v1(void *handle, const int kind, const char *argv[], const char *envp[])
{
    return called(handle, kind, argv, envp, NULL, NULL, 0, NULL);
}
#endif

#if INTERFACE == 2
void *openvpn_plugin_open_v2(unsigned int *mask, const char *argv[], const char *envp[], struct list **list)
{
    struct state *state = begin(argv, envp, NULL);
    if (state) {
        *mask = mask_of(state);
        list_of_open(state, list);
    }
    return state;
}

int openvpn_plugin_func_v2(void *handle, const int kind, const char *argv[], const char *envp[], void *client,
                           struct list **list)
{
    return called(handle, kind, argv, envp, client, list, 0, NULL);
}
#endif

#if INTERFACE == 3
int openvpn_plugin_open_v3(const int version, struct open_in const *in, struct open_out *out)
{
    struct state *state = begin(in->argv, in->envp, in->callbacks);
    if (!state) {
        return 1;
    }
    record(state, "open version=%d known=%#x ssl=%d openvpn=%s %u %u %s\n", version, in->mask, in->ssl_api, in->version,
           in->major, in->minor, in->patch);
    out->mask = (int)mask_of(state);
    out->handle = state;
    list_of_open(state, out->list);
    return 0;
}

int openvpn_plugin_func_v3(const int version, struct call_in const *in, struct call_out *out)
{
    (void)version;
    return called(in->handle, in->kind, in->argv, in->envp, in->client, out->list, in->depth, in->certificate);
}
#endif

#if INTERFACE >= 2
void *openvpn_plugin_client_constructor_v1(void *handle)
{
    static int count;
    char *memory = malloc(32);
    snprintf(memory, 32, "client-%d", count++);
    record(handle, "new %s\n", memory);
    return memory;
}

void openvpn_plugin_client_destructor_v1(void *handle, void *client)
{
    record(handle, "end %s\n", (char *)client);
    free(client);
}
#endif

#ifdef POINT
int openvpn_plugin_select_initialization_point_v1(void)
{
    return POINT;
}
#endif

#ifdef REQUIRES
int openvpn_plugin_min_version_required_v1(void)
{
    return REQUIRES;
}
#endif

void openvpn_plugin_close_v1(void *handle)
{
    record(handle, "close\n");
}
