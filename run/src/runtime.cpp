// The ExecuTorch runtime for lostwax_run/runtime.py, which loads this library with ctypes: files,
// sessions with their memory, methods, calls. Values go in and out as rows of `Value`.
//
// No exception and no abort of the runtime leaves a function of this file: a call that fails says so
// by its result, and `run_problem` says why. Must not know Python, nor check what Python has checked.

#include <executorch/devtools/etdump/etdump_flatcc.h>
#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/flat_tensor/flat_tensor_data_map.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/extension/threadpool/threadpool_guard.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>
#include <executorch/runtime/core/exec_aten/util/dim_order_util.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/platform.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace et = executorch::runtime;
namespace ext = executorch::extension;
using et::etensor::TensorImpl;

namespace executorch::extension::threadpool {
// Of a header that the wheel of ExecuTorch has not; only these two are called.
class ThreadPool {
 public:
  size_t get_thread_count() const;
  bool _unsafe_reset_threadpool(uint32_t count);
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool

namespace {

// ------------------------------------------------------------------------------ what went wrong

// Thrown where the runtime would end the process: a check of its own has failed.
struct Stopped {};

thread_local std::string problem;
thread_local int depth = 0;
std::atomic<int> methods_alive{0};

void note(const char* text, size_t length) {
  if (!problem.empty()) problem += '\n';
  problem.append(text, length);
}

void keep_message(et_timestamp_t, et_pal_log_level_t level, const char*, const char*, size_t,
                  const char* text, size_t length) {
  if (level == kError || level == kFatal) note(text, length);
}

// Only in a thread that has called this file is there somebody to catch it.
void stop() {
  if (depth > 0) throw Stopped();
  std::fprintf(stderr, "lostwax_run: the runtime stops: %s\n", problem.c_str());
  std::abort();
}

enum Outcome { kDone = 0, kFailed = 1, kStopped = 2 };

template <class F>
int guard(F&& work) noexcept {
  problem.clear();
  ++depth;
  int outcome = kFailed;
  try {
    et::Error error = work();
    outcome = error == et::Error::Ok ? kDone : kFailed;
    if (outcome && problem.empty()) note(et::to_string(error), std::strlen(et::to_string(error)));
  } catch (const Stopped&) {
    outcome = kStopped;
  } catch (const std::exception& error) {
    try {
      note(error.what(), std::strlen(error.what()));
    } catch (...) {
    }
  } catch (...) {
    outcome = kStopped;
  }
  --depth;
  return outcome;
}

#define RUN_TRY(error)                                           \
  do {                                                           \
    if (auto each = (error); each != et::Error::Ok) return each; \
  } while (0)

// ---------------------------------------------------------------------------- files and memory

struct File {
  File(const void* data, size_t size, const void* weights, size_t weights_size)
      : loader(data, size), weights_loader(weights, weights_size), has_weights(weights != nullptr) {}
  ext::BufferDataLoader loader, weights_loader;
  bool has_weights;
  std::optional<et::Program> program;
  std::optional<ext::FlatTensorDataMap> weights;
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

struct Arena {
  std::unique_ptr<void, Free> memory;
  et::Span<uint8_t> span;

  bool allocate(size_t size) {  // zeros, which the system gives page by page when they are used
    constexpr size_t kAlignment = 64;
    if (size > SIZE_MAX - kAlignment) return false;
    memory.reset(std::calloc(1, size + kAlignment));
    auto at = reinterpret_cast<uintptr_t>(memory.get());
    span = {reinterpret_cast<uint8_t*>((at + kAlignment - 1) & ~(kAlignment - 1)), size};
    return memory != nullptr;
  }
};

// Notes times; or values, and then no times of delegates: values would distort them, and ExecuTorch's
// Inspector takes the events of a delegate for values that are missing.
struct Tracer : executorch::etdump::ETDumpGen {
  bool has_values = false;

  et::EventTracerEntry start_profiling_delegate(const char* name, int32_t id) override {
    return has_values ? et::EventTracerEntry{} : ETDumpGen::start_profiling_delegate(name, id);
  }
  void end_profiling_delegate(et::EventTracerEntry entry, const void* more, size_t size) override {
    if (!has_values) ETDumpGen::end_profiling_delegate(entry, more, size);
  }
  void log_profiling_delegate(const char* name, int32_t id, et_timestamp_t start,
                              et_timestamp_t end, const void* more, size_t size) override {
    if (!has_values) ETDumpGen::log_profiling_delegate(name, id, start, end, more, size);
  }
};

// The memory of one use of a file. The first arena of a method is its own, the others, in which
// state lies, are those of all methods.
struct Session {
  explicit Session(File& file, bool alone) : file(file), alone(alone) {}
  File& file;
  bool alone;  // calls stay in their thread
  std::vector<Arena> shared;
  std::optional<Tracer> tracer;  // of what its methods do
  Arena values;                  // what they computed, if that is traced

  et::Error trace(size_t room) {
    tracer.emplace();
    if (room == 0) return et::Error::Ok;
    if (!values.allocate(room)) return et::Error::MemoryAllocationFailed;
    tracer->has_values = true;
    tracer->set_event_tracer_profiling_level(et::EventTracerProfilingLevel::kProfileMethodOnly);
    tracer->set_event_tracer_debug_level(et::EventTracerDebugLogLevel::kIntermediateOutputs);
    return tracer->set_debug_buffer(values.span).error();
  }

  et::Error allocate_shared() {
    std::vector<size_t> sizes;
    for (size_t i = 0; i < file.program->num_methods(); ++i) {
      auto name = file.program->get_method_name(i);
      RUN_TRY(name.error());
      auto meta = file.program->method_meta(*name);
      RUN_TRY(meta.error());
      sizes.resize(std::max(sizes.size(), meta->num_memory_planned_buffers()));
      for (size_t k = 1; k < meta->num_memory_planned_buffers(); ++k) {
        auto size = meta->memory_planned_buffer_size(k);
        RUN_TRY(size.error());
        sizes[k] = std::max(sizes[k], static_cast<size_t>(*size));
      }
    }
    shared.resize(sizes.size());
    for (size_t k = 1; k < sizes.size(); ++k) {
      if (!shared[k].allocate(sizes[k])) return et::Error::MemoryAllocationFailed;
    }
    return et::Error::Ok;
  }
};

struct Method {
  explicit Method(bool alone) : alone(alone) { ++methods_alive; }
  ~Method() {
    method.reset();
    --methods_alive;
  }
  bool alone;
  Arena arena;
  std::vector<et::Span<uint8_t>> spans;
  ext::MallocMemoryAllocator allocator, temporary;
  std::optional<et::HierarchicalAllocator> planned;
  std::optional<et::MemoryManager> manager;
  std::optional<et::Method> method;  // last: it is destroyed before what it lies in
};

// While it lives, what this thread computes stays in it.
struct InThread {
  explicit InThread(bool alone) { Guard::set_enabled(before || alone); }
  ~InThread() { Guard::set_enabled(before); }
  using Guard = ext::threadpool::NoThreadPoolGuard;
  bool before = Guard::is_enabled();
};

et::Error load_method(Session& session, const char* name, Method& made) {
  et::Program& program = *session.file.program;
  auto meta = program.method_meta(name);
  RUN_TRY(meta.error());
  for (size_t k = 0; k < meta->num_memory_planned_buffers(); ++k) {
    auto device = meta->memory_planned_buffer_device(k);
    RUN_TRY(device.error());
    if (device->type() != et::etensor::DeviceType::CPU) return et::Error::NotSupported;
    auto size = meta->memory_planned_buffer_size(k);
    RUN_TRY(size.error());
    if (k == 0 && !made.arena.allocate(*size)) return et::Error::MemoryAllocationFailed;
    made.spans.push_back(k == 0 ? made.arena.span : session.shared[k].span);
  }
  made.planned.emplace(et::Span<et::Span<uint8_t>>(made.spans.data(), made.spans.size()));
  made.manager.emplace(&made.allocator, &*made.planned, &made.temporary);
  // Each method has a workspace of its own: sessions do not wait for each other.
  et::BackendOptions<1> options;
  RUN_TRY(options.set_option("workspace_sharing_mode", 1));
  et::LoadBackendOptionsMap backends;
  RUN_TRY(backends.set_options("XnnpackBackend", options.view()));
  const et::NamedDataMap* weights = session.file.weights ? &*session.file.weights : nullptr;
  InThread here(session.alone);
  auto* tracer = session.tracer ? &*session.tracer : nullptr;
  auto loaded = program.load_method(name, &*made.manager, tracer, weights, &backends);
  RUN_TRY(loaded.error());
  made.method.emplace(std::move(*loaded));
  return et::Error::Ok;
}

// -------------------------------------------------------------------------------------- values

constexpr int kMostDims = 16;
enum Kind { kNone, kTensor, kInt, kFloat, kBool, kText, kOther };

// Where numpy's protocol for other libraries, `__array_struct__`, has the data of an array.
struct ArrayInterface {
  int two, dims;
  char kind;
  int item_size, flags;
  intptr_t *shape, *strides;
  void* data;
};

struct Value {  // as in runtime.py
  int32_t kind, dtype, dims;
  int32_t sizes[kMostDims];
  uint8_t order[kMostDims];
  int64_t number;
  double real;
  ArrayInterface* array;  // of an input
  void* data;             // of a result
  uint64_t bytes;
};

et::Error set_input(et::Method& method, size_t at, Value& value) {
  switch (value.kind) {
    case kTensor: {
      int32_t strides[kMostDims];
      RUN_TRY(et::dim_order_to_stride(value.sizes, value.order, value.dims, strides));
      TensorImpl tensor(static_cast<et::etensor::ScalarType>(value.dtype), value.dims, value.sizes,
                        value.array->data, value.order, strides);
      return method.set_input(et::EValue(et::etensor::Tensor(&tensor)), at);
    }
    case kInt: return method.set_input(et::EValue(value.number), at);
    case kFloat: return method.set_input(et::EValue(value.real), at);
    case kBool: return method.set_input(et::EValue(value.number != 0), at);
    default: return method.set_input(et::EValue(), at);
  }
}

void get_value(const et::EValue& from, Value& to) {
  to.kind = kOther;
  if (from.isNone()) to.kind = kNone;
  if (from.isInt()) to.kind = kInt, to.number = from.toInt();
  if (from.isDouble()) to.kind = kFloat, to.real = from.toDouble();
  if (from.isBool()) to.kind = kBool, to.number = from.toBool();
  if (from.isString()) {
    auto text = from.toString();
    to.kind = kText, to.data = const_cast<char*>(text.data()), to.bytes = text.size();
  }
  if (!from.isTensor()) return;
  const auto& tensor = from.toTensor();
  to.kind = kTensor;
  to.dtype = static_cast<int32_t>(tensor.scalar_type());
  to.dims = static_cast<int32_t>(tensor.dim());
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), to.sizes);
  std::copy(tensor.dim_order().begin(), tensor.dim_order().end(), to.order);
  to.data = tensor.mutable_data_ptr();
  to.bytes = tensor.nbytes();
  if (to.data == nullptr && to.bytes > 0) to.kind = kOther;
}

}  // namespace

// ------------------------------------------------------------------------------------- the face

#pragma GCC visibility push(default)
extern "C" {

const char* run_problem() { return problem.c_str(); }

void run_start() {
  et::pal_init();
  et::register_pal(et::PalImpl::create(nullptr, stop, nullptr, nullptr, keep_message, nullptr,
                                       nullptr, __FILE__));
}

bool run_has_backend(const char* name) {
  auto* backend = et::get_backend_class(name);
  return backend != nullptr && backend->is_available();
}

bool run_has_kernel(const char* name) { return et::registry_has_op_function(name); }

size_t run_threads() { return ext::threadpool::get_threadpool()->get_thread_count(); }

// Methods hold the pool that they were loaded with: false while there are any.
bool run_set_threads(uint32_t count) {
  return methods_alive == 0 && ext::threadpool::get_threadpool()->_unsafe_reset_threadpool(count);
}

// The memory of a file stays the caller's, who keeps it until `run_close`.
int run_open(const void* data, size_t size, const void* weights, size_t weights_size, File** file) {
  return guard([&]() -> et::Error {
    auto made = std::make_unique<File>(data, size, weights, weights_size);
    auto program = et::Program::load(&made->loader, et::Program::Verification::InternalConsistency);
    RUN_TRY(program.error());
    made->program.emplace(std::move(*program));
    if (made->has_weights) {
      auto map = ext::FlatTensorDataMap::load(&made->weights_loader);
      RUN_TRY(map.error());
      made->weights.emplace(std::move(*map));
    }
    *file = made.release();
    return et::Error::Ok;
  });
}

void run_close(File* file) {
  guard([&] { return delete file, et::Error::Ok; });
}

// `traced`: its methods note how long what they do takes, or what they compute, in an ETDump; that
// needs `room` bytes.
int run_begin(File* file, bool alone, bool traced, size_t room, Session** session) {
  return guard([&]() -> et::Error {
    auto made = std::make_unique<Session>(*file, alone);
    RUN_TRY(made->allocate_shared());
    if (traced) RUN_TRY(made->trace(room));
    *session = made.release();
    return et::Error::Ok;
  });
}

void run_end(Session* session) {
  guard([&] { return delete session, et::Error::Ok; });
}

int run_load(Session* session, const char* name, Method** method) {
  return guard([&]() -> et::Error {
    auto made = std::make_unique<Method>(session->alone);
    RUN_TRY(load_method(*session, name, *made));
    *method = made.release();
    return et::Error::Ok;
  });
}

void run_unload(Method* method) {
  guard([&] { return delete method, et::Error::Ok; });
}

// Results lie in the memory of the session, and last until it is called again.
int run_call(Method* method, Value* inputs, size_t count, Value* results, size_t result_count) {
  return guard([&]() -> et::Error {
    InThread here(method->alone);
    et::Method& called = *method->method;
    for (size_t i = 0; i < count; ++i) RUN_TRY(set_input(called, i, inputs[i]));
    RUN_TRY(called.execute());
    for (size_t i = 0; i < result_count; ++i) get_value(called.get_output(i), results[i]);
    return et::Error::Ok;
  });
}

// The ETDump of a traced session, and the values that it speaks of. It ends there: methods that are
// called again write no more. The dump is the caller's, who gives it back with `run_free`.
int run_trace(Session* session, void** dump, size_t* size, const void** values, size_t* room) {
  return guard([&]() -> et::Error {
    auto found = session->tracer->get_etdump_data();
    *dump = found.buf, *size = found.size;
    *values = session->values.span.data(), *room = session->values.span.size();
    return et::Error::Ok;
  });
}

void run_free(void* dump) { std::free(dump); }

}  // extern "C"
#pragma GCC visibility pop
