/* Runs the tests of all kinds of bad input. Each call must return the documented code and a message that
 * names the argument, and it must change nothing.
 *
 * KVS_TESTS_PRINT=1 prints every message. */
#include "check.h"
#include "spoilt.h"

/* Errors of kvs_last_error itself are returned, but they do not become the last error. */
static void check_last_error(void) {
    scene run;
    scene_set(&run);
    run.starts[0] = -1;
    kvs_status refused = kvs_write(run.prepared, &run.call, &run.cache, &run.update, NULL);
    CHECK(refused == KVS_ERROR_NEGATIVE_START, "%s", kvs_status_name(refused));
    kvs_error error[2] = {{.struct_size = 8}, {.struct_size = sizeof *error}};
    CHECK(kvs_last_error(NULL) == KVS_ERROR_NULL_POINTER, "NULL");
    CHECK(kvs_last_error(&error[0]) == KVS_ERROR_STRUCT_SIZE, "8 bytes");
    CHECK(kvs_last_error((kvs_error *)(void *)((char *)error + 1)) == KVS_ERROR_MISALIGNED, "an odd address");
    /* A successful call does not clear the last error either. */
    run.starts[0] = 1;
    CHECK(kvs_write(run.prepared, &run.call, &run.cache, &run.update, NULL) == KVS_OK, "the call itself");
    CHECK(kvs_last_error(&error[1]) == KVS_OK && error[1].code == refused, "%s",
          kvs_status_name(error[1].code));
    CHECK((error[1].fields & KVS_ERROR_HAS_INDEX) != 0 && error[1].index == 0, "%s", error[1].message);
    CHECK((error[1].fields & KVS_ERROR_HAS_VALUE) != 0 && error[1].value == -1, "%s", error[1].message);
    CHECK((error[1].fields & KVS_ERROR_HAS_LIMIT) != 0 && error[1].limit == 0, "%s", error[1].message);
    scene_clear(&run);
}

int main(void) {
    size_t count = check_prepare() + check_run() + check_memory() + check_dlpack();
    check_last_error();
    return verdict("kinds of bad input", count);
}
