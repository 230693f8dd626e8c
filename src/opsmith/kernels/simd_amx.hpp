// Tiles of AMX: eight registers of 16 rows by 64 bytes, and products of whole tiles. Sapphire Rapids: 16 cycles for 16 x 16 sums of 32
// products of bf16, or 64 of bytes, so 15 (bytes: 8) times what its vectors do. (Inline assembly: g++ 12's intrinsics take the
// numbers of registers as text, which a template cannot give.)
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

namespace opsmith {

struct Tiles {
  static constexpr bool exist = true;
  static constexpr i64 rows = 16, row_bytes = 64;  // of A; of B a row is W words

  // Linux gives the registers to processes that ask: 0x1023 is ARCH_REQ_XCOMP_PERM, 18 the state XTILEDATA. Without them the
  // products run on vectors.
  static bool request() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

  // All eight are used whole. The state is a thread's own, and saved at every switch of threads while it is in use: a task
  // configures the registers and releases them.
  static void begin() {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shape;
    asm volatile("ldtilecfg %0" ::"m"(shape));
  }
  static void end() { asm volatile("tilerelease"); }

  template <int T>
  OPSMITH_INLINE static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  template <int T>
  OPSMITH_INLINE static void load(const void* p, i64 stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  OPSMITH_INLINE static void store(void* p, i64 stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(T) : "memory");
  }
  // c += a b: pairs of bf16, or four bytes of a (unsigned) and b (signed), meet in a word
  template <int C, int A, int B>
  OPSMITH_INLINE static void multiply(bf16) {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
  template <int C, int A, int B>
  OPSMITH_INLINE static void multiply(uint8_t) {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

}  // namespace opsmith
