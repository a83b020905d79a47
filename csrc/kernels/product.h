// The product of a pair of panels with all rows: weights are read once, whatever the number of rows.
#pragma once

#include "formats.h"

namespace outrider {
namespace OUTRIDER_ISA {

#define OUTRIDER_INLINE inline __attribute__((always_inline))
#define OUTRIDER_UNROLL _Pragma("GCC unroll 16")

// Both panels together fetch ahead within their stream. Where a line gives enough work, far ahead into the second-level
// cache, which waits for more lines at a time than the first, and from there near ahead into the first; where memory is
// all there is to wait for, into the first at once.
template <class Format, int R>
constexpr bool kWorks = has_scale(Format::kKind) && 8 * R * Format::kUnitsPerLine >= Format::kUnits;
template <class Format, int R>
constexpr ptrdiff_t kAhead = kWorks<Format, R> ? 12 << 10 : 4 << 10;  // bytes
constexpr ptrdiff_t kNear = 2 << 10;
template <class Format, int R, int P>
constexpr int kLevel = P == 1 || kWorks<Format, R> ? 2 : 3;  // as __builtin_prefetch counts: 3 is the first

// What is fetched while a pair is worked on: `next`, the pair that this thread will take next. Each of `turns` blocks of
// rows fetches its share of it, so that memory is busy all the while.
struct Fetch {
  const uint8_t *next;
  int turn, turns;
};

// Unit u + t of P panels; fetches as many lines from `ahead` as it reads.
template <class Format, int R, int P, int t>
OUTRIDER_INLINE void step(const uint8_t *data, const uint8_t *ahead, int u, const uint32_t *x,
                          typename Format::Sum (&sum)[R][P]) {
  if (t % Format::kUnitsPerLine == 0) {
    const int line = (u / Format::kUnitsPerLine + t / Format::kUnitsPerLine) * P * kLine;
    OUTRIDER_UNROLL
    for (int p = 0; p < P; ++p) {
      __builtin_prefetch(ahead + line + p * kLine, 0, kLevel<Format, R, P>);
      if (P == 2 && kWorks<Format, R>) __builtin_prefetch(data + kNear + line + p * kLine);
    }
  }
  OUTRIDER_UNROLL
  for (int p = 0; p < P; ++p) {
    auto w = Format::template weight<t>(data + p * kLine, u);
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r) sum[r][p] = Format::dot(sum[r][p], w, x + (u + t) * R + r);
  }
}

// Adds the partial sums of group g to the totals.
template <class Format, int R, int P>
OUTRIDER_INLINE void join(const typename Format::Sum (&sum)[R][P], const uint8_t *scales, const Block &block, int g,
                          Float (&total)[R][P]) {
  constexpr Kind kKind = Format::kKind;
  OUTRIDER_UNROLL
  for (int p = 0; p < P; ++p) {
    if constexpr (!has_scale(kKind)) {
      OUTRIDER_UNROLL
      for (int r = 0; r < R; ++r) total[r][p] = add(total[r][p], as_float(sum[r][p]));
    } else {
      const uint16_t *halves = (const uint16_t *)(scales + p * size_of(kKind).scales);
      const Float scale = load_half(halves);
      OUTRIDER_UNROLL
      for (int r = 0; r < R; ++r) {
        const Float each = Format::kUnits == 8 ? mul(scale, set1(block.scales[g * R + r])) : scale;
        total[r][p] = fma(as_float(sum[r][p]), each, total[r][p]);
      }
      if constexpr (has_offset(kKind)) {
        Float offset = load_half(halves + kLanes);
        if (rest_of(kKind) != 0.0f) offset = fma(scale, set1(-rest_of(kKind)), offset);
        OUTRIDER_UNROLL
        for (int r = 0; r < R; ++r) total[r][p] = fma(offset, set1(block.sums[g * R + r]), total[r][p]);
      }
    }
  }
}

// R rows by P panels of a pair, from panel `first` on.
template <class Format, int R, int P>
void sweep(const uint8_t *record, int groups, int first, const Block &block, float *out, const Fetch &fetch) {
  constexpr KindSize kSize = size_of(Format::kKind);
  constexpr int kHalf = kSize.data + kSize.scales;  // of a record
  const uint8_t *data = record + first * kLine, *scales = record + 2 * kSize.data + first * kSize.scales;
  const uint8_t *half_next = fetch.next + (ptrdiff_t)first * groups * kHalf;
  const ptrdiff_t pair_bytes = (ptrdiff_t)2 * groups * kHalf;
  const uint32_t *x = block.units;
  int turn = 0;
  Float total[R][P];
  OUTRIDER_UNROLL
  for (int r = 0; r < R; ++r)
    OUTRIDER_UNROLL
    for (int p = 0; p < P; ++p) total[r][p] = zero();
  for (int g = 0; g < groups; ++g, x += Format::kUnits * R) {
    const ptrdiff_t at = (ptrdiff_t)g * P * kHalf;
    const uint8_t *ahead = data;  // a line at hand: nothing is fetched
    if (P == 2) ahead = at + kAhead<Format, R> < pair_bytes ? record + at + kAhead<Format, R> : fetch.next + (at + kAhead<Format, R> - pair_bytes);
    else if (turn == fetch.turn) ahead = half_next + at;
    turn = turn + 1 == fetch.turns ? 0 : turn + 1;
    for (int line = 0; line < P * kSize.scales; line += kLine)
      __builtin_prefetch(ahead + P * kSize.data + line, 0, kLevel<Format, R, P>);
    typename Format::Sum sum[R][P];
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r)
      OUTRIDER_UNROLL
      for (int p = 0; p < P; ++p) sum[r][p] = Format::start(block.starts + g * R + r);
    for (int u = 0; u < Format::kUnits; u += 4) {
      step<Format, R, P, 0>(data, ahead, u, x, sum);
      step<Format, R, P, 1>(data, ahead, u, x, sum);
      step<Format, R, P, 2>(data, ahead, u, x, sum);
      step<Format, R, P, 3>(data, ahead, u, x, sum);
    }
    join<Format, R, P>(sum, scales, block, g, total);
    data += 2 * kHalf;
    scales += 2 * kHalf;
  }
  OUTRIDER_UNROLL
  for (int r = 0; r < R; ++r) {
    if (r >= block.rows) break;
    OUTRIDER_UNROLL
    for (int p = 0; p < P; ++p) store(out + (ptrdiff_t)r * kPair + (first + p) * kLanes, total[r][p]);
  }
}

#if OUTRIDER_REGISTERS == 32
constexpr int kWidths[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 0};
// Up to so many rows both panels advance together: a sum's next product waits for the last one, and six sums keep the
// units for products of bfloat16 pairs busy.
template <class Format>
constexpr int kTogether = has_scale(Format::kKind) && Format::kUnits == 16 ? 6 : 4;
#else
constexpr int kWidths[] = {1, 2, 3, 4, 0};
template <class Format>
constexpr int kTogether = 1;
#endif

template <class Format, int R>
void tile(const uint8_t *record, int groups, const Block &block, float *out, const Fetch &fetch) {
  if constexpr (R <= kTogether<Format>) {
    sweep<Format, R, 2>(record, groups, 0, block, out, fetch);
  } else {
    sweep<Format, R, 1>(record, groups, 0, block, out, fetch);
    sweep<Format, R, 1>(record, groups, 1, block, out, fetch);
  }
}

template <class Format>
void by_width(const uint8_t *record, int groups, const Block &block, float *out, const Fetch &fetch) {
  switch (block.width) {
    case 1: return tile<Format, 1>(record, groups, block, out, fetch);
    case 2: return tile<Format, 2>(record, groups, block, out, fetch);
    case 3: return tile<Format, 3>(record, groups, block, out, fetch);
    case 4: return tile<Format, 4>(record, groups, block, out, fetch);
#if OUTRIDER_REGISTERS == 32
    case 5: return tile<Format, 5>(record, groups, block, out, fetch);
    case 6: return tile<Format, 6>(record, groups, block, out, fetch);
    case 7: return tile<Format, 7>(record, groups, block, out, fetch);
    case 8: return tile<Format, 8>(record, groups, block, out, fetch);
    case 10: return tile<Format, 10>(record, groups, block, out, fetch);
    case 12: return tile<Format, 12>(record, groups, block, out, fetch);
#endif
  }
}

template <class Format>
void product(const Matrix &matrix, int pair, const Activations &x, float *out, const uint8_t *next) {
  for (int b = 0; b < x.count; ++b)
    by_width<Format>(matrix.record(pair, 0), matrix.groups, x.blocks[b], out + (ptrdiff_t)x.blocks[b].first * kPair,
                     {next, b, x.count});
}

inline void product(const Matrix &matrix, int pair, const Activations &x, float *out, const uint8_t *next) {
  switch (matrix.kind) {
    case Kind::kFloat32: return product<Float32Weights>(matrix, pair, x, out, next);
    case Kind::kBfloat16: return product<Bfloat16Weights>(matrix, pair, x, out, next);
    case Kind::kQ8Bfloat16: return product<ByteWeights<Kind::kQ8Bfloat16, 0>>(matrix, pair, x, out, next);
    case Kind::kQ8MBfloat16: return product<ByteWeights<Kind::kQ8MBfloat16, 1>>(matrix, pair, x, out, next);
    case Kind::kQ4Bfloat16: return product<NibbleWeights<Kind::kQ4Bfloat16, 8>>(matrix, pair, x, out, next);
    case Kind::kQ4MBfloat16: return product<NibbleWeights<Kind::kQ4MBfloat16, 0>>(matrix, pair, x, out, next);
    case Kind::kQ8Int8: return product<ByteQuads<Kind::kQ8Int8, 128>>(matrix, pair, x, out, next);
    case Kind::kQ8MInt8: return product<ByteQuads<Kind::kQ8MInt8, 0>>(matrix, pair, x, out, next);
    case Kind::kQ4Int8: return product<NibbleQuads<Kind::kQ4Int8, 8>>(matrix, pair, x, out, next);
    case Kind::kQ4MInt8: return product<NibbleQuads<Kind::kQ4MInt8, 0>>(matrix, pair, x, out, next);
    case Kind::kCount: break;
  }
}

}  // namespace OUTRIDER_ISA
}  // namespace outrider
