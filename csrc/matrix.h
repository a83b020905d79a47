// A packed weight matrix: pairs of panels of 16 outputs, groups of 32 inputs.
//
// A pair is one stream of records, a record for each group: the data of both panels, then their scales. The pair's 32
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
  int packed = 0;  // outputs so far
  uint8_t *data = nullptr;

  int record_bytes() const { return 2 * (size_of(kind).data + size_of(kind).scales); }
  size_t pair_bytes() const { return (size_t)groups * record_bytes(); }
  bool whole() const { return data != nullptr && packed == outputs; }
  size_t bytes() const { return pairs * pair_bytes(); }
  uint8_t *record(int pair, int group) const { return data + pair * pair_bytes() + (size_t)group * record_bytes(); }
};

}  // namespace outrider
