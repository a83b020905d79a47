// The C interface of the native decoder: everything Python may call.
//
// Plain C types only. Functions return 0, or -1 after noting a one-line reason for `outrider_error()`.
// The caller owns every buffer it passes and every page of a cache; the model owns its packed weights and its threads.
#ifndef OUTRIDER_H
#define OUTRIDER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OUTRIDER_API __attribute__((visibility("default")))

// Raised whenever a struct or the meaning of a function changes.
enum { OUTRIDER_ABI = 5 };

// Positions per cache page.
enum { OUTRIDER_PAGE = 64 };

// Columns beyond those that a search for contenders finds, for which it needs room.
enum { OUTRIDER_SPARE = 64 };

// What the inputs of a product are rounded to.
typedef enum { OUTRIDER_ACT_FLOAT32 = 0, OUTRIDER_ACT_BFLOAT16 = 1, OUTRIDER_ACT_INT8 = 2 } OutriderActivations;

// How keys and values are stored.
typedef enum { OUTRIDER_CACHE_FLOAT32 = 0, OUTRIDER_CACHE_BFLOAT16 = 1 } OutriderCache;

// What the residual stream of a row starts from. With a state that the caller gives, layer 0 reads more than the stream:
// the normed embedding of the token, and behind it the normed state; its queries, keys and values take 2 x hidden inputs.
typedef enum {
  OUTRIDER_STREAM_TOKEN = 0,        // the embedding of the token: a decoder
  OUTRIDER_STREAM_STATE = 1,        // the given state: an EAGLE-3 head
  OUTRIDER_STREAM_NORMED_STATE = 2  // the given state after its norm
} OutriderStream;

// What a matrix arrives as: rows of numbers, or rows of GGUF blocks.
typedef enum {
  OUTRIDER_FROM_FLOAT32 = 0,
  OUTRIDER_FROM_Q4_0 = 1,
  OUTRIDER_FROM_Q4_1 = 2,
  OUTRIDER_FROM_Q8_0 = 3
} OutriderSource;

// What a matrix is kept as. Q4_0, Q4_1 and Q8_0 keep the levels and scales of the file's blocks.
typedef enum {
  OUTRIDER_FLOAT32 = 0,
  OUTRIDER_BFLOAT16 = 1,
  OUTRIDER_INT8 = 2,  // groups of 32: 256 levels, scale and offset
  OUTRIDER_INT4 = 3,  // groups of 32: 16 levels, scale and offset
  OUTRIDER_Q4_0 = 4,
  OUTRIDER_Q4_1 = 5,
  OUTRIDER_Q8_0 = 6
} OutriderFormat;

typedef enum {
  OUTRIDER_EMBEDDING = 0,  // layer -1; used as the head too until a head is set
  OUTRIDER_HEAD = 1,       // layer -1
  OUTRIDER_QUERY = 2,
  OUTRIDER_KEY = 3,
  OUTRIDER_VALUE = 4,
  OUTRIDER_OUTPUT = 5,
  OUTRIDER_GATE = 6,
  OUTRIDER_UP = 7,
  OUTRIDER_DOWN = 8,
  OUTRIDER_FUSE = 9  // layer -1; makes a state of features; where it is not set they are the state
} OutriderMatrix;

typedef enum {
  OUTRIDER_FINAL_NORM = 0,  // layer -1
  OUTRIDER_ATTENTION_NORM = 1,  // of a given state in layer 0
  OUTRIDER_MLP_NORM = 2,
  OUTRIDER_QUERY_NORM = 3,
  OUTRIDER_KEY_NORM = 4,
  OUTRIDER_TOKEN_NORM = 5,  // layer -1; of the embedding beside a given state
  OUTRIDER_COLUMN_NORM = 6,  // layer -1; of each column of the features, all behind each other
  OUTRIDER_FEATURE_NORM = 7,  // layer -1; of all features together, after those of columns
  OUTRIDER_BIAS = 8  // + OutriderMatrix: the bias of that matrix
} OutriderVector;

typedef struct {
  int32_t layers, hidden, intermediate, heads, kv_heads, head_dim;
  int32_t vocab;        // tokens it reads: rows of the embedding
  int32_t spoken;       // rows of the head; `vocab` where the embedding serves as the head
  int32_t stream;       // OutriderStream
  int32_t features;     // numbers that a state is made of; 0 for a stream that starts from tokens
  int32_t columns;      // equal parts of the features, which may have norms of their own; 0 without features
  int32_t activations;  // OutriderActivations
  int32_t cache;        // OutriderCache
  int32_t threads;
  float rms_eps;
} OutriderShape;

// Rows [first, first + count) of a matrix of outputs x inputs.
typedef struct {
  int32_t matrix;  // OutriderMatrix
  int32_t layer;
  int32_t source;  // OutriderSource
  int32_t format;  // OutriderFormat
  int32_t outputs, inputs;
  int32_t first, count;  // blocks are passed whole: 0 and outputs
} OutriderRows;

// New rows of one sequence behind its cached positions: a chain, or nodes of a tree. A tree may come in several passes:
// slot `length + n` takes the keys and values of node n, and the new rows are its nodes from `known` on.
typedef struct {
  void *const *pages;      // pages of the sequence: enough for length + known + rows positions
  int32_t length;          // positions cached before
  int32_t known;           // nodes of earlier passes, whose keys and values lie in their slots; 0 for a chain
  int32_t rows;            // at least 1
  const int32_t *tokens;   // [rows]
  float *states;           // [rows, hidden], for a stream that starts from them
  const float *features;   // [fresh, shape.features]: of them the states of the last `fresh` rows are made, and written
  int32_t fresh;
  const int32_t *parents;  // [known + rows]: an earlier node, or -1: the last cached position; NULL for a chain
} OutriderSegment;

typedef struct {
  const OutriderSegment *segments;
  int32_t segment_count;
  const int32_t *layers;  // [layer_count], run in this order
  int32_t layer_count;
  const float *cosines, *sines;  // [positions, head_dim / 2]
  int32_t positions;
  const int32_t *taps;  // [tap_count], ascending: the hidden state entering that layer; `layers` for the last
                        // state, one more for that after the final norm
  int32_t tap_count;
  float *features;        // [rows, tap_count, hidden]
  const int32_t *wanted;  // [wanted_count], ascending: rows whose logits are asked for
  int32_t wanted_count;
  float *logits;  // [wanted_count, spoken]
} OutriderBatch;

typedef struct OutriderModel OutriderModel;

OUTRIDER_API int outrider_abi(void);
// Why the last call of this thread failed.
OUTRIDER_API const char *outrider_error(void);
// Instruction sets of this machine that the library was built for, best first, separated by commas; "" if none.
OUTRIDER_API const char *outrider_instruction_sets(void);

// `isa`: one of the above. NULL on failure.
OUTRIDER_API OutriderModel *outrider_create(const OutriderShape *shape, const char *isa);
// No other call on the model may be under way.
OUTRIDER_API void outrider_destroy(OutriderModel *model);
// Packs rows of a matrix, in ascending order over calls; the source may be freed afterwards.
OUTRIDER_API int outrider_set_rows(OutriderModel *model, const OutriderRows *rows, const void *data);
OUTRIDER_API int outrider_set_vector(OutriderModel *model, int32_t vector, int32_t layer, const float *data, int32_t count);
// Checks that every matrix and norm was set, and starts the threads where nothing else in this process runs on as many.
OUTRIDER_API int outrider_finish(OutriderModel *model);
// What a pass reads: of an embedding beside a head of its own it takes a row for each token, which does not count.
OUTRIDER_API int64_t outrider_weight_bytes(const OutriderModel *model);
// Bytes of one page of OUTRIDER_PAGE positions, keys and values of all layers; pages are aligned to 64 bytes.
OUTRIDER_API int64_t outrider_page_bytes(const OutriderModel *model);

// One pass. Writes keys and values into the slots of the new rows, then logits and features.
OUTRIDER_API int outrider_forward(OutriderModel *model, const OutriderBatch *batch);
// Moves keys and values of slots length + rows[i], written by the last pass, to length + i; `rows` ascending.
OUTRIDER_API int outrider_keep(OutriderModel *model, void *const *pages, int32_t length, const int32_t *rows, int32_t count);

// Dequantised row of a packed matrix, for tests; `out`: as many numbers as inputs.
OUTRIDER_API int outrider_unpack(const OutriderModel *model, int32_t matrix, int32_t layer, int32_t row, float *out);

// Matrices of a caller's own, such as those of a draft head, multiplied one at a time in the order of sums of a pass.
typedef struct OutriderMatrices OutriderMatrices;

// NULL on failure. `activations`: OutriderActivations.
OUTRIDER_API OutriderMatrices *outrider_matrices_create(int32_t activations, int32_t threads, const char *isa);
// No other call on the matrices may be under way.
OUTRIDER_API void outrider_matrices_destroy(OutriderMatrices *matrices);
// Packs a matrix of outputs x inputs float32 numbers as `format`; its index, counted from 0, or -1.
OUTRIDER_API int outrider_matrices_add(OutriderMatrices *matrices, int32_t format, int32_t outputs, int32_t inputs, const float *data);
// out [rows, outputs] = x [rows, inputs] by matrix `index`.
OUTRIDER_API int outrider_multiply(OutriderMatrices *matrices, int32_t index, const float *x, int32_t rows, float *out);

// The `count` largest numbers of each of the rows [row_count, size], largest first, lowest place first where equal:
// `ids` and `values` [row_count, count]. Of a row that holds a NaN all values are NaN.
OUTRIDER_API int outrider_best(const float *rows, int32_t row_count, int32_t size, int32_t count, int32_t *ids, float *values);

// The search for columns of a row that may be best by number and noise: those above a floor that few exceed, and those
// with a large hash. The floor: columns that are equal modulo `groups` form a group; the `near`-th largest of the groups'
// largest numbers, at least the lowest finite one. The hash of a token: the finaliser of splitmix64 of
// key + (id + 1) * golden ratio; its uniform is the first 53 bits of it, at least 1, times 2^-53.
typedef struct {
  const float *row;       // [size], no NaN
  const int64_t *tokens;  // [size]: the ids of the columns; NULL where column i is token i
  int32_t size, groups, near;
  int32_t capacity;     // OUTRIDER_SPARE more than columns can be written
  uint64_t key, least;  // `least` has no bits but the highest 31; a hash of so much or more is large
  int64_t *columns;     // [capacity], ascending; the spare ones may be written, too
  double *values;       // [capacity], of the row
  double *uniforms;     // [capacity]
  float floor;          // written; every number that is not above it is at most it
} OutriderContenders;

// How many columns there are; all are written where there is room for them, else not more than some. -1 on failure.
OUTRIDER_API int32_t outrider_contenders(const char *isa, OutriderContenders *search);

// Rates that this machine reaches on `threads` threads: bytes per second read from memory, and multiply-adds x 2 per
// second of the arithmetic that `activations` names; 0 on failure.
OUTRIDER_API double outrider_read_rate(const char *isa, int32_t threads);
OUTRIDER_API double outrider_product_rate(const char *isa, int32_t activations, int32_t threads);

#ifdef __cplusplus
}
#endif
#endif
