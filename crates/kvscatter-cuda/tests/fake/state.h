// The objects and pending work of the driver, and the rules for all its functions.
#pragma once

#include "image.h"
#include "launch.h"

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace fake {

enum Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
    MISALIGNED_ADDRESS = 716,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_IMPLICIT = 906,
};

inline const std::map<int, const char*> NAMES = {
    {SUCCESS, "CUDA_SUCCESS"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
    {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
    {INVALID_PTX, "CUDA_ERROR_INVALID_PTX"},
    {UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
};

typedef unsigned long long Address;
typedef std::vector<std::function<int()>> Work;

struct Context {
    unsigned long long number;
    int fault = SUCCESS; // the first fault of a kernel, after which nothing runs
};
struct Module {
    Context* context;
    Image image;
};
struct Function {
    Context* context;
    Module* module;
    const Kernel* kernel;
    bool is_loaded; // on the device; an older driver loads it with the module
};
struct Stream {
    Context* context;
    bool is_blocking;
    enum { NOT, YES, INVALIDATED } capture = NOT;
    int mode = 0;
    std::thread::id begun{};
    std::deque<std::function<int()>> pending{};
    Work captured{};
    bool is_running = false; // by a thread that waits for the stream

    // Returns true if the stream's capture forbids this thread to make the calls that
    // `refuse_while_capturing` lists.
    bool forbids() const {
        static constexpr int GLOBAL = 0, THREAD_LOCAL = 1;
        if (capture != YES) return false;
        return mode == GLOBAL || (mode == THREAD_LOCAL && begun == std::this_thread::get_id());
    }
};
struct Graph {
    Work work;
};

// The valid handles of one kind. Any other handle is rejected instead of dereferenced.
template <class T>
struct Handles {
    std::map<const void*, std::unique_ptr<T>> all;

    T* add(T value) {
        auto made = std::make_unique<T>(std::move(value));
        T* at = made.get();
        all[at] = std::move(made);
        return at;
    }
    T* find(const void* handle) {
        auto found = all.find(handle);
        return found == all.end() ? nullptr : found->second.get();
    }
    bool remove(const void* handle) { return all.erase(handle); }
};

// If it is built as a driver of CUDA 11, it lacks some functions.
#ifdef KVSCATTER_OLD_DRIVER
constexpr bool IS_LAZY = false;
#else
constexpr bool IS_LAZY = true;
#endif

struct Driver {
    std::mutex mutex;
    std::condition_variable has_run;
    bool is_initialised = false;
    unsigned long long contexts_made = 0;
    Handles<Context> contexts;
    std::unique_ptr<Context> destroyed; // the next context gets its address
    Handles<Module> modules;
    Handles<Function> functions;
    Handles<Stream> streams;
    Handles<Graph> graphs, executables;
    std::map<Address, size_t> memory;
    std::map<Context*, Stream*> default_streams;
    std::map<std::pair<Context*, std::thread::id>, Stream*> thread_streams;
    Context* primary = nullptr;
    unsigned primary_users = 0;

    bool holds(Address at, size_t bytes) const {
        auto after = memory.upper_bound(at);
        if (after == memory.begin()) return false;
        auto found = std::prev(after);
        return at - found->first <= found->second && bytes <= found->second - (at - found->first);
    }
};

// The driver is never destroyed, because threads of tests may still run when a program ends.
inline Driver& driver = *new Driver;

inline thread_local Context* current = nullptr;
inline thread_local std::map<std::string, unsigned> calls;
inline thread_local std::string failing;
inline thread_local int failure = SUCCESS;
inline thread_local int capability = 90;
inline thread_local double newest_ptx = 9.0;

// The first step of every function.
struct Entry {
    std::unique_lock<std::mutex> lock{driver.mutex};
    int error;

    explicit Entry(const char* name, bool needs_context = true) {
        ++calls[name];
        error = failing == name            ? failure
                : !driver.is_initialised   ? NOT_INITIALIZED
                : !needs_context           ? SUCCESS
                : !driver.contexts.find(current) ? INVALID_CONTEXT
                                           : current->fault;
    }
};
#define ENTER(...)                          \
    Entry entry{__func__, ##__VA_ARGS__};    \
    if (entry.error) return entry.error

// Rejects calls about memory and modules, and calls that wait, while this thread captures, or any thread
// captures in the global mode. The error invalidates the capture.
inline int refuse_while_capturing() {
    bool is_capturing = false;
    for (auto& [_, stream] : driver.streams.all)
        if (stream->forbids()) {
            stream->capture = Stream::INVALIDATED;
            is_capturing = true;
        }
    return is_capturing ? CAPTURE_UNSUPPORTED : SUCCESS;
}
#define REFUSE_WHILE_CAPTURING() \
    if (int error = refuse_while_capturing()) return error

// Finds a stream by its handle. 0 and 1 are the default stream, which may not be used while a stream that
// waits for it captures. 2 is the default stream of a thread.
inline int find_stream(void* handle, Stream*& found) {
    static constexpr size_t PER_THREAD = 2;
    if ((size_t)handle == PER_THREAD) {
        Stream*& stream = driver.thread_streams[{current, std::this_thread::get_id()}];
        if (!stream) stream = driver.streams.add({current, true});
        found = stream;
        return SUCCESS;
    }
    if ((size_t)handle > PER_THREAD) {
        found = driver.streams.find(handle);
        return !found || found->context != current ? INVALID_HANDLE : SUCCESS;
    }
    for (auto& [_, stream] : driver.streams.all)
        if (stream->context == current && stream->is_blocking && stream->capture == Stream::YES) {
            stream->capture = Stream::INVALIDATED;
            return CAPTURE_IMPLICIT;
        }
    Stream*& stream = driver.default_streams[current];
    if (!stream) stream = driver.streams.add({current, true});
    found = stream;
    return SUCCESS;
}

inline int enqueue(void* handle, std::function<int()> work) {
    Stream* stream;
    if (int error = find_stream(handle, stream)) return error;
    if (stream->capture == Stream::INVALIDATED) return CAPTURE_INVALIDATED;
    if (stream->capture == Stream::YES)
        stream->captured.push_back(std::move(work));
    else
        stream->pending.push_back(std::move(work));
    return SUCCESS;
}

// Runs the pending work of a stream in order, until `is_enough` returns true. Only one thread at a time runs
// a stream, and other threads wait. Two threads may run two streams at once, so the lock is released while
// kernels run. After a fault nothing runs.
template <class F>
int run(Stream* stream, std::unique_lock<std::mutex>& lock, F&& is_enough) {
    while (!current->fault && driver.streams.find(stream) && !is_enough()) {
        if (stream->is_running) {
            driver.has_run.wait(lock);
            continue;
        }
        if (stream->pending.empty()) break;
        std::function<int()> next = std::move(stream->pending.front());
        stream->pending.pop_front();
        stream->is_running = true;
        lock.unlock();
        const int error = next();
        lock.lock();
        if (driver.streams.find(stream)) stream->is_running = false;
        if (!current->fault) current->fault = error;
        driver.has_run.notify_all();
    }
    return current->fault;
}

// Runs the pending work in those streams of this context that `is_meant` selects.
template <class F>
int finish(std::unique_lock<std::mutex>& lock, F&& is_meant) {
    std::vector<Stream*> meant;
    for (auto& [_, stream] : driver.streams.all)
        if (stream->context == current && is_meant(*stream)) meant.push_back(stream.get());
    for (Stream* stream : meant)
        if (int error = run(stream, lock, [] { return false; })) return error;
    return current->fault;
}

// Returns the fault that a device would detect: an address outside all allocations, or one that is not
// aligned.
inline int fault_of(const Launch& launch) {
    int fault = SUCCESS;
    launch.each_address([&](const void* at, unsigned bytes) {
        if (!at || fault) return;
        if ((Address)at % bytes) fault = MISALIGNED_ADDRESS;
        if (!driver.holds((Address)at, 0)) fault = ILLEGAL_ADDRESS;
    });
    return fault;
}

inline int copied(void* to, const void* from, size_t bytes) {
    memcpy(to, from, bytes);
    return SUCCESS;
}

} // namespace fake
