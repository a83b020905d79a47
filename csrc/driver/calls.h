// Checks of the calls that need no model: matrices of the caller's own, callers at the same time, the largest of rows,
// searches of rows.
#pragma once

#include <functional>
#include <limits>
#include <thread>

#include "tiny.h"

namespace driver {

// Every call of the list must fail and say why.
inline void check_refused(const std::string &what, const std::function<bool()> &fails) {
  check(fails() && outrider_error()[0] != '\0', "not refused: " + what);
}

// Matrices of the caller's own: a row is the same alone and beside others, on any number of threads.
inline void check_matrices(const std::string &isa) {
  const int outputs = 70, inputs = 90, rows = 19;
  Random random{11};
  Floats weight, x;
  for (int i = 0; i < outputs * inputs; ++i) weight.push_back((float)random.below(2001) / 1000 - 1);
  for (int i = 0; i < rows * inputs; ++i) x.push_back((float)random.below(2001) / 1000 - 1);
  for (int kind = OUTRIDER_ACT_FLOAT32; kind <= OUTRIDER_ACT_INT8; ++kind)
    for (int threads = 1; threads <= 3; ++threads) {
      std::unique_ptr<OutriderMatrices, decltype(&outrider_matrices_destroy)> made(
          outrider_matrices_create(kind, threads, isa.c_str()), outrider_matrices_destroy);
      check(made && outrider_matrices_add(made.get(), kind, outputs, inputs, weight.data()) == 0, "a matrix is packed");
      Floats wide(rows * outputs), alone(outputs);
      check(outrider_multiply(made.get(), 0, x.data(), rows, wide.data()) == 0, "a product");
      for (int row = 0; row < rows; ++row) {
        check(outrider_multiply(made.get(), 0, x.data() + row * inputs, 1, alone.data()) == 0, "a product of one row");
        check(std::equal(alone.begin(), alone.end(), wide.begin() + row * outputs), "a row alone and beside others");
      }
      check_refused("an unknown matrix", [&] { return outrider_multiply(made.get(), 1, x.data(), 1, alone.data()) == -1; });
      check_refused("no rows", [&] { return outrider_multiply(made.get(), 0, x.data(), 0, alone.data()) == -1; });
      check_refused("a matrix without columns", [&] { return outrider_matrices_add(made.get(), kind, 1, 0, weight.data()) == -1; });
      check_refused("an unknown format", [&] { return outrider_matrices_add(made.get(), 9, 1, 1, weight.data()) == -1; });
    }
}

// Callers that come at the same time share one team: each gets what it gets alone.
inline void check_turns(const std::string &isa) {
  const int size = 70, callers = 3;
  Random random{17};
  Floats weight, x;
  for (int i = 0; i < size * size; ++i) weight.push_back((float)random.below(2001) / 1000 - 1);
  for (int i = 0; i < size; ++i) x.push_back((float)random.below(2001) / 1000 - 1);
  std::vector<Floats> found(callers, Floats(size));
  std::vector<int> good(callers, 0);
  auto call = [&](int caller) {
    for (int turn = 0; turn < 20; ++turn) {  // the team ends and starts again amid calls of others
      OutriderMatrices *made = outrider_matrices_create(OUTRIDER_ACT_FLOAT32, 2 + caller % 2, isa.c_str());
      if (!made || outrider_matrices_add(made, OUTRIDER_FLOAT32, size, size, weight.data()) != 0) return;
      for (int i = 0; i < 5; ++i) good[caller] += outrider_multiply(made, 0, x.data(), 1, found[caller].data()) == 0;
      outrider_matrices_destroy(made);
    }
  };
  std::vector<std::thread> threads;
  for (int caller = 0; caller < callers; ++caller) threads.emplace_back(call, caller);
  for (std::thread &thread : threads) thread.join();
  for (int caller = 0; caller < callers; ++caller)
    check(good[caller] == 100 && same(found[caller].data(), found[0].data(), size), "calls at the same time");
}

// The largest numbers of rows of every length around the block, with equal ones and a NaN.
inline void check_best() {
  Random random{13};
  for (int size : {1, 3, 63, 64, 65, 130, 1000}) {
    Floats rows;
    for (int i = 0; i < 3 * size; ++i) rows.push_back((float)random.below(50));
    rows[2 * size + size / 2] = std::nanf("");
    for (int count : {1, 5, size}) {
      if (count > size) continue;
      Ints ids(3 * count);
      Floats values(3 * count);
      check(outrider_best(rows.data(), 3, size, count, ids.data(), values.data()) == 0, "the best of rows");
      for (int row = 0; row < 2; ++row) {
        Ints order(size);
        for (int i = 0; i < size; ++i) order[i] = i;
        const float *x = rows.data() + row * size;
        std::stable_sort(order.begin(), order.end(), [x](int a, int b) { return x[a] > x[b]; });
        check(std::equal(ids.begin() + row * count, ids.begin() + (row + 1) * count, order.begin()), "the best in order");
      }
      check(std::isnan(values[2 * count]), "a row with a NaN");
    }
    Ints ids(1);
    Floats values(1);
    check_refused("more than a row holds", [&] { return outrider_best(rows.data(), 1, size, size + 1, ids.data(), values.data()) == -1; });
  }
}

// What a search finds, one comparison at a time.
struct Contenders {
  float floor;
  std::vector<int64_t> columns;
  Doubles uniforms;

  Contenders(const Floats &row, const OutriderContenders &search) {
    Floats peaks(row.begin(), row.begin() + search.groups);
    for (int i = search.groups; i < search.size; ++i) peaks[i % search.groups] = std::max(peaks[i % search.groups], row[i]);
    std::sort(peaks.begin(), peaks.end());
    floor = std::max(peaks[search.groups - search.near], std::numeric_limits<float>::lowest());
    for (int i = 0; i < search.size; ++i) {
      uint64_t hash = search.key + (uint64_t)((search.tokens ? search.tokens[i] : i) + 1) * 0x9E3779B97F4A7C15u;
      hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9u;
      hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBu;
      hash ^= hash >> 31;
      if (row[i] <= floor && hash < search.least) continue;
      columns.push_back(i), uniforms.push_back((double)std::max<uint64_t>(hash >> 11, 1) / 0x1p53);
    }
  }
};

// Rows of every length around a word, with ids of their own or not.
inline void check_contenders(const std::string &isa) {
  Random random{19};
  for (int size : {1, 15, 64, 65, 200, 1000})
    for (int kind = 0; kind < 8; ++kind) {
      Floats row;
      std::vector<int64_t> ids;
      for (int i = 0; i < size; ++i) row.push_back((float)random.below(50) - (kind & 4 ? 100 : 0)), ids.push_back(3 * i + random.below(3));
      if (kind & 4) row[size / 2] = -INFINITY;
      const int groups = 1 + random.below(size), near = 1 + random.below(groups);
      const uint64_t key = 0x123456789ABCDEFu * (uint64_t)(size + kind), least = kind & 2 ? (uint64_t)0xF0000000 << 32 : ~(uint64_t)0 << 33;
      OutriderContenders search{row.data(), kind & 1 ? ids.data() : nullptr, size, groups, near, 0, key, least, nullptr, nullptr, nullptr, 0};
      const Contenders expected(row, search);
      const int count = (int)expected.columns.size();
      for (int room : {0, count, count + OUTRIDER_SPARE}) {
        std::vector<int64_t> columns(room);
        Doubles values(room), uniforms(room);
        search.capacity = room, search.columns = columns.data(), search.values = values.data(), search.uniforms = uniforms.data();
        check(outrider_contenders(isa.c_str(), &search) == count && search.floor == expected.floor, "the contenders of a row");
        if (room < count + OUTRIDER_SPARE) continue;
        check(std::equal(expected.columns.begin(), expected.columns.end(), columns.begin()), "the columns of contenders");
        check(std::equal(expected.uniforms.begin(), expected.uniforms.end(), uniforms.begin()), "the uniforms of contenders");
        for (int i = 0; i < count; ++i) check(values[i] == row[columns[i]], "the values of contenders");
      }
    }
  const Floats row(10);
  OutriderContenders search{row.data(), nullptr, 10, 11, 1, 0, 0, 0, nullptr, nullptr, nullptr, 0};
  check_refused("more groups than columns", [&] { return outrider_contenders(isa.c_str(), &search) == -1; });
  search.groups = 4;
  check_refused("an unknown instruction set", [&] { return outrider_contenders("sse2", &search) == -1; });
  search.least = 1;
  check_refused("a hash of more than 31 bits", [&] { return outrider_contenders(isa.c_str(), &search) == -1; });
  search.least = 0, search.capacity = 1;
  check_refused("no place to write", [&] { return outrider_contenders(isa.c_str(), &search) == -1; });
}

}  // namespace driver
