// A team of threads that runs one function together, phase by phase.
//
// Waiting spins for about 50 microseconds and then sleeps, so that an idle or overtaken team takes no processor from
// others. Work is cut into units by number; a thread that has done its own share takes units of the others, so that a
// thread whose core is busy elsewhere delays the team by one unit. Which thread runs a unit changes no result.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace outrider {

// All members wait until the last arrives.
class Barrier {
 public:
  explicit Barrier(int members) : members_(members) {}
  void wait();

 private:
  const int members_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
  std::atomic<int> sleepers_{0};
};

class Team {
 public:
  explicit Team(int threads);
  ~Team();
  int threads() const { return threads_; }
  // Runs function(context, thread) on every thread, the caller being thread 0, and returns when all are done.
  void run(void (*function)(void *, int), void *context);
  // Whether this process is the one that started the threads: a forked child has none.
  bool here() const;

 private:
  friend class Member;
  struct alignas(64) Counter { std::atomic<int> next{0}; };
  static constexpr int kSlots = 3;  // a slot is reset two barriers before it is used again
  void work(int thread);

  const int threads_;
  const int process_;
  Barrier gate_, inside_;
  std::unique_ptr<Counter[]> counters_;  // [kSlots, threads]
  void (*function_)(void *, int) = nullptr;
  void *context_ = nullptr;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

// One thread's view of the phases of a run. All members go through the same phases in the same order.
class Member {
 public:
  Member(Team &team, int thread) : team_(team), thread_(thread) {}
  int thread() const { return thread_; }

  // Calls f(unit) for every unit in [0, units) once, over all members, then waits for all.
  template <class F>
  void phase(int units, F &&f) {
    Team::Counter *counters = &team_.counters_[(phase_++ % Team::kSlots) * team_.threads_];
    for (int i = 0; i < team_.threads_; ++i) {
      const int owner = (thread_ + i) % team_.threads_;
      const int begin = (int)((long long)units * owner / team_.threads_);
      const int end = (int)((long long)units * (owner + 1) / team_.threads_);
      for (int unit; (unit = begin + counters[owner].next.fetch_add(1, std::memory_order_relaxed)) < end;) f(unit);
    }
    team_.inside_.wait();
    counters[thread_].next.store(0, std::memory_order_relaxed);
  }

 private:
  Team &team_;
  const int thread_;
  int phase_ = 0;
};

}  // namespace outrider
