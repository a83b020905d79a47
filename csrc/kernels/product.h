// The product of a pair of panels with all rows: weights are read once, whatever the number of rows.
#pragma once

#include "formats.h"

namespace outrider {
namespace OUTRIDER_ISA {

#define OUTRIDER_INLINE inline __attribute__((always_inline))
#define OUTRIDER_UNROLL _Pragma("GCC unroll 16")

constexpr ptrdiff_t kAhead = 2048;  // bytes of a panel fetched ahead of their use

template <class Format, int R, int P, int t>
OUTRIDER_INLINE void step(const uint8_t *group, ptrdiff_t panel_bytes, int u, const uint32_t *x,
                          typename Format::Sum (&sum)[R][P]) {
  OUTRIDER_UNROLL
  for (int p = 0; p < P; ++p) {
    auto w = Format::template weight<t>(group + p * panel_bytes, u);
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r) sum[r][p] = Format::dot(sum[r][p], w, x + (u + t) * R + r);
  }
}

// A pair of panels as the kernel walks it; strides in bytes.
struct Panels {
  const uint8_t *data;
  ptrdiff_t data_stride;  // from panel to panel
  int group_stride;
  const uint8_t *scales;
  ptrdiff_t scale_stride;
  int groups;
};

// R rows by P panels.
template <class Format, int R, int P>
void tile(const Panels &panels, const Block &block, float *out) {
  const uint8_t *data = panels.data;
  const ptrdiff_t panel_bytes = panels.data_stride;
  constexpr KindSize kSize = size_of(Format::kKind);
  Float total[R][P];
  OUTRIDER_UNROLL
  for (int r = 0; r < R; ++r)
    OUTRIDER_UNROLL
    for (int p = 0; p < P; ++p) total[r][p] = zero();
  const uint32_t *x = block.units;
  for (int g = 0; g < panels.groups; ++g, x += Format::kUnits * R, data += panels.group_stride) {
    typename Format::Sum sum[R][P];
    OUTRIDER_UNROLL
    for (int r = 0; r < R; ++r)
      OUTRIDER_UNROLL
      for (int p = 0; p < P; ++p) sum[r][p] = Format::start(block.starts + g * R + r);
    if (!IsExpanded<Format>::value)
      for (int p = 0; p < P; ++p)
        for (int b = 0; b < kSize.data; b += 64) __builtin_prefetch(data + p * panel_bytes + kAhead + b);
    for (int u = 0; u < Format::kUnits; u += 4) {
      step<Format, R, P, 0>(data, panel_bytes, u, x, sum);
      step<Format, R, P, 1>(data, panel_bytes, u, x, sum);
      step<Format, R, P, 2>(data, panel_bytes, u, x, sum);
      step<Format, R, P, 3>(data, panel_bytes, u, x, sum);
    }
    OUTRIDER_UNROLL
    for (int p = 0; p < P; ++p) {
      if constexpr (!has_scale(Format::kKind)) {
        OUTRIDER_UNROLL
        for (int r = 0; r < R; ++r) total[r][p] = add(total[r][p], as_float(sum[r][p]));
        continue;
      }
      const uint16_t *halves = (const uint16_t *)(panels.scales + p * panels.scale_stride + g * kSize.scales);
      Float scale = load_half(halves);
      OUTRIDER_UNROLL
      for (int r = 0; r < R; ++r) {
        Float each = Format::kUnits == 8 ? mul(scale, set1(block.scales[g * R + r])) : scale;
        total[r][p] = fma(as_float(sum[r][p]), each, total[r][p]);
      }
      if constexpr (has_offset(Format::kKind)) {
        Float offset = load_half(halves + kLanes);
        if (rest_of(Format::kKind) != 0.0f) offset = fma(scale, set1(-rest_of(Format::kKind)), offset);
        OUTRIDER_UNROLL
        for (int r = 0; r < R; ++r) total[r][p] = fma(offset, set1(block.sums[g * R + r]), total[r][p]);
      }
    }
  }
  for (int r = 0; r < block.rows; ++r)
    for (int p = 0; p < P; ++p) store(out + (ptrdiff_t)r * kPair + p * kLanes, total[r][p]);
}

#if OUTRIDER_REGISTERS == 32
constexpr int kWidths[] = {1, 2, 3, 4, 6, 8, 10, 12, 0};
constexpr int panels_at_once(int width) { return width <= 6 ? 2 : 1; }
#else
constexpr int kWidths[] = {1, 2, 3, 4, 0};
constexpr int panels_at_once(int width) { return width <= 1 ? 2 : 1; }
#endif

template <class Format, int R>
void tiles(Panels panels, const Block &block, float *out) {
  constexpr int P = panels_at_once(R);
  out += (ptrdiff_t)block.first * kPair;
  for (int p = 0; p < 2; p += P) {
    tile<Format, R, P>(panels, block, out + p * kLanes);
    panels.data += P * panels.data_stride;
    panels.scales += P * panels.scale_stride;
  }
}

template <class Format>
void by_width(const Panels &panels, const Block &block, float *out) {
  switch (block.width) {
    case 1: return tiles<Format, 1>(panels, block, out);
    case 2: return tiles<Format, 2>(panels, block, out);
    case 3: return tiles<Format, 3>(panels, block, out);
    case 4: return tiles<Format, 4>(panels, block, out);
#if OUTRIDER_REGISTERS == 32
    case 6: return tiles<Format, 6>(panels, block, out);
    case 8: return tiles<Format, 8>(panels, block, out);
    case 10: return tiles<Format, 10>(panels, block, out);
    case 12: return tiles<Format, 12>(panels, block, out);
#endif
  }
}

template <class Format, int t>
OUTRIDER_INLINE void expand_step(const uint8_t *group, int u, Pair *out) {
  out[u + t] = Format::template weight<t>(group, u);
}

// Stores every weight of both panels as the kernel takes it.
template <class Format>
Panels expanded(const Panels &panels, uint8_t *scratch) {
  Pair *out = (Pair *)scratch;
  for (int p = 0; p < 2; ++p)
    for (int g = 0; g < panels.groups; ++g, out += Format::kUnits) {
      const uint8_t *group = panels.data + p * panels.data_stride + (ptrdiff_t)g * panels.group_stride;
      for (int u = 0; u < Format::kUnits; u += 4) {
        expand_step<Format, 0>(group, u, out);
        expand_step<Format, 1>(group, u, out);
        expand_step<Format, 2>(group, u, out);
        expand_step<Format, 3>(group, u, out);
      }
    }
  constexpr int kStride = Format::kUnits * sizeof(Pair);
  return {scratch, (ptrdiff_t)panels.groups * kStride, kStride, panels.scales, panels.scale_stride, panels.groups};
}

inline size_t scratch_bytes(int groups) { return (size_t)2 * groups * Bfloat16Weights::kUnits * sizeof(Pair); }

template <class Format, bool expands>
void product(const Matrix &matrix, int pair, const Activations &x, float *out, uint8_t *scratch) {
  const uint8_t *data = matrix.panel(2 * pair);
  Panels panels{data, matrix.panel_bytes, size_of(Format::kKind).data, data + matrix.scale_offset(), matrix.panel_bytes,
                matrix.groups};
  if constexpr (expands) {
    if (x.count > 1) {
      panels = expanded<Format>(panels, scratch);
      for (int b = 0; b < x.count; ++b) by_width<Expanded<Format>>(panels, x.blocks[b], out);
      return;
    }
  }
  for (int b = 0; b < x.count; ++b) by_width<Format>(panels, x.blocks[b], out);
}

inline void product(const Matrix &matrix, int pair, const Activations &x, float *out, uint8_t *scratch) {
  switch (matrix.kind) {
    case Kind::kFloat32: return product<Float32Weights, false>(matrix, pair, x, out, scratch);
    case Kind::kBfloat16: return product<Bfloat16Weights, false>(matrix, pair, x, out, scratch);
    case Kind::kQ8Bfloat16: return product<ByteWeights<Kind::kQ8Bfloat16, 0>, true>(matrix, pair, x, out, scratch);
    case Kind::kQ8MBfloat16: return product<ByteWeights<Kind::kQ8MBfloat16, 1>, true>(matrix, pair, x, out, scratch);
    case Kind::kQ4Bfloat16: return product<NibbleWeights<Kind::kQ4Bfloat16, 8>, true>(matrix, pair, x, out, scratch);
    case Kind::kQ4MBfloat16: return product<NibbleWeights<Kind::kQ4MBfloat16, 0>, true>(matrix, pair, x, out, scratch);
    case Kind::kQ8Int8: return product<ByteQuads<Kind::kQ8Int8, 128>, false>(matrix, pair, x, out, scratch);
    case Kind::kQ8MInt8: return product<ByteQuads<Kind::kQ8MInt8, 0>, false>(matrix, pair, x, out, scratch);
    case Kind::kQ4Int8: return product<NibbleQuads<Kind::kQ4Int8, 8>, false>(matrix, pair, x, out, scratch);
    case Kind::kQ4MInt8: return product<NibbleQuads<Kind::kQ4MInt8, 0>, false>(matrix, pair, x, out, scratch);
    case Kind::kCount: break;
  }
}

}  // namespace OUTRIDER_ISA
}  // namespace outrider
