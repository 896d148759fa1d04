// A prompt and decode steps from C++. Caches, queries and results are [batch, tokens, heads, head_size] in memory,
// as projections write them, so nothing is transposed.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <vector>

#include <kvscatter.h>

namespace {

void check(kvs_status status) {
    if (status == KVS_OK)
        return;
    kvs_error error = KVS_ERROR_INIT;
    kvs_last_error(&error);
    throw std::runtime_error(error.message);
}

struct Destroy {
    void operator()(kvs_prepared *write) const { kvs_prepared_destroy(write); }
    void operator()(kvs_attention *attention) const { kvs_attention_destroy(attention); }
    void operator()(kvs_attention_scratch *scratch) const { kvs_attention_scratch_destroy(scratch); }
};

template <typename T> using Owned = std::unique_ptr<T, Destroy>;

// Floats [batch, tokens, heads, size], which the library reads as [batch, heads, tokens, size] with strides.
class Tokens {
  public:
    Tokens(std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t size)
        : shape_{batch, heads, tokens, size}, strides_{tokens * heads * size, size, heads * size, 1},
          data(static_cast<std::size_t>(batch * tokens * heads * size)) {}

    kvs_tensor tensor() {
        kvs_tensor made = KVS_TENSOR_INIT;
        made.data = data.data();
        made.type = KVS_FLOAT32;
        made.rank = 4;
        made.shape = shape_.data();
        made.strides = strides_.data();
        return made;
    }

  private:
    std::array<std::int64_t, 4> shape_, strides_;

  public:
    std::vector<float> data;
};

// The calls for a number of new tokens per sample. Any number of threads may use one, each with its own scratch.
class Layer {
  public:
    Layer(Tokens &query, Tokens &key, Tokens &fresh) {
        const kvs_tensor q = query.tensor(), cache = key.tensor(), update = fresh.tensor();
        kvs_prepared *write = nullptr;
        check(kvs_tensor_scatter_prepare(nullptr, &cache, &update, &write));
        write_.reset(write);
        kvs_attention_options options = KVS_ATTENTION_OPTIONS_INIT;
        options.is_causal = 1;
        kvs_attention *attention = nullptr;
        check(kvs_attention_prepare(&options, &q, &cache, &cache, nullptr, &q, &attention));
        attention_.reset(attention);
    }

    Owned<kvs_attention_scratch> scratch(std::size_t threads) const {
        kvs_attention_scratch *made = nullptr;
        check(kvs_attention_scratch_new(attention_.get(), threads, &made));
        return Owned<kvs_attention_scratch>(made);
    }

    // Writes new keys and values after the first `lengths` tokens of each sample, and attends to all of them.
    void step(Tokens &query, std::array<Tokens *, 2> caches, std::array<Tokens *, 2> fresh, Tokens &output,
              std::vector<std::int64_t> &lengths, std::int64_t count, kvs_attention_scratch *scratch) const {
        kvs_call write = KVS_CALL_INIT;
        write.write_indices = {lengths.data(), lengths.size(), 64};
        const std::array<kvs_pair, 2> both{{
            {caches[0]->tensor(), fresh[0]->tensor()},
            {caches[1]->tensor(), fresh[1]->tensor()},
        }};
        check(kvs_write_many(write_.get(), &write, both.data(), both.size(), nullptr));
        for (std::int64_t &length : lengths)
            length += count;
        kvs_attention_call read = KVS_ATTENTION_CALL_INIT;
        read.lengths = {lengths.data(), lengths.size(), 64};
        const kvs_tensor q = query.tensor(), y = output.tensor();
        check(kvs_attention_run(attention_.get(), &read, &q, &both[0].cache, &both[1].cache, &y, scratch));
    }

  private:
    Owned<kvs_prepared> write_;
    Owned<kvs_attention> attention_;
};

} // namespace

int main() try {
    const std::int64_t batch = 2, query_heads = 4, heads = 2, slots = 16, size = 8, prompt = 5;
    Tokens keys(batch, slots, heads, size), values(batch, slots, heads, size);
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(batch), 0);
    float wrong = 0, token = 0;
    for (const std::int64_t count : {prompt, std::int64_t{1}, std::int64_t{1}}) {
        Tokens query(batch, count, query_heads, size), output(batch, count, query_heads, size);
        Tokens key(batch, count, heads, size), value(batch, count, heads, size);
        // The value of each token is its position.
        const std::size_t row = value.data.size() / static_cast<std::size_t>(batch * count);
        for (std::size_t i = 0; i < value.data.size(); i++)
            value.data[i] = token + static_cast<float>(i / row % static_cast<std::size_t>(count));
        token += static_cast<float>(count);
        const Layer layer(query, keys, key);
        const auto scratch = layer.scratch(1);
        layer.step(query, {&keys, &values}, {&key, &value}, output, lengths, count, scratch.get());
        // Queries and keys are 0, so the token at position p gives the mean of 0 to p.
        const float mean = output.data.back();
        std::printf("%2lld tokens: the last result is %g\n", static_cast<long long>(lengths[0]),
                    static_cast<double>(mean));
        wrong += std::fabs(mean - (token - 1) / 2);
    }
    return wrong < 1e-5F ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
}
