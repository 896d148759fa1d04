#include "blocks.h"

#include <string.h>

static uint8_t nibble(const uint8_t *bytes, ptrdiff_t at) { return bytes[at / 2] >> 4 * (at % 2) & 0xF; }

static void set_nibble(uint8_t *bytes, ptrdiff_t at, uint8_t value) {
    int shift = 4 * (int)(at % 2);
    bytes[at / 2] = (uint8_t)((bytes[at / 2] & ~(0xF << shift)) | value << shift);
}

/* Copies one contiguous run. Positions count elements. */
static void copy_run(const block_copier *copier, ptrdiff_t dst, ptrdiff_t src, size_t len) {
    if (copier->bits == 4) {
        for (ptrdiff_t i = 0; i < (ptrdiff_t)len; i++)
            set_nibble(copier->cache, dst + i, nibble(copier->update, src + i));
        return;
    }
    size_t width = copier->bits / 8;
    memcpy(copier->cache + (size_t)dst * width, copier->update + (size_t)src * width, len * width);
}

int32_t copy_block(void *user, const kvs_block *block) {
    block_copier *copier = user;
    const kvs_loop *loops = block->loops;
    copier->blocks++;
    for (size_t i = 0; i < loops[0].count; i++)
        for (size_t j = 0; j < loops[1].count; j++)
            for (size_t k = 0; k < loops[2].count; k++) {
                ptrdiff_t a = (ptrdiff_t)i, b = (ptrdiff_t)j, c = (ptrdiff_t)k;
                ptrdiff_t dst = block->dst_offset + a * loops[0].dst_stride + b * loops[1].dst_stride +
                                c * loops[2].dst_stride;
                ptrdiff_t src = block->src_offset + a * loops[0].src_stride + b * loops[1].src_stride +
                                c * loops[2].src_stride;
                copy_run(copier, copier->cache_origin + dst, copier->update_origin + src, block->len);
            }
    return 0;
}
