// A simulated CUDA driver for machines without a GPU. Device memory is host memory, a stream is a list of
// pending work, and the kernels are the project's own, compiled as C++. Nothing runs before a stream is
// synchronised. The driver rejects what a real driver rejects. Functions whose names begin with `fake_` are
// for tests, and affect only the calling thread.

#include "state.h"

using namespace fake;

extern "C" {

// ---- For tests. ----

// Makes the named function fail with this error in the calling thread, until another function is named.
void fake_fail(const char* function, int error) {
    failing = function;
    failure = error;
}

// Returns the number of calls of a function by the calling thread.
unsigned fake_calls(const char* function) { return calls[function]; }

unsigned fake_all_calls() {
    unsigned all = 0;
    for (auto& [_, count] : calls) all += count;
    return all;
}

// Returns the number of words that kernels have exchanged while the calling thread waited for them.
unsigned fake_exchanges() { return exchanges; }

// Returns the number of threads in a block of the last launch.
unsigned fake_threads() { return last_threads; }

// Returns the name of the kernel of the last launch.
const char* fake_kernel() { return last_kernel; }

// Sets the device and the newest PTX for the calling thread. The defaults are sm_90 and PTX 9.0.
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

int cuDeviceGet(int* device, int ordinal) {
    ENTER(false);
    *device = 0;
    return ordinal ? INVALID_DEVICE : SUCCESS;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
    ENTER(false);
    if (device) return INVALID_DEVICE;
    static constexpr int MULTIPROCESSORS = 16, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, POOLS = 115;
    switch (attribute) {
    case MULTIPROCESSORS: *value = 132; return SUCCESS;
    case CAPABILITY_MAJOR: *value = capability / 10; return SUCCESS;
    case CAPABILITY_MINOR: *value = capability % 10; return SUCCESS;
    case POOLS: *value = 1; return SUCCESS;
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

// Destroys a context with everything that was made in it. The next context has the same address.
static void destroy(Context* context) {
    auto forget = [&](auto& handles) {
        for (auto each = handles.all.begin(); each != handles.all.end();)
            each = each->second->context == context ? handles.all.erase(each) : std::next(each);
    };
    forget(driver.functions);
    forget(driver.modules);
    forget(driver.streams);
    driver.default_streams.erase(context);
    for (auto each = driver.thread_streams.begin(); each != driver.thread_streams.end();)
        each = each->first.first == context ? driver.thread_streams.erase(each) : std::next(each);
    driver.destroyed = std::move(driver.contexts.all[context]);
    driver.contexts.remove(context);
    if (current == context) current = nullptr;
}

int cuCtxDestroy_v2(Context* context) {
    ENTER(false);
    if (!driver.contexts.find(context)) return INVALID_CONTEXT;
    destroy(context);
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(Context** context, int device) {
    ENTER(false);
    if (device) return INVALID_DEVICE;
    if (!driver.primary) driver.primary = driver.contexts.add({++driver.contexts_made, SUCCESS});
    ++driver.primary_users;
    *context = driver.primary;
    return SUCCESS;
}

// The last release destroys the context.
int cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER(false);
    if (device) return INVALID_DEVICE;
    if (!driver.primary_users) return INVALID_CONTEXT;
    if (!--driver.primary_users) {
        destroy(driver.primary);
        driver.primary = nullptr;
    }
    return SUCCESS;
}

// Waits for every stream of the context. So none of them may be captured, in any mode and by any thread. The
// error invalidates these captures.
int cuCtxSynchronize() {
    ENTER();
    bool is_capturing = false;
    for (auto& [_, stream] : driver.streams.all)
        if (stream->context == current && stream->capture == Stream::YES) {
            stream->capture = Stream::INVALIDATED;
            is_capturing = true;
        }
    if (is_capturing) return CAPTURE_UNSUPPORTED;
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

// Waits as a synchronous copy does. It waits for the default stream, which waits for all streams except
// non-blocking ones.
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

// Runs the stream's pending work before it destroys the stream.
int cuStreamDestroy_v2(Stream* stream) {
    ENTER();
    if (!driver.streams.find(stream)) return INVALID_HANDLE;
    run(stream, entry.lock, [] { return false; });
    driver.streams.remove(stream);
    return SUCCESS;
}

int cuStreamSynchronize(void* handle) {
    ENTER();
    Stream* stream;
    if (int error = find_stream(handle, stream)) return error;
    if (stream->capture != Stream::NOT) {
        stream->capture = Stream::INVALIDATED;
        return CAPTURE_UNSUPPORTED;
    }
    return run(stream, entry.lock, [] { return false; });
}

int cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** arguments,
                   void** extra) {
    ENTER();
    static constexpr unsigned MOST_Y = 65535, MOST_X = 0x7FFFFFFF;
    Function* found = driver.functions.find(function);
    if (!found || found->context != current) return INVALID_HANDLE;
    if (!grid_x || !grid_y || grid_z != 1 || grid_x > MOST_X || grid_y > MOST_Y) return INVALID_VALUE;
    const unsigned long long threads = (unsigned long long)block_x * block_y * block_z;
    if (!threads || block_x > THREADS || block_y > THREADS || block_z != 1 || threads > THREADS)
        return INVALID_VALUE;
    if (shared_bytes || !arguments || extra) return INVALID_VALUE;
    last_threads = (unsigned)threads;
    last_kernel = found->kernel->name;
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
