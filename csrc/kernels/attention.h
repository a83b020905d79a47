// Attention of a few queries over one key-value head.
//
// A page holds, for each layer and head, its keys as blocks of 16 positions ([head_dim][16]: one vector is one
// dimension of 16 positions) and its values position by position ([64][padded_dim]). A score is a sum over dimensions in
// ascending order, whatever the lane; scores are then put in the order of positions, the sum of exponentials is taken
// in lanes of position mod 16, and values are added in ascending positions.
#pragma once

#include "elementwise.h"

namespace outrider {
namespace OUTRIDER_ISA {

constexpr int kPage = 64;
constexpr int kMaxQueries = OUTRIDER_REGISTERS == 32 ? 6 : 2;
constexpr int kChunk = 64;  // dimensions of the values summed at once

inline Float load_number(const float *p) { return load(p); }
inline Float load_number(const uint16_t *p) { return load_bfloat(p); }
inline void store_number(float *p, float x) { *p = x; }
inline void store_number(uint16_t *p, float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  *p = (uint16_t)((bits + ((bits >> 16) & 1) + 0x7fff) >> 16);  // as bfloat_bits
}

template <class Number>
inline Number *slot_of(void *const *pages, ptrdiff_t offset, int slot) {
  return (Number *)((uint8_t *)pages[slot / kPage] + offset);
}

template <class Number>
void store_key(void *const *pages, ptrdiff_t offset, int slot, const float *x, int head_dim) {
  Number *block = slot_of<Number>(pages, offset, slot) + (slot % kPage) / 16 * 16 * head_dim + slot % 16;
  for (int d = 0; d < head_dim; ++d) store_number(block + 16 * d, x[d]);
}

template <class Number>
void store_value(void *const *pages, ptrdiff_t offset, int slot, const float *x, int head_dim, int padded_dim) {
  Number *row = slot_of<Number>(pages, offset, slot) + (ptrdiff_t)(slot % kPage) * padded_dim;
  for (int d = 0; d < head_dim; ++d) store_number(row + d, x[d]);
  for (int d = head_dim; d < padded_dim; ++d) store_number(row + d, 0.0f);
}

template <class Number, int Q>
inline void scores(const Attention &a, int first, float *out, ptrdiff_t stride) {
  const float *query[Q];
  for (int q = 0; q < Q; ++q) query[q] = a.query[first + q];
  for (int slot = 0; slot < a.slots; slot += 16) {
    const Number *block = slot_of<Number>(a.pages, a.key_offset, slot) + (slot % kPage) / 16 * 16 * a.head_dim;
    Float sum[Q];
    for (int q = 0; q < Q; ++q) sum[q] = zero();
    for (int d = 0; d < a.head_dim; ++d) {
      Float key = load_number(block + 16 * d);
      for (int q = 0; q < Q; ++q) sum[q] = fma(key, set1(query[q][d]), sum[q]);
    }
    for (int q = 0; q < Q; ++q) store(out + q * stride + slot, sum[q]);
  }
}

// Turns the scores of one query into weights by position; returns their sum.
inline float soften(float *at, int common, const int32_t *tail, int tail_count) {
  for (int i = 0; i < tail_count; ++i) at[common + i] = at[tail[i]];  // tail[i] >= common + i: none is overwritten early
  const int count = common + tail_count;
  const Float lowest = set1(-__builtin_inff());
  Float top = lowest;
  for (int p = 0; p < count; p += 16) top = max(first(load(at + p), count - p, lowest), top);
  const Float peak = set1(largest(top));
  Float sum = zero();
  for (int p = 0; p < count; p += 16) {
    Float weight = first(exponential(sub(load(at + p), peak)), count - p, zero());
    store(at + p, weight);
    sum = add(sum, weight);
  }
  return total(sum);
}

template <class Number, int Q, int V>
inline void mix(const Attention &a, int first, const float *weights, ptrdiff_t stride, const float *sums, int begin) {
  Float sum[Q][V];
  for (int q = 0; q < Q; ++q)
    for (int v = 0; v < V; ++v) sum[q][v] = zero();
  for (int page = 0; page * kPage < a.common; ++page) {
    const Number *row = (const Number *)((const uint8_t *)a.pages[page] + a.value_offset) + begin;
    const int end = a.common - page * kPage < kPage ? a.common - page * kPage : kPage;
    const float *weight = weights + page * kPage;
    for (int p = 0; p < end; ++p, row += a.padded_dim) {
      Float value[V];
      for (int v = 0; v < V; ++v) value[v] = load_number(row + 16 * v);
      for (int q = 0; q < Q; ++q)
        for (int v = 0; v < V; ++v) sum[q][v] = fma(value[v], set1(weight[q * stride + p]), sum[q][v]);
    }
  }
  for (int q = 0; q < Q; ++q) {
    const float *weight = weights + q * stride + a.common;
    for (int i = 0; i < a.tail_count[first + q]; ++i) {
      const int slot = a.tail[first + q][i];
      const Number *row = slot_of<Number>(a.pages, a.value_offset, slot) + (ptrdiff_t)(slot % kPage) * a.padded_dim + begin;
      for (int v = 0; v < V; ++v) sum[q][v] = fma(load_number(row + 16 * v), set1(weight[i]), sum[q][v]);
    }
    alignas(64) float mixed[16 * V];
    for (int v = 0; v < V; ++v) store(mixed + 16 * v, mul(sum[q][v], set1(1.0f / sums[q])));
    for (int d = 0; d < 16 * V && begin + d < a.head_dim; ++d) a.out[first + q][begin + d] = mixed[d];
  }
}

template <class Number, int Q>
inline void attend_block(const Attention &a, int first) {
  const ptrdiff_t stride = (a.slots + a.queries + kPage) / kPage * kPage + kPage;
  float sums[Q];
  scores<Number, Q>(a, first, a.scratch, stride);
  for (int q = 0; q < Q; ++q)
    sums[q] = soften(a.scratch + q * stride, a.common, a.tail[first + q], a.tail_count[first + q]);
  int begin = 0;
  for (; begin + kChunk <= a.padded_dim; begin += kChunk) mix<Number, Q, kChunk / 16>(a, first, a.scratch, stride, sums, begin);
  for (; begin < a.padded_dim; begin += 16) mix<Number, Q, 1>(a, first, a.scratch, stride, sums, begin);
}

template <class Number>
void attend(const Attention &a) {
  int q = 0;
  for (; q + kMaxQueries <= a.queries; q += kMaxQueries) attend_block<Number, kMaxQueries>(a, q);
  if (kMaxQueries == 6 && q + 3 <= a.queries) attend_block<Number, 3>(a, q), q += 3;
  for (; q < a.queries; ++q) attend_block<Number, 1>(a, q);
}

}  // namespace OUTRIDER_ISA
}  // namespace outrider
