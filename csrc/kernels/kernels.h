// What one instruction set offers; `isa.cpp` picks one table per model.
#pragma once

#include "../activations.h"
#include "../matrix.h"
#include "../outrider.h"

namespace outrider {

// Queries of one key-value head over one sequence. Position p is slot p up to `common`, which is even; a query sees the
// common slots, then the slots of its tail in order. The order of sums is by position alone.
struct Attention {
  void *const *pages;
  ptrdiff_t key_offset, value_offset;  // of this layer and head within a page, bytes
  int head_dim, padded_dim;            // padded to whole vectors
  int common;                          // slots that all queries see
  int queries;
  const uint32_t *const *query;  // [queries] -> units of the scaled query
  float *const *out;             // [queries] -> [head_dim]
  const int32_t *const *tail;    // [queries] -> slots after the common ones
  const int32_t *tail_count;     // [queries]
  float *scratch;                // [queries, stride]: scores, then weights
  ptrdiff_t stride;
  float *sums;  // [queries]
};

// What one type of cache needs.
struct CacheKernels {
  void (*round_query)(float *x, int head_dim);
  void (*store_key)(void *const *pages, ptrdiff_t offset, int slot, const float *x, int head_dim);
  void (*store_value)(void *const *pages, ptrdiff_t offset, int slot, const float *x, int head_dim, int padded_dim);
  // Three steps: scores of slots [begin, end), whole blocks of 16; weights of query q; lines [begin, end) of 16
  // dimensions of the weighted values. The first and last may be cut at will.
  void (*scores)(const Attention &, int begin, int end);
  void (*soften)(const Attention &, int q);
  void (*mix)(const Attention &, int begin, int end);
};

struct Kernels {
  const char *name;
  const int *widths;  // ascending, ends with 0
  int max_queries;
  // Products of one pair of panels with all rows: out[row * 32 + output]. Meanwhile fetches from `next` on, where this
  // thread will read next.
  void (*product)(const Matrix &, int pair, const Activations &, float *out, const uint8_t *next);
  // Rounds groups [begin, end) of one row x [groups * 32] into row r of a block.
  void (*prepare)(Rounding, const float *x, Block &, int r, int begin, int end);
  void (*rms_norm)(const float *x, const float *weight, float eps, int count, float *out);
  // out[i] = gate[i] * sigmoid(gate[i]) * up[i] for 32 values.
  void (*swiglu)(const float *gate, const float *up, float *out);
  // Rotates pairs (j, j + half) of one head.
  void (*rotate)(float *x, const float *cosines, const float *sines, int half);
  CacheKernels float32, bfloat16;
  // Multiply-adds of `rounding` arithmetic on registers and the first-level cache; returns how many were done.
  double (*multiply)(Rounding, int rounds);
  // Reads memory from first to last byte as the products do.
  void (*read)(const uint8_t *data, size_t bytes);
  // The largest number of each group of columns that are equal modulo `groups`.
  void (*peaks)(const float *row, int size, int groups, float *out);
  // What is above the floor or hashed large enough: writes as much as there is room for, returns how much there is.
  int (*contenders)(const OutriderContenders &);
};

}  // namespace outrider
