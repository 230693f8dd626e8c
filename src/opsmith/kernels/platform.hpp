// What differs from one operating system to another.
#pragma once

#if defined(_WIN32)
#define OPSMITH_EXPORT extern "C" __declspec(dllexport)
#else
#include <time.h>
#include <unistd.h>
#define OPSMITH_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace opsmith {

#if defined(_WIN32)

// Of kernel32, declared here: its header has macros for all sorts of names.
extern "C" __declspec(dllimport) unsigned long GetActiveProcessorCount(unsigned short group);
extern "C" __declspec(dllimport) int QueryPerformanceCounter(long long*);
extern "C" __declspec(dllimport) int QueryPerformanceFrequency(long long*);

inline int hardware_threads() { return static_cast<int>(GetActiveProcessorCount(0xffff)); }

inline double microseconds() {
  long long ticks = 0, a_second = 1;
  QueryPerformanceCounter(&ticks);
  QueryPerformanceFrequency(&a_second);
  return static_cast<double>(ticks) * 1e6 / static_cast<double>(a_second);
}

#else

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
