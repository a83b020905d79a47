#include "threads.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <chrono>

namespace outrider {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr unsigned kFlushDenormals = 0x8040;  // FTZ and DAZ

void futex(std::atomic<uint32_t> &word, int operation, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

}  // namespace

void Barrier::wait() {
  if (members_ == 1) return;
  const uint32_t generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members_) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1);
    if (sleepers_.load() > 0) futex(generation_, FUTEX_WAKE, 1 << 30);
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 64; ++i) {
      if (generation_.load(std::memory_order_acquire) != generation) return;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() - begin < kSpin);
  sleepers_.fetch_add(1);
  while (generation_.load() == generation) futex(generation_, FUTEX_WAIT, generation);
  sleepers_.fetch_sub(1);
}

Team::Team(int threads)
    : threads_(threads), process_(getpid()), gate_(threads), inside_(threads), counters_(new Counter[kSlots * threads]) {
  for (int thread = 1; thread < threads; ++thread)
    workers_.emplace_back([this, thread] { work(thread); });
}

Team::~Team() {
  if (!here()) {  // the threads live in the parent: there is nothing to join
    for (auto &worker : workers_) worker.detach();
    return;
  }
  stop_ = true;
  gate_.wait();
  for (auto &worker : workers_) worker.join();
}

bool Team::here() const { return getpid() == process_; }

void Team::run(void (*function)(void *, int), void *context) {
  const unsigned control = _mm_getcsr();
  _mm_setcsr(control | kFlushDenormals);
  for (int i = 0; i < kSlots * threads_; ++i) counters_[i].next.store(0, std::memory_order_relaxed);
  function_ = function;
  context_ = context;
  gate_.wait();
  function(context, 0);
  gate_.wait();
  _mm_setcsr(control);
}

void Team::work(int thread) {
  _mm_setcsr(_mm_getcsr() | kFlushDenormals);
  for (;;) {
    gate_.wait();
    if (stop_) return;
    function_(context_, thread);
    gate_.wait();
  }
}

}  // namespace outrider
