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
void score_block(const Attention &a, int first, int begin, int end) {
  const uint32_t *query[Q];
  for (int q = 0; q < Q; ++q) query[q] = a.query[first + q];
  const int units = a.head_dim / Cache::kPer;
  auto lines = [&](int slot) {
    return (const uint32_t *)part_of<Cache>(a.pages, a.key_offset, slot) + slot % kPage / 16 * 16 * units;
  };
  for (int slot = begin; slot < end; slot += 16) {
    const uint32_t *line = lines(slot), *next = slot + 16 < end ? lines(slot + 16) : line;
    Float sum[Q];
    for (int q = 0; q < Q; ++q) sum[q] = zero();
    for (int u = 0; u < units; ++u, line += 16) {
      __builtin_prefetch(next + 16 * u);
      const auto keys = Cache::line(line);
      for (int q = 0; q < Q; ++q) sum[q] = Cache::dot(sum[q], keys, query[q][u]);
    }
    for (int q = 0; q < Q; ++q) store(a.scratch + (first + q) * a.stride + slot, sum[q]);
  }
}

// Turns the scores of one query into units of weights by position, and notes the sum of the weights.
template <class Cache>
void soften(const Attention &a, int q) {
  float *at = a.scratch + q * a.stride;
  const int32_t *tail = a.tail[q];
  const int common = a.common, tail_count = a.tail_count[q];
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
  a.sums[q] = total(sum);
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
void mix_block(const Attention &a, int first, int line) {
  constexpr int kUnits = kPage / Cache::kPer, kFar = 16 / Cache::kPer;  // units fetched ahead
  Float sum[Q][V];
  for (int q = 0; q < Q; ++q)
    for (int v = 0; v < V; ++v) sum[q][v] = zero();
  const uint32_t *weights = (const uint32_t *)(a.scratch + first * a.stride);
  for (int page = 0; page * kPage < a.common; ++page) {
    auto values = [&](int which) { return (const uint32_t *)((const uint8_t *)a.pages[which] + a.value_offset) + 16 * line; };
    const bool more = (page + 1) * kPage < a.common;
    const uint32_t *value = values(page), *next = values(page + more);
    const int units = (more ? kPage : a.common - page * kPage) / Cache::kPer;
    const uint32_t *weight = weights + page * kUnits;
    for (int u = 0; u < units; ++u, value += a.padded_dim) {
      const uint32_t *ahead = u + kFar < kUnits ? value + kFar * a.padded_dim : next + (u + kFar - kUnits) * a.padded_dim;
      typename Cache::Line lines[V];
      for (int v = 0; v < V; ++v) {
        __builtin_prefetch(ahead + 16 * v);
        lines[v] = Cache::line(value + 16 * v);
      }
      for (int q = 0; q < Q; ++q)
        for (int v = 0; v < V; ++v) sum[q][v] = Cache::dot(sum[q][v], lines[v], weight[q * a.stride + u]);
    }
  }
  for (int q = 0; q < Q; ++q) {
    const uint32_t *weight = weights + q * a.stride + a.common / Cache::kPer;
    mix_tail<Cache, V>(a, a.tail[first + q], a.tail_count[first + q], weight, line, sum[q]);
    alignas(64) float mixed[16 * V];
    for (int v = 0; v < V; ++v) store(mixed + 16 * v, mul(sum[q][v], set1(1.0f / a.sums[first + q])));
    for (int d = 0; d < 16 * V && 16 * line + d < a.head_dim; ++d) a.out[first + q][16 * line + d] = mixed[d];
  }
}

template <class Cache>
void scores(const Attention &a, int begin, int end) {
  int q = 0;
  for (; q + kMaxQueries <= a.queries; q += kMaxQueries) score_block<Cache, kMaxQueries>(a, q, begin, end);
  if (kMaxQueries == 6 && q + 3 <= a.queries) score_block<Cache, 3>(a, q, begin, end), q += 3;
  for (; q < a.queries; ++q) score_block<Cache, 1>(a, q, begin, end);
}

template <class Cache, int Q>
void mix_lines(const Attention &a, int q, int line, int end) {
  for (; line + 4 <= end; line += 4) mix_block<Cache, Q, 4>(a, q, line);
  for (; line + 2 <= end; line += 2) mix_block<Cache, Q, 2>(a, q, line);
  for (; line < end; ++line) mix_block<Cache, Q, 1>(a, q, line);
}

template <class Cache>
void mix(const Attention &a, int begin, int end) {
  int q = 0;
  for (; q + kMaxQueries <= a.queries; q += kMaxQueries) mix_lines<Cache, kMaxQueries>(a, q, begin, end);
  if (kMaxQueries == 6 && q + 3 <= a.queries) mix_lines<Cache, 3>(a, q, begin, end), q += 3;
  for (; q < a.queries; ++q) mix_lines<Cache, 1>(a, q, begin, end);
}

}  // namespace OUTRIDER_ISA
}  // namespace outrider
