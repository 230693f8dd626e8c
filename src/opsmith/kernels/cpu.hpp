// The features of this CPU that the kernels use, under the names of machine.py.
#pragma once

#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace opsmith {

#if defined(__x86_64__)

inline bool has_feature(const char* name) {
  struct Bit {
    const char* name;
    unsigned leaf, part;
    int reg, bit;          // of eax, ebx, ecx, edx
    unsigned long long state;  // registers that the operating system must save
  };
  constexpr unsigned long long kYmm = 0x6, kZmm = 0xe6, kTiles = 0x600e6;
  static constexpr Bit bits[] = {
      {"fma", 1, 0, 2, 12, kYmm},       {"f16c", 1, 0, 2, 29, kYmm},      {"avx", 1, 0, 2, 28, kYmm},
      {"bmi1", 7, 0, 1, 3, 0},          {"avx2", 7, 0, 1, 5, kYmm},       {"bmi2", 7, 0, 1, 8, 0},
      {"avx512f", 7, 0, 1, 16, kZmm},   {"avx512dq", 7, 0, 1, 17, kZmm},  {"avx512bw", 7, 0, 1, 30, kZmm},
      {"avx512vl", 7, 0, 1, 31, kZmm},  {"avx512_vnni", 7, 0, 2, 11, kZmm}, {"avx512_bf16", 7, 1, 0, 5, kZmm},
      {"amx_bf16", 7, 0, 3, 22, kTiles}, {"amx_tile", 7, 0, 3, 24, kTiles}, {"amx_int8", 7, 0, 3, 25, kTiles},
  };
  unsigned regs[4];
  unsigned long long saved = 0;
  if (__get_cpuid(1, &regs[0], &regs[1], &regs[2], &regs[3]) && (regs[2] >> 27 & 1)) {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    saved = low | static_cast<unsigned long long>(high) << 32;
  }
  for (const Bit& b : bits)
    if (!strcmp(b.name, name))
      return __get_cpuid_count(b.leaf, b.part, &regs[0], &regs[1], &regs[2], &regs[3]) && (regs[b.reg] >> b.bit & 1) &&
             (saved & b.state) == b.state;
  return false;
}

#elif defined(__aarch64__) && defined(__linux__)

inline bool has_feature(const char* name) {
  struct Bit {
    const char* name;
    int bit;
  };
  static constexpr Bit bits[] = {{"asimd", 1}, {"asimdhp", 10}, {"asimddp", 20}};
  for (const Bit& b : bits)
    if (!strcmp(b.name, name)) return getauxval(AT_HWCAP) >> b.bit & 1;
  return !strcmp(name, "bf16") && (getauxval(AT_HWCAP2) >> 14 & 1);
}

#else

inline bool has_feature(const char* name) {
#if defined(__aarch64__)
  return !strcmp(name, "asimd");  // every one has it, of the others nothing is known here
#else
  return false;
#endif
}

#endif

// Whether this CPU has all of the space-separated features; MISSING is the first that it lacks.
inline bool has_features(const char* features, char (&missing)[32]) {
  while (*features) {
    const size_t length = strcspn(features, " "), kept = length < sizeof missing ? length : sizeof missing - 1;
    memcpy(missing, features, kept);
    missing[kept] = 0;
    if (length && !has_feature(missing)) return false;
    features += length + (features[length] == ' ');
  }
  return true;
}

}  // namespace opsmith
