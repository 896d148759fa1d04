/* Memory between guard bytes. */
#ifndef KVS_TESTS_MEMORY_H
#define KVS_TESTS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A buffer, with bytes on both sides of it that must not change. */
typedef struct guarded {
    uint8_t *memory;
    size_t guard, size;
} guarded;

/* Without guards, valgrind and the address sanitizer see who leaves the buffer; with them, everyone does. */
guarded guarded_new(size_t size, bool guards);
guarded guarded_copy(const uint8_t *bytes, size_t size, bool guards);
void guarded_free(guarded buffer);

uint8_t *guarded_data(guarded buffer);
/* Whether the buffer holds these bytes and the guards are whole. */
bool guarded_holds(guarded buffer, const uint8_t *bytes);

#endif
