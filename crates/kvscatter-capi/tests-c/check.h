/* What every test program here counts and prints. */
#ifndef KVS_TESTS_CHECK_H
#define KVS_TESTS_CHECK_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* Checks that failed, in this program. */
extern int failures;

/* Prints what was checked and whether it passed. Returns the exit status of the program. */
int verdict(const char *what, size_t count);

/* Prints what was expected, and goes on: one failure rarely comes alone. */
#define CHECK(condition, ...)                                                                                \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            failures++;                                                                                      \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                  \
            fprintf(stderr, __VA_ARGS__);                                                                    \
            fputc('\n', stderr);                                                                             \
        }                                                                                                    \
    } while (0)

/* For what the test itself needs: a file, memory. */
#define REQUIRE(condition, ...)                                                                              \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                  \
            fprintf(stderr, __VA_ARGS__);                                                                    \
            fputc('\n', stderr);                                                                             \
            exit(2);                                                                                         \
        }                                                                                                    \
    } while (0)

#endif
