// dynamic_quantize against its reference, and the vector form of quantize_to against the scalar one.
#include "linear_quant.hpp"

#include "arrays.hpp"

using namespace opsmith;
using namespace opsmith::test;

static void check_dynamic(const Pool& pool, Random& random, i64 count, float offset) {
  Array<float> x(count, random);
  for (i64 i = 0; i < count; ++i) x.data[i] = offset == 0 ? 0 : x.data[i] + offset;
  Array<uint8_t> got(count), want(count);
  float scale[2];
  uint8_t zero[2];
  dynamic_quantize(pool, count, x.data, got.data, scale, zero);
  dynamic_quantize_reference(pool, count, x.data, want.data, scale + 1, zero + 1);
  CHECK(scale[0] == scale[1] && zero[0] == zero[1]);
  expect_close("dynamic_quantize", got.data, want.data, count, 0, 0);
}

template <class T>
void check_quantize() {
  for (float scale : {1.0f, 0.5f, 0.0371f})
    for (int zero : {0, 3, 100})
      for (float x = -300; x < 300; x += 0.125f) {
        const F got = quantize_to<T>(splat(x), splat(scale), splat(static_cast<float>(zero)));
        CHECK(got[0] == static_cast<float>(quantize_to<T>(x, scale, static_cast<T>(zero))));
        T stored[W];
        store(stored, got, Full{});
        CHECK(stored[W - 1] == quantize_to<T>(x, scale, static_cast<T>(zero)));
      }
}

int main() {
  Random random;
  Threads threads(3);
  const Pool one = serial(), three = threads.pool();
  for (i64 count : {0, 1, 3, 16, 17, 63, 64, 65, 1000, 200001})
    for (float offset : {0.0f, 0.1f, 5.0f, -5.0f}) check_dynamic(count % 2 ? one : three, random, count, offset);
  check_quantize<uint8_t>();
  check_quantize<int8_t>();
  return finish();
}
