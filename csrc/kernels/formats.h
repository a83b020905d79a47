// How each kind of matrix gives its weights to the kernel, and how a group's partial sum joins the total.
//
// One order of sums for every kind, width and thread: within a group of 32 inputs products are added in ascending
// order to a partial sum that starts at zero; groups join the total in ascending order.
#pragma once

#include "elementwise.h"

namespace outrider {
namespace OUTRIDER_ISA {

constexpr int kLine = 64;  // bytes; the lines of both panels alternate

struct Float32Weights {
  using Sum = Float;
  static constexpr Kind kKind = Kind::kFloat32;
  static constexpr int kUnits = 32, kUnitsPerLine = 1;
  static inline Sum start(const int32_t *) { return zero(); }
  template <int t>
  static inline Float weight(const uint8_t *group, int u) { return load((const float *)(group + 2 * kLine * (u + t))); }
  static inline Sum dot(Sum sum, Float w, const uint32_t *x) { return fma(w, set1(float_of(*x)), sum); }
};

struct Bfloat16Weights {
  using Sum = Float;
  static constexpr Kind kKind = Kind::kBfloat16;
  static constexpr int kUnits = 16, kUnitsPerLine = 1;
  static inline Sum start(const int32_t *) { return zero(); }
  template <int t>
  static inline Pair weight(const uint8_t *group, int u) { return pair(load_bits(group + 2 * kLine * (u + t))); }
  static inline Sum dot(Sum sum, Pair w, const uint32_t *x) { return dot_pair(sum, w, *x); }
};

template <Kind kind, int halves>
struct ByteWeights : Bfloat16Weights {  // signed bytes, or those and a half, exact in bfloat16
  static constexpr Kind kKind = kind;
  static constexpr int kUnitsPerLine = 2;
  template <int t>
  static inline Pair weight(const uint8_t *group, int u) { return byte_pair<t % 2, halves>(load_bits(group + 2 * kLine * (u / 2 + t / 2))); }
};

template <Kind kind, int bias>
struct NibbleWeights : Bfloat16Weights {  // levels less the bias, exact in bfloat16
  static constexpr Kind kKind = kind;
  static constexpr int kUnitsPerLine = 4;
  template <int t>
  static inline Pair weight(const uint8_t *group, int u) { return nibble_pair<t, bias>(load_bits(group + 2 * kLine * (u / 4))); }
};

template <Kind kind, int bias>
struct ByteQuads {  // bytes, less the bias, by int8 inputs: exact integers
  using Sum = Int;
  static constexpr Kind kKind = kind;
  static constexpr int kUnits = 8, kUnitsPerLine = 1;
  static inline Sum start(const int32_t *start) { return bias == 0 ? izero() : iset1(*start); }
  template <int t>
  static inline Bits weight(const uint8_t *group, int u) { return load_bits(group + 2 * kLine * (u + t)); }
  static inline Sum dot(Sum sum, Bits w, const uint32_t *x) { return dot_quad(sum, w, *x); }
};

template <Kind kind, int bias>
struct NibbleQuads : ByteQuads<kind, bias> {
  static constexpr int kUnitsPerLine = 2;
  static inline Int start(const int32_t *start) { return bias == 0 ? izero() : iset1(*start / 16); }  // 128 / 16 = 8
  template <int t>
  static inline Bits weight(const uint8_t *group, int u) { return nibble_quad<t % 2>(load_bits(group + 2 * kLine * (u / 2 + t / 2))); }
};

// What a level is less than its stored byte beyond what `weight` and `start` take off.
constexpr float rest_of(Kind kind) { return kind == Kind::kQ8MInt8 ? 127.5f : 0.0f; }
constexpr bool has_scale(Kind kind) { return size_of(kind).scales > 0; }
constexpr bool has_offset(Kind kind) { return size_of(kind).scales == 4 * kLanes; }

inline Float as_float(Float sum) { return sum; }
inline Float as_float(Int sum) { return to_float(sum); }

}  // namespace OUTRIDER_ISA
}  // namespace outrider
