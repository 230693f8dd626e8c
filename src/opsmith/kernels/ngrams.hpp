// How often given n-grams of tokens occur in rows of tokens: TfIdfVectorizer.
#pragma once

#include "fold.hpp"

namespace opsmith {

enum class Frequency { tf, idf, tfidf };

// grams [count][3]: where its tokens start in `pool`, how many they are, the column it counts for; sorted by the first token.
// x [rows][length] -> y [rows][columns]. Tokens of an n-gram stand 1 to max_skip + 1 apart; weights [columns] may be null.
template <Frequency How, class T>
void count_ngrams(const Pool& threads, i64 rows, i64 length, i64 columns, i64 count, i64 max_skip, const T* x, const i64* pool,
                  const i64* grams, const float* weights, float* y) {
  threads.parallel_ranges(rows, 1, [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      const T* tokens = x + r * length;
      float* out = y + r * columns;
      for (i64 c = 0; c < columns; ++c) out[c] = 0;
      for (i64 i = 0; i < length; ++i) {
        const i64 token = static_cast<i64>(tokens[i]);
        i64 low = 0, high = count;  // the first n-gram that starts with this token
        while (low < high) {
          const i64 middle = (low + high) / 2;
          if (pool[grams[3 * middle]] < token)
            low = middle + 1;
          else
            high = middle;
        }
        for (; low < count && pool[grams[3 * low]] == token; ++low) {
          const i64 n = grams[3 * low + 1];
          for (i64 step = 1; step <= (n == 1 ? 1 : max_skip + 1) && i + (n - 1) * step < length; ++step) {
            bool same = true;
            for (i64 k = 1; k < n && same; ++k) same = static_cast<i64>(tokens[i + k * step]) == pool[grams[3 * low] + k];
            out[grams[3 * low + 2]] += same;
          }
        }
      }
      for (i64 c = 0; c < columns && How != Frequency::tf; ++c) {
        const float weight = weights ? weights[c] : 1.0f;
        out[c] = How == Frequency::tfidf ? out[c] * weight : out[c] > 0 ? weight : 0;
      }
    }
  });
}

}  // namespace opsmith
