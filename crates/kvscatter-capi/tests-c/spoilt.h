/* A valid call, of which each test changes one part. */
#ifndef KVS_TESTS_SPOILT_H
#define KVS_TESTS_SPOILT_H

#include <kvscatter.h>

#include "memory.h"

/* A float16 cache of 2 samples, 3 heads, 8 slots and 4 features. 2 rows are written at slots 1 and 6. The
 * scene contains pointers to itself, so it must not move. */
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

/* One change that makes a call invalid, with the code and the argument that the error must have. */
typedef struct spoilt {
    const char *name;
    kvs_status status;
    const char *argument; /* NULL if nothing with a name is wrong */
    kvs_status (*call)(scene *);
} spoilt;

void scene_set(scene *empty);
void scene_clear(scene *set);

/* Runs each row on a separate scene. Checks the code, the message, and that nothing has changed. Returns the
 * number of rows. */
size_t check_spoilt(const spoilt *rows, size_t count);

/* Runs the call through every function, and returns the code that all of them return. If the function takes
 * pairs, the second pair is the changed one. */
kvs_status run_everywhere(scene *spoilt);

size_t check_prepare(void);
size_t check_run(void);
size_t check_memory(void);
size_t check_dlpack(void);

#endif
