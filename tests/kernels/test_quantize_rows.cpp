// quantize_rows and quantize_image against their references: odd sizes, every block, rows apart, storage types, and rows that are not numbers.
#include "quantize_rows.hpp"

#include "arrays.hpp"

using namespace opsmith;
using namespace opsmith::test;

template <class TX>
void check(const Pool& pool, Random& random, i64 rows, i64 columns, i64 block, float offset) {
  const i64 x_row = columns + random.below(4);
  Array<float> plain(rows * x_row);
  for (i64 i = 0; i < plain.size; ++i) plain.data[i] = offset + random.normal() * (random.below(50) ? 1.0f : 40.0f);
  Array<TX> x(plain.size);
  for (i64 i = 0; i < plain.size; ++i) x.data[i] = from_float<TX>(plain.data[i]);
  Array<uint8_t> got(rows * columns), want(rows * columns), got_zeros(rows), want_zeros(rows);
  Array<float> got_scales(rows), want_scales(rows), some(columns, random);
  const float* factors = random.below(3) ? some.data : nullptr;
  quantize_rows(pool, rows, columns, x.data, x_row, factors, block, got.data, got_scales.data, got_zeros.data);
  quantize_rows_reference(pool, rows, columns, x.data, x_row, factors, block, want.data, want_scales.data, want_zeros.data);
  char name[100];
  snprintf(name, sizeof name, "quantize_rows %d x %d, block %d", int(rows), int(columns), int(block));
  expect_close(name, got_scales.data, want_scales.data, rows, 1e-5, 0);
  // The order of a sum decides which way a tie goes.
  expect_close(name, got_zeros.data, want_zeros.data, rows, 0, 1);
  expect_close(name, got.data, want.data, rows * columns, 0, 1);
  i64 different = 0;
  for (i64 i = 0; i < got.size; ++i) different += got.data[i] != want.data[i];
  CHECK(different * 50 <= got.size + 50);
  if (rows) {
    Array<float> scale(2);
    Array<uint8_t> zero(2), image(rows * columns), want_image(rows * columns);
    quantize_image(pool, rows, columns, x.data, x_row, image.data, scale.data, zero.data);
    quantize_image_reference(pool, rows, columns, x.data, x_row, want_image.data, scale.data + 1, zero.data + 1);
    CHECK(scale.data[0] == scale.data[1] && zero.data[0] == zero.data[1]);
    expect_close("quantize_image", image.data, want_image.data, rows * columns, 0, 1);  // 1: a tie
  }
  // What the bytes stand for is the rotated row, within half a step.
  for (i64 r = 0; r < rows; ++r) {
    Array<float> row(columns);
    rotate_row(x.data + r * x_row, factors, columns, block, row.data);
    for (i64 c = 0; c < columns; ++c) {
      const float back = static_cast<float>(got.data[r * columns + c] - got_zeros.data[r]) * got_scales.data[r];
      CHECK(fabs(back - row.data[c]) <= 1.01f * got_scales.data[r]);
    }
  }
}

int main() {
  Random random;
  Threads threads(3);
  const Pool one = serial(), three = threads.pool();
  for (i64 rows : {0, 1, 7})
    for (i64 block : {1, 2, 4, 8, 16, 32, 64})
      for (i64 run : {1, 3, 12, 16, 33})
        for (float offset : {0.0f, 3.0f, -50.0f}) {
          check<float>(rows % 2 ? one : three, random, rows, block * run, block, offset);
          check<bf16>(three, random, rows, block * run, block, offset);
        }
  check<f16>(three, random, 300, 768, 64, 0);
  check<bf16>(three, random, 40, 5000, 8, 0);
  // Zeros, and rows that are no numbers, which spoil themselves and nobody else.
  const i64 columns = 48;
  Array<float> x(4 * columns, random);
  for (i64 c = 0; c < columns; ++c) x.data[c] = 0;
  x.data[columns + 5] = __builtin_nanf(""), x.data[2 * columns + 47] = -__builtin_inff();
  for (i64 block : {1, 16}) {
    Array<uint8_t> y(4 * columns), zeros(4);
    Array<float> scales(4);
    quantize_rows(three, 4, columns, x.data, columns, nullptr, block, y.data, scales.data, zeros.data);
    CHECK(scales.data[0] == 1 && zeros.data[0] == 0 && y.data[0] == 0 && y.data[columns - 1] == 0);
    CHECK(scales.data[1] != scales.data[1] && scales.data[2] != scales.data[2] && scales.data[3] > 0);
  }
  return finish();
}
