// Everything of a layer that is done number by number or along one row: rounding, norm, activation, rotation.
#pragma once

#include "kernels.h"

namespace outrider {
namespace OUTRIDER_ISA {

inline float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

// e^x for x in [-86, 86], outside of which it is that of the limit; within 2 units of the last place.
inline Float exponential(Float x) {
  x = min(max(x, set1(-86.0f)), set1(86.0f));
  Float n = round(mul(x, set1(1.44269504f)));
  Float r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  Float p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, mul(r, r), add(r, set1(1.0f)));
  return scale(p, n);
}

inline void rms_norm(const float *x, const float *weight, float eps, int count, float *out) {
  Float squares = zero();
  int i = 0;
  for (; i + 16 <= count; i += 16) {
    Float v = load(x + i);
    squares = fma(v, v, squares);
  }
  if (i < count) {
    alignas(64) float rest[16] = {0};
    for (int j = i; j < count; ++j) rest[j - i] = x[j];
    squares = fma(load(rest), load(rest), squares);
  }
  float factor = 1.0f / __builtin_sqrtf(total(squares) / (float)count + eps);
  for (int j = 0; j < count; ++j) out[j] = (x[j] * factor) * weight[j];
}

inline void swiglu(const float *gate, const float *up, float *out) {
  for (int i = 0; i < kPair; i += 16) {
    Float g = load(gate + i);
    Float sigmoid_inverse = add(set1(1.0f), exponential(sub(zero(), g)));
    store(out + i, mul(div(g, sigmoid_inverse), load(up + i)));
  }
}

inline void rotate(float *x, const float *cosines, const float *sines, int half) {
  for (int j = 0; j < half; ++j) {
    float a = x[j], b = x[j + half];
    x[j] = a * cosines[j] - b * sines[j];
    x[j + half] = b * cosines[j] + a * sines[j];
  }
}

inline void prepare_float32(const float *x, Block &block, int r, int begin, int end) {
  const uint32_t *bits = (const uint32_t *)x;
  for (int u = begin * 32; u < end * 32; ++u) block.units[u * block.width + r] = bits[u];
}

inline void prepare_bfloat16(const float *x, Block &block, int r, int begin, int end) {
  alignas(64) uint32_t units[16];
  for (int g = begin; g < end; ++g) {
    store_bfloat((uint16_t *)units, load(x + g * kGroup));
    store_bfloat((uint16_t *)units + 16, load(x + g * kGroup + 16));
    Float rounded = add(load_bfloat((uint16_t *)units), load_bfloat((uint16_t *)units + 16));
    block.sums[g * block.width + r] = total(rounded);
    for (int u = 0; u < 16; ++u) block.units[(g * 16 + u) * block.width + r] = units[u];
  }
}

inline void prepare_int8(const float *x, Block &block, int r, int begin, int end) {
  alignas(64) uint32_t units[8];
  for (int g = begin; g < end; ++g) {
    Float low = load(x + g * kGroup), high = load(x + g * kGroup + 16);
    float peak = largest(max(abs(low), abs(high)));
    float inverse = peak > 1e-30f ? 127.0f / peak : 0.0f;
    Float a = round(mul(low, set1(inverse))), b = round(mul(high, set1(inverse)));
    store_bytes((int8_t *)units, to_int(a));
    store_bytes((int8_t *)units + 16, to_int(b));
    const float sum = total(add(a, b));
    const bool sound = sum == sum;  // levels hold no NaN or infinity: the scale carries them on
    const float scale = sound ? peak / 127.0f : sum;
    block.scales[g * block.width + r] = scale;
    block.sums[g * block.width + r] = scale * sum;
    block.starts[g * block.width + r] = sound ? -128 * (int32_t)sum : 0;
    for (int u = 0; u < 8; ++u) block.units[(g * 8 + u) * block.width + r] = units[u];
  }
}

inline void prepare(Rounding rounding, const float *x, Block &block, int r, int begin, int end) {
  switch (rounding) {
    case Rounding::kFloat32: return prepare_float32(x, block, r, begin, end);
    case Rounding::kBfloat16: return prepare_bfloat16(x, block, r, begin, end);
    case Rounding::kInt8: return prepare_int8(x, block, r, begin, end);
  }
}

// Reads memory in two streams, which is the fastest on the machines measured.
inline void read(const uint8_t *data, size_t bytes) {
  const size_t half = bytes / 128 * 64;
  Float sums[2] = {zero(), zero()};
  for (size_t i = 0; i < half; i += 64)
    for (int s = 0; s < 2; ++s) {
      __builtin_prefetch(data + s * half + i + 1024);
      sums[s] = add(sums[s], as_float(load_bits(data + s * half + i)));
    }
  float sink = total(add(sums[0], sums[1]));
  asm volatile("" ::"r"(&sink) : "memory");
}

// How many multiply-adds a core does when every operand is at hand: what a product could reach at best.
inline double multiply(Rounding rounding, int rounds) {
  constexpr int kChains = OUTRIDER_REGISTERS == 32 ? 12 : 4;
  alignas(64) uint32_t units[kChains * 4] = {0};
  alignas(64) uint8_t weights[256] = {0};
  Float sums[kChains];
  Int wholes[kChains];
  for (int c = 0; c < kChains; ++c) sums[c] = zero(), wholes[c] = izero();
  for (int i = 0; i < rounds; ++i) {
    asm volatile("" ::: "memory");  // the operands may have changed: nothing is hoisted out of the loop
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      Bits w = load_bits(weights + 64 * u);
#pragma GCC unroll 16
      for (int c = 0; c < kChains; ++c) {
        const uint32_t x = units[u * kChains + c];
        if (rounding == Rounding::kFloat32) sums[c] = fma(as_float(w), set1(float_of(x)), sums[c]);
        if (rounding == Rounding::kBfloat16) sums[c] = dot_pair(sums[c], pair(w), x);
        if (rounding == Rounding::kInt8) wholes[c] = dot_quad(wholes[c], w, x);
      }
    }
  }
  float sink = 0;
  for (int c = 0; c < kChains; ++c) sink = sink + total(sums[c]) + total(to_float(wholes[c]));
  asm volatile("" ::"r"(&sink) : "memory");
  int per_unit = rounding == Rounding::kFloat32 ? 1 : rounding == Rounding::kBfloat16 ? 2 : 4;
  return (double)rounds * 4 * kChains * kLanes * per_unit;
}

}  // namespace OUTRIDER_ISA
}  // namespace outrider
