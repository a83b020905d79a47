#include "threads.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>

namespace outrider {

namespace {
constexpr unsigned kFlushDenormals = 0x8040;  // FTZ and DAZ

// The teams of one process, by their number of threads.
struct Teams {
  const int process = getpid();
  std::mutex busy;
  std::map<int, std::weak_ptr<Team>> all;
};

// A forked child begins its own: a thread of the parent may have held the lock. Never destroyed.
Teams &teams() {
  static std::atomic<Teams *> current{nullptr};
  Teams *found = current.load();
  while (!found || found->process != getpid()) {
    auto made = std::make_unique<Teams>();
    if (current.compare_exchange_strong(found, made.get())) return *made.release();
  }
  return *found;
}
}  // namespace

void Signal::sleep(uint32_t seen) {
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&value_), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void Signal::wake() {
  if (sleepers_.load() == 0) return;
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&value_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

Team::Team(int threads) : threads_(threads), process_(getpid()), shares_(new Share[threads]) {
  try {
    for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
  } catch (...) {  // a thread that cannot start must not leave the others without a team
    leave();
    throw;
  }
}

Team::~Team() {
  if (here()) leave();
  else new std::vector<std::thread>(std::move(workers_));  // handles of the parent's threads: never touched here
}

void Team::leave() {
  stop_.store(true);
  start_.value().fetch_add(1);
  start_.wake();
  for (auto &worker : workers_) worker.join();
}

bool Team::here() const { return getpid() == process_; }

std::shared_ptr<Team> Team::of(int threads) {
  Teams &here = teams();
  std::lock_guard<std::mutex> only(here.busy);
  std::weak_ptr<Team> &known = here.all[threads];
  std::shared_ptr<Team> team = known.lock();
  if (!team) known = team = std::make_shared<Team>(threads);
  return team;
}

void Team::run(void (*function)(void *, int), void *context) {
  std::lock_guard<std::mutex> only(busy_);
  const unsigned control = _mm_getcsr();
  _mm_setcsr(control | kFlushDenormals);
  phase_.value().store(0, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  for (int owner = 0; owner < threads_; ++owner) shares_[owner].word.store(0, std::memory_order_relaxed);
  function_ = function;
  context_ = context;
  inside_.value().fetch_and(~kClosed);
  start_.value().fetch_add(1);
  start_.wake();
  function(context, 0);
  inside_.value().fetch_or(kClosed);
  inside_.wait([](uint32_t inside) { return inside == kClosed; });
  _mm_setcsr(control);
}

void Team::work(int thread) {
  _mm_setcsr(_mm_getcsr() | kFlushDenormals);
  for (uint32_t seen = 0; !stop_.load();) {
    start_.wait([seen](uint32_t start) { return start != seen; });
    seen = start_.value().load();
    if (!(inside_.value().fetch_add(1) & kClosed)) function_(context_, thread);
    if (inside_.value().fetch_sub(1) - 1 == kClosed) inside_.wake();
  }
}

bool Team::claim(int owner, uint32_t phase, uint32_t count, uint32_t &unit) {
  std::atomic<uint64_t> &share = shares_[owner].word;
  uint64_t word = share.load(std::memory_order_acquire);
  do {
    unit = (uint32_t)word;
    if ((uint32_t)(word >> 32) != phase || unit >= count) return false;
  } while (!share.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel, std::memory_order_acquire));
  return true;
}

void Team::finish_units(uint32_t phase, int done, int units) {
  if (done_.fetch_add(done, std::memory_order_acq_rel) + done < units) return;
  done_.store(0, std::memory_order_relaxed);
  const uint64_t next = (uint64_t)(phase + 1) << 32;
  for (int owner = 0; owner < threads_; ++owner) shares_[owner].word.store(next, std::memory_order_release);
  phase_.value().fetch_add(1);  // everybody waits for this: the next phase is open
  phase_.wake();
}

void Team::wait_past(uint32_t phase) {
  phase_.wait([phase](uint32_t now) { return now > phase; });
}

}  // namespace outrider
