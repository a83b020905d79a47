// Attention of a few queries over one key-value head.
//
// A score is a sum over dimensions in ascending order (in pairs for bfloat16), whatever the lane; scores are then put in
// the order of positions, the sum of exponentials is taken in lanes of position mod 16, and values are added in
// ascending positions (in pairs of an even and an odd position for bfloat16).
#pragma once

#include "../cache.h"
#include "elementwise.h"

namespace outrider {
namespace OUTRIDER_ISA {

constexpr int kMaxQueries = OUTRIDER_REGISTERS == 32 ? 6 : 2;
constexpr int kChunk = 4;  // lines of the values summed at once

struct Float32Cache {
  using Number = float;
  using Line = Float;
  static constexpr int kPer = 1;
  static inline Number rounded(float x) { return x; }
  static inline Line line(const uint32_t *p) { return load((const float *)p); }
  static inline Float dot(Float sum, Line line, uint32_t x) { return fma(line, set1(float_of(x)), sum); }
  // The unit of positions a and b; without b only a counts.
  static inline Line joined(const uint32_t *a, bool, const uint32_t *, bool) { return line(a); }
  // Replaces 16 weights by units at `out`, and returns what the units stand for.
  static inline Float pack(float *out, Float weights) { return store(out, weights), weights; }
};

struct Bfloat16Cache {
  using Number = uint16_t;
  using Line = Pair;
  static constexpr int kPer = 2;
  static inline Number rounded(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return (Number)((bits + ((bits >> 16) & 1) + 0x7fff) >> 16);  // as bfloat_bits
  }
  static inline Line line(const uint32_t *p) { return pair(load_bits(p)); }
  static inline Float dot(Float sum, Line line, uint32_t x) { return dot_pair(sum, line, x); }
  static inline Line joined(const uint32_t *a, bool a_odd, const uint32_t *b, bool b_odd) {
    return pair(halves(load_bits(a), a_odd, b ? load_bits(b) : no_bits(), b_odd));
  }
  static inline Float pack(float *out, Float weights) {
    store_bfloat((uint16_t *)out, weights);
    return load_bfloat((const uint16_t *)out);
  }
};

template <class Cache>
inline typename Cache::Number *part_of(void *const *pages, ptrdiff_t offset, int slot) {
  return (typename Cache::Number *)((uint8_t *)pages[slot / kPage] + offset);
}

template <class Cache>
void store_key(void *const *pages, ptrdiff_t offset, int slot, const float *x, int head_dim) {
  auto *keys = part_of<Cache>(pages, offset, slot);
  for (int d = 0; d < head_dim; ++d) keys[key_index(Cache::kPer, head_dim, slot % kPage, d)] = Cache::rounded(x[d]);
}

template <class Cache>
void store_value(void *const *pages, ptrdiff_t offset, int slot, const float *x, int head_dim, int padded_dim) {
  auto *values = part_of<Cache>(pages, offset, slot) + value_index(Cache::kPer, padded_dim, slot % kPage, 0);
  for (int d = 0; d < head_dim; ++d) values[d * Cache::kPer] = Cache::rounded(x[d]);
  for (int d = head_dim; d < padded_dim; ++d) values[d * Cache::kPer] = 0;
}

// Turns a query into units, in place.
template <class Cache>
void round_query(float *x, int head_dim) {
  auto *units = (typename Cache::Number *)x;
  for (int d = 0; d < head_dim; ++d) {
    const auto number = Cache::rounded(x[d]);
    __builtin_memcpy(units + d, &number, sizeof(number));
  }
}

template <class Cache, int Q>
inline void scores(const Attention &a, int first, ptrdiff_t stride) {
  const uint32_t *query[Q];
  for (int q = 0; q < Q; ++q) query[q] = a.query[first + q];
  const int units = a.head_dim / Cache::kPer;
  for (int slot = 0; slot < a.slots; slot += 16) {
    const uint32_t *line = (const uint32_t *)part_of<Cache>(a.pages, a.key_offset, slot) + slot % kPage / 16 * 16 * units;
    Float sum[Q];
    for (int q = 0; q < Q; ++q) sum[q] = zero();
    for (int u = 0; u < units; ++u, line += 16) {
      const auto keys = Cache::line(line);
      for (int q = 0; q < Q; ++q) sum[q] = Cache::dot(sum[q], keys, query[q][u]);
    }
    for (int q = 0; q < Q; ++q) store(a.scratch + q * stride + slot, sum[q]);
  }
}

// Turns the scores of one query into units of weights by position; returns the sum of the weights.
template <class Cache>
inline float soften(float *at, int common, const int32_t *tail, int tail_count) {
  for (int i = 0; i < tail_count; ++i) at[common + i] = at[tail[i]];  // tail[i] >= common + i: none is overwritten early
  const int count = common + tail_count;
  const Float lowest = set1(-__builtin_inff());
  Float top = lowest;
  for (int p = 0; p < count; p += 16) top = max(first(load(at + p), count - p, lowest), top);
  const Float peak = set1(largest(top));
  Float sum = zero();
  for (int p = 0; p < count; p += 16) {
    const Float weight = first(exponential(sub(load(at + p), peak)), count - p, zero());
    sum = add(sum, Cache::pack(at + p / Cache::kPer, weight));
  }
  return total(sum);
}

// Adds the values after the common ones, unit by unit.
template <class Cache, int V>
inline void mix_tail(const Attention &a, const int32_t *tail, int count, const uint32_t *weight, int line, Float (&sum)[V]) {
  auto values = [&](int slot) {
    return (const uint32_t *)part_of<Cache>(a.pages, a.value_offset, slot) +
           (ptrdiff_t)(slot % kPage / Cache::kPer) * a.padded_dim + 16 * line;
  };
  for (int i = 0; i < count; i += Cache::kPer, ++weight) {
    const bool second = Cache::kPer == 2 && i + 1 < count;
    const uint32_t *one = values(tail[i]), *other = second ? values(tail[i + 1]) : nullptr;
    for (int v = 0; v < V; ++v) {
      const auto joined = Cache::joined(one + 16 * v, tail[i] & 1, second ? other + 16 * v : nullptr, second && tail[i + 1] & 1);
      sum[v] = Cache::dot(sum[v], joined, *weight);
    }
  }
}

// Weighted values of lines [line, line + V) of Q queries.
template <class Cache, int Q, int V>
inline void mix(const Attention &a, int first, ptrdiff_t stride, const float *sums, int line) {
  Float sum[Q][V];
  for (int q = 0; q < Q; ++q)
    for (int v = 0; v < V; ++v) sum[q][v] = zero();
  const uint32_t *weights = (const uint32_t *)a.scratch;
  for (int page = 0; page * kPage < a.common; ++page) {
    const uint32_t *values = (const uint32_t *)((const uint8_t *)a.pages[page] + a.value_offset) + 16 * line;
    const int positions = a.common - page * kPage < kPage ? a.common - page * kPage : kPage;
    const uint32_t *weight = weights + page * kPage / Cache::kPer;
    for (int u = 0; u < positions / Cache::kPer; ++u, values += a.padded_dim) {
      typename Cache::Line value[V];
      for (int v = 0; v < V; ++v) value[v] = Cache::line(values + 16 * v);
      for (int q = 0; q < Q; ++q)
        for (int v = 0; v < V; ++v) sum[q][v] = Cache::dot(sum[q][v], value[v], weight[q * stride + u]);
    }
  }
  for (int q = 0; q < Q; ++q) {
    const uint32_t *weight = weights + q * stride + a.common / Cache::kPer;
    mix_tail<Cache, V>(a, a.tail[first + q], a.tail_count[first + q], weight, line, sum[q]);
    alignas(64) float mixed[16 * V];
    for (int v = 0; v < V; ++v) store(mixed + 16 * v, mul(sum[q][v], set1(1.0f / sums[q])));
    for (int d = 0; d < 16 * V && 16 * line + d < a.head_dim; ++d) a.out[first + q][16 * line + d] = mixed[d];
  }
}

template <class Cache, int Q>
inline void attend_block(const Attention &a, int first) {
  const ptrdiff_t stride = (a.slots + a.queries + kPage) / kPage * kPage + kPage;
  float sums[Q];
  scores<Cache, Q>(a, first, stride);
  for (int q = 0; q < Q; ++q)
    sums[q] = soften<Cache>(a.scratch + q * stride, a.common, a.tail[first + q], a.tail_count[first + q]);
  const int lines = a.padded_dim / 16;
  int line = 0;
  for (; line + kChunk <= lines; line += kChunk) mix<Cache, Q, kChunk>(a, first, stride, sums, line);
  for (; line < lines; ++line) mix<Cache, Q, 1>(a, first, stride, sums, line);
}

template <class Cache>
void attend(const Attention &a) {
  int q = 0;
  for (; q + kMaxQueries <= a.queries; q += kMaxQueries) attend_block<Cache, kMaxQueries>(a, q);
  if (kMaxQueries == 6 && q + 3 <= a.queries) attend_block<Cache, 3>(a, q), q += 3;
  for (; q < a.queries; ++q) attend_block<Cache, 1>(a, q);
}

}  // namespace OUTRIDER_ISA
}  // namespace outrider
