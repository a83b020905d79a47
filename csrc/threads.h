// A team of threads that goes through the phases of one function together.
//
// A phase is cut into units and is over when every unit is done: nobody waits for a thread that holds none, so a thread
// whose core is busy elsewhere delays the others by one unit at most, and they do its share. Waiting spins for about 50
// microseconds and then sleeps, so that an idle or overtaken team takes no processor from others. Which thread runs a
// unit changes no result.
#pragma once

#include <stdint.h>
#include <xmmintrin.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace outrider {

// A number that threads wait on.
class Signal {
 public:
  explicit Signal(uint32_t value) : value_(value) {}
  std::atomic<uint32_t> &value() { return value_; }
  // After a change of the value: wakes those that sleep.
  void wake();
  // Returns when ready(value) holds.
  template <class Ready>
  void wait(Ready ready) {
    if (spin(ready)) return;
    sleepers_.fetch_add(1);
    for (uint32_t seen; !ready(seen = value_.load());) sleep(seen);
    sleepers_.fetch_sub(1);
  }

 private:
  static constexpr auto kSpin = std::chrono::microseconds(50);
  template <class Ready>
  bool spin(Ready ready) {
    const auto begin = std::chrono::steady_clock::now();
    do {
      for (int i = 0; i < 64; ++i) {
        if (ready(value_.load(std::memory_order_acquire))) return true;
        _mm_pause();
      }
    } while (std::chrono::steady_clock::now() - begin < kSpin);
    return false;
  }
  void sleep(uint32_t seen);

  alignas(64) std::atomic<uint32_t> value_;
  std::atomic<int> sleepers_{0};
  static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free, "a futex is a plain word");
};

class Team {
 public:
  // The team of this many threads that everything in this process works with; it ends with the last that holds it. Two
  // teams that take turns would get in each other's way: threads that wait for work hold the cores for a while.
  static std::shared_ptr<Team> of(int threads);
  explicit Team(int threads);
  ~Team();
  Team(const Team &) = delete;
  Team &operator=(const Team &) = delete;
  int threads() const { return threads_; }
  // Runs function(context, thread) on the caller as thread 0 and on every thread that comes in time; returns when all
  // that came have left. The function must do its work in phases of a Member. One run at a time, whoever calls.
  void run(void (*function)(void *, int), void *context);
  // Whether this process is the one that started the threads: a forked child has none.
  bool here() const;

 private:
  friend class Member;
  // The phase a share belongs to (high half) and its next unit (low half): claimed by one exchange of both.
  struct alignas(64) Share { std::atomic<uint64_t> word{0}; };
  static constexpr uint32_t kClosed = 1u << 31;  // of inside_: nobody may enter

  void leave();
  bool claim(int owner, uint32_t phase, uint32_t count, uint32_t &unit);
  void finish_units(uint32_t phase, int done, int units);
  void wait_past(uint32_t phase);
  void work(int thread);

  const int threads_;
  const int process_;
  std::mutex busy_;
  std::unique_ptr<Share[]> shares_;  // [threads]
  Signal phase_{0};
  Signal inside_{kClosed};  // threads in the function beside the caller
  Signal start_{0};         // counts runs
  alignas(64) std::atomic<int> done_{0};
  void (*function_)(void *, int) = nullptr;
  void *context_ = nullptr;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

// The first of `units` that belongs to a thread; that of the next thread ends its share.
inline int share_begin(int units, int thread, int threads) { return (int)((int64_t)units * thread / threads); }

// One thread's way through the phases of a run. All members name the same phases in the same order.
class Member {
 public:
  Member(Team &team, int thread) : team_(team), thread_(thread) {}

  // Calls f(unit) for every unit in [0, units) once, over all members, and returns when all are done. A thread takes
  // its own share in order, then units of the others'.
  template <class F>
  void phase(int units, F &&f) {
    if (units == 0) return;
    const uint32_t phase = phase_++;
    for (int i = 0; i < team_.threads_; ++i) {
      const int owner = (thread_ + i) % team_.threads_;
      const int begin = share_begin(units, owner, team_.threads_), end = share_begin(units, owner + 1, team_.threads_);
      int done = 0;  // counted together: all threads write the count
      for (uint32_t unit; team_.claim(owner, phase, (uint32_t)(end - begin), unit); ++done) f(begin + (int)unit);
      if (done) team_.finish_units(phase, done, units);
    }
    team_.wait_past(phase);
  }

 private:
  Team &team_;
  const int thread_;
  uint32_t phase_ = 0;
};

}  // namespace outrider
