// The packed model: shape, weights, threads and the working memory of a pass.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "outrider.h"
#include "threads.h"

namespace outrider {

// Zeroed memory in large pieces, freed together; huge pages where the system has them.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena &) = delete;
  Arena &operator=(const Arena &) = delete;
  ~Arena();
  uint8_t *take(size_t bytes);

 private:
  struct Piece { uint8_t *data; size_t size, used; };
  std::vector<Piece> pieces_;
};

struct Layer {
  Matrix matrices[9];               // by OutriderMatrix
  std::vector<float> biases[9];     // empty: none
  std::vector<float> attention_norm, mlp_norm, query_norm, key_norm;
  const Matrix &at(OutriderMatrix which) const { return matrices[which]; }
};

// Rows laid out for products: the memory behind one `Activations`.
class Inputs {
 public:
  // Cuts `rows` rows of `groups` groups into blocks of the given widths.
  void layout(const Kernels &kernels, Rounding rounding, int rows, int groups);
  // Rounds groups [begin, end) of row x.
  void prepare(const Kernels &kernels, int row, const float *x, int begin, int end);
  const Activations &view() const { return activations_; }

 private:
  Activations activations_;
  std::vector<Block> blocks_;
  std::vector<int> block_of_;  // [rows]
  std::vector<uint32_t> memory_;
};

struct Row {
  int segment, slot, position;
};

// A row whose state is made in the pass, and where that goes.
struct FreshRow {
  const float *features;
  float *state;
};

constexpr int kMostQueries = 64;  // of an attention unit: the heads of one row at least

// Rows of one segment and the heads of one key-value head, which share the reading of keys and values.
struct AttentionUnit {
  int segment, kv_head, first, rows;  // first: within the segment
  size_t scratch;                     // where its scores begin, for units that are worked on in parts
};

// A part of a step of an attention unit: slots, a query, or lines of 16 dimensions.
struct AttentionPart {
  int unit, begin, end;
};

// What a pass needs beside weights and caches; grows to the largest pass.
struct Workspace {
  std::vector<Row> rows;
  std::vector<FreshRow> fresh;
  std::vector<int> segment_start;                // first row of each segment
  std::vector<std::vector<int32_t>> slots;       // per segment: its rows' slots in order
  std::vector<std::vector<int32_t>> paths;       // per row of a tree: its slots after the common ones
  std::vector<AttentionUnit> units;              // those in parts first
  int whole_units = 0;                           // the first unit that one thread takes whole
  std::vector<AttentionPart> score_parts, soften_parts, mix_parts;
  std::vector<float> scores, sums;               // of the units in parts: [queries, score_stride], [queries]
  ptrdiff_t score_stride = 0;
  std::vector<float> hidden;    // [rows, hidden_stride]
  std::vector<float> qkv;       // [rows, qkv_stride]
  std::vector<float> attended;  // [rows, attended_stride]
  Inputs features, normed, mixed, inner, last;
  struct Thread {
    std::vector<float> row, tile, scores, sums;
  };
  std::vector<Thread> threads;
};

}  // namespace outrider

struct OutriderModel {
  OutriderShape shape;
  const outrider::Kernels *kernels;
  outrider::Rounding rounding;
  outrider::Arena arena;
  std::vector<outrider::Layer> layers;
  outrider::Matrix embedding, head;  // head.data is null: the embedding serves
  outrider::Matrix fuse;
  std::vector<float> final_norm, token_norm;
  std::vector<float> column_norm, feature_norm, fuse_bias;  // empty: none
  std::shared_ptr<outrider::Team> team;
  outrider::Workspace work;
  std::mutex busy;  // one pass at a time

  int padded_dim() const { return (shape.head_dim + 15) / 16 * 16; }
  const outrider::CacheKernels &cache() const {
    return shape.cache == OUTRIDER_CACHE_BFLOAT16 ? kernels->bfloat16 : kernels->float32;
  }
  bool joins(int layer) const { return layer == 0 && shape.stream != OUTRIDER_STREAM_TOKEN; }
  int number_bytes() const { return shape.cache == OUTRIDER_CACHE_BFLOAT16 ? 2 : 4; }
  // Keys of one layer and head within a page; its values take a half of their own behind them.
  ptrdiff_t half_bytes() const { return (ptrdiff_t)OUTRIDER_PAGE * padded_dim() * number_bytes(); }
  ptrdiff_t key_offset(int layer, int head) const { return ((ptrdiff_t)layer * shape.kv_heads + head) * 2 * half_bytes(); }
  ptrdiff_t value_offset(int layer, int head) const { return key_offset(layer, head) + half_bytes(); }
  ptrdiff_t page_bytes() const { return key_offset(shape.layers, 0); }
};

namespace outrider {

// Fills in the rows, units and parts of the workspace for a pass.
void lay_out(OutriderModel &model, const OutriderBatch &batch);

// One pass over checked arguments.
void forward(OutriderModel &model, const OutriderBatch &batch);

// The table of an instruction set that this machine has; null otherwise.
const Kernels *kernels_of(const std::string &isa);
// Names of all such sets, best first.
const std::vector<std::string> &instruction_sets();

}  // namespace outrider
