// What this machine reaches: bytes read from memory and multiply-adds done per second.
#include <algorithm>
#include <chrono>

#include "guard.h"
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
};

int checked(int threads) {
  require(threads > 0 && threads <= 1024, "threads must be 1 to 1024");
  return threads;
}

const Kernels *checked(const char *isa) {
  const Kernels *kernels = isa ? kernels_of(isa) : nullptr;
  require(kernels != nullptr, "this machine has no such instruction set");
  return kernels;
}

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
  double rate = 0;
  guarded([&] {
    Probe probe{Team(checked(threads)), checked(isa), Rounding::kFloat32, {}, std::vector<double>(threads)};
    Arena arena;
    for (int i = 0; i < threads; ++i) {
      uint8_t *memory = arena.take(kBytes);
      std::fill(memory, memory + kBytes, (uint8_t)1);
      probe.memory.push_back(memory);
    }
    rate = best_rate(probe, read_part);
  });
  return rate;
}

double outrider_product_rate(const char *isa, int32_t activations, int32_t threads) {
  double rate = 0;
  guarded([&] {
    require(activations >= 0 && activations <= OUTRIDER_ACT_INT8, "unknown activations");
    Probe probe{Team(checked(threads)), checked(isa), (Rounding)activations, {}, std::vector<double>(threads)};
    rate = best_rate(probe, multiply_part);
  });
  return rate;
}
