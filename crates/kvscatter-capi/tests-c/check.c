#include "check.h"

int failures = 0;

int verdict(const char *what, size_t count) {
    /* A test that runs no check proves nothing. */
    REQUIRE(count > 0, "no %s", what);
    printf("%zu %s, %d failed\n", count, what, failures);
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
