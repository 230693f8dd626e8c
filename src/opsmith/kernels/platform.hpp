// What differs from one operating system to another. On Windows a library needs kernel32.dll and ucrtbase.dll, which every system has
// since Windows 10, and no C runtime of a compiler: what such a runtime would bring stands here.
#pragma once

#if defined(_WIN32)
#include <stdarg.h>
#include <stdio.h>
#define OPSMITH_EXPORT extern "C" __declspec(dllexport)
#else
#include <time.h>
#include <unistd.h>
#define OPSMITH_EXPORT extern "C" __attribute__((visibility("default")))
#endif

#if defined(_WIN32)
// Declared here: the system's headers have macros for all sorts of names.
extern "C" {
__declspec(dllimport) unsigned long GetActiveProcessorCount(unsigned short group);
__declspec(dllimport) int QueryPerformanceCounter(long long*);
__declspec(dllimport) int QueryPerformanceFrequency(long long*);
__declspec(dllimport) int GetModuleHandleExA(unsigned long flags, const char* address, void** module);
int __stdio_common_vsprintf(unsigned long long options, char* text, size_t room, const char* format, _locale_t, va_list);
int __stdio_common_vfprintf(unsigned long long options, FILE*, const char* format, _locale_t, va_list);

inline int snprintf(char* text, size_t room, const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int length = __stdio_common_vsprintf(2 /* as C99 says */, text, room, format, nullptr, values);
  va_end(values);
  return length;
}

inline int fprintf(FILE* file, const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int length = __stdio_common_vfprintf(0, file, format, nullptr, values);
  va_end(values);
  return length;
}
}
#endif

namespace opsmith {

#if defined(_WIN32)

// Keeps this library in memory: ORT's threads may still hold addresses of it when ORT gives it back.
inline void stay_loaded() {
  constexpr unsigned long kPinByAddress = 1 | 4;
  static const char here = 0;
  void* module = nullptr;
  GetModuleHandleExA(kPinByAddress, &here, &module);
}

inline int hardware_threads() { return static_cast<int>(GetActiveProcessorCount(0xffff)); }

inline double microseconds() {
  long long ticks = 0, a_second = 1;
  QueryPerformanceCounter(&ticks);
  QueryPerformanceFrequency(&a_second);
  return static_cast<double>(ticks) * 1e6 / static_cast<double>(a_second);
}

#else

inline void stay_loaded() {}  // the linker's flag says so

inline int hardware_threads() {  // reads a file: 6 us
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n < 1 ? 1 : static_cast<int>(n);
}

inline double microseconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

#endif

}  // namespace opsmith
