// The pass over all rows: every layer as phases of one team, a barrier between them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "model.h"
#include "pack.h"

namespace outrider {
namespace {

// What one attention unit asks: the arrays behind an `Attention`.
struct Queries {
  const uint32_t *query[kMostQueries];
  float *out[kMostQueries];
  const int32_t *tail[kMostQueries];
  int32_t tail_count[kMostQueries];
};

// One pass; what every phase reads.
struct Pass {
  OutriderModel &model;
  const OutriderBatch &batch;
  Workspace &work;
  const Kernels &kernels;
  const OutriderShape &shape;
  const int rows, hidden_stride, seen_stride, qkv_stride, attended_stride, key_at, value_at;

  Pass(OutriderModel &m, const OutriderBatch &b, int count)
      : model(m), batch(b), work(m.work), kernels(*m.kernels), shape(m.shape), rows(count),
        hidden_stride(whole(m.shape.hidden)),
        seen_stride(m.joins(0) ? whole(2 * m.shape.hidden) : hidden_stride), qkv_stride((m.shape.heads + 2 * m.shape.kv_heads) * m.shape.head_dim),
        attended_stride(whole(m.shape.heads * m.shape.head_dim)), key_at(m.shape.heads * m.shape.head_dim),
        value_at(key_at + m.shape.kv_heads * m.shape.head_dim) {}

  static int whole(int count) { return (count + kGroup - 1) / kGroup * kGroup; }
  float *hidden(int row) const { return work.hidden.data() + (size_t)row * hidden_stride; }
  float *qkv(int row) const { return work.qkv.data() + (size_t)row * qkv_stride; }
  const Matrix &head() const { return model.head.data ? model.head : model.embedding; }
  float *attended(int row) const { return work.attended.data() + (size_t)row * attended_stride; }

  void run(int thread);
  void take(int index, int thread) const;
  void fuse(int pair, int thread) const;
  void embed(int row) const;
  void join(const Layer &layer, int row, int thread) const;
  void tap(int index, int row) const;
  void norm(const std::vector<float> &weight, const float *x, Inputs &out, int row, int thread) const;
  void project(const Layer &layer, int unit, int thread) const;
  void place(const Layer &layer, int index, int row) const;
  Attention attention(int index, const AttentionUnit &unit, Queries &queries) const;
  void score(int index, const AttentionPart &part) const;
  void soften(int index, const AttentionPart &part) const;
  void mix(int index, const AttentionPart &part) const;
  void attend(int index, int unit, int thread) const;
  void add(const Layer &layer, OutriderMatrix which, const Inputs &x, int pair, const Matrix &following, int thread) const;
  void feed(const Layer &layer, int pair, int thread) const;
  void speak(int pair, int thread) const;
  const uint8_t *share(const Matrix &matrix, int thread) const;
  const uint8_t *after(const Matrix &matrix, int pair, const Matrix &following, int thread) const;
  float *product(const Matrix &matrix, int pair, const Inputs &x, const uint8_t *next, int thread, int which) const;
};

int columns(const Matrix &matrix, int pair) { return std::min(kPair, matrix.outputs - pair * kPair); }

// A pair of the query, key and value matrices, counted through, and its first column in the joint output.
struct Projection {
  OutriderMatrix which;
  int pair, column;
};

int projections(const Layer &layer) {
  return layer.at(OUTRIDER_QUERY).pairs + layer.at(OUTRIDER_KEY).pairs + layer.at(OUTRIDER_VALUE).pairs;
}

Projection projection(const Layer &layer, int unit) {
  Projection found{OUTRIDER_QUERY, unit, 0};
  while (found.pair >= layer.at(found.which).pairs) {
    found.pair -= layer.at(found.which).pairs;
    found.column += layer.at(found.which).outputs;
    found.which = (OutriderMatrix)(found.which + 1);
  }
  found.column += found.pair * kPair;
  return found;
}

void Pass::run(int thread) {
  Member member(*model.team, thread);
  member.phase((int)work.fresh.size(), [&](int index) { take(index, thread); });
  if (!work.fresh.empty()) member.phase(model.fuse.pairs, [&](int pair) { fuse(pair, thread); });
  member.phase(rows, [&](int row) { embed(row); });
  for (int i = 0; i < batch.layer_count; ++i) {
    const int index = batch.layers[i];
    const Layer &layer = model.layers[index];
    member.phase(rows, [&](int row) {
      tap(index, row);
      if (model.joins(index)) join(layer, row, thread);
      else norm(layer.attention_norm, hidden(row), work.normed, row, thread);
    });
    const bool last = i + 1 == batch.layer_count;
    const Matrix &gate = layer.at(OUTRIDER_GATE), &below = last ? head() : model.layers[batch.layers[i + 1]].at(OUTRIDER_QUERY);
    member.phase(projections(layer), [&](int unit) { project(layer, unit, thread); });
    member.phase(rows, [&](int row) { place(layer, index, row); });
    member.phase((int)work.score_parts.size(), [&](int part) { score(index, work.score_parts[part]); });
    member.phase((int)work.soften_parts.size(), [&](int part) { soften(index, work.soften_parts[part]); });
    member.phase((int)work.mix_parts.size(), [&](int part) { mix(index, work.mix_parts[part]); });
    member.phase((int)work.units.size() - work.whole_units, [&](int unit) { attend(index, work.whole_units + unit, thread); });
    member.phase(rows, [&](int row) { work.mixed.prepare(kernels, row, attended(row), 0, attended_stride / kGroup); });
    member.phase(layer.at(OUTRIDER_OUTPUT).pairs, [&](int pair) { add(layer, OUTRIDER_OUTPUT, work.mixed, pair, gate, thread); });
    member.phase(rows, [&](int row) { norm(layer.mlp_norm, hidden(row), work.normed, row, thread); });
    member.phase(layer.at(OUTRIDER_GATE).pairs, [&](int pair) { feed(layer, pair, thread); });
    member.phase(layer.at(OUTRIDER_DOWN).pairs, [&](int pair) { add(layer, OUTRIDER_DOWN, work.inner, pair, below, thread); });
  }
  if (batch.tap_count) member.phase(rows, [&](int row) { tap(shape.layers, row), tap(shape.layers + 1, row); });
  if (batch.wanted_count == 0) return;
  member.phase(batch.wanted_count, [&](int i) { norm(model.final_norm, hidden(batch.wanted[i]), work.last, i, thread); });
  member.phase(head().pairs, [&](int pair) { speak(pair, thread); });
}

// Norms the features of a row whose state is not made yet, and rounds them for the product.
void Pass::take(int index, int thread) const {
  const FreshRow &row = work.fresh[index];
  const int count = shape.features, width = count / shape.columns;
  float *normed = work.threads[thread].row.data();
  std::copy_n(row.features, count, normed);
  for (int first = 0; first < count && !model.column_norm.empty(); first += width)
    kernels.rms_norm(normed + first, model.column_norm.data() + first, shape.rms_eps, width, normed + first);
  if (!model.feature_norm.empty()) kernels.rms_norm(normed, model.feature_norm.data(), shape.rms_eps, count, normed);
  if (!model.fuse.data) {
    std::copy_n(normed, count, row.state);
    return;
  }
  std::fill(normed + count, normed + whole(count), 0.0f);
  work.features.prepare(kernels, index, normed, 0, model.fuse.groups);
}

void Pass::fuse(int pair, int thread) const {
  const Matrix &following = model.layers[0].at(OUTRIDER_QUERY);
  const float *tile = product(model.fuse, pair, work.features, after(model.fuse, pair, following, thread), thread, 0);
  const int count = columns(model.fuse, pair), first = pair * kPair;
  for (const FreshRow &row : work.fresh) {
    float *out = row.state + first;
    std::copy_n(tile, count, out);
    if (!model.fuse_bias.empty())
      for (int o = 0; o < count; ++o) out[o] += model.fuse_bias[first + o];
    tile += kPair;
  }
}

void Pass::embed(int row) const {
  const Row &at = work.rows[row];
  const OutriderSegment &segment = batch.segments[at.segment];
  const int i = row - work.segment_start[at.segment];
  if (shape.stream == OUTRIDER_STREAM_TOKEN) unpack_row(model.embedding, segment.tokens[i], hidden(row));
  else std::copy_n(segment.states + (size_t)i * shape.hidden, shape.hidden, hidden(row));
}

// What layer 0 reads where a state is given: the normed embedding, and behind it the normed state.
void Pass::join(const Layer &layer, int row, int thread) const {
  const int segment = work.rows[row].segment, size = shape.hidden;
  float *token = work.threads[thread].row.data(), *state = token + size;
  unpack_row(model.embedding, batch.segments[segment].tokens[row - work.segment_start[segment]], token);
  kernels.rms_norm(token, model.token_norm.data(), shape.rms_eps, size, token);
  kernels.rms_norm(hidden(row), layer.attention_norm.data(), shape.rms_eps, size, state);
  if (shape.stream == OUTRIDER_STREAM_NORMED_STATE) std::copy_n(state, size, hidden(row));
  std::fill(state + size, token + seen_stride, 0.0f);
  work.normed.prepare(kernels, row, token, 0, seen_stride / kGroup);
}

void Pass::tap(int index, int row) const {
  for (int t = 0; t < batch.tap_count; ++t)
    if (batch.taps[t] == index) {
      float *feature = batch.features + ((size_t)row * batch.tap_count + t) * shape.hidden;
      if (index <= shape.layers) std::copy_n(hidden(row), shape.hidden, feature);
      else kernels.rms_norm(hidden(row), model.final_norm.data(), shape.rms_eps, shape.hidden, feature);
    }
}

void Pass::norm(const std::vector<float> &weight, const float *x, Inputs &out, int row, int thread) const {
  float *normed = work.threads[thread].row.data();
  kernels.rms_norm(x, weight.data(), shape.rms_eps, shape.hidden, normed);
  std::fill(normed + shape.hidden, normed + hidden_stride, 0.0f);
  out.prepare(kernels, row, normed, 0, hidden_stride / kGroup);
}

// Where this thread's share of the pairs of a matrix begins in memory.
const uint8_t *Pass::share(const Matrix &matrix, int thread) const {
  return matrix.record(share_begin(matrix.pairs, thread, shape.threads), 0);
}

// What this thread reads after a pair: the next of its share, or its share of the matrix that follows.
const uint8_t *Pass::after(const Matrix &matrix, int pair, const Matrix &following, int thread) const {
  const bool last = pair + 1 >= share_begin(matrix.pairs, thread + 1, shape.threads);
  return last ? share(following, thread) : matrix.record(pair + 1, 0);
}

float *Pass::product(const Matrix &matrix, int pair, const Inputs &x, const uint8_t *next, int thread, int which) const {
  Workspace::Thread &own = work.threads[thread];
  float *tile = own.tile.data() + (size_t)which * std::max(rows, batch.wanted_count) * kPair;
  kernels.product(matrix, pair, x.view(), tile, next);
  return tile;
}

void Pass::project(const Layer &layer, int unit, int thread) const {
  const Projection at = projection(layer, unit);
  const Matrix &matrix = layer.at(at.which);
  const uint8_t *next = share(layer.at(OUTRIDER_OUTPUT), thread);
  if (unit + 1 < share_begin(projections(layer), thread + 1, shape.threads)) {
    const Projection follower = projection(layer, unit + 1);
    next = layer.at(follower.which).record(follower.pair, 0);
  }
  const float *tile = product(matrix, at.pair, work.normed, next, thread, 0);
  const int count = columns(matrix, at.pair), first = at.pair * kPair;
  const std::vector<float> &bias = layer.biases[at.which];
  for (int row = 0; row < rows; ++row, tile += kPair) {
    float *out = qkv(row) + at.column;
    std::copy(tile, tile + count, out);
    if (!bias.empty())
      for (int o = 0; o < count; ++o) out[o] += bias[first + o];
  }
}

// Norms and rotates the queries and keys of a row, and writes keys and values to its slot.
void Pass::place(const Layer &layer, int index, int row) const {
  const Row &at = work.rows[row];
  void *const *pages = batch.segments[at.segment].pages;
  const int dim = shape.head_dim, half = dim / 2;
  const float *cosines = batch.cosines + (size_t)at.position * half, *sines = batch.sines + (size_t)at.position * half;
  const float factor = 1.0f / std::sqrt((float)dim);
  for (int head = 0; head < shape.heads; ++head) {
    float *query = qkv(row) + head * dim;
    if (!layer.query_norm.empty()) kernels.rms_norm(query, layer.query_norm.data(), shape.rms_eps, dim, query);
    kernels.rotate(query, cosines, sines, half);
    for (int d = 0; d < dim; ++d) query[d] *= factor;
    model.cache().round_query(query, dim);
  }
  for (int head = 0; head < shape.kv_heads; ++head) {
    float *key = qkv(row) + key_at + head * dim;
    const float *value = qkv(row) + value_at + head * dim;
    if (!layer.key_norm.empty()) kernels.rms_norm(key, layer.key_norm.data(), shape.rms_eps, dim, key);
    kernels.rotate(key, cosines, sines, half);
    model.cache().store_key(pages, model.key_offset(index, head), at.slot, key, dim);
    model.cache().store_value(pages, model.value_offset(index, head), at.slot, value, dim, model.padded_dim());
  }
}

Attention Pass::attention(int index, const AttentionUnit &unit, Queries &queries) const {
  const OutriderSegment &segment = batch.segments[unit.segment];
  const int together = shape.heads / shape.kv_heads, start = work.segment_start[unit.segment];
  const bool tree = segment.parents != nullptr;
  // A chain's common slots end with those of its first row here; a tree's, before the tree. Both at an even slot.
  const int common = (tree ? segment.length : segment.length + unit.first + 1) / 2 * 2;
  int count = 0;
  for (int row = unit.first; row < unit.first + unit.rows; ++row)
    for (int head = unit.kv_head * together; head < (unit.kv_head + 1) * together; ++head, ++count) {
      queries.query[count] = (const uint32_t *)(qkv(start + row) + head * shape.head_dim);
      queries.out[count] = attended(start + row) + head * shape.head_dim;
      queries.tail[count] = tree ? work.paths[start + row].data() : work.slots[unit.segment].data() + (common - segment.length);
      queries.tail_count[count] = tree ? (int)work.paths[start + row].size() : segment.length + row + 1 - common;
    }
  return {segment.pages, model.key_offset(index, unit.kv_head), model.value_offset(index, unit.kv_head), shape.head_dim,
          model.padded_dim(), common, count, queries.query, queries.out, queries.tail, queries.tail_count,
          work.scores.data() + unit.scratch, work.score_stride, work.sums.data() + unit.scratch / work.score_stride};
}

void Pass::score(int index, const AttentionPart &part) const {
  Queries queries;
  model.cache().scores(attention(index, work.units[part.unit], queries), part.begin, part.end);
}

void Pass::soften(int index, const AttentionPart &part) const {
  Queries queries;
  model.cache().soften(attention(index, work.units[part.unit], queries), part.begin);
}

void Pass::mix(int index, const AttentionPart &part) const {
  Queries queries;
  model.cache().mix(attention(index, work.units[part.unit], queries), part.begin, part.end);
}

// All steps of a unit by one thread, for as many queries at a time as the kernels take.
void Pass::attend(int index, int which, int thread) const {
  const AttentionUnit &unit = work.units[which];
  Queries queries;
  const Attention all = attention(index, unit, queries);
  const int end = work.rows[work.segment_start[unit.segment] + unit.first + unit.rows - 1].slot + 1;
  for (int first = 0; first < all.queries; first += kernels.max_queries) {
    Attention some = all;
    some.queries = std::min(kernels.max_queries, all.queries - first);
    some.query += first, some.out += first, some.tail += first, some.tail_count += first;
    some.scratch = work.threads[thread].scores.data();
    some.sums = work.threads[thread].sums.data();
    model.cache().scores(some, 0, end);
    for (int q = 0; q < some.queries; ++q) model.cache().soften(some, q);
    model.cache().mix(some, 0, model.padded_dim() / kLanes);
  }
}

// Adds a product to the hidden state.
void Pass::add(const Layer &layer, OutriderMatrix which, const Inputs &x, int pair, const Matrix &following, int thread) const {
  const Matrix &matrix = layer.at(which);
  const float *tile = product(matrix, pair, x, after(matrix, pair, following, thread), thread, 0);
  const int count = columns(matrix, pair), first = pair * kPair;
  const std::vector<float> &bias = layer.biases[which];
  for (int row = 0; row < rows; ++row, tile += kPair) {
    float *out = hidden(row) + first;
    if (bias.empty())
      for (int o = 0; o < count; ++o) out[o] += tile[o];
    else
      for (int o = 0; o < count; ++o) out[o] += tile[o] + bias[first + o];
  }
}

// Gate and up products of 32 inner numbers, their SwiGLU, rounded as one group of the down product.
void Pass::feed(const Layer &layer, int pair, int thread) const {
  const Matrix &gates = layer.at(OUTRIDER_GATE), &ups = layer.at(OUTRIDER_UP);
  float *gate = product(gates, pair, work.normed, ups.record(pair, 0), thread, 0);
  float *up = product(ups, pair, work.normed, after(gates, pair, layer.at(OUTRIDER_DOWN), thread), thread, 1);
  const int first = pair * kPair, count = columns(gates, pair);
  alignas(64) float inner[kPair];
  for (int row = 0; row < rows; ++row, gate += kPair, up += kPair) {
    if (!layer.biases[OUTRIDER_GATE].empty())
      for (int o = 0; o < count; ++o) gate[o] += layer.biases[OUTRIDER_GATE][first + o], up[o] += layer.biases[OUTRIDER_UP][first + o];
    kernels.swiglu(gate, up, inner);
    work.inner.prepare(kernels, row, inner - first, pair, pair + 1);
  }
}

void Pass::speak(int pair, int thread) const {
  const Matrix &matrix = head();
  const float *tile = product(matrix, pair, work.last, after(matrix, pair, matrix, thread), thread, 0);
  const int count = columns(matrix, pair);
  for (int i = 0; i < batch.wanted_count; ++i, tile += kPair)
    std::memcpy(batch.logits + (size_t)i * shape.spoken + (size_t)pair * kPair, tile, count * sizeof(float));
}

void grow(OutriderModel &model, const OutriderBatch &batch, const Pass &pass) {
  const OutriderShape &shape = model.shape;
  const Kernels &kernels = *model.kernels;
  Workspace &work = model.work;
  const int inner_groups = Pass::whole(shape.intermediate) / kGroup;
  auto fit = [](auto &memory, size_t size) { if (memory.size() < size) memory.resize(size); };
  fit(work.hidden, (size_t)pass.rows * pass.hidden_stride);
  fit(work.qkv, (size_t)pass.rows * pass.qkv_stride);
  fit(work.attended, (size_t)pass.rows * pass.attended_stride);
  work.normed.layout(kernels, model.rounding, pass.rows, pass.seen_stride / kGroup);
  work.mixed.layout(kernels, model.rounding, pass.rows, pass.attended_stride / kGroup);
  work.inner.layout(kernels, model.rounding, pass.rows, inner_groups);
  if (!work.fresh.empty() && model.fuse.data) work.features.layout(kernels, model.rounding, (int)work.fresh.size(), model.fuse.groups);
  if (batch.wanted_count) work.last.layout(kernels, model.rounding, batch.wanted_count, pass.hidden_stride / kGroup);
  fit(work.scores, work.sums.size() * work.score_stride);
  work.threads.resize(shape.threads);
  for (Workspace::Thread &own : work.threads) {
    fit(own.row, (size_t)std::max(pass.seen_stride, Pass::whole(shape.features)) + kGroup);
    fit(own.tile, (size_t)2 * std::max(pass.rows, batch.wanted_count) * kPair);
    fit(own.scores, (size_t)kernels.max_queries * work.score_stride);
    fit(own.sums, (size_t)kernels.max_queries);
  }
}

}  // namespace

void forward(OutriderModel &model, const OutriderBatch &batch) {
  lay_out(model, batch);
  Pass pass(model, batch, (int)model.work.rows.size());
  grow(model, batch, pass);
  model.team->run([](void *context, int thread) { static_cast<Pass *>(context)->run(thread); }, &pass);
}

}  // namespace outrider
