// Runs tiny random models through the C interface, for sanitizers: every format, inputs, cache, instruction set and number
// of threads; checks that logits are bitwise equal however rows are grouped, and that bad arguments are refused.
#include "calls.h"
#include "tiny.h"

using namespace driver;

namespace {

struct Part {
  Cache *cache;
  int length;
  Ints tokens, parents;  // no parents: a chain
  int known = 0;         // nodes of the tree that an earlier pass did
};

constexpr int kPositions = 192;

struct Runner {
  const Setup &setup;
  OutriderShape shape;
  Handle model;
  Floats cosines, sines, features, states;  // features and what is made of them: one for each token
  Ints tokens;

  explicit Runner(const Setup &s) : setup(s), shape(shape_of(s)), model(build(s)) {
    for (int p = 0; p < kPositions; ++p)
      for (int j = 0; j < shape.head_dim / 2; ++j) {
        const double angle = p * std::pow(500.0, -2.0 * j / shape.head_dim);
        cosines.push_back((float)std::cos(angle)), sines.push_back((float)std::sin(angle));
      }
    Random random{7};
    for (int p = 0; p < kPositions; ++p) tokens.push_back(random.below(shape.vocab));
    for (int i = 0; i < shape.vocab * shape.features; ++i) features.push_back(random.centred());
    states.resize((size_t)shape.vocab * shape.hidden);
    for (int token = 0; model && shape.features && token < shape.vocab; ++token) make_state(token);
  }

  void make_state(int token) {
    Cache cache(model.get(), 1);
    const OutriderSegment segment{cache.pages.data(), 0, 0, 1, &token, &states[token * shape.hidden],
                                  &features[token * shape.features], 1, nullptr};
    const OutriderBatch batch{&segment, 1, nullptr, 0, cosines.data(), sines.data(), kPositions, nullptr, 0, nullptr, nullptr, 0, nullptr};
    check(outrider_forward(model.get(), &batch) == 0, "a state of features " + setup.name());
  }

  // Logits [rows, spoken], then the hidden states entering layer 1, of heads the last after the final norm [rows, hidden].
  Floats forward(const std::vector<Part> &parts, const Ints &layers = {0, 1}) const {
    std::vector<OutriderSegment> segments;
    std::vector<Floats> given(parts.size()), taken(parts.size());
    int rows = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Part &part = parts[i];
      const int count = (int)part.tokens.size(), fresh = shape.features ? part.length % (count + 1) : 0;
      for (int row = 0; row < count; ++row) {  // the state of a fresh row is made anew
        const float *state = &states[part.tokens[row] * shape.hidden], *feature = features.data() + part.tokens[row] * shape.features;
        given[i].insert(given[i].end(), state, state + shape.hidden);
        if (row >= count - fresh) std::fill_n(given[i].end() - shape.hidden, shape.hidden, std::nanf(""));
        if (row >= count - fresh) taken[i].insert(taken[i].end(), feature, feature + shape.features);
      }
      segments.push_back({part.cache->pages.data(), part.length, part.known, count, part.tokens.data(), given[i].data(),
                          taken[i].data(), fresh, part.parents.empty() ? nullptr : part.parents.data()});
      rows += count;
    }
    Ints wanted;
    for (int row = 0; row < rows; ++row) wanted.push_back(row);
    const int32_t tap = shape.stream ? 3 : 1;
    Floats features((size_t)rows * shape.hidden, 0.0f), out((size_t)rows * shape.spoken);
    const OutriderBatch batch{segments.data(), (int32_t)segments.size(), layers.data(), (int32_t)layers.size(), cosines.data(),
                              sines.data(), kPositions, &tap, 1, features.data(), wanted.data(), rows, out.data()};
    check(outrider_forward(model.get(), &batch) == 0, "forward " + setup.name());
    out.insert(out.end(), features.begin(), features.end());
    return out;
  }

  Ints slice(int begin, int count) const { return Ints(tokens.begin() + begin, tokens.begin() + begin + count); }

  void expect(const Floats &got, int row, const Floats &wide, int wide_row, int wide_rows, int rows, const char *what) const {
    const size_t feature = (size_t)rows * shape.spoken + (size_t)row * shape.hidden;
    const size_t wide_feature = (size_t)wide_rows * shape.spoken + (size_t)wide_row * shape.hidden;
    check(same(&got[(size_t)row * shape.spoken], &wide[(size_t)wide_row * shape.spoken], shape.spoken) &&
              same(&got[feature], &wide[wide_feature], shape.hidden),
          std::string(what) + " differs, " + setup.name());
  }
};

constexpr int kLength = 100;  // crosses a page

// One row at a time: what everything else must equal. Fills the cache.
std::vector<Floats> one_by_one(const Runner &run, Cache &cache) {
  std::vector<Floats> rows;
  for (int p = 0; p < kLength; ++p) rows.push_back(run.forward({{&cache, p, run.slice(p, 1), {}}}));
  for (float x : rows.back()) check(std::isfinite(x), "a logit is not finite, " + run.setup.name());
  return rows;
}

void check_chunks(const Runner &run, const std::vector<Floats> &rows) {
  for (int chunk : {1, 7, 64, kLength}) {
    if (chunk == 1 && run.setup.threads == 1) continue;
    Cache cache(run.model.get(), kPositions);
    for (int p = 0; p < kLength; p += chunk) {
      const int count = std::min(chunk, kLength - p);
      const Floats wide = run.forward({{&cache, p, run.slice(p, count), {}}});
      for (int i = 0; i < count; ++i) run.expect(rows[p + i], 0, wide, i, count, 1, "a chunk");
    }
  }
}

void check_widths(const Runner &run, Cache &cache, const std::vector<Floats> &rows) {
  for (int width = 1; width <= 16; ++width) {
    const int start = 64 - width / 2;
    const Floats wide = run.forward({{&cache, start, run.slice(start, width), {}}});
    for (int i = 0; i < width; ++i) run.expect(rows[start + i], 0, wide, i, width, 1, "a chain");
  }
  const Ints layers = {1};
  const Floats wide = run.forward({{&cache, 20, run.slice(20, 5), {}}}, layers);
  for (int i = 0; i < 5; ++i) run.expect(run.forward({{&cache, 20 + i, run.slice(20 + i, 1), {}}}, layers), 0, wide, i, 5, 1, "a draft");
}

Part random_tree(Cache &cache, int length, int rows, const Runner &run, Random &random) {
  Part tree{&cache, length, run.slice(length, 1), {-1}};
  for (int i = 1; i < rows; ++i) {
    tree.tokens.push_back(random.below(run.shape.vocab));
    tree.parents.push_back(i - 1 - random.below(std::min(i + 1, 4)));
  }
  return tree;
}

Ints path_to(const Part &tree, int node) {
  Ints path;
  for (; node >= 0; node = tree.parents[node]) path.insert(path.begin(), node);
  return path;
}

Part chain_of(Cache &cache, const Part &tree, const Ints &path) {
  Part chain{&cache, tree.length, {}, {}};
  for (int node : path) chain.tokens.push_back(tree.tokens[node]);
  return chain;
}

void check_trees(const Runner &run, const Cache &prefix) {
  Random random{11};
  for (int rows : {2, 9, 20, 32})
    for (int length : {0, 40, 63, 90}) {
      Cache cache(prefix), beside(prefix), other(prefix), pieces(prefix);
      const Part tree = random_tree(cache, length, rows, run, random), small = random_tree(other, 70, 5, run, random);
      const Part chain{&beside, 30, run.slice(30, 1 + rows % 4), {}};
      const Floats wide = run.forward({tree}), alone = run.forward({small});
      const Floats line = run.forward({chain});
      const int chained = (int)chain.tokens.size(), all = chained + rows + 5;
      const Floats batch = run.forward({chain, tree, small});
      for (int i = 0; i < chained; ++i) run.expect(line, i, batch, i, all, chained, "a chain beside others");
      for (int i = 0; i < rows; ++i) run.expect(wide, i, batch, chained + i, all, rows, "a tree beside others");
      for (int i = 0; i < 5; ++i) run.expect(alone, i, batch, chained + rows + i, all, 5, "a small tree beside others");
      for (int node = 0; node < rows; ++node) {
        Cache fresh(prefix);
        const Ints path = path_to(tree, node);
        const int count = (int)path.size();
        run.expect(wide, node, run.forward({chain_of(fresh, tree, path)}), count - 1, count, rows, "a path of a tree");
      }
      for (int done = 0, step = 1; done < rows; done += step, step = std::min(rows - done, 5)) {
        const Part level{&pieces, length, Ints(tree.tokens.begin() + done, tree.tokens.begin() + done + step),
                         Ints(tree.parents.begin(), tree.parents.begin() + done + step), done};
        const Floats piece = run.forward({level});
        for (int i = 0; i < step; ++i) run.expect(piece, i, wide, done + i, rows, step, "a tree in pieces");
      }
      const Ints path = path_to(tree, rows - 1);
      const int count = (int)path.size();
      check(outrider_keep(run.model.get(), cache.pages.data(), length, path.data(), count) == 0, "keep");
      Cache fresh(prefix);
      Part longer = chain_of(fresh, tree, path);
      longer.tokens.push_back(3);
      const Floats after = run.forward({{&cache, length + count, {3}, {}}});
      run.expect(after, 0, run.forward({longer}), count, count + 1, 1, "what follows a kept path");
    }
}

void check_bad_shapes(const Setup &setup) {
  const OutriderShape good = shape_of(setup);
  const std::vector<std::pair<const char *, int32_t OutriderShape::*>> fields = {
      {"layers", &OutriderShape::layers}, {"hidden", &OutriderShape::hidden}, {"intermediate", &OutriderShape::intermediate},
      {"heads", &OutriderShape::heads}, {"kv_heads", &OutriderShape::kv_heads}, {"head_dim", &OutriderShape::head_dim},
      {"vocab", &OutriderShape::vocab}, {"spoken", &OutriderShape::spoken}, {"stream", &OutriderShape::stream},
      {"features", &OutriderShape::features}, {"columns", &OutriderShape::columns},
      {"activations", &OutriderShape::activations}, {"cache", &OutriderShape::cache},
      {"threads", &OutriderShape::threads}};
  for (const auto &[name, field] : fields)
    for (int32_t value : {-1, INT32_MIN, INT32_MAX}) {
      OutriderShape bad = good;
      bad.*field = value;
      check_refused(std::string("shape with ") + name + " " + std::to_string(value),
                    [&] { return Handle(outrider_create(&bad, setup.isa.c_str())) == nullptr; });
    }
  check_refused("an unknown instruction set", [&] { return Handle(outrider_create(&good, "sse2")) == nullptr; });
  check_refused("no instruction set", [&] { return Handle(outrider_create(&good, nullptr)) == nullptr; });
}

void check_bad_weights(const Setup &setup) {
  const OutriderShape s = shape_of(setup);
  const Handle model(outrider_create(&s, setup.isa.c_str()));
  const Size size = size_of(s, OUTRIDER_GATE, 0);
  const Floats data((size_t)size.outputs * size.inputs);
  const OutriderRows good{OUTRIDER_GATE, 0, OUTRIDER_FROM_FLOAT32, setup.format, size.outputs, size.inputs, 0, size.outputs};
  auto refused = [&](const char *what, const std::function<void(OutriderRows &)> &spoil) {
    OutriderRows bad = good;
    spoil(bad);
    check_refused(what, [&] { return outrider_set_rows(model.get(), &bad, data.data()) == -1; });
  };
  refused("too many outputs", [](OutriderRows &r) { r.outputs += 1; });
  refused("too few inputs", [](OutriderRows &r) { r.inputs -= 1; });
  refused("a layer beyond the last", [](OutriderRows &r) { r.layer = 2; });
  refused("a layer before the first", [](OutriderRows &r) { r.layer = -1; });
  refused("an unknown matrix", [](OutriderRows &r) { r.matrix = 10; });
  refused("a negative matrix", [](OutriderRows &r) { r.matrix = -1; });
  refused("an unknown format", [](OutriderRows &r) { r.format = 7; });
  refused("a negative format", [](OutriderRows &r) { r.format = -1; });
  refused("an unknown source", [](OutriderRows &r) { r.source = 4; });
  refused("blocks kept as another format", [](OutriderRows &r) { r.source = OUTRIDER_FROM_Q4_1; });
  refused("rows that do not begin with the first", [](OutriderRows &r) { r.first = 16, r.count = 16; });
  refused("rows between panels", [](OutriderRows &r) { r.first = 8, r.count = 8; });
  refused("rows beyond the last", [](OutriderRows &r) { r.count += 1; });
  refused("no rows", [](OutriderRows &r) { r.count = 0; });
  check_refused("a model without matrices", [&] { return outrider_finish(model.get()) == -1; });
  OutriderRows part = good;
  part.count = 16;
  check(outrider_set_rows(model.get(), &part, data.data()) == 0, "the first panel is taken");
  refused("the same rows again", [](OutriderRows &r) { r.count = 16; });
  refused("a gap between rows", [](OutriderRows &r) { r.first = 32, r.count = 16; });
  check_refused("a vector of the wrong size", [&] { return outrider_set_vector(model.get(), OUTRIDER_FINAL_NORM, -1, data.data(), 1) == -1; });
  Ints unknown = {-1, OUTRIDER_BIAS + OUTRIDER_EMBEDDING, OUTRIDER_BIAS + OUTRIDER_HEAD, OUTRIDER_BIAS + OUTRIDER_FUSE + 1, 99};
  if (!s.features) unknown.insert(unknown.end(), {OUTRIDER_COLUMN_NORM, OUTRIDER_FEATURE_NORM, OUTRIDER_BIAS + OUTRIDER_FUSE});
  for (int vector : unknown)
    check_refused("an unknown vector", [&] { return outrider_set_vector(model.get(), vector, 0, data.data(), s.hidden) == -1; });
  Floats out(s.hidden);
  check_refused("a row of a matrix that is not set", [&] { return outrider_unpack(model.get(), OUTRIDER_UP, 0, 0, out.data()) == -1; });
}

void check_bad_batches(const Runner &run) {
  Cache cache(run.model.get(), kPositions);
  const Ints tokens = {1, 2, 3}, parents = {-1, 0, 1}, layers = {0, 1}, wanted = {0, 2};
  const int32_t tap = 1, bad_tap = 4;
  Floats logits(2 * run.shape.spoken), features(3 * run.shape.hidden);
  auto refused = [&](const char *what, const std::function<void(OutriderSegment &, OutriderBatch &)> &spoil) {
    Floats states = run.states;
    OutriderSegment segment{cache.pages.data(), 0, 0, 3, tokens.data(), states.data(), run.features.data(), 0, parents.data()};
    OutriderBatch batch{&segment, 1, layers.data(), 2, run.cosines.data(), run.sines.data(), kPositions, &tap, 1,
                        features.data(), wanted.data(), 2, logits.data()};
    spoil(segment, batch);
    check_refused(what, [&] { return outrider_forward(run.model.get(), &batch) == -1; });
  };
  auto with = [&](const char *what, const Ints &numbers, const int32_t *OutriderSegment::*field) {
    refused(what, [&](OutriderSegment &s, OutriderBatch &) { s.*field = numbers.data(); });
  };
  with("a token below the vocabulary", {1, -1, 3}, &OutriderSegment::tokens);
  with("a token beyond the vocabulary", {1, 2, run.shape.vocab}, &OutriderSegment::tokens);
  with("a first node with a parent", {0, 0, 1}, &OutriderSegment::parents);
  with("a parent that is its own row", {-1, 1, 1}, &OutriderSegment::parents);
  with("a later parent", {-1, 2, 1}, &OutriderSegment::parents);
  with("a parent below the last cached position", {-1, 0, -2}, &OutriderSegment::parents);
  refused("no rows", [](OutriderSegment &s, OutriderBatch &) { s.rows = 0; });
  refused("a negative length", [](OutriderSegment &s, OutriderBatch &) { s.length = -1; });
  refused("nodes of an earlier pass beside a chain", [](OutriderSegment &s, OutriderBatch &) { s.known = 1, s.parents = nullptr; });
  refused("a negative number of known nodes", [](OutriderSegment &s, OutriderBatch &) { s.known = -1; });
  if (run.shape.stream) refused("no states", [](OutriderSegment &s, OutriderBatch &) { s.states = nullptr; });
  refused("more fresh rows than rows", [](OutriderSegment &s, OutriderBatch &) { s.fresh = 4; });
  refused("a negative number of fresh rows", [](OutriderSegment &s, OutriderBatch &) { s.fresh = -1; });
  refused("fresh rows without features", [](OutriderSegment &s, OutriderBatch &) { s.fresh = 1, s.features = nullptr; });
  refused("no pages", [](OutriderSegment &s, OutriderBatch &) { s.pages = nullptr; });
  refused("no tokens", [](OutriderSegment &s, OutriderBatch &) { s.tokens = nullptr; });
  refused("a length at the end of numbers", [](OutriderSegment &s, OutriderBatch &) { s.length = INT32_MAX - 2; });
  refused("no segments", [](OutriderSegment &, OutriderBatch &b) { b.segment_count = 0; });
  refused("short rotary tables", [](OutriderSegment &, OutriderBatch &b) { b.positions = 2; });
  refused("no rotary tables", [](OutriderSegment &, OutriderBatch &b) { b.cosines = nullptr; });
  refused("no layers", [](OutriderSegment &, OutriderBatch &b) { b.layers = nullptr; });
  refused("a negative number of layers", [](OutriderSegment &, OutriderBatch &b) { b.layer_count = -1; });
  refused("no logits", [](OutriderSegment &, OutriderBatch &b) { b.logits = nullptr; });
  refused("no wanted rows", [](OutriderSegment &, OutriderBatch &b) { b.wanted = nullptr; });
  refused("a negative number of wanted rows", [](OutriderSegment &, OutriderBatch &b) { b.wanted_count = -1; });
  refused("no features", [](OutriderSegment &, OutriderBatch &b) { b.features = nullptr; });
  refused("no taps", [](OutriderSegment &, OutriderBatch &b) { b.taps = nullptr; });
  refused("a tap beyond the last state", [&](OutriderSegment &, OutriderBatch &b) { b.taps = &bad_tap; });
  const Ints far = {0, 2}, later = {1, 3};
  refused("an unknown layer", [&](OutriderSegment &, OutriderBatch &b) { b.layers = far.data(); });
  refused("an unknown row", [&](OutriderSegment &, OutriderBatch &b) { b.wanted = later.data(); });
  auto kept = [&](const char *what, const Ints &rows, int length) {
    check_refused(what, [&] { return outrider_keep(run.model.get(), cache.pages.data(), length, rows.data(), (int)rows.size()) == -1; });
  };
  kept("rows that descend", {2, 1}, 0);
  kept("a negative row", {-1}, 0);
  kept("a negative length", {0, 2}, -1);
  Floats out(run.shape.hidden);
  for (int row : {-1, run.shape.vocab})
    check_refused("a row outside", [&] { return outrider_unpack(run.model.get(), OUTRIDER_EMBEDDING, -1, row, out.data()) == -1; });
}

void run_one(const Setup &setup, std::vector<Floats> &expected) {
  const Runner run(setup);
  if (!run.model) return;
  Cache cache(run.model.get(), kPositions);
  if (setup.threads == 1) expected = one_by_one(run, cache);
  else run.forward({{&cache, 0, run.slice(0, kLength), {}}});
  check_chunks(run, expected);
  check_widths(run, cache, expected);
  check_trees(run, cache);
  if (setup.threads == 1) check_bad_shapes(setup);
  if (setup.threads == 1 && !is_blocks(setup.format)) check_bad_weights(setup);
  check_bad_batches(run);
}

}  // namespace

int main() {
  check_best();
  int models = 0;
  std::istringstream sets(outrider_instruction_sets());
  for (std::string isa; std::getline(sets, isa, ',');) {
    check_matrices(isa);
    check_turns(isa);
    check_contenders(isa);
    for (int format = OUTRIDER_FLOAT32; format <= OUTRIDER_Q8_0; ++format)
      for (int activations = OUTRIDER_ACT_FLOAT32; activations <= OUTRIDER_ACT_INT8; ++activations) {
        if ((format == OUTRIDER_FLOAT32) != (activations == OUTRIDER_ACT_FLOAT32)) continue;
        if (format == OUTRIDER_BFLOAT16 && activations == OUTRIDER_ACT_INT8) continue;
        for (int cache : {OUTRIDER_CACHE_FLOAT32, OUTRIDER_CACHE_BFLOAT16}) {
          const int stream = cache == OUTRIDER_CACHE_BFLOAT16 ? format % 3 : 0;
          std::vector<Floats> expected;  // of one thread; more must agree
          for (int threads = 1; threads <= 3; ++threads, ++models) run_one({format, activations, cache, threads, stream, isa}, expected);
        }
        std::printf("%s: format %d, activations %d: %d failures so far\n", isa.c_str(), format, activations, failures);
        std::fflush(stdout);
      }
  }
  std::printf("%d models, %d failures\n", models, failures);
  return failures == 0 && models > 0 ? 0 : 1;
}
