// The few definitions of PKCS#11 that the tests use, from its specification (OASIS, version 2.40).

typedef unsigned long ulong;

// The functions in the order of the specification.
enum {
    INITIALIZE = 0,
    GET_SLOT_LIST = 4,
    GET_TOKEN_INFO = 6,
    OPEN_SESSION = 12,
    CLOSE_ALL_SESSIONS = 14,
    GET_SESSION_INFO = 15,
    LOGIN = 18,
    CREATE_OBJECT = 20,
    GET_ATTRIBUTE_VALUE = 24,
    SIGN = 43,
    SIGN_UPDATE = 44,
    SIGN_FINAL = 45,
    FUNCTIONS = 68,
};

struct list {
    unsigned char version[2];
    void *call[FUNCTIONS];
};

struct attribute {
    ulong type;
    void *value;
    ulong length;
};

// The beginning of CK_TOKEN_INFO, with room for the rest.
struct token_info {
    unsigned char label[32], manufacturer[32], model[16], serial[16];
    ulong flags;
    unsigned char rest[256];
};

enum {
    CKF_SERIAL_SESSION = 4,
    CKF_RW_SESSION = 2,
    CKF_PROTECTED_AUTHENTICATION_PATH = 0x100,
    CKF_USER_PIN_FINAL_TRY = 0x20000,
    CKF_USER_PIN_LOCKED = 0x40000,
    CKA_CLASS = 0,
    CKA_TOKEN = 1,
    CKA_PRIVATE = 2,
    CKA_LABEL = 3,
    CKA_VALUE = 0x11,
    CKA_CERTIFICATE_TYPE = 0x80,
    CKA_SUBJECT = 0x101,
    CKA_ID = 0x102,
    CKA_ALWAYS_AUTHENTICATE = 0x202,
    CKO_CERTIFICATE = 1,
    CKU_USER = 1,
    CKU_CONTEXT_SPECIFIC = 2,
    CKR_DEVICE_REMOVED = 0x32,
    CKR_SESSION_HANDLE_INVALID = 0xb3,
    CKR_USER_NOT_LOGGED_IN = 0x101,
};
