// How a pass is cut: rows with their slots and positions, and attention into units and parts.
#include <algorithm>

#include "model.h"

namespace outrider {
namespace {

constexpr int kFewRows = 16;     // up to so many rows of a segment attention is cut into parts
constexpr int kPartSlots = 256;  // scored at a time

// Cuts the attention of one segment into units, and those of few rows into parts that all threads share. Parts that read
// the same keys or values follow each other.
void lay_out_attention(OutriderModel &model, const OutriderSegment &segment, int index, bool few) {
  Workspace &work = model.work;
  const int share = model.shape.heads / model.shape.kv_heads, together = std::max(1, model.kernels->max_queries / share);
  const int each = few ? together : std::min(4 * together, std::max(1, kMostQueries / share));
  const int lines = model.padded_dim() / kLanes, before = segment.length + segment.known, slots = before + segment.rows;
  for (int head = 0; head < model.shape.kv_heads; ++head) {
    const int begin_unit = (int)work.units.size();
    for (int first = 0; first < segment.rows; first += each) {
      const int rows = std::min(each, segment.rows - first);
      work.units.push_back({index, head, first, rows, few ? work.sums.size() * work.score_stride : 0});
      if (few) work.sums.resize(work.sums.size() + rows * share);
    }
    if (!few) continue;
    const int end_unit = (int)work.units.size();
    auto last_slot = [&](int unit) { return before + work.units[unit].first + work.units[unit].rows; };
    for (int begin = 0; begin < slots; begin += kPartSlots)
      for (int unit = begin_unit; unit < end_unit; ++unit)
        if (begin < last_slot(unit)) work.score_parts.push_back({unit, begin, std::min(last_slot(unit), begin + kPartSlots)});
    for (int unit = begin_unit; unit < end_unit; ++unit)
      for (int q = 0; q < work.units[unit].rows * share; ++q) work.soften_parts.push_back({unit, q, q + 1});
    for (int line = 0; line < lines; line += 2)
      for (int unit = begin_unit; unit < end_unit; ++unit) work.mix_parts.push_back({unit, line, std::min(lines, line + 2)});
  }
}

// The slots that node `node` of a tree sees beyond the common ones, which end at an even slot.
void find_path(const OutriderSegment &segment, int node, std::vector<int32_t> &path) {
  path.clear();
  for (; node >= 0; node = segment.parents[node]) path.push_back(segment.length + node);
  if (segment.length % 2) path.push_back(segment.length - 1);
  std::reverse(path.begin(), path.end());
}

void lay_out_rows(const OutriderShape &shape, const OutriderBatch &batch, Workspace &work) {
  work.rows.clear();
  work.fresh.clear();
  work.segment_start.clear();
  work.slots.resize(batch.segment_count);
  for (int s = 0; s < batch.segment_count; ++s) {
    const OutriderSegment &segment = batch.segments[s];
    const int start = (int)work.rows.size();
    work.segment_start.push_back(start);
    work.slots[s].resize(segment.rows);
    if (work.paths.size() < (size_t)(start + segment.rows)) work.paths.resize(start + segment.rows);
    for (int i = 0; i < segment.rows; ++i) {
      const int slot = segment.length + segment.known + i;
      work.slots[s][i] = slot;
      if (segment.parents) find_path(segment, segment.known + i, work.paths[start + i]);
      const int position = segment.parents ? segment.length / 2 * 2 + (int)work.paths[start + i].size() - 1 : slot;
      work.rows.push_back({s, slot, position});
    }
    for (int i = 0, row = segment.rows - segment.fresh; i < segment.fresh; ++i, ++row)
      work.fresh.push_back({segment.features + (size_t)i * shape.features, segment.states + (size_t)row * shape.hidden});
  }
}

}  // namespace

void lay_out(OutriderModel &model, const OutriderBatch &batch) {
  Workspace &work = model.work;
  lay_out_rows(model.shape, batch, work);
  int slots = 0;
  for (const Row &row : work.rows) slots = std::max(slots, row.slot + 1);
  work.score_stride = (slots + 2 * OUTRIDER_PAGE) / OUTRIDER_PAGE * OUTRIDER_PAGE;
  work.units.clear();
  work.sums.clear();
  for (auto *parts : {&work.score_parts, &work.soften_parts, &work.mix_parts}) parts->clear();
  for (const bool few : {true, false}) {
    for (int s = 0; s < batch.segment_count; ++s)
      if ((batch.segments[s].rows <= kFewRows) == few) lay_out_attention(model, batch.segments[s], s, few);
    if (few) work.whole_units = (int)work.units.size();
  }
}

}  // namespace outrider
