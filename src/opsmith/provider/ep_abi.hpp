// The part of ONNX Runtime's C interface that an execution provider uses, declared as in kernels/ort_abi.hpp: by slot and by the
// order of members, so that nothing of ORT is needed to build. The names are ORT's. What a provider does not implement is zero.
#pragma once

#include "ort_abi.hpp"

struct OrtLogger;
struct OrtGraph;
struct OrtNode;
struct OrtValueInfo;
struct OrtOpAttr;
struct OrtEpDevice;
struct OrtHardwareDevice;
struct OrtKeyValuePairs;
struct OrtEpGraphSupportInfo;
struct OrtNodeComputeContext;
struct OrtRunOptions;
struct OrtEpFactory;

struct OrtNodeFusionOptions {
  uint32_t ort_version_supported;
  bool drop_constant_initializers;
};

struct OrtNodeComputeInfo {
  uint32_t ort_version_supported;
  OrtStatus* (*CreateState)(OrtNodeComputeInfo*, OrtNodeComputeContext*, void** state);
  OrtStatus* (*Compute)(OrtNodeComputeInfo*, void* state, OrtKernelContext*);
  void (*ReleaseState)(OrtNodeComputeInfo*, void* state);
};

struct OrtEp {
  uint32_t ort_version_supported;
  const char* (*GetName)(const OrtEp*);
  OrtStatus* (*GetCapability)(OrtEp*, const OrtGraph*, OrtEpGraphSupportInfo*);
  OrtStatus* (*Compile)(OrtEp*, const OrtGraph**, const OrtNode** fused, size_t, OrtNodeComputeInfo**, OrtNode** contexts);
  void (*ReleaseNodeComputeInfos)(OrtEp*, OrtNodeComputeInfo**, size_t);
  void *GetPreferredDataLayout, *ShouldConvertDataLayoutForOp;
  OrtStatus* (*SetDynamicOptions)(OrtEp*, const char* const* keys, const char* const* values, size_t);
  OrtStatus* (*OnRunStart)(OrtEp*, const OrtRunOptions*);
  OrtStatus* (*OnRunEnd)(OrtEp*, const OrtRunOptions*, bool sync_stream);
  void *CreateAllocator, *CreateSyncStreamForDevice;
  const char* (*GetCompiledModelCompatibilityInfo)(OrtEp*, const OrtGraph*);
  void* later[16];
};

struct OrtEpFactory {
  uint32_t ort_version_supported;
  const char* (*GetName)(const OrtEpFactory*);
  const char* (*GetVendor)(const OrtEpFactory*);
  OrtStatus* (*GetSupportedDevices)(OrtEpFactory*, const OrtHardwareDevice* const*, size_t, OrtEpDevice**, size_t most, size_t*);
  OrtStatus* (*CreateEp)(OrtEpFactory*, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const*, size_t,
                         const OrtSessionOptions*, const OrtLogger*, OrtEp**);
  void (*ReleaseEp)(OrtEpFactory*, OrtEp*);
  uint32_t (*GetVendorId)(const OrtEpFactory*);
  const char* (*GetVersion)(const OrtEpFactory*);
  OrtStatus* (*ValidateCompiledModelCompatibilityInfo)(OrtEpFactory*, const OrtHardwareDevice* const*, size_t, const char*, int*);
  OrtStatus* (*CreateAllocator)(OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs*, OrtAllocator**);
  void (*ReleaseAllocator)(OrtEpFactory*, OrtAllocator*);
  OrtStatus* (*CreateDataTransfer)(OrtEpFactory*, void**);
  bool (*IsStreamAware)(const OrtEpFactory*);
  void* later[16];
};
