// A PKCS#11 module that passes all calls to another one, whose path is MODULE, and that fails as files in the folder
// FOLDER say:
//     block       signatures wait until the file is gone
//     crash       a signature ends the process
//     gone        the token is not there, and its sessions end
//     final-try   a further wrong PIN would lock the token
//     locked      the PIN is locked
//     keypad      the token has its own keypad, on which the PIN in the file is entered
//     always      the key needs the PIN for each signature, and the data in parts
// Each login is a line in the file "logins": the kind of user, and the PIN.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pkcs11.h"

static struct list list, *real;
static int authenticated;
static unsigned char parts[4096];
static ulong parts_length;

static int is(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", FOLDER, name);
    return access(path, F_OK) == 0;
}

static ulong slots(unsigned char present, ulong *slots, ulong *count) {
    ulong (*call)(unsigned char, ulong *, ulong *) = real->call[GET_SLOT_LIST];
    if (!is("gone")) return call(present, slots, count);
    // Whoever takes a token away ends its sessions.
    ulong all[64], all_count = 64;
    if (call(1, all, &all_count) == 0)
        for (ulong i = 0; i < all_count; i++)
            ((ulong(*)(ulong))real->call[CLOSE_ALL_SESSIONS])(all[i]);
    *count = 0;
    return 0;
}

static ulong token_info(ulong slot, struct token_info *info) {
    ulong code = ((ulong(*)(ulong, struct token_info *))real->call[GET_TOKEN_INFO])(slot, info);
    if (is("final-try")) info->flags |= CKF_USER_PIN_FINAL_TRY;
    if (is("locked")) info->flags |= CKF_USER_PIN_LOCKED;
    if (is("keypad")) info->flags |= CKF_PROTECTED_AUTHENTICATION_PATH;
    return code;
}

static ulong session_info(ulong session, void *info) {
    if (is("gone")) {
        ulong count = 0;
        slots(1, NULL, &count);
        return CKR_SESSION_HANDLE_INVALID;
    }
    return ((ulong(*)(ulong, void *))real->call[GET_SESSION_INFO])(session, info);
}

static ulong login(ulong session, ulong user, char *pin, ulong length) {
    static char typed[256];
    FILE *file = fopen(FOLDER "/logins", "a");
    if (file) {
        fprintf(file, "%lu %.*s\n", user, pin ? (int)length : 1, pin ? pin : "-");
        fclose(file);
    }
    if (!pin) {
        file = fopen(FOLDER "/keypad", "r");
        length = file ? fread(typed, 1, sizeof typed, file) : 0;
        if (file) fclose(file);
        pin = typed;
    }
    if (user == CKU_CONTEXT_SPECIFIC) {
        authenticated = length == 4 && !memcmp(pin, "1234", 4);
        return 0;
    }
    return ((ulong(*)(ulong, ulong, char *, ulong))real->call[LOGIN])(session, user, pin, length);
}

static ulong attributes(ulong session, ulong object, struct attribute *wanted, ulong count) {
    ulong code = ((ulong(*)(ulong, ulong, struct attribute *, ulong))real->call[GET_ATTRIBUTE_VALUE])(
        session, object, wanted, count);
    for (ulong i = 0; i < count; i++) {
        if (wanted[i].type != CKA_ALWAYS_AUTHENTICATE || !is("always")) continue;
        if (wanted[i].value) *(unsigned char *)wanted[i].value = 1;
        wanted[i].length = 1;
    }
    return code;
}

static ulong sign(ulong session, void *data, ulong length, void *signature, ulong *signed_length) {
    if (is("gone")) return CKR_DEVICE_REMOVED;
    if (is("crash")) abort();
    while (is("block")) usleep(10000);
    return ((ulong(*)(ulong, void *, ulong, void *, ulong *))real->call[SIGN])(
        session, data, length, signature, signed_length);
}

static ulong sign_update(ulong session, unsigned char *data, ulong length) {
    if (!authenticated) return CKR_USER_NOT_LOGGED_IN;
    parts_length = length < sizeof parts ? length : sizeof parts;
    memcpy(parts, data, parts_length);
    return 0;
}

static ulong sign_final(ulong session, void *signature, ulong *length) {
    if (signature) authenticated = 0;
    return sign(session, parts, parts_length, signature, length);
}

ulong C_GetFunctionList(struct list **result) {
    void *module = dlopen(MODULE, RTLD_NOW);
    ulong (*get)(struct list **) = module ? (ulong(*)(struct list **))dlsym(module, "C_GetFunctionList") : NULL;
    if (!get || get(&real)) return CKR_DEVICE_REMOVED;
    list = *real;
    list.call[GET_SLOT_LIST] = slots;
    list.call[GET_TOKEN_INFO] = token_info;
    list.call[GET_SESSION_INFO] = session_info;
    list.call[LOGIN] = login;
    list.call[GET_ATTRIBUTE_VALUE] = attributes;
    list.call[SIGN] = sign;
    list.call[SIGN_UPDATE] = sign_update;
    list.call[SIGN_FINAL] = sign_final;
    *result = &list;
    return 0;
}
