// Packing: numbers or GGUF blocks into panels, and back.
#pragma once

#include "matrix.h"
#include "outrider.h"

namespace outrider {

constexpr int kMostSize = 1 << 20;  // of a matrix, either way: keeps products with a vocabulary in 32 bits

// Throws where a source cannot be kept as this format beside these activations.
void check_source(int source, int format, OutriderActivations activations, int inputs);

// The kind a matrix of this format takes, given what inputs are rounded to. Q8_0 blocks that hold the level -128 have no
// form for bfloat16 inputs (sign and magnitude): those matrices are kept as bfloat16.
Kind kind_of(OutriderFormat format, OutriderActivations activations, OutriderSource source, const void *data,
             int outputs, int inputs);

// Fills in sizes; `data` stays empty.
Matrix shaped(Kind kind, int outputs, int inputs);

// Packs rows [first, first + count) into matrix.data, which is zero there, on `threads` threads. `first` starts a panel.
void pack(const Matrix &matrix, OutriderSource source, const void *data, int first, int count, int threads);

// One row of dequantised numbers, [groups * 32].
void unpack_row(const Matrix &matrix, int row, float *out);

}  // namespace outrider
