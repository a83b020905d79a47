#include "model.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, size) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(data, size) ((void)0)
#endif

namespace outrider {

namespace {
constexpr size_t kPiece = (size_t)32 << 20;
}

Arena::~Arena() {
  for (const Piece &piece : pieces_) {
    ASAN_UNPOISON_MEMORY_REGION(piece.data, piece.size);
    munmap(piece.data, piece.size);
  }
}

uint8_t *Arena::take(size_t wanted) {
  const size_t bytes = (wanted + 4095) / 4096 * 4096;  // whole pages: matrices start alike
  if (pieces_.empty() || pieces_.back().size - pieces_.back().used < bytes) {
    const size_t size = (std::max(bytes, kPiece) + ((size_t)2 << 20) - 1) >> 21 << 21;
    void *data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    madvise(data, size, MADV_HUGEPAGE);  // a hint: refusal costs speed alone
    ASAN_POISON_MEMORY_REGION(data, size);  // only what is taken may be touched
    pieces_.push_back({(uint8_t *)data, size, 0});
  }
  Piece &piece = pieces_.back();
  uint8_t *found = piece.data + piece.used;
  piece.used += bytes;
  ASAN_UNPOISON_MEMORY_REGION(found, wanted);
  return found;
}

void Inputs::layout(const Kernels &kernels, Rounding rounding, int rows, int groups) {
  int widest = 0;
  for (const int *width = kernels.widths; *width; ++width) widest = *width;
  const int count = (rows + widest - 1) / widest;
  // Two blocks share their rows evenly; more of them are full but for the last.
  const int each = count == 2 ? (rows + 1) / 2 : std::min(rows, widest);
  blocks_.clear();
  block_of_.resize(rows);
  size_t lanes = 0;
  for (int first = 0; first < rows; first += each) {
    Block block;
    block.first = first;
    block.rows = std::min(each, rows - first);
    const int *width = kernels.widths;
    while (*width < block.rows) ++width;
    block.width = *width;
    std::fill_n(block_of_.begin() + first, block.rows, (int)blocks_.size());
    blocks_.push_back(block);
    lanes += block.width;
  }
  const int per_group = units_per_group(rounding) + 3;
  const size_t needed = lanes * groups * per_group + 16;
  if (memory_.size() < needed) memory_.resize(needed);
  uint32_t *next = memory_.data() + (64 - (uintptr_t)memory_.data() % 64) % 64 / 4;
  for (Block &block : blocks_) {
    const size_t cells = (size_t)groups * block.width;
    block.units = next;
    block.scales = (float *)(next + cells * units_per_group(rounding));
    block.sums = block.scales + cells;
    block.starts = (int32_t *)(block.sums + cells);
    if (block.rows < block.width) std::fill_n(next, cells * per_group, 0u);
    next += cells * per_group;
  }
  activations_ = {rounding, groups, (int)blocks_.size(), blocks_.data()};
}

void Inputs::prepare(const Kernels &kernels, int row, const float *x, int begin, int end) {
  Block &block = blocks_[block_of_[row]];
  kernels.prepare(activations_.rounding, x, block, row - block.first, begin, end);
}

}  // namespace outrider
