/* Runs a compiled model from C, on Linux, Windows or macOS; no Python, no Opsmith installed. Either an untouched model.onnx through the
 * execution provider, or a compiled one with its library of custom ops:
 *
 *     cc c_host.c -o c_host -ldl
 *     ./c_host libonnxruntime.so model.onnx.opsmith/libopsmith_provider.so model.onnx ids=i64:1x8:ids.bin x=f32:1x3:x.bin
 *     ./c_host libonnxruntime.so fast/libmodel_<hash>.so fast/model.onnx ids=i64:1x8:ids.bin x=f32:1x3:x.bin
 *
 * An input is name=type:dims:file with raw numbers; each output is written to <name>.out in the same way. With ORT's header at hand
 * the calls are those of its OrtApi; without it, as here, they are the slots of that table, which only ever grows. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <windows.h>
#define OPEN(path) ((void*)LoadLibraryA(path))
#define FIND(library, name) ((void*)GetProcAddress(library, name))
typedef wchar_t PathChar; /* ORT's paths are wide on Windows */
static const PathChar* as_path(const char* text) {
  const size_t room = strlen(text) + 1;
  PathChar* wide = malloc(room * sizeof *wide);
  return mbstowcs(wide, text, room), wide;
}
#else
#include <dlfcn.h>
#define OPEN(path) dlopen(path, RTLD_NOW)
#define FIND(library, name) dlsym(library, name)
typedef char PathChar;
static const PathChar* as_path(const char* text) { return text; }
#endif

typedef struct {
  const void* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)(void);
} OrtApiBase;
typedef void Status;

static void* const* api;
#define CALL(slot, result, ...) ((result(*)(__VA_ARGS__))api[slot])

static void check(Status* status) {
  if (!status) return;
  fprintf(stderr, "%s\n", CALL(2, const char*, const Status*)(status));
  exit(1);
}

enum { MOST = 64 };

/* Of an element, by ONNX's number of its type. */
static size_t bytes_of(int kind) {
  if (kind == 7 || kind == 11 || kind == 13) return 8; /* int64, double, uint64 */
  if (kind == 2 || kind == 3 || kind == 9) return 1;   /* uint8, int8, bool */
  return kind == 4 || kind == 5 || kind == 10 || kind == 16 ? 2 : 4; /* 16 bits; float, int32, uint32 */
}

static void* read_file(const char* path, size_t* bytes) {
  FILE* file = fopen(path, "rb");
  if (!file) perror(path), exit(1);
  fseek(file, 0, SEEK_END);
  *bytes = (size_t)ftell(file);
  rewind(file);
  void* data = malloc(*bytes ? *bytes : 1);
  if (fread(data, 1, *bytes, file) != *bytes) perror(path), exit(1);
  fclose(file);
  return data;
}

/* name=type:dims:file -> a tensor; ARGUMENT keeps the name. */
static void* tensor(char* argument, void* memory_info) {
  char* type = strchr(argument, '=');
  char* dims = type ? strchr(type, ':') : NULL;
  char* file = dims ? strchr(dims + 1, ':') : NULL;
  if (!file) fprintf(stderr, "%s is not name=type:dims:file\n", argument), exit(2);
  *type++ = *dims++ = *file++ = 0;
  int64_t shape[MOST];
  size_t rank = 0, bytes = 0;
  for (char* d = strtok(dims, "x"); d && rank < MOST; d = strtok(NULL, "x")) shape[rank++] = atoll(d);
  void *data = read_file(file, &bytes), *value = NULL;
  const int kind = !strcmp(type, "i64") ? 7 : 1; /* ONNX's numbers of the types: int64, float */
  check(CALL(49, Status*, void*, void*, size_t, const int64_t*, size_t, int, void**)(memory_info, data, bytes, shape, rank, kind, &value));
  return value;
}

/* The provider: register its library, find its device, put it into the session options. */
static void add_provider(void* env, void* options, const char* library) {
  const void* const* devices;
  const void* ours = NULL;
  size_t number;
  check(CALL(301, Status*, void*, const char*, const PathChar*)(env, "opsmith", as_path(library)));
  check(CALL(303, Status*, void*, const void* const**, size_t*)(env, &devices, &number));
  for (size_t i = 0; i < number; ++i)
    if (!strcmp(CALL(312, const char*, const void*)(devices[i]), "OpsmithExecutionProvider")) ours = devices[i];
  if (!ours) fprintf(stderr, "the provider has no device here\n"), exit(1);
  check(CALL(304, Status*, void*, void*, const void* const*, size_t, const char* const*, const char* const*, size_t)(
      options, env, &ours, 1, NULL, NULL, 0));
}

int main(int count, char** arguments) {
  if (count < 4) return fprintf(stderr, "usage: %s libonnxruntime.so library.so model.onnx name=type:dims:file ...\n", arguments[0]), 2;
  void *runtime = OPEN(arguments[1]), *library = OPEN(arguments[2]);
  if (!runtime || !library) return fprintf(stderr, "%s cannot be loaded\n", arguments[runtime ? 2 : 1]), 1;
  const OrtApiBase* base = ((const OrtApiBase* (*)(void))FIND(runtime, "OrtGetApiBase"))();
  api = (void* const*)base->GetApi(24);
  if (!api) return fprintf(stderr, "ONNX Runtime 1.24 or newer is needed, this is %s\n", base->GetVersionString()), 1;

  void *env, *options, *session, *memory_info, *allocator;
  check(CALL(3, Status*, int, const char*, void**)(2, "c_host", &env));
  check(CALL(10, Status*, void**)(&options));
  if (FIND(library, "CreateEpFactories"))
    add_provider(env, options, arguments[2]);
  else
    check(CALL(228, Status*, void*, const PathChar*)(options, as_path(arguments[2])));
  check(CALL(7, Status*, void*, const PathChar*, void*, void**)(env, as_path(arguments[3]), options, &session));

  /* From here on everything is as with any other model. */
  check(CALL(69, Status*, int, int, void**)(1, 0, &memory_info));
  check(CALL(78, Status*, void**)(&allocator));
  const char *inputs[MOST], *outputs[MOST];
  void *values[MOST], *results[MOST] = {0};
  size_t fed = 0, given = 0;
  for (int i = 4; i < count && fed < MOST; ++i) {
    values[fed] = tensor(arguments[i], memory_info);
    inputs[fed++] = arguments[i];
  }
  check(CALL(31, Status*, void*, size_t*)(session, &given));
  if (given > MOST) given = MOST;
  for (size_t i = 0; i < given; ++i)
    check(CALL(37, Status*, void*, size_t, void*, const char**)(session, i, allocator, &outputs[i]));
  check(CALL(9, Status*, void*, void*, const char* const*, void* const*, size_t, const char* const*, size_t, void**)(
      session, NULL, inputs, values, fed, outputs, given, results));
  for (size_t i = 0; i < given; ++i) {
    void *info, *data;
    size_t elements;
    int kind;
    check(CALL(65, Status*, void*, void**)(results[i], &info));
    check(CALL(64, Status*, void*, size_t*)(info, &elements));
    check(CALL(60, Status*, void*, int*)(info, &kind));
    check(CALL(51, Status*, void*, void**)(results[i], &data));
    char name[256];
    snprintf(name, sizeof name, "%s.out", outputs[i]);
    FILE* file = fopen(name, "wb");
    if (!file) return perror(name), 1;
    fwrite(data, bytes_of(kind), elements, file);
    fclose(file);
    printf("%s: %zu elements\n", name, elements);
    CALL(99, void, void*)(info);
    CALL(96, void, void*)(results[i]);
  }
  CALL(95, void, void*)(session);
  CALL(100, void, void*)(options);
  CALL(92, void, void*)(env);
  return 0;
}
