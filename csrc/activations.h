// The inputs of a product, rounded once and laid out for the kernels.
//
// Rows are cut into blocks of the widths that kernels exist for. A block keeps its rows side by side: 32-bit unit u of
// row r lies at units[u * width + r]. A unit is one float32, two bfloat16 or four int8. How rows are cut changes no sum.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace outrider {

enum class Rounding : int32_t { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2 };

constexpr int units_per_group(Rounding rounding) {
  return rounding == Rounding::kFloat32 ? 32 : rounding == Rounding::kBfloat16 ? 16 : 8;
}

struct Block {
  int first = 0, rows = 0, width = 0;  // width >= rows: rows beyond are zero
  uint32_t *units = nullptr;           // [groups * units_per_group, width]
  float *scales = nullptr;             // [groups, width], int8: value of one level
  float *sums = nullptr;               // [groups, width]: sum of the rounded inputs
  int32_t *starts = nullptr;           // [groups, width], int8: -128 x the sum of levels
};

struct Activations {
  Rounding rounding = Rounding::kFloat32;
  int groups = 0;
  int count = 0;  // blocks
  Block *blocks = nullptr;
};

}  // namespace outrider
