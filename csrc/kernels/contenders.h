// Columns of a row with a large number or a large hash. Integers and comparisons alone: every set finds the same ones.
#pragma once

#include <immintrin.h>

#include "kernels.h"

namespace outrider {
namespace OUTRIDER_ISA {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;  // the increment of splitmix64, and the factors of its finaliser
constexpr uint64_t kFirst = 0xBF58476D1CE4E5B9u, kSecond = 0x94D049BB133111EBu;

// Two steps of the finaliser. The third leaves the highest 31 bits as they are.
inline uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * kFirst;
  return (x ^ (x >> 27)) * kSecond;
}

constexpr int kColumns = 16, kWord = OUTRIDER_SPARE;  // compared at a time, and found at a time

#if defined(__AVX512F__)

struct Hashes {
  __m512i low, high;
};

inline __m512i mixed(__m512i x) {
  x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 30)), _mm512_set1_epi64((int64_t)kFirst));
  return _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 27)), _mm512_set1_epi64((int64_t)kSecond));
}

// 16 times `start`, each further one greater by `step`.
inline Hashes ascending(uint64_t start, uint64_t step) {
  const __m512i lanes = _mm512_mullo_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi64((int64_t)step));
  return {_mm512_add_epi64(lanes, _mm512_set1_epi64((int64_t)start)), _mm512_add_epi64(lanes, _mm512_set1_epi64((int64_t)(start + 8 * step)))};
}

inline Hashes moved(const Hashes &x, uint64_t by) {
  const __m512i step = _mm512_set1_epi64((int64_t)by);
  return {_mm512_add_epi64(x.low, step), _mm512_add_epi64(x.high, step)};
}

// start + id * golden ratio.
inline Hashes of_ids(const int64_t *ids, uint64_t start) {
  const __m512i golden = _mm512_set1_epi64((int64_t)kGolden);
  return moved({_mm512_mullo_epi64(_mm512_loadu_si512(ids), golden), _mm512_mullo_epi64(_mm512_loadu_si512(ids + 8), golden)}, start);
}

// Bit i: the number of column i exceeds the floor, or its hash is `least` or more. The masks are joined as masks and the
// numbers read before: GCC 12 writes a mask of 8 bits that it has to set aside as one byte, and may read four back.
inline unsigned chosen(const float *x, const Hashes &hashes, float floor, uint64_t least) {
  const __m512 numbers = _mm512_loadu_ps(x);
  const __m512i bound = _mm512_set1_epi64((int64_t)least);
  const __mmask8 low = _mm512_cmpge_epu64_mask(mixed(hashes.low), bound), high = _mm512_cmpge_epu64_mask(mixed(hashes.high), bound);
  return _mm512_kor(_mm512_cmp_ps_mask(numbers, _mm512_set1_ps(floor), _CMP_GT_OQ), _mm512_kunpackb(high, low));
}

#else

struct Hashes {
  __m256i part[4];
};

inline __m256i times(__m256i x, uint64_t factor) {
  const __m256i low = _mm256_set1_epi64x((int64_t)(factor & 0xFFFFFFFFu)), high = _mm256_set1_epi64x((int64_t)(factor >> 32));
  const __m256i crossed = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(x, 32), low), _mm256_mul_epu32(x, high));
  return _mm256_add_epi64(_mm256_mul_epu32(x, low), _mm256_slli_epi64(crossed, 32));
}

inline __m256i mixed(__m256i x) {
  x = times(_mm256_xor_si256(x, _mm256_srli_epi64(x, 30)), kFirst);
  return times(_mm256_xor_si256(x, _mm256_srli_epi64(x, 27)), kSecond);
}

inline Hashes moved(Hashes x, uint64_t by) {
  for (__m256i &part : x.part) part = _mm256_add_epi64(part, _mm256_set1_epi64x((int64_t)by));
  return x;
}

inline Hashes of_ids(const int64_t *ids, uint64_t start) {
  Hashes x;
  for (int i = 0; i < 4; ++i) x.part[i] = times(_mm256_loadu_si256((const __m256i *)ids + i), kGolden);
  return moved(x, start);
}

inline Hashes ascending(uint64_t start, uint64_t step) {
  Hashes x;
  for (int i = 0; i < 4; ++i)
    x.part[i] = _mm256_add_epi64(times(_mm256_set_epi64x(4 * i + 3, 4 * i + 2, 4 * i + 1, 4 * i), step), _mm256_set1_epi64x((int64_t)start));
  return x;
}

// 64-bit comparisons are signed: the highest bit is turned on both sides.
inline unsigned chosen(const float *x, const Hashes &hashes, float floor, uint64_t least) {
  const __m256i turned = _mm256_set1_epi64x(INT64_MIN), bound = _mm256_set1_epi64x((int64_t)(least ^ (uint64_t)1 << 63));
  unsigned below = 0, above = 0;
  for (int i = 0; i < 4; ++i)
    below |= (unsigned)_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(bound, _mm256_xor_si256(mixed(hashes.part[i]), turned)))) << 4 * i;
  for (int i = 0; i < 2; ++i)
    above |= (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(floor), _CMP_GT_OQ)) << 8 * i;
  return above | (~below & 0xFFFF);
}

#endif

// The largest number of each group of columns that are equal modulo `groups`.
inline void peaks(const float *row, int size, int groups, float *out) {
  for (int i = 0; i < groups; ++i) out[i] = row[i];
  for (int64_t start = groups; start < size; start += groups) {
    const float *__restrict x = row + start;
    float *__restrict most = out;
    const int count = size - start < groups ? (int)(size - start) : groups;
    for (int i = 0; i < count; ++i) most[i] = x[i] > most[i] ? x[i] : most[i];
  }
}

// Columns, as they are found: 64 at a time, one bit each. Which bits are set is chance, so no branch hangs on it: a few
// columns are always written and those beyond the set bits written over.
struct Found {
  static constexpr int kAlways = 4;
  int64_t *columns;
  int capacity;
  int count = 0;

  void add(int64_t first, uint64_t bits) {
    const int more = __builtin_popcountll(bits);
    if (count <= capacity - kWord) {
      int64_t *out = columns + count;
      for (int i = 0; i < kAlways; ++i, bits &= bits - 1) out[i] = first + __builtin_ctzll(bits | (uint64_t)1 << 63);
      for (int i = kAlways; i < more; ++i, bits &= bits - 1) out[i] = first + __builtin_ctzll(bits);
    }
    count += more;
  }
};

inline int contenders(const OutriderContenders &search) {
  Found found{search.columns, search.capacity};
  const uint64_t start = search.key + kGolden;
  auto hash_of = [&](int64_t column) { return mixed(start + (uint64_t)(search.tokens ? search.tokens[column] : column) * kGolden); };
  const int whole = search.size / kWord * kWord;
  Hashes hashes = ascending(start, kGolden);
  for (int at = 0; at < whole; at += kWord) {
    uint64_t bits = 0;
    for (int i = 0; i < kWord; i += kColumns) {
      if (search.tokens) hashes = of_ids(search.tokens + at + i, start);
      bits |= (uint64_t)chosen(search.row + at + i, hashes, search.floor, search.least) << i;
      hashes = moved(hashes, kColumns * kGolden);
    }
    found.add(at, bits);
  }
  uint64_t bits = 0;
  for (int at = whole; at < search.size; ++at)
    bits |= (uint64_t)(search.row[at] > search.floor || hash_of(at) >= search.least) << (at - whole);
  found.add(whole, bits);
  const int room = search.capacity > kWord ? search.capacity - kWord : 0;
  const int written = found.count < room ? found.count : room;
  for (int i = 0; i < written; ++i) {
    const uint64_t hash = hash_of(search.columns[i]);
    search.values[i] = search.row[search.columns[i]];
    const uint64_t bits = (hash ^ (hash >> 31)) >> 11;
    search.uniforms[i] = (double)(bits ? bits : 1) * 0x1p-53;
  }
  return found.count;
}

}  // namespace OUTRIDER_ISA
}  // namespace outrider
