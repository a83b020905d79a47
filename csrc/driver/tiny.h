// Tiny random models and their caches, built through the C interface alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "../outrider.h"

namespace driver {

using Floats = std::vector<float>;
using Ints = std::vector<int32_t>;
using Doubles = std::vector<double>;

inline int failures = 0;

inline void check(bool condition, const std::string &what) {
  if (condition) return;
  std::printf("FAILED: %s (last error: %s)\n", what.c_str(), outrider_error());
  ++failures;
}

inline bool same(const float *a, const float *b, int count) { return std::memcmp(a, b, count * sizeof(float)) == 0; }

struct Random {
  uint64_t state;
  uint32_t next() {  // splitmix64
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 16);
  }
  int below(int bound) { return (int)(next() % (uint32_t)bound); }
  float centred() { return (float)(int32_t)next() / 2147483648.0f; }
};

struct Setup {
  int format, activations, cache, threads, stream;
  std::string isa;
  bool has_head() const { return format % 2 == 0; }
  bool has_norms() const { return format > 2; }  // of features
  int features(int hidden, int wide) const { return stream == 0 ? 0 : stream == 1 ? wide : hidden; }
  std::string name() const {
    std::ostringstream text;
    text << isa << " format " << format << " activations " << activations << " cache " << cache << " threads " << threads << " stream " << stream;
    return text.str();
  }
};

inline bool is_blocks(int format) { return format >= OUTRIDER_Q4_0; }

// Blocks need whole groups; other formats get sizes that are multiples of nothing.
inline OutriderShape shape_of(const Setup &s) {
  const auto spoken = [&](int vocab) { return s.has_head() ? vocab - 22 : vocab; };
  if (is_blocks(s.format)) return {2, 96, 64, 6, 2, 16, 101, spoken(101), s.stream, s.features(96, 192), s.stream ? 2 : 0, s.activations, s.cache, s.threads, 1e-5f};
  return {2, 40, 50, 4, 2, 10, 67, spoken(67), s.stream, s.features(40, 70), s.stream ? 2 : 0, s.activations, s.cache, s.threads, 1e-5f};
}

struct Closer { void operator()(OutriderModel *model) const { outrider_destroy(model); } };
using Handle = std::unique_ptr<OutriderModel, Closer>;

struct Size { int outputs, inputs; };

inline Size size_of(const OutriderShape &s, int matrix, int layer) {
  const int queries = s.heads * s.head_dim, keys = s.kv_heads * s.head_dim;
  const int seen = layer == 0 && s.stream != OUTRIDER_STREAM_TOKEN ? 2 * s.hidden : s.hidden;
  const Size sizes[] = {{s.vocab, s.hidden}, {s.spoken, s.hidden}, {queries, seen}, {keys, seen}, {keys, seen},
                        {s.hidden, queries}, {s.intermediate, s.hidden}, {s.intermediate, s.hidden}, {s.hidden, s.intermediate},
                        {s.hidden, s.features}};
  return sizes[matrix];
}

inline std::vector<uint8_t> random_blocks(int format, int count, bool lowest, Random &random) {
  const int header = format == OUTRIDER_Q4_1 ? 4 : 2, bytes = header + (format == OUTRIDER_Q8_0 ? 32 : 16);
  std::vector<uint8_t> data((size_t)count * bytes);
  for (int b = 0; b < count; ++b) {
    uint8_t *block = data.data() + (size_t)b * bytes;
    for (int i = header; i < bytes; ++i) {
      block[i] = (uint8_t)random.next();
      if (format == OUTRIDER_Q8_0 && !lowest && block[i] == 0x80) block[i] = 0x81;
    }
    const uint16_t half = (uint16_t)((format == OUTRIDER_Q8_0 ? 0x1400 : 0x2400) + random.below(512));  // about 0.001, 0.02
    std::memcpy(block, &half, 2);
    const uint16_t offset = (uint16_t)(half + 0x0c00 + 0x8000);  // -8 levels
    if (format == OUTRIDER_Q4_1) std::memcpy(block + 2, &offset, 2);
  }
  return data;
}

inline bool set_matrix(OutriderModel *model, const OutriderShape &s, int format, int matrix, int layer, Random &random) {
  const Size size = size_of(s, matrix, layer);
  OutriderRows rows{matrix, layer, OUTRIDER_FROM_FLOAT32, format, size.outputs, size.inputs, 0, size.outputs};
  if (is_blocks(format)) {
    rows.source = format - OUTRIDER_Q4_0 + OUTRIDER_FROM_Q4_0;
    const auto data = random_blocks(format, size.outputs * size.inputs / 32, layer == 1, random);
    return outrider_set_rows(model, &rows, data.data()) == 0;
  }
  Floats data((size_t)size.outputs * size.inputs);
  for (float &x : data) x = random.centred() * 2.0f / std::sqrt((float)size.inputs);
  for (rows.first = 0; rows.first < size.outputs; rows.first += rows.count) {
    rows.count = std::min(32, size.outputs - rows.first);
    if (outrider_set_rows(model, &rows, data.data() + (size_t)rows.first * size.inputs) != 0) return false;
  }
  return true;
}

inline bool set_vector(OutriderModel *model, int vector, int layer, int count, Random &random) {
  Floats data(count);
  for (float &x : data) x = vector < OUTRIDER_BIAS ? 1.0f + 0.3f * random.centred() : 0.3f * random.centred();
  return outrider_set_vector(model, vector, layer, data.data(), count) == 0;
}

inline Handle build(const Setup &setup) {
  const OutriderShape s = shape_of(setup);
  Random random{(uint64_t)(setup.format * 16 + setup.activations)};
  Handle model(outrider_create(&s, setup.isa.c_str()));
  bool good = model != nullptr;
  good = good && set_matrix(model.get(), s, setup.format, OUTRIDER_EMBEDDING, -1, random);
  good = good && (!setup.has_head() || set_matrix(model.get(), s, setup.format, OUTRIDER_HEAD, -1, random));
  good = good && set_vector(model.get(), OUTRIDER_FINAL_NORM, -1, s.hidden, random);
  good = good && set_vector(model.get(), OUTRIDER_TOKEN_NORM, -1, s.hidden, random);
  if (s.features != s.hidden && s.features)
    good = good && set_matrix(model.get(), s, setup.format, OUTRIDER_FUSE, -1, random) &&
           set_vector(model.get(), OUTRIDER_BIAS + OUTRIDER_FUSE, -1, s.hidden, random);
  if (s.features && setup.has_norms())
    for (int v : {OUTRIDER_COLUMN_NORM, OUTRIDER_FEATURE_NORM}) good = good && set_vector(model.get(), v, -1, s.features, random);
  for (int layer = 0; good && layer < s.layers; ++layer) {
    for (int m = OUTRIDER_QUERY; good && m <= OUTRIDER_DOWN; ++m)
      good = set_matrix(model.get(), s, setup.format, m, layer, random) &&
             set_vector(model.get(), OUTRIDER_BIAS + m, layer, size_of(s, m, layer).outputs, random);
    for (int v = OUTRIDER_ATTENTION_NORM; good && v <= OUTRIDER_KEY_NORM; ++v)
      good = set_vector(model.get(), v, layer, v <= OUTRIDER_MLP_NORM ? s.hidden : s.head_dim, random);
  }
  check(good && outrider_finish(model.get()) == 0, "build " + setup.name());
  return good ? std::move(model) : nullptr;
}

// Pages of exactly the size that is asked for, full of NaN: what was never written must never matter.
struct Cache {
  std::vector<void *> pages;
  int64_t bytes;
  Cache(const OutriderModel *model, int positions) : bytes(outrider_page_bytes(model)) {
    for (int p = 0; p < positions; p += OUTRIDER_PAGE) pages.push_back(std::memset(std::aligned_alloc(64, bytes), 0xff, bytes));
  }
  Cache(const Cache &other) : bytes(other.bytes) {
    for (void *page : other.pages) pages.push_back(std::memcpy(std::aligned_alloc(64, bytes), page, bytes));
  }
  Cache &operator=(const Cache &) = delete;
  ~Cache() { for (void *page : pages) std::free(page); }
};

}  // namespace driver
