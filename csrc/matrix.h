// A packed weight matrix: panels of 16 outputs, groups of 32 inputs.
//
// A panel is the data of all its groups, then the scales of all its groups. Panels come in pairs, so that a pair's 32
// outputs are one group of the next product. What is padded is zero. docs/native.md draws the layouts.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace outrider {

constexpr int kLanes = 16;  // outputs of a panel
constexpr int kGroup = 32;  // inputs of a group
constexpr int kPair = 2 * kLanes;

// How a kernel reads a matrix. M: with an offset; the suffix says what the inputs are rounded to.
enum class Kind : int32_t {
  kFloat32, kBfloat16,
  kQ8Bfloat16, kQ8MBfloat16, kQ4Bfloat16, kQ4MBfloat16,
  kQ8Int8, kQ8MInt8, kQ4Int8, kQ4MInt8,
  kCount
};

struct KindSize {
  int data;    // bytes of one group of one panel
  int scales;  // bytes of its scales and offsets
};

constexpr KindSize size_of(Kind kind) {
  switch (kind) {
    case Kind::kFloat32: return {kGroup * kLanes * 4, 0};
    case Kind::kBfloat16: return {kGroup * kLanes * 2, 0};
    case Kind::kQ8Bfloat16: case Kind::kQ8Int8: return {kGroup * kLanes, kLanes * 2};
    case Kind::kQ8MBfloat16: case Kind::kQ8MInt8: return {kGroup * kLanes, kLanes * 4};
    case Kind::kQ4Bfloat16: case Kind::kQ4Int8: return {kGroup * kLanes / 2, kLanes * 2};
    default: return {kGroup * kLanes / 2, kLanes * 4};
  }
}

struct Matrix {
  Kind kind = Kind::kFloat32;
  int outputs = 0, inputs = 0;
  int groups = 0;  // of inputs, padded
  int pairs = 0;   // of panels, padded
  ptrdiff_t panel_bytes = 0;
  int packed = 0;  // outputs so far
  uint8_t *data = nullptr;

  const uint8_t *panel(int index) const { return data + index * panel_bytes; }
  ptrdiff_t scale_offset() const { return (ptrdiff_t)groups * size_of(kind).data; }
  bool whole() const { return data != nullptr && packed == outputs; }
  size_t bytes() const { return (size_t)(2 * pairs) * panel_bytes; }
};

}  // namespace outrider
