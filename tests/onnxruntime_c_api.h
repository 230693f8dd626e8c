/* For the tests of loaders: those members of ONNX Runtime's OrtApi that they call, at their places in the table. Programs take ONNX
 * Runtime's own header of this name, which its wheels do not have. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#ifdef _WIN32
#include <wchar.h>
typedef wchar_t ORTCHAR_T;
#else
typedef char ORTCHAR_T;
#endif

typedef struct OrtStatus OrtStatus;
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtEpDevice OrtEpDevice;

typedef struct OrtApi {
  void *to_2[2];
  const char* (*GetErrorMessage)(const OrtStatus*);
  OrtStatus* (*CreateEnv)(int level, const char* name, OrtEnv**);
  void* to_7[3];
  OrtStatus* (*CreateSession)(const OrtEnv*, const ORTCHAR_T* path, const OrtSessionOptions*, OrtSession**);
  void* to_10[2];
  OrtStatus* (*CreateSessionOptions)(OrtSessionOptions**);
  void* to_30[19];
  OrtStatus* (*SessionGetInputCount)(const OrtSession*, size_t*);
  void* to_95[64];
  void (*ReleaseSession)(OrtSession*);
  void* to_228[132];
  OrtStatus* (*RegisterCustomOpsLibrary_V2)(OrtSessionOptions*, const ORTCHAR_T* path);
  void* to_301[72];
  OrtStatus* (*RegisterExecutionProviderLibrary)(OrtEnv*, const char* name, const ORTCHAR_T* path);
  void* to_303[1];
  OrtStatus* (*GetEpDevices)(const OrtEnv*, const OrtEpDevice* const** devices, size_t* count);
  OrtStatus* (*SessionOptionsAppendExecutionProvider_V2)(OrtSessionOptions*, OrtEnv*, const OrtEpDevice* const*, size_t,
                                                         const char* const* keys, const char* const* values, size_t);
  void* to_312[7];
  const char* (*EpDevice_EpName)(const OrtEpDevice*);
} OrtApi;

typedef struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)(void);
} OrtApiBase;
