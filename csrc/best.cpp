// The largest numbers of rows: what a drafter keeps of scores.
#include <emmintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "guard.h"
#include "outrider.h"

using namespace outrider;

namespace {

constexpr int kBlock = 64;

// The largest of a block; `nan` gathers where there is none.
float peak(const float *x, __m128 &nan) {
  __m128 most = _mm_loadu_ps(x);
  nan = _mm_or_ps(nan, _mm_cmpunord_ps(most, most));
  for (int i = 4; i < kBlock; i += 4) {
    const __m128 next = _mm_loadu_ps(x + i);
    nan = _mm_or_ps(nan, _mm_cmpunord_ps(next, next));
    most = _mm_max_ps(most, next);
  }
  alignas(16) float lanes[4];
  _mm_store_ps(lanes, most);
  return std::max(std::max(lanes[0], lanes[1]), std::max(lanes[2], lanes[3]));
}

// Puts x among the `held` best, behind its equals; what falls off the end of `count` is dropped.
void insert(float x, int32_t id, int count, int &held, int32_t *ids, float *values) {
  if (held == count && !(x > values[count - 1])) return;
  int place = held < count ? held++ : count - 1;
  for (; place > 0 && x > values[place - 1]; --place) values[place] = values[place - 1], ids[place] = ids[place - 1];
  values[place] = x, ids[place] = id;
}

void best_of(const float *row, int size, int count, int32_t *ids, float *values) {
  int held = 0, at = 0;
  __m128 nan = _mm_setzero_ps();
  for (; at + kBlock <= size; at += kBlock)
    if (const float most = peak(row + at, nan); held < count || most > values[count - 1])
      for (int i = at; i < at + kBlock; ++i) insert(row[i], i, count, held, ids, values);
  bool sound = _mm_movemask_ps(nan) == 0;
  for (; at < size; ++at) {
    sound = sound && !std::isnan(row[at]);
    insert(row[at], at, count, held, ids, values);
  }
  if (sound) return;
  for (int i = 0; i < count; ++i) ids[i] = i, values[i] = std::numeric_limits<float>::quiet_NaN();
}

}  // namespace

int outrider_best(const float *rows, int32_t row_count, int32_t size, int32_t count, int32_t *ids, float *values) {
  return guarded([&] {
    require(rows && ids && values && row_count >= 0, "rows to read and places to write are needed");
    require(count > 0 && count <= size, "between one number and all of a row can be asked for, not " + text(count));
    for (int32_t row = 0; row < row_count; ++row)
      best_of(rows + (size_t)row * size, size, count, ids + (size_t)row * count, values + (size_t)row * count);
  });
}
