// What this machine reaches: bytes read from memory and multiply-adds done per second.
#include <algorithm>
#include <chrono>

#include "model.h"

using namespace outrider;

namespace {

constexpr size_t kBytes = (size_t)256 << 20;  // per thread: well past every cache

using Clock = std::chrono::steady_clock;

struct Probe {
  Team team;
  const Kernels *kernels;
  Rounding rounding;
  std::vector<const uint8_t *> memory;
  std::vector<double> done;
  double seconds = 0;
};

double best_rate(Probe &probe, void (*part)(void *, int)) {
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const auto begin = Clock::now();
    probe.team.run(part, &probe);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    double done = 0;
    for (double each : probe.done) done += each;
    best = std::max(best, done / seconds);
  }
  return best;
}

void read_part(void *context, int thread) {
  Probe &probe = *(Probe *)context;
  Member(probe.team, thread).phase(probe.team.threads(), [&](int unit) {
    probe.kernels->read(probe.memory[unit], kBytes);
    probe.done[unit] = (double)kBytes;
  });
}

void multiply_part(void *context, int thread) {
  Probe &probe = *(Probe *)context;
  Member(probe.team, thread).phase(probe.team.threads(), [&](int unit) {
    probe.done[unit] = 2.0 * probe.kernels->multiply(probe.rounding, 400000);
  });
}

}  // namespace

double outrider_read_rate(const char *isa, int32_t threads) {
  const Kernels *kernels = kernels_of(isa);
  if (!kernels || threads < 1) return 0.0;
  Probe probe{Team(threads), kernels, Rounding::kFloat32, {}, std::vector<double>(threads), 0};
  Arena arena;
  for (int i = 0; i < threads; ++i) {
    uint8_t *memory = arena.take(kBytes);
    std::fill(memory, memory + kBytes, (uint8_t)1);
    probe.memory.push_back(memory);
  }
  return best_rate(probe, read_part);
}

double outrider_product_rate(const char *isa, int32_t activations, int32_t threads) {
  const Kernels *kernels = kernels_of(isa);
  if (!kernels || threads < 1 || activations < 0 || activations > 2) return 0.0;
  Probe probe{Team(threads), kernels, (Rounding)activations, {}, std::vector<double>(threads), 0};
  return best_rate(probe, multiply_part);
}
