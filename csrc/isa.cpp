// Which kernels this machine can run.
#include "model.h"

namespace outrider {

// The build names the sets whose flags the compiler refused: OUTRIDER_WITHOUT_<SET>.
#define OUTRIDER_DECLARE(set) \
  namespace set {             \
  extern const Kernels kTable; \
  }
OUTRIDER_DECLARE(avx512vnni)
OUTRIDER_DECLARE(avx512f)
OUTRIDER_DECLARE(avx2)

namespace {

std::vector<const Kernels *> looked_up() {
  std::vector<const Kernels *> tables;
  __builtin_cpu_init();
  [[maybe_unused]] const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  [[maybe_unused]] const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#ifndef OUTRIDER_WITHOUT_AVX512VNNI
  if (avx512 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16") &&
      __builtin_cpu_supports("avx512vbmi"))
    tables.push_back(&avx512vnni::kTable);
#endif
#ifndef OUTRIDER_WITHOUT_AVX512F
  if (avx512) tables.push_back(&avx512f::kTable);
#endif
#ifndef OUTRIDER_WITHOUT_AVX2
  if (avx2) tables.push_back(&avx2::kTable);
#endif
  return tables;
}

const std::vector<const Kernels *> &found() {
  static const std::vector<const Kernels *> tables = looked_up();
  return tables;
}

}  // namespace

const std::vector<std::string> &instruction_sets() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Kernels *table : found()) all.push_back(table->name);
    return all;
  }();
  return names;
}

const Kernels *kernels_of(const std::string &isa) {
  for (const Kernels *table : found())
    if (isa == table->name) return table;
  return nullptr;
}

}  // namespace outrider
