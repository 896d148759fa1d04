// A CUDA driver for machines that have none: device memory is memory, a stream is a list of what is yet to be done, and
// the kernels are the project's own, compiled as C++. It does nothing before a stream is synchronised, and refuses what
// a driver refuses. What `fake_` begins is for tests, and concerns the calling thread alone.

#include "image.h"
#include "launch.h"

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

using namespace fake;

namespace {

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
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    MISALIGNED_ADDRESS = 716,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_IMPLICIT = 906,
};

const std::map<int, const char*> NAMES = {
    {SUCCESS, "CUDA_SUCCESS"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
    {100, "CUDA_ERROR_NO_DEVICE"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
    {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
    {INVALID_PTX, "CUDA_ERROR_INVALID_PTX"},
    {UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
    {NOT_READY, "CUDA_ERROR_NOT_READY"},
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
    int fault = SUCCESS; // what a kernel has done wrong; nothing runs afterwards
};
struct Module {
    Context* context;
    Image image;
};
struct Function {
    Context* context;
    Module* module;
    const Kernel* kernel;
    bool is_loaded; // on the device, which an older driver does with the module
};
struct Stream {
    Context* context;
    bool is_blocking;
    enum { NOT, YES, INVALIDATED } capture = NOT;
    int mode = 0;
    std::thread::id begun{};
    Work pending{}, captured{};

    // Whether it forbids this thread what `refuse_while_capturing` lists.
    bool forbids() const {
        static constexpr int GLOBAL = 0, THREAD_LOCAL = 1;
        if (capture != YES) return false;
        return mode == GLOBAL || (mode == THREAD_LOCAL && begun == std::this_thread::get_id());
    }
};
struct Graph {
    Work work;
};

// What a handle of one kind may be; anything else is refused instead of followed.
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

// Built as a driver of CUDA 11, some functions are missing.
#ifdef KVSCATTER_OLD_DRIVER
constexpr bool IS_LAZY = false;
#else
constexpr bool IS_LAZY = true;
#endif

struct Driver {
    std::mutex mutex;
    bool is_initialised = false;
    unsigned long long contexts_made = 0;
    Handles<Context> contexts;
    std::unique_ptr<Context> destroyed; // where the next context will lie
    Handles<Module> modules;
    Handles<Function> functions;
    Handles<Stream> streams;
    Handles<Graph> graphs, executables;
    std::map<Address, size_t> memory;
    std::map<Context*, Stream*> default_streams;
    Context* primary = nullptr;

    bool holds(Address at, size_t bytes) const {
        auto after = memory.upper_bound(at);
        if (after == memory.begin()) return false;
        auto found = std::prev(after);
        return at - found->first <= found->second && bytes <= found->second - (at - found->first);
    }
};

// Never destroyed: threads of tests may still run when a program ends.
Driver& driver = *new Driver;

thread_local Context* current = nullptr;
thread_local std::map<std::string, unsigned> calls;
thread_local std::string failing;
thread_local int failure = SUCCESS;
thread_local int capability = 90;
thread_local double newest_ptx = 9.0;

// What every function begins with.
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

// Memory, modules and waiting: refused while this thread captures, or any in the global mode, and that is then spoilt.
int refuse_while_capturing() {
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

// 0 and 1 are the default stream, which may not be used while a stream that waits for it captures.
int find_stream(void* handle, Stream*& found) {
    if ((size_t)handle > 1) {
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

int enqueue(void* handle, std::function<int()> work) {
    Stream* stream;
    if (int error = find_stream(handle, stream)) return error;
    if (stream->capture == Stream::INVALIDATED) return CAPTURE_INVALIDATED;
    (stream->capture == Stream::YES ? stream->captured : stream->pending).push_back(std::move(work));
    return SUCCESS;
}

// Two threads may wait for two streams at once, so nothing is held while kernels run.
int run(Work work, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    int error = SUCCESS;
    for (auto& each : work)
        if (!error) error = each();
    lock.lock();
    if (!current->fault) current->fault = error;
    return current->fault;
}

// Runs what is pending in this context's streams.
template <class F>
int finish(std::unique_lock<std::mutex>& lock, F&& is_meant) {
    Work all;
    for (auto& [_, stream] : driver.streams.all)
        if (stream->context == current && is_meant(*stream)) {
            std::move(stream->pending.begin(), stream->pending.end(), std::back_inserter(all));
            stream->pending.clear();
        }
    return run(std::move(all), lock);
}

// What a device finds out by itself: an address that is nobody's, or not aligned.
int fault_of(const Launch& launch) {
    int fault = SUCCESS;
    launch.each_address([&](const void* at, unsigned bytes) {
        if (!at || fault) return;
        if ((Address)at % bytes) fault = MISALIGNED_ADDRESS;
        if (!driver.holds((Address)at, 0)) fault = ILLEGAL_ADDRESS;
    });
    return fault;
}

int copied(void* to, const void* from, size_t bytes) {
    memcpy(to, from, bytes);
    return SUCCESS;
}

} // namespace

extern "C" {

// ---- For tests. ----

// The named function fails with this error in the calling thread until another is named.
void fake_fail(const char* function, int error) {
    failing = function;
    failure = error;
}

// How often the calling thread has called it.
unsigned fake_calls(const char* function) { return calls[function]; }

unsigned fake_all_calls() {
    unsigned all = 0;
    for (auto& [_, count] : calls) all += count;
    return all;
}

// Words that kernels have exchanged, while the calling thread waited for them.
unsigned fake_exchanges() { return exchanges; }

// What the device is for the calling thread: sm_90, with PTX up to 9.0, at first.
void fake_device(int new_capability, double new_ptx) {
    capability = new_capability;
    newest_ptx = new_ptx;
}

// ---- The driver and its device. ----

int cuInit(unsigned flags) {
    ++calls[__func__];
    if (failing == __func__) return failure;
    std::lock_guard<std::mutex> lock(driver.mutex);
    driver.is_initialised = true;
    return flags ? INVALID_VALUE : SUCCESS;
}

int cuDriverGetVersion(int* version) {
    ++calls[__func__];
    *version = 13000;
    return failing == __func__ ? failure : SUCCESS;
}

int cuGetErrorName(int error, const char** name) {
    auto found = NAMES.find(error);
    *name = found == NAMES.end() ? nullptr : found->second;
    return *name ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorString(int error, const char** text) { return cuGetErrorName(error, text); }

int cuDeviceGetCount(int* count) {
    ENTER(false);
    *count = 1;
    return SUCCESS;
}

int cuDeviceGet(int* device, int ordinal) {
    ENTER(false);
    *device = 0;
    return ordinal ? INVALID_DEVICE : SUCCESS;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
    ENTER(false);
    if (device) return INVALID_DEVICE;
    static constexpr int MULTIPROCESSORS = 16, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76;
    switch (attribute) {
    case MULTIPROCESSORS: *value = 132; return SUCCESS;
    case CAPABILITY_MAJOR: *value = capability / 10; return SUCCESS;
    case CAPABILITY_MINOR: *value = capability % 10; return SUCCESS;
    default: return INVALID_VALUE;
    }
}

// ---- Contexts. ----

int cuCtxGetCurrent(Context** context) {
    ENTER(false);
    *context = current;
    return SUCCESS;
}

int cuCtxSetCurrent(Context* context) {
    ENTER(false);
    if (context && !driver.contexts.find(context)) return INVALID_CONTEXT;
    current = context;
    return SUCCESS;
}

int cuCtxGetDevice(int* device) {
    ENTER();
    *device = 0;
    return SUCCESS;
}

#ifndef KVSCATTER_OLD_DRIVER
int cuCtxGetId(Context* context, unsigned long long* number) {
    ENTER(false);
    Context* found = driver.contexts.find(context ? context : current);
    if (!found) return INVALID_CONTEXT;
    *number = found->number;
    return SUCCESS;
}
#endif

int cuCtxCreate_v2(Context** context, unsigned, int device) {
    ENTER(false);
    if (device) return INVALID_DEVICE;
    if (!driver.destroyed) driver.destroyed = std::make_unique<Context>();
    *driver.destroyed = {++driver.contexts_made, SUCCESS};
    *context = current = driver.destroyed.get();
    driver.contexts.all[current] = std::move(driver.destroyed);
    return SUCCESS;
}

// With everything that was made in it. The next context has the same address.
int cuCtxDestroy_v2(Context* context) {
    ENTER(false);
    if (!driver.contexts.find(context)) return INVALID_CONTEXT;
    auto forget = [&](auto& handles) {
        for (auto each = handles.all.begin(); each != handles.all.end();)
            each = each->second->context == context ? handles.all.erase(each) : std::next(each);
    };
    forget(driver.functions);
    forget(driver.modules);
    forget(driver.streams);
    driver.default_streams.erase(context);
    driver.destroyed = std::move(driver.contexts.all[context]);
    driver.contexts.remove(context);
    if (current == context) current = nullptr;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(Context** context, int device) {
    ENTER(false);
    if (device) return INVALID_DEVICE;
    if (!driver.primary) driver.primary = driver.contexts.add({++driver.contexts_made, SUCCESS});
    *context = driver.primary;
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER(false);
    return device ? INVALID_DEVICE : SUCCESS;
}

int cuCtxSynchronize() {
    ENTER();
    REFUSE_WHILE_CAPTURING();
    return finish(entry.lock, [](const Stream&) { return true; });
}

// ---- Modules. ----

int cuModuleLoadData(Module** module, const void* bytes) {
    ENTER();
    REFUSE_WHILE_CAPTURING();
    Image image = read_image(bytes, capability, newest_ptx);
    if (image.error) return image.error;
    *module = driver.modules.add({current, std::move(image)});
    return SUCCESS;
}

int cuModuleUnload(Module* module) {
    ENTER();
    REFUSE_WHILE_CAPTURING();
    for (auto each = driver.functions.all.begin(); each != driver.functions.all.end();)
        each = each->second->module == module ? driver.functions.all.erase(each) : std::next(each);
    return driver.modules.remove(module) ? SUCCESS : INVALID_HANDLE;
}

int cuModuleGetFunction(Function** function, Module* module, const char* name) {
    ENTER();
    if (!driver.modules.find(module)) return INVALID_HANDLE;
    const Kernel* kernel = kernel_named(name);
    if (!kernel || !module->image.has(name)) return NOT_FOUND;
    for (auto& [_, known] : driver.functions.all)
        if (known->module == module && known->kernel == kernel) {
            *function = known.get();
            return SUCCESS;
        }
    *function = driver.functions.add({module->context, module, kernel, !IS_LAZY});
    return SUCCESS;
}

#ifndef KVSCATTER_OLD_DRIVER
int cuFuncLoad(Function* function) {
    ENTER();
    REFUSE_WHILE_CAPTURING();
    if (!driver.functions.find(function)) return INVALID_HANDLE;
    function->is_loaded = true;
    return SUCCESS;
}
#endif

// ---- Memory. ----

int cuMemAlloc_v2(Address* at, size_t bytes) {
    ENTER();
    REFUSE_WHILE_CAPTURING();
    if (!bytes) return INVALID_VALUE;
    static constexpr size_t ALIGNMENT = 256;
    void* made;
    if (posix_memalign(&made, ALIGNMENT, bytes)) return OUT_OF_MEMORY;
    memset(made, 0xCD, bytes);
    *at = (Address)made;
    driver.memory[*at] = bytes;
    return SUCCESS;
}

int cuMemFree_v2(Address at) {
    ENTER();
    REFUSE_WHILE_CAPTURING();
    if (!at) return SUCCESS;
    if (!driver.memory.erase(at)) return INVALID_VALUE;
    free((void*)at);
    return SUCCESS;
}

// Copies that return when they are done wait for the default stream, which waits for all but those that do not block.
static int finish_blocking(std::unique_lock<std::mutex>& lock) {
    return finish(lock, [](const Stream& stream) { return stream.is_blocking; });
}

int cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) {
    ENTER();
    REFUSE_WHILE_CAPTURING();
    if (int error = finish_blocking(entry.lock)) return error;
    return driver.holds(to, bytes) ? copied((void*)to, from, bytes) : INVALID_VALUE;
}

int cuMemcpyDtoH_v2(void* to, Address from, size_t bytes) {
    ENTER();
    REFUSE_WHILE_CAPTURING();
    if (int error = finish_blocking(entry.lock)) return error;
    return driver.holds(from, bytes) ? copied(to, (const void*)from, bytes) : INVALID_VALUE;
}

int cuMemsetD8Async(Address at, unsigned char value, size_t bytes, void* stream) {
    ENTER();
    if (!driver.holds(at, bytes)) return INVALID_VALUE;
    return enqueue(stream, [=] {
        memset((void*)at, value, bytes);
        return SUCCESS;
    });
}

// ---- Streams and launches. ----

int cuStreamCreate(Stream** stream, unsigned flags) {
    ENTER();
    static constexpr unsigned NON_BLOCKING = 1;
    if (flags > NON_BLOCKING) return INVALID_VALUE;
    *stream = driver.streams.add({current, flags != NON_BLOCKING});
    return SUCCESS;
}

int cuStreamDestroy_v2(Stream* stream) {
    ENTER();
    return driver.streams.remove(stream) ? SUCCESS : INVALID_HANDLE;
}

int cuStreamSynchronize(void* handle) {
    ENTER();
    Stream* stream;
    if (int error = find_stream(handle, stream)) return error;
    if (stream->capture != Stream::NOT) {
        stream->capture = Stream::INVALIDATED;
        return CAPTURE_UNSUPPORTED;
    }
    Work pending;
    pending.swap(stream->pending);
    return run(std::move(pending), entry.lock);
}

int cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** arguments,
                   void** extra) {
    ENTER();
    static constexpr unsigned MOST_THREADS = 256; // __launch_bounds__ of every kernel
    static constexpr unsigned MOST_Y = 65535, MOST_X = 0x7FFFFFFF;
    Function* found = driver.functions.find(function);
    if (!found || found->context != current) return INVALID_HANDLE;
    if (!grid_x || !grid_y || grid_z != 1 || grid_x > MOST_X || grid_y > MOST_Y) return INVALID_VALUE;
    const unsigned long long threads = (unsigned long long)block_x * block_y * block_z;
    if (!threads || block_x > MOST_THREADS || block_y > MOST_THREADS || block_z != 1 || threads > MOST_THREADS)
        return INVALID_VALUE;
    if (shared_bytes || !arguments || extra) return INVALID_VALUE;
    if (!found->is_loaded) {
        REFUSE_WHILE_CAPTURING(); // Loading it now allocates.
        found->is_loaded = true;
    }
    auto launch = std::make_shared<Launch>(found->kernel, Dim3{grid_x, grid_y, 1}, Dim3{block_x, block_y, 1}, arguments);
    return enqueue(stream, [launch]() -> int {
        {
            std::lock_guard<std::mutex> lock(driver.mutex);
            if (int fault = fault_of(*launch)) return fault;
        }
        launch->run();
        return SUCCESS;
    });
}

// ---- Graphs. ----

int cuStreamIsCapturing(void* handle, int* status) {
    ENTER();
    Stream* stream;
    if (int error = find_stream(handle, stream)) return error;
    *status = stream->capture;
    return SUCCESS;
}

int cuStreamBeginCapture_v2(void* handle, int mode) {
    ENTER();
    if ((size_t)handle <= 1) return CAPTURE_UNSUPPORTED;
    Stream* stream;
    if (int error = find_stream(handle, stream)) return error;
    if (stream->capture != Stream::NOT) return INVALID_VALUE;
    stream->capture = Stream::YES;
    stream->mode = mode;
    stream->begun = std::this_thread::get_id();
    return SUCCESS;
}

int cuStreamEndCapture(void* handle, Graph** graph) {
    ENTER();
    Stream* stream;
    *graph = nullptr;
    if (int error = find_stream(handle, stream)) return error;
    if (stream->capture == Stream::NOT) return ILLEGAL_STATE;
    const bool is_spoilt = stream->capture == Stream::INVALIDATED;
    stream->capture = Stream::NOT;
    Work captured;
    captured.swap(stream->captured);
    if (is_spoilt) return CAPTURE_INVALIDATED;
    *graph = driver.graphs.add({std::move(captured)});
    return SUCCESS;
}

int cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long) {
    ENTER();
    if (!driver.graphs.find(graph)) return INVALID_VALUE;
    *executable = driver.executables.add({graph->work});
    return SUCCESS;
}

int cuGraphLaunch(Graph* executable, void* stream) {
    ENTER();
    if (!driver.executables.find(executable)) return INVALID_VALUE;
    for (auto& each : executable->work)
        if (int error = enqueue(stream, each)) return error;
    return SUCCESS;
}

int cuGraphDestroy(Graph* graph) {
    ENTER();
    return driver.graphs.remove(graph) ? SUCCESS : INVALID_VALUE;
}

int cuGraphExecDestroy(Graph* executable) {
    ENTER();
    return driver.executables.remove(executable) ? SUCCESS : INVALID_VALUE;
}
}
