// Writes a certificate to a token: import MODULE TOKEN PIN ID LABEL FILE PRIVATE
// ID is hexadecimal, FILE is DER, and PRIVATE is 1 for a certificate that is seen only after the PIN.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pkcs11.h"

static void check(ulong code, const char *what) {
    if (code != 0) {
        fprintf(stderr, "%s: 0x%lx\n", what, code);
        exit(1);
    }
}

int main(int count, char **words) {
    if (count != 8) return 2;
    void *module = dlopen(words[1], RTLD_NOW);
    if (!module) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    ulong (*get)(struct list **) = (ulong(*)(struct list **))dlsym(module, "C_GetFunctionList");
    struct list *list;
    check(get(&list), "C_GetFunctionList");
    check(((ulong(*)(void *))list->call[INITIALIZE])(NULL), "C_Initialize");
    ulong slots[64], slot_count = 64, found = -1;
    ulong (*slot_list)(unsigned char, ulong *, ulong *) = list->call[GET_SLOT_LIST];
    ulong (*token_info)(ulong, struct token_info *) = list->call[GET_TOKEN_INFO];
    check(slot_list(1, slots, &slot_count), "C_GetSlotList");
    for (ulong i = 0; i < slot_count; i++) {
        struct token_info info = {0};
        char label[33];
        if (token_info(slots[i], &info)) continue;
        snprintf(label, sizeof label, "%-32s", words[2]);
        if (!memcmp(info.label, label, 32)) found = slots[i];
    }
    ulong session;
    ulong (*open)(ulong, ulong, void *, void *, ulong *) = list->call[OPEN_SESSION];
    check(open(found, CKF_SERIAL_SESSION | CKF_RW_SESSION, NULL, NULL, &session), "C_OpenSession");
    ulong (*login)(ulong, ulong, char *, ulong) = list->call[LOGIN];
    check(login(session, CKU_USER, words[3], strlen(words[3])), "C_Login");
    static unsigned char der[1 << 16], id[256], subject[] = {0x30, 0}, yes = 1, private;
    private = atoi(words[7]) != 0;
    FILE *file = fopen(words[6], "r");
    ulong length = file ? fread(der, 1, sizeof der, file) : 0, id_length = strlen(words[4]) / 2;
    for (ulong i = 0; i < id_length && i < sizeof id; i++) {
        unsigned byte;
        sscanf(words[4] + 2 * i, "%2x", &byte);
        id[i] = byte;
    }
    ulong class = CKO_CERTIFICATE, x509 = 0, object;
    struct attribute attributes[] = {
        {CKA_CLASS, &class, sizeof class},
        {CKA_CERTIFICATE_TYPE, &x509, sizeof x509},
        {CKA_TOKEN, &yes, 1},
        {CKA_PRIVATE, &private, 1},
        {CKA_SUBJECT, subject, sizeof subject},
        {CKA_ID, id, id_length},
        {CKA_LABEL, words[5], strlen(words[5])},
        {CKA_VALUE, der, length},
    };
    ulong (*create)(ulong, struct attribute *, ulong, ulong *) = list->call[CREATE_OBJECT];
    check(create(session, attributes, sizeof attributes / sizeof *attributes, &object), "C_CreateObject");
    return 0;
}
