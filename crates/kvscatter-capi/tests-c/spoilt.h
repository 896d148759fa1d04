/* A call that works, to be spoilt in one respect each time. */
#ifndef KVS_TESTS_SPOILT_H
#define KVS_TESTS_SPOILT_H

#include <kvscatter.h>

#include "memory.h"

/* A float16 cache of 2 samples, 3 heads, 8 slots and 4 features; 2 rows are written at slots 1 and 6.
 * Pointers lead into the scene itself, so it stays where it is. */
typedef struct scene {
    guarded memory[5];
    int64_t cache_shape[17], update_shape[17], strides[17];
    int64_t starts[3];
    kvs_tensor_scatter_options options;
    kvs_tensor cache, update, present;
    kvs_pair other; /* another cache and update */
    kvs_call call;
    kvs_written written;
    kvs_prepared *prepared; /* before anything is spoilt */
    kvs_prepared *out;
} scene;

/* One way to spoil a call, and the code and the argument that the error must have. */
typedef struct spoilt {
    const char *name;
    kvs_status status;
    const char *argument; /* NULL if nothing with a name is wrong */
    kvs_status (*call)(scene *);
} spoilt;

void scene_set(scene *empty);
void scene_clear(scene *set);

/* Runs each row on a scene of its own: its code, a line for people, and nothing has changed. How many there
 * were. */
size_t check_spoilt(const spoilt *rows, size_t count);

/* Through every function that runs a call, in the second pair where there are pairs: the code all of them
 * return. */
kvs_status run_everywhere(scene *spoilt);

size_t check_prepare(void);
size_t check_run(void);
size_t check_memory(void);
size_t check_dlpack(void);

#endif
