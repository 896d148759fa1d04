/* Counts and prints the checks of every test program. */
#ifndef KVS_TESTS_CHECK_H
#define KVS_TESTS_CHECK_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* The number of checks that failed in this program. */
extern int failures;

/* Prints what was checked and whether it passed. Returns the exit status of the program. */
int verdict(const char *what, size_t count);

/* Prints what was expected and continues, because more checks may fail for the same reason. */
#define CHECK(condition, ...)                                                                                \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            failures++;                                                                                      \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                  \
            fprintf(stderr, __VA_ARGS__);                                                                    \
            fputc('\n', stderr);                                                                             \
        }                                                                                                    \
    } while (0)

/* Checks what the test itself needs, such as a file or memory. */
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
