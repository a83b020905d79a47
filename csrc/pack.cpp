#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "guard.h"

namespace outrider {
namespace {

// One group of one row: levels with their scale and offset (float16 bits), or plain numbers.
struct Group {
  float numbers[kGroup];
  int levels[kGroup];  // signed
  uint16_t scale = 0, offset = 0;
};

constexpr uint16_t kNaN = 0x7e00;  // float16

float from_half(uint16_t bits) {
  _Float16 x;
  std::memcpy(&x, &bits, 2);
  return (float)x;
}

uint16_t to_half(float x) {
  _Float16 half = (_Float16)x;
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}

uint16_t to_bfloat(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return (uint16_t)((bits + ((bits >> 16) & 1) + 0x7fff) >> 16);
}

float from_bfloat(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

bool is_byte(Kind kind) {
  return kind == Kind::kQ8Bfloat16 || kind == Kind::kQ8MBfloat16 || kind == Kind::kQ8Int8 || kind == Kind::kQ8MInt8;
}
bool is_plain(Kind kind) { return kind == Kind::kFloat32 || kind == Kind::kBfloat16; }
bool has_offset(Kind kind) { return size_of(kind).scales == 4 * kLanes; }
int block_bytes(OutriderSource source) {
  return source == OUTRIDER_FROM_Q4_0 ? 18 : source == OUTRIDER_FROM_Q4_1 ? 20 : 34;
}

void read_block(OutriderSource source, const uint8_t *block, Group &group) {
  std::memcpy(&group.scale, block, 2);
  const float scale = from_half(group.scale);
  float offset = 0.0f;
  if (source == OUTRIDER_FROM_Q8_0) {
    for (int k = 0; k < kGroup; ++k) group.levels[k] = (int8_t)block[2 + k];
  } else {
    const bool with_offset = source == OUTRIDER_FROM_Q4_1;
    if (with_offset) std::memcpy(&group.offset, block + 2, 2), offset = from_half(group.offset);
    const uint8_t *nibbles = block + (with_offset ? 4 : 2);
    for (int k = 0; k < kGroup; ++k) {
      const int level = k < 16 ? nibbles[k] & 15 : nibbles[k - 16] >> 4;
      group.levels[k] = with_offset ? level : level - 8;
    }
  }
  for (int k = 0; k < kGroup; ++k) group.numbers[k] = scale * (float)group.levels[k] + offset;
}

// Finds levels, scale and offset for plain numbers: the ends of the range take the ends of the levels. 256 levels hold
// the 16 of a 4-bit block exactly.
void quantise(Kind kind, Group &group) {
  float low = group.numbers[0], high = group.numbers[0];
  for (float x : group.numbers) low = std::min(low, x), high = std::max(high, x);
  const int last = is_byte(kind) ? 255 : 15;
  group.scale = to_half((high - low) / (float)last);
  const float scale = from_half(group.scale), middle = is_byte(kind) ? 127.5f : 0.0f;
  group.offset = to_half(low + middle * scale);
  const float zero = from_half(group.offset) - middle * scale;
  for (int k = 0; k < kGroup; ++k) {
    const float level = scale > 0.0f ? std::nearbyint((group.numbers[k] - zero) / scale) : 0.0f;
    group.levels[k] = level > 0.0f ? (int)std::min(level, (float)last) : 0;
    if (!std::isfinite(group.numbers[k])) group.scale = kNaN;  // broken weights stay broken
  }
}

// The stored byte of a level, and back. Inputs in bfloat16 take signs and magnitudes: of Q8_0 levels as they are, of
// int8's 256 levels less 127.5, whose half is added by the kernel.
int stored(Kind kind, int level) {
  switch (kind) {
    case Kind::kQ8Bfloat16: return level < 0 ? 0x80 | -level : level;
    case Kind::kQ8MBfloat16: return level < 128 ? 0x80 | (127 - level) : level - 128;
    case Kind::kQ8Int8: return level + 128;
    case Kind::kQ4Bfloat16: case Kind::kQ4Int8: return level + 8;
    default: return level;
  }
}

float signed_level(Kind kind, int byte) {
  const float magnitude = (float)(byte & 0x7f) + (kind == Kind::kQ8MBfloat16 ? 0.5f : 0.0f);
  switch (kind) {
    case Kind::kQ8Bfloat16: case Kind::kQ8MBfloat16: return byte & 0x80 ? -magnitude : magnitude;
    case Kind::kQ8Int8: return (float)(byte - 128);
    case Kind::kQ8MInt8: return (float)byte - 127.5f;
    case Kind::kQ4Bfloat16: case Kind::kQ4Int8: return (float)(byte - 8);
    default: return (float)byte;
  }
}

// Where input k of output o lies in the data of one panel's group: a byte, and for nibbles the shift within it.
struct Place { int byte, shift; };

Place place_of(Kind kind, int o, int k) {
  const int pair = k / 2, odd = k & 1, quad = k / 4;
  switch (kind) {
    case Kind::kFloat32: return {(k * kLanes + o) * 4, 0};
    case Kind::kBfloat16: return {(pair * kLanes + o) * 4 + odd * 2, 0};
    case Kind::kQ8Bfloat16: case Kind::kQ8MBfloat16:
      return {pair / 2 * 64 + o / 4 * 16 + pair % 2 * 8 + o % 4 * 2 + odd, 0};
    case Kind::kQ4Bfloat16: case Kind::kQ4MBfloat16:
      return {pair / 4 * 64 + o * 4 + odd * 2 + pair % 4 / 2, pair % 2 * 4};
    case Kind::kQ8Int8: case Kind::kQ8MInt8: return {quad * 64 + o * 4 + k % 4, 0};
    default: return {quad / 2 * 64 + o * 4 + k % 4, quad % 2 * 4};
  }
}

// Where every number of a group lies in a record, whose lines of 64 bytes alternate between the panels.
struct Layout {
  Place at[kPair][kGroup];
  explicit Layout(Kind kind) {
    for (int o = 0; o < kPair; ++o)
      for (int k = 0; k < kGroup; ++k) {
        const Place own = place_of(kind, o % kLanes, k);
        at[o][k] = {(2 * (own.byte / 64) + o / kLanes) * 64 + own.byte % 64, own.shift};
      }
  }
};

const Layout &layout_of(Kind kind) {
  static const std::vector<Layout> all = [] {
    std::vector<Layout> layouts;
    for (int k = 0; k < (int)Kind::kCount; ++k) layouts.emplace_back((Kind)k);
    return layouts;
  }();
  return all[(int)kind];
}

void put(const Matrix &matrix, const Layout &layout, int row, int g, const Group &group) {
  const KindSize size = size_of(matrix.kind);
  uint8_t *record = matrix.record(row / kPair, g);
  const int panel = row / kLanes % 2, o = row % kLanes;
  for (int k = 0; k < kGroup; ++k) {
    const Place at = layout.at[row % kPair][k];
    uint8_t *byte = record + at.byte;
    if (matrix.kind == Kind::kFloat32) {
      std::memcpy(byte, &group.numbers[k], 4);
    } else if (matrix.kind == Kind::kBfloat16) {
      const uint16_t bits = to_bfloat(group.numbers[k]);
      std::memcpy(byte, &bits, 2);
    } else {
      *byte |= (uint8_t)(stored(matrix.kind, group.levels[k]) << at.shift);
    }
  }
  if (size.scales == 0) return;
  uint8_t *scales = record + 2 * size.data + panel * size.scales;
  std::memcpy(scales + 2 * o, &group.scale, 2);
  if (has_offset(matrix.kind)) std::memcpy(scales + 2 * (kLanes + o), &group.offset, 2);
}

// Packs row `from` of the source as row `row` of the matrix.
void pack_row(const Matrix &matrix, const Layout &layout, OutriderSource source, const void *data, int from, int row) {
  for (int g = 0; g < matrix.groups; ++g) {
    Group group{};
    if (source == OUTRIDER_FROM_FLOAT32) {
      const float *numbers = (const float *)data + (size_t)from * matrix.inputs;
      const int count = std::min(kGroup, matrix.inputs - g * kGroup);
      std::copy(numbers + g * kGroup, numbers + g * kGroup + count, group.numbers);
      if (!is_plain(matrix.kind)) quantise(matrix.kind, group);
    } else {
      const size_t blocks = (size_t)from * matrix.groups + g;
      read_block(source, (const uint8_t *)data + blocks * block_bytes(source), group);
    }
    put(matrix, layout, row, g, group);
  }
}

bool holds_lowest_level(const void *data, size_t blocks) {
  const uint8_t *block = (const uint8_t *)data;
  for (size_t b = 0; b < blocks; ++b, block += 34)
    if (std::memchr(block + 2, 0x80, kGroup)) return true;
  return false;
}

}  // namespace

void check_source(int source, int format, OutriderActivations activations, int inputs) {
  require(source >= 0 && source <= OUTRIDER_FROM_Q8_0, "unknown source " + text(source));
  require(format >= 0 && format <= OUTRIDER_Q8_0, "unknown format " + text(format));
  const bool floats = source == OUTRIDER_FROM_FLOAT32;
  require(floats == (format < OUTRIDER_Q4_0), "this source cannot be kept as format " + text(format));
  require(floats || format - OUTRIDER_Q4_0 == source - OUTRIDER_FROM_Q4_0, "blocks keep their own format");
  require(floats || inputs % kGroup == 0, text(inputs) + " inputs are not whole blocks of 32");
  const bool plain = format == OUTRIDER_FLOAT32, exact = activations == OUTRIDER_ACT_FLOAT32;
  require(plain == exact, "float32 weights go with float32 activations, others do not");
  require(activations != OUTRIDER_ACT_INT8 || format != OUTRIDER_BFLOAT16, "bfloat16 weights take no int8 activations");
}

Kind kind_of(OutriderFormat format, OutriderActivations activations, OutriderSource source, const void *data,
             int outputs, int inputs) {
  const bool bytes = activations == OUTRIDER_ACT_INT8;
  switch (format) {
    case OUTRIDER_FLOAT32: return Kind::kFloat32;
    case OUTRIDER_BFLOAT16: return Kind::kBfloat16;
    case OUTRIDER_INT8: return bytes ? Kind::kQ8MInt8 : Kind::kQ8MBfloat16;
    case OUTRIDER_INT4: case OUTRIDER_Q4_1: return bytes ? Kind::kQ4MInt8 : Kind::kQ4MBfloat16;
    case OUTRIDER_Q4_0: return bytes ? Kind::kQ4Int8 : Kind::kQ4Bfloat16;
    case OUTRIDER_Q8_0: break;
  }
  if (bytes) return Kind::kQ8Int8;
  const size_t blocks = (size_t)outputs * inputs / kGroup;
  return source == OUTRIDER_FROM_Q8_0 && holds_lowest_level(data, blocks) ? Kind::kBfloat16 : Kind::kQ8Bfloat16;
}

Matrix shaped(Kind kind, int outputs, int inputs) {
  Matrix matrix;
  matrix.kind = kind;
  matrix.outputs = outputs;
  matrix.inputs = inputs;
  matrix.groups = (inputs + kGroup - 1) / kGroup;
  matrix.pairs = (outputs + kPair - 1) / kPair;
  return matrix;
}

void pack(const Matrix &matrix, OutriderSource source, const void *data, int first, int count, int threads) {
  const int panels = (count + kLanes - 1) / kLanes;  // threads share no panel
  const Layout &layout = layout_of(matrix.kind);
  std::vector<std::thread> helpers;
  auto part = [&](int thread) {
    const int begin = panels * thread / threads * kLanes, end = std::min(count, panels * (thread + 1) / threads * kLanes);
    for (int row = begin; row < end; ++row) pack_row(matrix, layout, source, data, row, first + row);
  };
  int started = 1;
  try {
    for (; started < threads; ++started) helpers.emplace_back(part, started);
  } catch (const std::system_error &) {  // no more threads: the caller does their parts
  }
  part(0);
  for (int thread = started; thread < threads; ++thread) part(thread);
  for (auto &helper : helpers) helper.join();
}

void unpack_row(const Matrix &matrix, int row, float *out) {
  const KindSize size = size_of(matrix.kind);
  const int panel = row / kLanes % 2, o = row % kLanes;
  const Layout &layout = layout_of(matrix.kind);
  for (int g = 0; g < matrix.groups; ++g) {
    const uint8_t *record = matrix.record(row / kPair, g), *scales = record + 2 * size.data + panel * size.scales;
    uint16_t scale = 0, offset = 0;
    if (size.scales) std::memcpy(&scale, scales + 2 * o, 2);
    if (has_offset(matrix.kind)) std::memcpy(&offset, scales + 2 * (kLanes + o), 2);
    for (int k = 0; k < kGroup; ++k) {
      const Place at = layout.at[row % kPair][k];
      const uint8_t *byte = record + at.byte;
      float &number = out[g * kGroup + k];
      if (matrix.kind == Kind::kFloat32) {
        std::memcpy(&number, byte, 4);
        continue;
      }
      if (matrix.kind == Kind::kBfloat16) {
        uint16_t bits;
        std::memcpy(&bits, byte, 2);
        number = from_bfloat(bits);
        continue;
      }
      const int level = is_byte(matrix.kind) ? *byte : (*byte >> at.shift) & 15;
      number = from_half(scale) * signed_level(matrix.kind, level) + from_half(offset);
    }
  }
}

}  // namespace outrider
