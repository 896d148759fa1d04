/* Tests executors of every kind, and many threads that share one prepared write. */
#include <pthread.h>
#include <string.h>

#include <kvscatter.h>

#include "check.h"
#include "memory.h"

enum { HELPERS = 3, THREADS = 8, ROUNDS = 200 };

typedef struct work {
    void (*run)(void *context);
    void *context;
} work;

static void *help(void *argument) {
    work *given = argument;
    given->run(given->context);
    return NULL;
}

static void on_threads(void *user, void (*run)(void *context), void *context) {
    pthread_t helpers[HELPERS];
    work given = {run, context};
    ++*(size_t *)user;
    for (int i = 0; i < HELPERS; i++)
        REQUIRE(pthread_create(&helpers[i], NULL, help, &given) == 0, "thread %d", i);
    run(context);
    for (int i = 0; i < HELPERS; i++)
        pthread_join(helpers[i], NULL);
}

static void thrice(void *user, void (*run)(void *context), void *context) {
    ++*(size_t *)user;
    for (int i = 0; i < 3; i++)
        run(context);
}

/* The calling thread writes the parts that no thread takes. */
static void never(void *user, void (*run)(void *context), void *context) {
    (void)run;
    (void)context;
    ++*(size_t *)user;
}

/* The write is large enough to use the executor. It copies 8 MiB of float32 into a ring of 16 MiB. */
static void check_executors(void) {
    static const int64_t cache_shape[] = {2, 4, 4096, 128}, update_shape[] = {2, 4, 2048, 128};
    static const int32_t starts[] = {3000, 100};
    void (*const broadcasts[])(void *, void (*)(void *), void *) = {on_threads, thrice, never};
    const size_t cache_bytes = (size_t)16 << 20, update_bytes = (size_t)8 << 20;
    guarded update = guarded_new(update_bytes, true), expected = guarded_new(cache_bytes, true);
    for (size_t i = 0; i < update_bytes; i++)
        guarded_data(update)[i] = (uint8_t)(i % 251);
    kvs_tensor from = {sizeof from, guarded_data(update), KVS_FLOAT32, 4, update_shape, NULL};
    kvs_tensor to = {sizeof to, guarded_data(expected), KVS_FLOAT32, 4, cache_shape, NULL};
    kvs_tensor_scatter_options ring = {.struct_size = sizeof ring, .axis = 2, .mode = KVS_MODE_CIRCULAR};
    kvs_prepared *prepared = NULL;
    REQUIRE(kvs_tensor_scatter_prepare(&ring, &to, &from, &prepared) == KVS_OK, "prepare");
    kvs_call call = {.struct_size = sizeof call, .write_indices = {starts, 2, 32}};
    CHECK(kvs_write(prepared, &call, &to, &from, NULL) == KVS_OK, "without an executor");
    for (size_t i = 0; i < sizeof broadcasts / sizeof *broadcasts; i++) {
        guarded cache = guarded_new(cache_bytes, true);
        size_t calls = 0;
        kvs_executor executor = {broadcasts[i], &calls};
        call.executor = &executor;
        to.data = guarded_data(cache);
        CHECK(kvs_write(prepared, &call, &to, &from, NULL) == KVS_OK, "executor %zu", i);
        CHECK(calls == 1, "executor %zu was asked %zu times", i, calls);
        CHECK(guarded_holds(cache, guarded_data(expected)), "executor %zu", i);

    /* Writes the same rows once more in the functional form. */
        guarded present = guarded_new(cache_bytes, true);
        kvs_tensor out = to;
        out.data = guarded_data(present);
        CHECK(kvs_write_present(prepared, &call, &to, &from, &out, NULL) == KVS_OK, "executor %zu", i);
        CHECK(calls == 2, "executor %zu was asked %zu times", i, calls);
        CHECK(guarded_holds(present, guarded_data(expected)), "executor %zu", i);
        guarded_free(present);
        guarded_free(cache);
    }
    kvs_prepared_destroy(prepared);
    guarded_free(update);
    guarded_free(expected);
}

typedef struct member {
    const kvs_prepared *prepared;
    int64_t number;
    size_t wrong;
} member;

/* Each thread writes into a separate cache, and reads its last error. */
static void *write_and_fail(void *argument) {
    member *self = argument;
    static const int64_t cache_shape[] = {1, 64, 1}, update_shape[] = {1, 1, 1};
    for (int round = 0; round < ROUNDS; round++) {
        int64_t cache[64] = {0}, update = self->number + 1, start = round % 64;
        kvs_tensor to = {sizeof to, cache, KVS_INT64, 3, cache_shape, NULL};
        kvs_tensor from = {sizeof from, &update, KVS_INT64, 3, update_shape, NULL};
        kvs_call call = {.struct_size = sizeof call, .write_indices = {&start, 1, 64}};
        self->wrong += kvs_write(self->prepared, &call, &to, &from, NULL) != KVS_OK;
        self->wrong += cache[start] != update;
        start = -100 - self->number;
        self->wrong += kvs_write(self->prepared, &call, &to, &from, NULL) != KVS_ERROR_NEGATIVE_START;
        kvs_error error = {.struct_size = sizeof error};
        kvs_last_error(&error);
        self->wrong += error.value != start;
    }
    return NULL;
}

static void check_threads(void) {
    static const int64_t cache_shape[] = {1, 64, 1}, update_shape[] = {1, 1, 1};
    kvs_tensor to = {sizeof to, NULL, KVS_INT64, 3, cache_shape, NULL};
    kvs_tensor from = {sizeof from, NULL, KVS_INT64, 3, update_shape, NULL};
    kvs_prepared *prepared = NULL;
    REQUIRE(kvs_tensor_scatter_prepare(NULL, &to, &from, &prepared) == KVS_OK, "prepare");
    pthread_t threads[THREADS];
    member members[THREADS];
    for (int i = 0; i < THREADS; i++) {
        members[i] = (member){prepared, i, 0};
        REQUIRE(pthread_create(&threads[i], NULL, write_and_fail, &members[i]) == 0, "thread %d", i);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        CHECK(members[i].wrong == 0, "thread %d: %zu", i, members[i].wrong);
    }
    kvs_prepared_destroy(prepared);

    /* No function has failed on this thread. */
    kvs_error error = {.struct_size = sizeof error, .code = 7};
    CHECK(kvs_last_error(&error) == KVS_OK && error.code == KVS_OK, "%s", kvs_status_name(error.code));
}

int main(void) {
    check_executors();
    check_threads();
    return verdict("kinds of threads", 2);
}
