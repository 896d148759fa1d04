// Writes the cache of a decoder from C++. The handle destroys itself, errors are exceptions, and tensors come
// from vectors.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <kvscatter.h>

namespace {

using Shape = std::array<std::int64_t, 4>;

// An exception with the last error of this thread.
struct Refused : std::runtime_error {
    explicit Refused(const kvs_error &error) : std::runtime_error(error.message), error(error) {}
    kvs_error error;
};

void check(kvs_status status) {
    if (status == KVS_OK)
        return;
    kvs_error error = KVS_ERROR_INIT;
    kvs_last_error(&error);
    throw Refused(error);
}

kvs_tensor tensor(void *data, const Shape &shape) {
    kvs_tensor made = KVS_TENSOR_INIT;
    made.data = data;
    made.type = KVS_FLOAT32;
    made.rank = static_cast<std::uint32_t>(shape.size());
    made.shape = shape.data();
    return made;
}

// A cache of float32 and the write of `rows` rows per sample into it. Any thread may use it at any time.
class Writer {
  public:
    Writer(const Shape &cache, std::int64_t rows) : cache_(cache), update_(cache) {
        update_[2] = rows;
        const kvs_tensor past = tensor(nullptr, cache_), update = tensor(nullptr, update_);
        kvs_prepared *prepared = nullptr;
        check(kvs_kv_cache_update_prepare(nullptr, &past, &update, &prepared));
        prepared_.reset(prepared);
    }

    // Writes the keys and the values, or neither of them.
    void write(std::vector<float> &keys, std::vector<float> &values, std::vector<float> &new_keys,
               std::vector<float> &new_values, const std::vector<std::int64_t> &positions) const {
        require(keys, cache_);
        require(values, cache_);
        require(new_keys, update_);
        require(new_values, update_);
        kvs_call call = KVS_CALL_INIT;
        call.write_indices = {positions.data(), positions.size(), 64};
        const std::array<kvs_pair, 2> both{{
            {tensor(keys.data(), cache_), tensor(new_keys.data(), update_)},
            {tensor(values.data(), cache_), tensor(new_values.data(), update_)},
        }};
        check(kvs_write_many(prepared_.get(), &call, both.data(), both.size(), nullptr));
    }

  private:
    struct Destroy {
        void operator()(kvs_prepared *prepared) const { kvs_prepared_destroy(prepared); }
    };

    // The library cannot check the length of a vector, because it gets only the address.
    static void require(const std::vector<float> &data, const Shape &shape) {
        std::size_t size = 1;
        for (const std::int64_t dimension : shape)
            size *= static_cast<std::size_t>(dimension);
        if (data.size() != size)
            throw std::length_error("a vector does not fill its shape");
    }

    Shape cache_, update_;
    std::unique_ptr<kvs_prepared, Destroy> prepared_;
};

} // namespace

int main() try {
    const Shape shape{2, 1, 6, 1}; // batch, heads, slots, head_size
    std::vector<float> keys(12, 0), values(12, 0);
    std::vector<std::int64_t> positions{0, 3};

    const Writer decode(shape, 1);
    for (int step = 1; step <= 3; step++) {
        std::vector<float> new_keys(2, static_cast<float>(step)), new_values(2, static_cast<float>(-step));
        decode.write(keys, values, new_keys, new_values, positions);
        for (std::int64_t &position : positions)
            position++;
    }
    for (std::size_t sample = 0; sample < 2; sample++) {
        std::printf("sample %zu, keys  ", sample);
        for (std::size_t slot = 0; slot < 6; slot++)
            std::printf("%3.0f", static_cast<double>(keys[6 * sample + slot]));
        std::printf("   values ");
        for (std::size_t slot = 0; slot < 6; slot++)
            std::printf("%3.0f", static_cast<double>(values[6 * sample + slot]));
        std::printf("\n");
    }

    // Sample 1 is full, so the next write is refused.
    try {
        std::vector<float> row(2, 4), same(2, 4);
        decode.write(keys, values, row, same, positions);
    } catch (const Refused &refused) {
        const kvs_error &error = refused.error;
        std::printf("refused: %s\n  argument %s, index %lld, value %lld, limit %lld\n", refused.what(),
                    error.argument, static_cast<long long>(error.index), static_cast<long long>(error.value),
                    static_cast<long long>(error.limit));
        return EXIT_SUCCESS;
    }
    return EXIT_FAILURE; // The write was not refused.
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
}
