// Which columns of a row may hold the best token under noise.
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "guard.h"
#include "model.h"

using namespace outrider;

namespace {

// An integer that is ordered as the number is.
int32_t ordinal(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits < 0 ? INT32_MIN - bits : bits;
}

float number(int32_t ordinal) {
  const int32_t bits = ordinal < 0 ? INT32_MIN - ordinal : ordinal;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The k-th largest, found bit by bit: in the same few steps whatever the numbers are.
float kth_largest(const std::vector<float> &numbers, int k) {
  std::vector<int32_t> ordinals(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) ordinals[i] = ordinal(numbers[i]);
  int64_t least = INT32_MIN;
  for (int64_t step = (int64_t)1 << 31; step; step >>= 1) {
    const int32_t middle = (int32_t)(least + step);
    int reached = 0;
    for (const int32_t each : ordinals) reached += each >= middle;
    if (reached >= k) least += step;
  }
  return number((int32_t)least);
}

}  // namespace

int32_t outrider_contenders(const char *isa, OutriderContenders *search) {
  int32_t count = -1;
  guarded([&] {
    const Kernels *kernels = isa ? kernels_of(isa) : nullptr;
    require(kernels != nullptr, "this machine has no such instruction set");
    require(search && search->row, "a row is needed");
    require(search->near > 0 && search->near <= search->groups && search->groups <= search->size,
            "a row has at least as many numbers as groups, and groups as numbers near its peak");
    require(search->capacity >= 0 && (search->capacity == 0 || (search->columns && search->values && search->uniforms)),
            "places to write are needed");
    require(search->least << 31 == 0, "a large hash is told by its highest 31 bits alone");
    std::vector<float> peaks(search->groups);
    kernels->peaks(search->row, search->size, search->groups, peaks.data());
    search->floor = std::max(kth_largest(peaks, search->near), std::numeric_limits<float>::lowest());
    count = kernels->contenders(*search);
  });
  return count;
}
