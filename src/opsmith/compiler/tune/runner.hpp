// What the tuner's library is made of: threads that stay alive, a table of kernels, and a clock.
//
// Each family of kernels is one translation unit that ends in a table of Entry; Python calls them by name.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "base.hpp"

namespace opsmith::tune {

// Threads take task indices one by one, and spin between regions as ONNX Runtime's do: kernels are timed as they run
// there. They live as long as the process; while nothing is timed they sleep. Nobody waits for a thread that the system
// does not run: the caller may take all tasks itself.
struct Threads {
  static constexpr uint64_t closed = 0xffffffffu;
  int count = 0;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
  bool awake = false;
  uint64_t state = closed;  // round << 32 | next task: taking a task is one exchange, which fails if the round has ended
  uint64_t total = 0, done = 0;
  Pool::Task task = nullptr;
  void* user = nullptr;

  void take(uint64_t round) {
    for (;;) {
      uint64_t now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
      if (now >> 32 != round || (now & closed) >= __atomic_load_n(&total, __ATOMIC_RELAXED)) return;
      if (!__atomic_compare_exchange_n(&state, &now, now + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) continue;
      task(user, now & closed);
      __atomic_fetch_add(&done, 1, __ATOMIC_RELEASE);
    }
  }
  static void* work(void* self) {
    Threads& t = *static_cast<Threads*>(self);
    for (uint64_t seen = 0;;) {
      const uint64_t round = __atomic_load_n(&t.state, __ATOMIC_ACQUIRE) >> 32;
      if (round != seen) {
        t.take(seen = round);
      } else if (!__atomic_load_n(&t.awake, __ATOMIC_RELAXED)) {
        pthread_mutex_lock(&t.mutex);
        while (!t.awake) pthread_cond_wait(&t.wake, &t.mutex);
        pthread_mutex_unlock(&t.mutex);
      }
    }
    return nullptr;
  }
  static void run(void* self, Pool::Task task, size_t total, void* user) {
    Threads& t = *static_cast<Threads*>(self);
    const uint64_t round = (t.state >> 32) + 1;
    __atomic_store_n(&t.state, t.state | closed, __ATOMIC_SEQ_CST);  // a late thread must not mix the two rounds
    t.task = task, t.user = user, t.done = 0;
    __atomic_store_n(&t.total, total, __ATOMIC_RELAXED);
    __atomic_store_n(&t.state, round << 32, __ATOMIC_RELEASE);
    t.take(round);
    while (__atomic_load_n(&t.done, __ATOMIC_ACQUIRE) < total) {
    }
  }
  void set_awake(bool value) {
    pthread_mutex_lock(&mutex);
    __atomic_store_n(&awake, value, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&wake);
    pthread_mutex_unlock(&mutex);
  }
};

struct Entry {
  const char* name;
  void (*run)(const Pool& pool, const i64* shape, const i64* limits, void* const* data);
  i64 (*workspace)(const i64* shape, const i64* limits);  // bytes
};

// data: x, weights, y, workspace. A packed weight is followed by copies of itself, so that as in a whole model it comes
// from memory and not from the cache.
inline double time_entry(const Entry& entry, void* threads, int count, const i64* shape, const i64* limits,
                         void* const* data, i64 repeats, i64 copies, i64 copy_bytes, i64 first) {
  Threads* t = static_cast<Threads*>(threads);
  const Pool pool{&Threads::run, t, count};
  if (count > 1) t->set_awake(true);
  timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (i64 i = 0; i < repeats; ++i) {
    void* now[] = {data[0], static_cast<char*>(data[1]) + (first + i) % copies * copy_bytes, data[2], data[3]};
    entry.run(pool, shape, limits, now);
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  if (count > 1) t->set_awake(false);
  return (static_cast<double>(end.tv_sec - begin.tv_sec) + 1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec)) /
         static_cast<double>(repeats);
}

}  // namespace opsmith::tune
