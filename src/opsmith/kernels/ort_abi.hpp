// The part of ONNX Runtime's C interface that generated code uses. The interface is an append-only table of function
// pointers, so it is declared here by slot number instead of by ORT's own header: nothing of ORT is needed to build.
//
// Api      the table, as loaded by RegisterCustomOps; calls are made through typed slots.
// Run      one execution of one region: inputs in, outputs out, scratch memory, threads, and the first error.
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "base.hpp"
#include "platform.hpp"

struct OrtStatus;
struct OrtValue;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtAllocator;
struct OrtMemoryInfo;
struct OrtTensorTypeAndShapeInfo;
struct OrtShapeInferContext;

struct OrtApiBase {
  const void* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

// 26 pointer-sized members since API 18; the names are ORT's.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const void* api, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  int (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const void* api, const OrtKernelInfo*, void** kernel);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  size_t (*GetMayInplace)(int**, int**);
  void (*ReleaseMayInplace)(int*, int*);
  size_t (*GetAliasMap)(int**, int**);
  void (*ReleaseAliasMap)(int*, int*);
};

namespace opsmith {

inline constexpr uint32_t kOrtApiVersion = 24;
inline constexpr int kMaxDims = 16;

// ONNX element types, as ORT numbers them.
enum ElementType : int {
  kFloat = 1, kUint8 = 2, kInt8 = 3, kUint16 = 4, kInt16 = 5, kInt32 = 6, kInt64 = 7, kBool = 9,
  kHalf = 10, kDouble = 11, kUint32 = 12, kUint64 = 13, kBfloat16 = 16,
};

inline i64 element_bytes(int type) {
  switch (type) {
    case kInt64: case kUint64: case kDouble: return 8;
    case kFloat: case kInt32: case kUint32: return 4;
    case kHalf: case kBfloat16: case kInt16: case kUint16: return 2;
    default: return 1;
  }
}

struct Api {
  const void* const* table;

  template <class R, class... Args>
  R call(int slot, Args... args) const {
    return reinterpret_cast<R (*)(Args...)>(const_cast<void*>(table[slot]))(args...);
  }
  OrtStatus* error(const char* message) const { return call<OrtStatus*>(0, 1, message); }
  void release_status(OrtStatus* s) const { call<void>(93, s); }
};

// What a kernel keeps between runs: only what never changes after creation, so that concurrent runs are safe.
struct Kernel {
  Api api;
  OrtAllocator* allocator;
  const uint8_t* weights;  // the region's packed weights, memory-mapped by ORT or by the execution provider
  int threads;             // of the machine
  // Where ORT has the region's inputs and outputs, in a node that the execution provider fused; a custom op has them in order.
  const int* input_at = nullptr;
  const int* output_at = nullptr;  // -1: nobody reads it any more, it goes to scratch memory
  const int* output_types = nullptr;
};

struct Run {
  const Kernel& kernel;
  OrtKernelContext* context;
  const char* region;
  OrtStatus* status = nullptr;
  void* arena_base = nullptr;
  void* unread = nullptr;  // a chain of scratch memory for outputs that nobody reads

  Run(const Kernel& k, OrtKernelContext* c, const char* name) : kernel(k), context(c), region(name) {}
  Run(const Run&) = delete;
  ~Run() {
    if (arena_base) kernel.api.call<OrtStatus*>(76, kernel.allocator, arena_base);
    while (unread) {
      void* next = *static_cast<void**>(unread);
      kernel.api.call<OrtStatus*>(76, kernel.allocator, unread);
      unread = next;
    }
  }

  bool failed() const { return status != nullptr; }

  // The first error wins; it becomes an ORT exception that names the region and the original node.
  template <class... Args>
  void fail(const char* node, const char* format, Args... args) {
    if (status) return;
    char detail[256], message[768];
    snprintf(detail, sizeof detail, format, args...);
    snprintf(message, sizeof message, "opsmith region %s, node %s: %s", region, node, detail);
    status = kernel.api.error(message);
  }
  void fail(const char* node, const char* text) { fail(node, "%s", text); }

  // An input tensor: its data pointer after its element type and rank were checked; dims are copied out.
  const void* input(i64 index, const char* name, int type, int rank, i64* dims) {
    if (status) return nullptr;
    const OrtValue* value = nullptr;
    const size_t at = static_cast<size_t>(kernel.input_at ? kernel.input_at[index] : index);
    keep(kernel.api.call<OrtStatus*>(90, static_cast<const OrtKernelContext*>(context), at, &value));
    if (status || !value) {
      fail(name, "input is missing");
      return nullptr;
    }
    int found = 0;
    const i64* shape = nullptr;
    size_t count = 0;
    keep(kernel.api.call<OrtStatus*>(414, value, &found, &shape, &count));
    if (status) return nullptr;
    if (found != type) {
      fail(name, "input has element type %d, expected %d", found, type);
      return nullptr;
    }
    if (static_cast<int>(count) != rank) {
      fail(name, "input has %d dimensions, expected %d", static_cast<int>(count), rank);
      return nullptr;
    }
    for (int i = 0; i < rank; ++i) dims[i] = shape[i];
    void* data = nullptr;
    keep(kernel.api.call<OrtStatus*>(51, const_cast<OrtValue*>(value), &data));
    return data;
  }

  void* output(i64 index, const i64* dims, int rank) {
    if (status) return nullptr;
    const i64 at = kernel.output_at ? kernel.output_at[index] : index;
    if (at < 0) return unread_output(index, dims, rank);
    OrtValue* value = nullptr;
    keep(kernel.api.call<OrtStatus*>(91, context, static_cast<size_t>(at), dims, static_cast<size_t>(rank), &value));
    if (status || !value) return nullptr;
    void* data = nullptr;
    keep(kernel.api.call<OrtStatus*>(51, value, &data));
    return data;
  }

  // The same for a value of rank 10 at most whose dims of 1 are left out.
  void* squeezed_output(i64 index, const i64* dims, int rank) {
    i64 kept[10];
    int count = 0;
    for (int i = 0; i < rank; ++i)
      if (dims[i] != 1) kept[count++] = dims[i];
    return output(index, kept, count);
  }

  void* unread_output(i64 index, const i64* dims, int rank) {
    i64 bytes = element_bytes(kernel.output_types[index]);
    for (int i = 0; i < rank; ++i)
      if (__builtin_mul_overflow(bytes, dims[i], &bytes)) bytes = -1;
    void* memory = nullptr;
    if (bytes >= 0) keep(kernel.api.call<OrtStatus*>(75, kernel.allocator, static_cast<size_t>(bytes + 64), &memory));
    if (!memory) {
      fail("memory plan", "out of memory");
      return nullptr;
    }
    *static_cast<void**>(memory) = unread;
    unread = memory;
    return static_cast<uint8_t*>(memory) + 64;
  }

  // Scratch memory of this run; freed when the run ends. 64-byte aligned by ORT's CPU allocator.
  uint8_t* arena(i64 bytes) {
    if (status) return nullptr;
    if (bytes < 0 || bytes > (i64(1) << 46)) {
      fail("memory plan", "shapes need an impossible amount of memory");
      return nullptr;
    }
    keep(kernel.api.call<OrtStatus*>(75, kernel.allocator, static_cast<size_t>(bytes + 64), &arena_base));
    if (!status && !arena_base) fail("memory plan", "out of memory");
    return static_cast<uint8_t*>(arena_base);
  }

  void check_equal(const char* node, const char* what, i64 got, i64 want) {
    if (got != want) fail(node, "%s is %lld, expected %lld", what, (long long)got, (long long)want);
  }
  void check(const char* node, bool ok, const char* what) {
    if (!ok) fail(node, what);
  }

  Pool pool() { return Pool{&Run::parallel, this, kernel.threads}; }

 private:
  void keep(OrtStatus* s) {
    if (!s) return;
    if (status)
      kernel.api.release_status(s);
    else
      status = s;
  }
  static void parallel(void* self, Pool::Task task, size_t total, void* user) {
    Run& run = *static_cast<Run*>(self);
    run.keep(run.kernel.api.call<OrtStatus*>(274, static_cast<const OrtKernelContext*>(run.context), task_of(task), total,
                                             size_t(0), user));
  }
  static void (*task_of(Pool::Task t))(void*, size_t) { return t; }
};

// --- profiling: one JSON line per kernel call, appended to $OPSMITH_PROFILE_FILE while $OPSMITH_PROFILE is 1 ---

inline bool profiling() {
  const char* on = getenv("OPSMITH_PROFILE");
  return on && on[0] == '1';
}

struct Stopwatch {
  FILE* file = nullptr;
  const char* region;
  double last = 0;

  explicit Stopwatch(const char* name) : region(name) {
    if (!profiling()) return;
    const char* path = getenv("OPSMITH_PROFILE_FILE");
    file = fopen(path ? path : "opsmith_profile.jsonl", "a");
    last = microseconds();
  }
  ~Stopwatch() {
    if (file) fclose(file);
  }
  void lap(int call, const char* kernel, const char* node, double flops, double bytes) {
    if (!file) [[likely]]
      return;
    const double t = microseconds();
    fprintf(file,
            "{\"region\":\"%s\",\"call\":%d,\"kernel\":\"%s\",\"node\":\"%s\",\"us\":%.3f,\"flops\":%.0f,\"bytes\":%.0f}\n",
            region, call, kernel, node, t - last, flops, bytes);
    last = microseconds();
  }
};

// --- one custom op per region, all of them in one domain per library; the execution provider is the other door to them ---

using Compute = OrtStatus* (*)(const Kernel&, OrtKernelContext*);

struct RegionOp {
  OrtCustomOp op;
  const char* name;
  const int* input_types;
  size_t inputs;
  const int* output_types;
  size_t outputs;
  Compute compute;
  size_t weight_input;    // index of the packed-weights input, or `inputs` if the region has none
  i64 weight_bytes;       // with their seal
  i64 weight_offset;      // in the weights file
  uint64_t library;       // what the seal must say
  const char* const* input_names;  // of the source's values, without the packed weights
  const char* const* output_names;
  // The body of If, Loop or Scan that it lies in: "output of the node\nattribute\n" from the outside in; "" is the main graph.
  const char* body;
};

// What the execution provider asks a library for, by the name "OpsmithRegions".
inline constexpr uint32_t kRegionsVersion = 2;  // raised with every change of RegionOp or Kernel
struct Regions {
  uint32_t version;
  uint32_t count;
  const RegionOp* regions;
};

// FNV-1a over the size of the weights and at most 4096 words of them: all, or 64 runs of 64 words spread evenly. Not single
// words everywhere: the system maps a large page around each one, and a file that was merely checked would count as memory.
inline uint64_t sample_checksum(const uint8_t* data, i64 bytes) {
  uint64_t hash = 1469598103934665603ull;
  auto mix = [&hash](uint64_t word) { hash = (hash ^ word) * 1099511628211ull; };
  mix(static_cast<uint64_t>(bytes));
  const i64 words = bytes / 8, runs = words <= 4096 ? 1 : 64, length = words <= 4096 ? words : 64;
  for (i64 i = 0; i < runs * length; ++i) {
    uint64_t word;
    memcpy(&word, data + ((words / runs) * (i / length) + i % length) * 8, 8);
    mix(word);
  }
  return hash;
}

// The last 64 bytes of a region's weights say which library they were packed for, and their checksum. Not the library: it serves
// any weights of the same shapes.
struct Seal {
  static constexpr uint64_t kMark = 0x57485449'4d53504full;  // "OPSMITHW"
  uint64_t mark, library, checksum, unused[5];
};

// What is wrong with the weights of a region; null if nothing.
inline const char* wrong_weights(const RegionOp& region, const uint8_t* data) {
  Seal seal;
  memcpy(&seal, data + region.weight_bytes - sizeof seal, sizeof seal);
  if (seal.mark != Seal::kMark || seal.library != region.library)
    return "the weights file does not belong to this library; compile again";
  if (sample_checksum(data, region.weight_bytes - static_cast<i64>(sizeof seal)) != seal.checksum)
    return "the weights file was changed after compilation; compile again";
  return nullptr;
}

inline const RegionOp& self(const OrtCustomOp* op) { return *reinterpret_cast<const RegionOp*>(op); }

struct RegionKernel {
  Kernel kernel;
  Compute compute;
};

inline OrtStatus* create_kernel(const OrtCustomOp* op, const void* table, const OrtKernelInfo* info, void** out) {
  const RegionOp& region = self(op);
  const Api api{static_cast<const void* const*>(table)};
  Kernel kernel{api, nullptr, nullptr, hardware_threads()};
  if (region.weight_input < region.inputs) {
    int constant = 0;
    const OrtValue* value = nullptr;
    if (OrtStatus* s = api.call<OrtStatus*>(249, info, region.weight_input, &constant, &value)) return s;
    if (!constant || !value) return api.error("opsmith: the packed weights of a region are not a constant of the model");
    int type = 0;
    const i64* dims = nullptr;
    size_t rank = 0;
    if (OrtStatus* s = api.call<OrtStatus*>(414, value, &type, &dims, &rank)) return s;
    if (type != kUint8 || rank != 1 || dims[0] != region.weight_bytes)
      return api.error("opsmith: the weights file does not belong to this library (its size differs); compile again");
    void* data = nullptr;
    if (OrtStatus* s = api.call<OrtStatus*>(51, const_cast<OrtValue*>(value), &data)) return s;
    kernel.weights = static_cast<const uint8_t*>(data);
    if (const char* wrong = wrong_weights(region, kernel.weights)) {
      char message[160];
      snprintf(message, sizeof message, "opsmith: %s", wrong);
      return api.error(message);
    }
  }
  RegionKernel* k = static_cast<RegionKernel*>(malloc(sizeof(RegionKernel)));
  if (!k) return api.error("opsmith: out of memory");
  if (OrtStatus* s = api.call<OrtStatus*>(278, info, 0 /* OrtMemTypeDefault */, &kernel.allocator)) {
    free(k);
    return s;
  }
  k->kernel = kernel;
  k->compute = region.compute;
  *out = k;
  return nullptr;
}

// The allocator is ours to release: it keeps the session's arena, with all memory that its runs ever took, alive.
inline void destroy_kernel(void* kernel) {
  RegionKernel* k = static_cast<RegionKernel*>(kernel);
  k->kernel.api.call<void>(132, k->kernel.allocator);
  free(k);
}

inline OrtStatus* compute_kernel(void* kernel, OrtKernelContext* context) {
  RegionKernel* k = static_cast<RegionKernel*>(kernel);
  return k->compute(k->kernel, context);
}

inline OrtCustomOp custom_op() {
  OrtCustomOp op{};
  op.version = kOrtApiVersion;
  op.GetName = [](const OrtCustomOp* o) { return self(o).name; };
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op.GetInputType = [](const OrtCustomOp* o, size_t i) { return self(o).input_types[i]; };
  op.GetInputTypeCount = [](const OrtCustomOp* o) { return self(o).inputs; };
  op.GetOutputType = [](const OrtCustomOp* o, size_t i) { return self(o).output_types[i]; };
  op.GetOutputTypeCount = [](const OrtCustomOp* o) { return self(o).outputs; };
  op.KernelDestroy = destroy_kernel;
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return 0; };
  op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return 0; };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return 0; };
  op.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.CreateKernelV2 = create_kernel;
  op.KernelComputeV2 = compute_kernel;
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return 0x7fffffff; };
  return op;
}

// Registers `count` regions under one domain; the body of RegisterCustomOps in every generated library.
inline OrtStatus* register_regions(OrtSessionOptions* options, const OrtApiBase* base, const char* domain, RegionOp* regions,
                                   size_t count) {
  const void* table = base->GetApi(kOrtApiVersion);
  if (!table) {
    fprintf(stderr, "opsmith: this library needs ONNX Runtime 1.24 or newer, found %s\n", base->GetVersionString());
    // Without a table no status can be made through API 24; the oldest table has CreateStatus in the same slot.
    const Api oldest{static_cast<const void* const*>(base->GetApi(1))};
    return oldest.error("opsmith: this library needs ONNX Runtime 1.24 or newer");
  }
  const Api api{static_cast<const void* const*>(table)};
  OrtCustomOpDomain* dom = nullptr;
  if (OrtStatus* s = api.call<OrtStatus*>(26, domain, &dom)) return s;
  for (size_t i = 0; i < count; ++i) {
    if (!regions[i].op.version) regions[i].op = custom_op();
    if (OrtStatus* s = api.call<OrtStatus*>(27, dom, static_cast<const OrtCustomOp*>(&regions[i].op))) return s;
  }
  return api.call<OrtStatus*>(28, options, dom);
}

}  // namespace opsmith
