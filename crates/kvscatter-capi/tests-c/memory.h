/* Allocates memory between guard bytes. */
#ifndef KVS_TESTS_MEMORY_H
#define KVS_TESTS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A buffer with bytes on both sides that must not change. */
typedef struct guarded {
    uint8_t *memory;
    size_t guard, size;
} guarded;

/* Without guards, valgrind and the address sanitizer detect accesses outside the buffer. With guards, the
 * test itself detects writes outside it. */
guarded guarded_new(size_t size, bool guards);
guarded guarded_copy(const uint8_t *bytes, size_t size, bool guards);
void guarded_free(guarded buffer);

uint8_t *guarded_data(guarded buffer);
/* Returns whether the buffer contains these bytes and the guards have not changed. */
bool guarded_holds(guarded buffer, const uint8_t *bytes);

#endif
