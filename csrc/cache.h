// Where keys and values lie within the part of a page that belongs to one layer and head.
//
// `per` numbers share a 32-bit unit: one float32, or two bfloat16 whose products are summed by one instruction. Keys: for
// each 16 positions, lines of 16 units, one per position; a unit holds `per` dimensions. Values: for each `per`
// positions, units of all dimensions; a unit holds `per` positions.
#pragma once

#include <stddef.h>

namespace outrider {

constexpr int kPage = 64;  // positions

constexpr ptrdiff_t key_index(int per, int head_dim, int slot, int d) {
  return (ptrdiff_t)(slot / 16) * 16 * head_dim + d / per * 16 * per + slot % 16 * per + d % per;
}

constexpr ptrdiff_t value_index(int per, int padded_dim, int slot, int d) {
  return (ptrdiff_t)(slot / per) * per * padded_dim + d * per + slot % per;
}

}  // namespace outrider
