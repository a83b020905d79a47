// The product of a pair of panels with all rows: weights are read once, whatever the number of rows.
#pragma once

#include "formats.h"

namespace outrider {
namespace OUTRIDER_ISA {

#define OUTRIDER_INLINE inline __attribute__((always_inline))
#define OUTRIDER_UNROLL _Pragma("GCC unroll 16")

constexpr ptrdiff_t kAhead = 2048;  // bytes of the stream fetched ahead of their use

// Unit u + t of P panels. The sweep that comes first fetches the lines of both panels.
template <class Format, int R, int P, int t>
OUTRIDER_INLINE void step(const uint8_t *data, bool fetch, int u, const uint32_t *x, typename Format::Sum (&sum)[R][P]) {
  if (fetch && t % Format::kUnitsPerLine == 0) {
    const uint8_t *ahead = data + (u + t) / Format::kUnitsPerLine * 2 * kLine + kAhead;
    __builtin_prefetch(ahead);
    __builtin_prefetch(ahead + kLine);
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
void sweep(const uint8_t *record, int groups, int first, const Block &block, float *out) {
  constexpr KindSize kSize = size_of(Format::kKind);
  const bool fetch = first == 0;
  const uint8_t *data = record + first * kLine, *scales = record + 2 * kSize.data + first * kSize.scales;
  const uint32_t *x = block.units;
  Float total[R][P];
  OUTRIDER_UNROLL
  for (int r = 0; r < R; ++r)
    OUTRIDER_UNROLL
    for (int p = 0; p < P; ++p) total[r][p] = zero();
  for (int g = 0; g < groups; ++g, x += Format::kUnits * R) {
    if (fetch && kSize.scales > 0) __builtin_prefetch(scales + kAhead);
    if (fetch && kSize.scales > 32) __builtin_prefetch(scales + kAhead + kLine);
    typename Format::Sum sum[R][P];
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r)
      OUTRIDER_UNROLL
      for (int p = 0; p < P; ++p) sum[r][p] = Format::start(block.starts + g * R + r);
    for (int u = 0; u < Format::kUnits; u += 4) {
      step<Format, R, P, 0>(data, fetch, u, x, sum);
      step<Format, R, P, 1>(data, fetch, u, x, sum);
      step<Format, R, P, 2>(data, fetch, u, x, sum);
      step<Format, R, P, 3>(data, fetch, u, x, sum);
    }
    join<Format, R, P>(sum, scales, block, g, total);
    data += 2 * (kSize.data + kSize.scales);
    scales += 2 * (kSize.data + kSize.scales);
  }
  OUTRIDER_UNROLL
  for (int r = 0; r < R; ++r) {
    if (r >= block.rows) break;
    OUTRIDER_UNROLL
    for (int p = 0; p < P; ++p) store(out + (ptrdiff_t)r * kPair + (first + p) * kLanes, total[r][p]);
  }
}

#if OUTRIDER_REGISTERS == 32
constexpr int kWidths[] = {1, 2, 3, 4, 6, 8, 10, 12, 0};
constexpr int kTogether = 4;  // up to so many rows, sums and totals of both panels fit the registers
#else
constexpr int kWidths[] = {1, 2, 3, 4, 0};
constexpr int kTogether = 1;
#endif

template <class Format, int R>
void tile(const uint8_t *record, int groups, const Block &block, float *out) {
  if constexpr (R <= kTogether) {
    sweep<Format, R, 2>(record, groups, 0, block, out);
  } else {
    sweep<Format, R, 1>(record, groups, 0, block, out);
    sweep<Format, R, 1>(record, groups, 1, block, out);
  }
}

template <class Format>
void by_width(const uint8_t *record, int groups, const Block &block, float *out) {
  switch (block.width) {
    case 1: return tile<Format, 1>(record, groups, block, out);
    case 2: return tile<Format, 2>(record, groups, block, out);
    case 3: return tile<Format, 3>(record, groups, block, out);
    case 4: return tile<Format, 4>(record, groups, block, out);
#if OUTRIDER_REGISTERS == 32
    case 6: return tile<Format, 6>(record, groups, block, out);
    case 8: return tile<Format, 8>(record, groups, block, out);
    case 10: return tile<Format, 10>(record, groups, block, out);
    case 12: return tile<Format, 12>(record, groups, block, out);
#endif
  }
}

template <class Format>
void product(const Matrix &matrix, int pair, const Activations &x, float *out) {
  for (int b = 0; b < x.count; ++b)
    by_width<Format>(matrix.record(pair, 0), matrix.groups, x.blocks[b], out + (ptrdiff_t)x.blocks[b].first * kPair);
}

inline void product(const Matrix &matrix, int pair, const Activations &x, float *out) {
  switch (matrix.kind) {
    case Kind::kFloat32: return product<Float32Weights>(matrix, pair, x, out);
    case Kind::kBfloat16: return product<Bfloat16Weights>(matrix, pair, x, out);
    case Kind::kQ8Bfloat16: return product<ByteWeights<Kind::kQ8Bfloat16, 0>>(matrix, pair, x, out);
    case Kind::kQ8MBfloat16: return product<ByteWeights<Kind::kQ8MBfloat16, 1>>(matrix, pair, x, out);
    case Kind::kQ4Bfloat16: return product<NibbleWeights<Kind::kQ4Bfloat16, 8>>(matrix, pair, x, out);
    case Kind::kQ4MBfloat16: return product<NibbleWeights<Kind::kQ4MBfloat16, 0>>(matrix, pair, x, out);
    case Kind::kQ8Int8: return product<ByteQuads<Kind::kQ8Int8, 128>>(matrix, pair, x, out);
    case Kind::kQ8MInt8: return product<ByteQuads<Kind::kQ8MInt8, 0>>(matrix, pair, x, out);
    case Kind::kQ4Int8: return product<NibbleQuads<Kind::kQ4Int8, 8>>(matrix, pair, x, out);
    case Kind::kQ4MInt8: return product<NibbleQuads<Kind::kQ4MInt8, 0>>(matrix, pair, x, out);
    case Kind::kCount: break;
  }
}

}  // namespace OUTRIDER_ISA
}  // namespace outrider
