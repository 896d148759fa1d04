/* Executes a plan as a foreign kernel would. It visits the blocks and moves their elements itself. */
#ifndef KVS_TESTS_BLOCKS_H
#define KVS_TESTS_BLOCKS_H

#include <stdint.h>

#include <kvscatter.h>

/* Two buffers whose element [0, 0, ...] is at `cache_origin` and `update_origin`, counted in elements. */
typedef struct block_copier {
    uint8_t *cache;
    const uint8_t *update;
    ptrdiff_t cache_origin, update_origin;
    size_t bits;   /* of an element */
    size_t blocks; /* visited so far */
} block_copier;

/* A visitor for kvs_for_each_block. `user` is a block_copier. */
int32_t copy_block(void *user, const kvs_block *block);

#endif
