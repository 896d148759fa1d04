// The simulated driver of kvscatter-cuda's tests, with the functions that cudarc calls for candle. It also
// has the functions of cuBLAS and cuRAND that are needed to create a device. candle's own kernels do not
// exist here, so none may be launched.

#include "../../../kvscatter-cuda/tests/fake/driver.cpp"

#include <atomic>

// A point in the order of a stream.
struct Event {
    Stream* stream = nullptr;
    std::shared_ptr<std::atomic<bool>> is_reached;
};
static Handles<Event>& events = *new Handles<Event>;

extern "C" {

// ---- Memory in the order of a stream. ----

int cuMemAllocAsync(Address* at, size_t bytes, void* stream) {
    {
        ENTER();
        Stream* found;
        if (int error = find_stream(stream, found)) return error;
    }
    return cuMemAlloc_v2(at, bytes);
}

int cuMemFreeAsync(Address at, void* stream) {
    ENTER();
    if (!driver.holds(at, 0)) return INVALID_VALUE;
    return enqueue(stream, [=] { return cuMemFree_v2(at); });
}

// These tests do not lock host memory, so it is copied before this returns.
int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* stream) {
    ENTER();
    if (!driver.holds(to, bytes)) return INVALID_VALUE;
    std::string staged((const char*)from, bytes);
    return enqueue(stream, [=] { return copied((void*)to, staged.data(), bytes); });
}

int cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* stream) {
    if (int error = cuStreamSynchronize(stream)) return error;
    ENTER();
    return driver.holds(from, bytes) ? copied(to, (const void*)from, bytes) : INVALID_VALUE;
}

int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* stream) {
    ENTER();
    if (!driver.holds(to, bytes) || !driver.holds(from, bytes)) return INVALID_VALUE;
    return enqueue(stream, [=] { return copied((void*)to, (const void*)from, bytes); });
}

// ---- Events. ----

int cuEventCreate(Event** event, unsigned) {
    ENTER();
    *event = events.add({});
    return SUCCESS;
}

int cuEventDestroy_v2(Event* event) {
    ENTER();
    return events.remove(event) ? SUCCESS : INVALID_HANDLE;
}

int cuEventRecord(Event* event, void* handle) {
    ENTER();
    Stream* stream;
    if (!events.find(event)) return INVALID_HANDLE;
    if (int error = find_stream(handle, stream)) return error;
    auto is_reached = std::make_shared<std::atomic<bool>>(false);
    *event = {stream, is_reached};
    return enqueue(handle, [=] {
        *is_reached = true;
        return SUCCESS;
    });
}

// Runs the work of the other stream up to the event.
static int reach(const Event& event) {
    std::unique_lock<std::mutex> lock(driver.mutex);
    if (int error = run(event.stream, lock, [&] { return event.is_reached->load(); })) return error;
    return *event.is_reached ? SUCCESS : ILLEGAL_STATE;
}

int cuStreamWaitEvent(void* stream, Event* event, unsigned) {
    ENTER();
    if (!events.find(event)) return INVALID_HANDLE;
    if (!event->is_reached) return SUCCESS; // It has never been recorded.
    const Event meant = *event;
    return enqueue(stream, [=] { return reach(meant); });
}

int cuStreamIsCapturing(void* handle, int* status) {
    ENTER();
    Stream* stream;
    if (int error = find_stream(handle, stream)) return error;
    *status = stream->capture;
    return SUCCESS;
}

// ---- Libraries for which a device has handles. ----

static int some_library;
int cublasCreate_v2(void** handle) { return *handle = &some_library, SUCCESS; }
int cublasSetStream_v2(void*, void*) { return SUCCESS; }
int cublasDestroy_v2(void*) { return SUCCESS; }
int curandCreateGenerator(void** generator, int) { return *generator = &some_library, SUCCESS; }
int curandSetPseudoRandomGeneratorSeed(void*, unsigned long long) { return SUCCESS; }
int curandSetStream(void*, void*) { return SUCCESS; }
int curandDestroyGenerator(void*) { return SUCCESS; }

// Functions that candle's code links but these tests never call.
#define REFUSED(FUNCTION) \
    int FUNCTION(...) { return INVALID_VALUE; }
REFUSED(cuMemcpyPeerAsync)
REFUSED(cuModuleLoad)
REFUSED(cublasGemmStridedBatchedEx)
REFUSED(cublasDgemmStridedBatched)
REFUSED(curandGenerateUniform)
REFUSED(curandGenerateUniformDouble)
}
