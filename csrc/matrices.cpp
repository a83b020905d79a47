// Matrices of a caller's own: packed as a model's are, multiplied one at a time.
#include <algorithm>
#include <cstring>
#include <mutex>

#include "guard.h"
#include "model.h"
#include "pack.h"

using namespace outrider;

struct OutriderMatrices {
  const Kernels *kernels;
  OutriderActivations activations;
  int threads;
  Arena arena;
  std::vector<Matrix> all;
  std::shared_ptr<Team> team;
  Inputs inputs;
  struct Thread { std::vector<float> row, tile; };
  std::vector<Thread> own;
  std::mutex busy;
};

namespace {

// One product of a matrix with all rows.
struct Product {
  OutriderMatrices &matrices;
  const Matrix &matrix;
  const float *x;
  int rows;
  float *out;

  void run(int thread) {
    Member member(*matrices.team, thread);
    member.phase(rows, [&](int row) { prepare(row, thread); });
    member.phase(matrix.pairs, [&](int pair) { multiply(pair, thread); });
  }

  void prepare(int row, int thread) {
    std::vector<float> &padded = matrices.own[thread].row;
    std::copy_n(x + (size_t)row * matrix.inputs, matrix.inputs, padded.begin());
    std::fill(padded.begin() + matrix.inputs, padded.end(), 0.0f);
    matrices.inputs.prepare(*matrices.kernels, row, padded.data(), 0, matrix.groups);
  }

  void multiply(int pair, int thread) {
    const float *tile = matrices.own[thread].tile.data();
    const bool last = pair + 1 >= share_begin(matrix.pairs, thread + 1, matrices.threads);
    const int next = last ? share_begin(matrix.pairs, thread, matrices.threads) : pair + 1;
    matrices.kernels->product(matrix, pair, matrices.inputs.view(), matrices.own[thread].tile.data(), matrix.record(next, 0));
    const int first = pair * kPair, count = std::min(kPair, matrix.outputs - first);
    for (int row = 0; row < rows; ++row, tile += kPair)
      std::memcpy(out + (size_t)row * matrix.outputs + first, tile, count * sizeof(float));
  }
};

}  // namespace

OutriderMatrices *outrider_matrices_create(int32_t activations, int32_t threads, const char *isa) {
  std::unique_ptr<OutriderMatrices> made;
  const int code = guarded([&] {
    require(activations >= 0 && activations <= OUTRIDER_ACT_INT8, "unknown activations " + text(activations));
    require(threads > 0 && threads <= 1024, "threads must be 1 to 1024, not " + text(threads));
    require(isa != nullptr, "no instruction set is named");
    const Kernels *kernels = kernels_of(isa);
    require(kernels != nullptr, std::string("this machine has no instruction set ") + isa);
    made = std::make_unique<OutriderMatrices>();
    made->kernels = kernels;
    made->activations = (OutriderActivations)activations;
    made->threads = threads;
    made->own.resize(threads);
    made->team = Team::of(threads);
  });
  return code == 0 ? made.release() : nullptr;
}

void outrider_matrices_destroy(OutriderMatrices *matrices) { delete matrices; }

int outrider_matrices_add(OutriderMatrices *matrices, int32_t format, int32_t outputs, int32_t inputs, const float *data) {
  int index = -1;
  const int code = guarded([&] {
    std::lock_guard<std::mutex> only(matrices->busy);
    require(outputs > 0 && outputs <= kMostSize && inputs > 0 && inputs <= kMostSize, "a matrix has 1 to " + text(kMostSize) + " rows and columns");
    require(data != nullptr, "a matrix has data");
    check_source(OUTRIDER_FROM_FLOAT32, format, matrices->activations, inputs);
    const Kind kind = kind_of((OutriderFormat)format, matrices->activations, OUTRIDER_FROM_FLOAT32, data, outputs, inputs);
    Matrix packed = shaped(kind, outputs, inputs);
    packed.data = matrices->arena.take(packed.bytes());
    pack(packed, OUTRIDER_FROM_FLOAT32, data, 0, outputs, matrices->threads);
    packed.packed = outputs;
    matrices->all.push_back(packed);
    index = (int)matrices->all.size() - 1;
  });
  return code == 0 ? index : -1;
}

int outrider_multiply(OutriderMatrices *matrices, int32_t index, const float *x, int32_t rows, float *out) {
  return guarded([&] {
    require(matrices->team->here(), "a forked process cannot use the matrices of its parent: make them after the fork");
    std::lock_guard<std::mutex> only(matrices->busy);
    require(index >= 0 && (size_t)index < matrices->all.size(), "no matrix " + text(index));
    require(x != nullptr && out != nullptr && rows > 0 && rows <= 1 << 20, "a product has rows to read and to write");
    const Matrix &matrix = matrices->all[index];
    matrices->inputs.layout(*matrices->kernels, (Rounding)matrices->activations, rows, matrix.groups);
    for (OutriderMatrices::Thread &own : matrices->own) {
      own.row.resize((size_t)matrix.groups * kGroup);
      if (own.tile.size() < (size_t)rows * kPair) own.tile.resize((size_t)rows * kPair);
    }
    Product product{*matrices, matrix, x, rows, out};
    matrices->team->run([](void *context, int thread) { static_cast<Product *>(context)->run(thread); }, &product);
  });
}
