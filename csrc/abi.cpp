// The C interface: checks arguments, turns exceptions into errors.
#include <cmath>
#include <cstring>

#include "cache.h"
#include "guard.h"
#include "model.h"
#include "pack.h"

using namespace outrider;

namespace {

void check_shape(const OutriderShape &s) {
  for (int32_t size : {s.layers, s.hidden, s.intermediate, s.heads, s.kv_heads, s.head_dim, s.vocab, s.spoken})
    require(size > 0 && size <= kMostSize, "every size must be 1 to " + text(kMostSize) + ", not " + text(size));
  require(s.layers <= 1024, "at most 1024 layers, not " + text(s.layers));
  require(s.heads % s.kv_heads == 0, "heads must be a multiple of key-value heads");
  require((int64_t)s.heads * s.head_dim <= kMostSize, "the heads together are too wide");
  require(s.head_dim % 2 == 0, "the head size must be even");
  require(s.heads / s.kv_heads <= 64, "at most 64 heads may share keys and values");
  require(s.threads > 0 && s.threads <= 1024, "threads must be 1 to 1024, not " + text(s.threads));
  require(s.stream >= 0 && s.stream <= OUTRIDER_STREAM_NORMED_STATE, "unknown stream " + text(s.stream));
  require(s.features >= 0 && s.features <= kMostSize, "features are 0 to " + text(kMostSize) + " numbers, not " + text(s.features));
  require((s.features > 0) == (s.stream != OUTRIDER_STREAM_TOKEN), "a state is made of features, and a token of none");
  require(s.features ? s.columns > 0 && s.features % s.columns == 0 : s.columns == 0, "columns are equal parts of the features");
  require(s.activations >= 0 && s.activations <= OUTRIDER_ACT_INT8, "unknown activations " + text(s.activations));
  require(s.cache >= 0 && s.cache <= OUTRIDER_CACHE_BFLOAT16, "unknown cache type " + text(s.cache));
}

struct Size { int outputs, inputs; };

Size expected(const OutriderModel &model, int matrix, int layer) {
  const OutriderShape &s = model.shape;
  const int seen = model.joins(layer) ? 2 * s.hidden : s.hidden;
  const int queries = s.heads * s.head_dim, keys = s.kv_heads * s.head_dim;
  switch (matrix) {
    case OUTRIDER_EMBEDDING: return {s.vocab, s.hidden};
    case OUTRIDER_HEAD: return {s.spoken, s.hidden};
    case OUTRIDER_QUERY: return {queries, seen};
    case OUTRIDER_KEY: case OUTRIDER_VALUE: return {keys, seen};
    case OUTRIDER_OUTPUT: return {s.hidden, queries};
    case OUTRIDER_GATE: case OUTRIDER_UP: return {s.intermediate, s.hidden};
    case OUTRIDER_DOWN: return {s.hidden, s.intermediate};
    case OUTRIDER_FUSE: return {s.hidden, s.features};
  }
  throw std::invalid_argument("unknown matrix " + text(matrix));
}

Matrix &matrix_at(OutriderModel &model, int matrix, int layer) {
  if (matrix == OUTRIDER_EMBEDDING) return model.embedding;
  if (matrix == OUTRIDER_HEAD) return model.head;
  if (matrix == OUTRIDER_FUSE && model.shape.features) return model.fuse;
  require(matrix > OUTRIDER_HEAD && matrix <= OUTRIDER_DOWN, "unknown matrix " + text(matrix));
  require(layer >= 0 && layer < model.shape.layers, "no layer " + text(layer));
  return model.layers[layer].matrices[matrix];
}

std::vector<float> &vector_at(OutriderModel &model, int vector, int layer) {
  if (vector == OUTRIDER_FINAL_NORM) return model.final_norm;
  if (vector == OUTRIDER_TOKEN_NORM) return model.token_norm;
  if (model.shape.features) {
    if (vector == OUTRIDER_COLUMN_NORM) return model.column_norm;
    if (vector == OUTRIDER_FEATURE_NORM) return model.feature_norm;
    if (vector == OUTRIDER_BIAS + OUTRIDER_FUSE) return model.fuse_bias;
  }
  require(layer >= 0 && layer < model.shape.layers, "no layer " + text(layer));
  Layer &found = model.layers[layer];
  switch (vector) {
    case OUTRIDER_ATTENTION_NORM: return found.attention_norm;
    case OUTRIDER_MLP_NORM: return found.mlp_norm;
    case OUTRIDER_QUERY_NORM: return found.query_norm;
    case OUTRIDER_KEY_NORM: return found.key_norm;
  }
  const int matrix = vector - OUTRIDER_BIAS;
  require(matrix >= OUTRIDER_QUERY && matrix <= OUTRIDER_DOWN, "unknown vector " + text(vector));
  return found.biases[matrix];
}

int vector_size(const OutriderModel &model, int vector, int layer) {
  if (vector == OUTRIDER_QUERY_NORM || vector == OUTRIDER_KEY_NORM) return model.shape.head_dim;
  if (vector == OUTRIDER_COLUMN_NORM || vector == OUTRIDER_FEATURE_NORM) return model.shape.features;
  return vector < OUTRIDER_BIAS ? model.shape.hidden : expected(model, vector - OUTRIDER_BIAS, layer).outputs;
}

void check_segment(const OutriderModel &model, const OutriderBatch &batch, const OutriderSegment &segment) {
  require(segment.rows > 0 && segment.length >= 0, "a segment has at least one row after its cached positions");
  require(segment.known == 0 || (segment.known > 0 && segment.parents), "nodes of earlier passes belong to a tree");
  require(segment.pages && segment.tokens, "a segment has pages and tokens");
  require(segment.states || model.shape.stream == OUTRIDER_STREAM_TOKEN, "rows have states where the stream starts from them");
  require(segment.fresh >= 0 && segment.fresh <= segment.rows, "no more rows than there are can be fresh");
  require(segment.fresh == 0 || (segment.features && model.shape.features), "fresh rows have features to make their states of");
  for (int i = 0; i < segment.rows; ++i) {
    const int token = segment.tokens[i];
    if (token < 0 || token >= model.shape.vocab) throw std::invalid_argument("token " + text(token) + " is outside the vocabulary");
  }
  require((int64_t)segment.length + segment.known + segment.rows <= INT32_MAX - 2 * OUTRIDER_PAGE, "too many positions");
  require(segment.parents || segment.length + segment.rows <= batch.positions, "rotary tables end before the last position");
  if (!segment.parents) return;
  std::vector<int> depths;
  for (int node = 0; node < segment.known + segment.rows; ++node) {
    const int parent = segment.parents[node];
    require(parent >= -1 && parent < node, "a parent is an earlier node, or the last cached position");
    depths.push_back(parent < 0 ? 0 : depths[parent] + 1);
    require(segment.length + depths[node] < batch.positions, "rotary tables end before the last position");
  }
}

// Before the lock: the thread that held it may be in the parent.
void check_ready(const OutriderModel &model) {
  require(model.team != nullptr, "the model is not finished");
  require(model.team->here(), "a forked process cannot use the decoder of its parent: load it after the fork");
}

void check_batch(const OutriderModel &model, const OutriderBatch &batch) {
  require(batch.segment_count > 0 && batch.segments && batch.cosines && batch.sines, "a batch has segments and rotary tables");
  int64_t rows = 0;
  for (int s = 0; s < batch.segment_count; ++s) {
    check_segment(model, batch, batch.segments[s]);
    rows += batch.segments[s].rows;
  }
  require(rows <= 1 << 20, "too many rows in one pass");
  require(batch.layer_count >= 0 && (batch.layer_count == 0 || batch.layers), "layers need a list");
  for (int i = 0; i < batch.layer_count; ++i)
    require(batch.layers[i] >= 0 && batch.layers[i] < model.shape.layers, "no layer " + text(batch.layers[i]));
  require(batch.wanted_count >= 0 && (batch.wanted_count == 0 || (batch.wanted && batch.logits)), "logits need a buffer");
  for (int i = 0; i < batch.wanted_count; ++i)
    require(batch.wanted[i] >= 0 && batch.wanted[i] < rows, "no row " + text(batch.wanted[i]));
  require(batch.tap_count >= 0 && (batch.tap_count == 0 || (batch.taps && batch.features)), "features need a buffer");
  for (int i = 0; i < batch.tap_count; ++i)
    require(batch.taps[i] >= 0 && batch.taps[i] <= model.shape.layers + 1, "no hidden state " + text(batch.taps[i]));
}

void move_slot(const OutriderModel &model, void *const *pages, int from, int to) {
  const int dim = model.shape.head_dim, padded = model.padded_dim(), bytes = model.number_bytes(), per = 4 / bytes;
  const uint8_t *source = (const uint8_t *)pages[from / kPage];
  uint8_t *goal = (uint8_t *)pages[to / kPage];
  const int a = from % kPage, b = to % kPage;
  for (int layer = 0; layer < model.shape.layers; ++layer)
    for (int head = 0; head < model.shape.kv_heads; ++head) {
      const ptrdiff_t keys = model.key_offset(layer, head), values = model.value_offset(layer, head);
      for (int d = 0; d < dim; ++d) {
        std::memcpy(goal + keys + key_index(per, dim, b, d) * bytes, source + keys + key_index(per, dim, a, d) * bytes, bytes);
        std::memcpy(goal + values + value_index(per, padded, b, d) * bytes,
                    source + values + value_index(per, padded, a, d) * bytes, bytes);
      }
    }
}

}  // namespace

int outrider_abi(void) { return OUTRIDER_ABI; }

const char *outrider_error(void) { return last_error().c_str(); }

const char *outrider_instruction_sets(void) {
  static const std::string joined = [] {
    std::string all;
    for (const std::string &name : instruction_sets()) all += (all.empty() ? "" : ",") + name;
    return all;
  }();
  return joined.c_str();
}

OutriderModel *outrider_create(const OutriderShape *shape, const char *isa) {
  std::unique_ptr<OutriderModel> model;
  const int code = guarded([&] {
    check_shape(*shape);
    require(isa != nullptr, "no instruction set is named");
    const Kernels *kernels = kernels_of(isa);
    require(kernels != nullptr, std::string("this machine has no instruction set ") + isa);
    model = std::make_unique<OutriderModel>();
    model->shape = *shape;
    model->kernels = kernels;
    model->rounding = (Rounding)shape->activations;
    model->layers.resize(shape->layers);
  });
  return code == 0 ? model.release() : nullptr;
}

void outrider_destroy(OutriderModel *model) { delete model; }

int outrider_set_rows(OutriderModel *model, const OutriderRows *rows, const void *data) {
  return guarded([&] {
    Matrix &goal = matrix_at(*model, rows->matrix, rows->layer);
    const Size size = expected(*model, rows->matrix, rows->layer);
    require(size.outputs == rows->outputs && size.inputs == rows->inputs,
            "matrix " + text(rows->matrix) + " is " + text(size.outputs) + " x " + text(size.inputs) + ", not " +
                text(rows->outputs) + " x " + text(rows->inputs));
    const auto activations = (OutriderActivations)model->shape.activations;
    const auto source = (OutriderSource)rows->source;
    check_source(source, rows->format, activations, rows->inputs);
    const bool whole = rows->first == 0 && rows->count == rows->outputs;
    require(whole || source == OUTRIDER_FROM_FLOAT32, "blocks are passed whole");
    require(rows->first >= 0 && rows->count > 0 && rows->first % kLanes == 0 && rows->first <= rows->outputs - rows->count,
            "rows are passed by panels of 16");
    require(data != nullptr, "rows have data");
    require(rows->first == goal.packed, "row " + text(goal.packed) + " is the next to pass, not " + text(rows->first));
    const Kind kind = kind_of((OutriderFormat)rows->format, activations, source, data, size.outputs, size.inputs);
    if (rows->first == 0) {
      Matrix packed = shaped(kind, size.outputs, size.inputs);
      packed.data = model->arena.take(packed.bytes());
      goal = packed;
    }
    require(goal.kind == kind, "all rows of a matrix are kept alike");
    pack(goal, source, data, rows->first, rows->count, model->shape.threads);
    goal.packed += rows->count;
  });
}

int outrider_set_vector(OutriderModel *model, int32_t vector, int32_t layer, const float *data, int32_t count) {
  return guarded([&] {
    std::vector<float> &goal = vector_at(*model, vector, layer);
    require(data != nullptr, "a vector has data");
    require(count == vector_size(*model, vector, layer), "vector " + text(vector) + " has " + text(count) + " numbers");
    goal.assign(data, data + count);
  });
}

int outrider_finish(OutriderModel *model) {
  return guarded([&] {
    require(model->embedding.whole(), "the embedding is not set");
    const OutriderShape &shape = model->shape;
    require(model->head.data ? model->head.whole() : shape.spoken == shape.vocab, "the head is not set to its last row");
    require(!model->final_norm.empty(), "the final norm is not set");
    require(shape.stream == OUTRIDER_STREAM_TOKEN || !model->token_norm.empty(), "the norm of the embedding is not set");
    require(model->fuse.data ? model->fuse.whole() : shape.features == 0 || shape.features == shape.hidden,
            "the matrix that makes states of features is not set to its last row");
    for (const Layer &layer : model->layers) {
      for (int which = OUTRIDER_QUERY; which <= OUTRIDER_DOWN; ++which)
        require(layer.matrices[which].whole(), "matrix " + text(which) + " of a layer is not set");
      require(!layer.attention_norm.empty() && !layer.mlp_norm.empty(), "a norm of a layer is not set");
      require(layer.biases[OUTRIDER_GATE].empty() == layer.biases[OUTRIDER_UP].empty(), "gate and up have biases, or neither");
    }
    if (!model->team) model->team = Team::of(model->shape.threads);
  });
}

int64_t outrider_weight_bytes(const OutriderModel *model) {
  int64_t bytes = (int64_t)(model->head.data ? model->head : model->embedding).bytes() + (int64_t)model->fuse.bytes();
  for (const Layer &layer : model->layers)
    for (int which = OUTRIDER_QUERY; which <= OUTRIDER_DOWN; ++which) bytes += (int64_t)layer.matrices[which].bytes();
  return bytes;
}

int64_t outrider_page_bytes(const OutriderModel *model) { return model->page_bytes(); }

int outrider_forward(OutriderModel *model, const OutriderBatch *batch) {
  return guarded([&] {
    check_ready(*model);
    std::lock_guard<std::mutex> only(model->busy);
    check_batch(*model, *batch);
    forward(*model, *batch);
  });
}

int outrider_keep(OutriderModel *model, void *const *pages, int32_t length, const int32_t *rows, int32_t count) {
  return guarded([&] {
    require(pages && rows && length >= 0, "pages, rows and a length are needed");
    check_ready(*model);
    for (int i = 0; i < count; ++i) {
      require((int64_t)length + rows[i] < INT32_MAX, "too many positions");
      require(rows[i] >= i && (i == 0 || rows[i] > rows[i - 1]), "rows are kept in ascending order");
      if (rows[i] != i) move_slot(*model, pages, length + rows[i], length + i);
    }
  });
}

int outrider_unpack(const OutriderModel *model, int32_t matrix, int32_t layer, int32_t row, float *out) {
  return guarded([&] {
    const Matrix &found = matrix_at(const_cast<OutriderModel &>(*model), matrix, layer);
    require(found.data != nullptr && row >= 0 && row < found.outputs, "no such row");
    std::vector<float> padded(found.groups * kGroup);
    unpack_row(found, row, padded.data());
    std::copy(padded.begin(), padded.begin() + found.inputs, out);
  });
}
