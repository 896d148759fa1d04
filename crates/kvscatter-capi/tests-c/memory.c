#include "memory.h"

#include <string.h>

#include "check.h"

enum { GUARD = 64, PAINT = 0xC3 };

guarded guarded_new(size_t size, bool guards) {
    guarded made = {NULL, guards ? GUARD : 0, size};
    size_t total = size + 2 * made.guard;
    made.memory = malloc(total > 0 ? total : 1);
    REQUIRE(made.memory != NULL, "%zu bytes", total);
    memset(made.memory, PAINT, total);
    return made;
}

guarded guarded_copy(const uint8_t *bytes, size_t size, bool guards) {
    guarded made = guarded_new(size, guards);
    if (size > 0)
        memcpy(guarded_data(made), bytes, size);
    return made;
}

void guarded_free(guarded buffer) { free(buffer.memory); }

uint8_t *guarded_data(guarded buffer) { return buffer.memory + buffer.guard; }

bool guarded_holds(guarded buffer, const uint8_t *bytes) {
    for (size_t i = 0; i < buffer.guard; i++)
        if (buffer.memory[i] != PAINT || buffer.memory[buffer.guard + buffer.size + i] != PAINT)
            return false;
    return buffer.size == 0 || memcmp(guarded_data(buffer), bytes, buffer.size) == 0;
}
