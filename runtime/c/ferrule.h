/* ferrule in C: load an ONNX model, run it, and see what was fused and why.
 *
 *   ferrule_session* session = NULL;
 *   ferrule_status* status = ferrule_session_create("model.onnx", NULL, &session);
 *   if (status) { puts(ferrule_status_text(status)); ferrule_status_free(status); return 1; }
 *   ferrule_results* results = NULL;
 *   status = ferrule_run(session, &input, 1, NULL, 0, &results);
 *
 * A function that can fail returns a status: NULL when all went well, else an error that the caller
 * frees. Strings are UTF-8 and end with 0. What a function returns by `const char*` belongs to the
 * object that was asked and lives as long. A NULL where it does not say so is an error, "usage";
 * functions that return no status answer it with nothing: 0, "".
 *
 * Any number of threads may use one session at once. Other objects belong to one thread at a time.
 *
 * Structs begin with their size, which the caller sets (..._init() does it): later versions
 * append members, and take 0 for those that a caller does not have. Nothing else ever changes. A
 * caller may be newer, too, as long as it leaves 0 what this version does not know. */
#ifndef FERRULE_H
#define FERRULE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define FERRULE_API __attribute__((visibility("default")))
#else
#define FERRULE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0" */
FERRULE_API const char* ferrule_version(void);

/* --- errors --------------------------------------------------------------------------------- */

typedef struct ferrule_status ferrule_status;

/* Of no status, NULL: 0 and "".
 * The kind of error as one word, "model_not_found"; it never changes. */
FERRULE_API const char* ferrule_status_code(const ferrule_status* status);
/* What a program would end with: 1 results differ, 2 bad usage or input, 3 unsupported, 4 a limit
 * was reached, 5 the environment lacks something, 70 a bug of ours. */
FERRULE_API int32_t ferrule_status_exit_code(const ferrule_status* status);
/* Where: "model.onnx", "node \"Conv_3\" (Conv)"; may be empty. */
FERRULE_API const char* ferrule_status_place(const ferrule_status* status);
/* What happened, one sentence. */
FERRULE_API const char* ferrule_status_message(const ferrule_status* status);
/* What to do about it; may be empty. */
FERRULE_API const char* ferrule_status_hint(const ferrule_status* status);
/* All of it, as a terminal shows it. */
FERRULE_API const char* ferrule_status_text(const ferrule_status* status);
/* NULL is fine. */
FERRULE_API void ferrule_status_free(ferrule_status* status);

/* --- tensors -------------------------------------------------------------------------------- */

/* The numbers of ONNX's TensorProto.DataType. */
typedef enum ferrule_type {
  FERRULE_UNDEFINED = 0,
  FERRULE_FLOAT = 1,
  FERRULE_UINT8 = 2,
  FERRULE_INT8 = 3,
  FERRULE_UINT16 = 4,
  FERRULE_INT16 = 5,
  FERRULE_INT32 = 6,
  FERRULE_INT64 = 7,
  FERRULE_STRING = 8,
  FERRULE_BOOL = 9,
  FERRULE_FLOAT16 = 10,
  FERRULE_DOUBLE = 11,
  FERRULE_UINT32 = 12,
  FERRULE_UINT64 = 13,
  FERRULE_COMPLEX64 = 14,
  FERRULE_COMPLEX128 = 15,
  FERRULE_BFLOAT16 = 16,
  FERRULE_FLOAT8E4M3FN = 17,
  FERRULE_FLOAT8E4M3FNUZ = 18,
  FERRULE_FLOAT8E5M2 = 19,
  FERRULE_FLOAT8E5M2FNUZ = 20,
  FERRULE_UINT4 = 21,
  FERRULE_INT4 = 22,
  FERRULE_FLOAT4E2M1 = 23,
  FERRULE_UINT2 = 25,
  FERRULE_INT2 = 26,
  /* No element types: what a port may be that is no tensor. An optional input takes a tensor, or is
   * left out; the others cannot be passed. */
  FERRULE_SEQUENCE = 64,
  FERRULE_OPTIONAL = 65,
  FERRULE_MAP = 66,
} ferrule_type;

/* A dense row-major tensor in memory of somebody's. 4-bit types lie two a byte, 2-bit types
 * four. Of FERRULE_STRING, `data` is an array of `const char*`, one an element. */
typedef struct ferrule_tensor {
  const char* name;
  void* data;
  const int64_t* dims;
  size_t bytes; /* of data; ignored for strings */
  int32_t rank;
  int32_t type; /* ferrule_type */
} ferrule_tensor;

/* --- sessions ------------------------------------------------------------------------------- */

typedef struct ferrule_session ferrule_session;

typedef enum ferrule_log_level {
  FERRULE_LOG_ERROR = 0,
  FERRULE_LOG_WARNING = 1,
  FERRULE_LOG_INFO = 2,
  FERRULE_LOG_VERBOSE = 3,
} ferrule_log_level;
/* May be called by any thread that uses the session. */
typedef void (*ferrule_log_callback)(void* context, int32_t level, const char* text);

/* 0 and NULL stand for the default everywhere. Lists of strings end with NULL. */
typedef struct ferrule_session_options {
  size_t size;
  const char* backend; /* "auto" (default), "cpu", "cuda", "reference" */
  const char*
      target; /* "cpu-avx2", "sm_90", "host" (this processor), ...; default: this machine's */
  const char*
      rules; /* the shipped rules; default: $FERRULE_RULES, else where ferrule is installed */
  const char* const* rule_folders; /* rules of one's own */
  const char* const* enable;       /* globs over rules */
  const char* const* disable;
  const char* const* override_files;
  const char* const* allow_unproven; /* globs over rewrites that run without a proof */
  const char* tuning;                /* a file of `ferrule tune` */
  const char* cache; /* folder for compiled kernels; default: the user's; "": none */
  ferrule_log_callback log;
  void* log_context;
  int32_t log_level;       /* ferrule_log_level: up to this; default: errors only */
  int32_t threads;         /* of a run; default: one a physical core */
  int32_t concurrent_runs; /* of one shape at the same time, each with memory of its own; more wait;
                              default: no bound */
  int32_t require_device;  /* 1: fail rather than run on anything but a GPU */
  int32_t
      strict; /* 1: no Winograd convolution, no library epilogue that deviates from its formula */
  int32_t fast_math;   /* 1: library epilogues may make numbers of NaN; not together with strict */
  int32_t no_fusion;   /* 1: no rule is applied */
  int32_t overridable; /* 1: initializers that are inputs, too, may be given in a run; else they are
                          constants, which fusions need */
} ferrule_session_options;
static inline ferrule_session_options ferrule_session_options_init(void) {
  ferrule_session_options o;
  memset(&o, 0, sizeof o);
  o.size = sizeof o;
  return o;
}

/* `options`: may be NULL. */
FERRULE_API ferrule_status* ferrule_session_create(const char* path,
                                                   const ferrule_session_options* options,
                                                   ferrule_session** session);
/* `model`: the bytes of a model file; not needed afterwards. */
FERRULE_API ferrule_status* ferrule_session_create_from_bytes(
    const void* model, size_t bytes, const ferrule_session_options* options,
    ferrule_session** session);
/* After the last run has ended. NULL is fine. */
FERRULE_API void ferrule_session_free(ferrule_session* session);

/* An input or output as the model declares it. */
typedef struct ferrule_port {
  size_t size;
  const char* name;
  const int64_t* dims;        /* -1: open */
  const char* const* symbols; /* one a dim: the name of an open size, else "" */
  int32_t rank;               /* -1: not declared */
  int32_t type;               /* ferrule_type */
  int32_t optional;           /* 1: has a value of its own where it is left out */
} ferrule_port;
static inline ferrule_port ferrule_port_init(void) {
  ferrule_port p;
  memset(&p, 0, sizeof p);
  p.size = sizeof p;
  return p;
}

FERRULE_API size_t ferrule_session_input_count(const ferrule_session* session);
FERRULE_API size_t ferrule_session_output_count(const ferrule_session* session);
/* errors: usage, where there are not so many. */
FERRULE_API ferrule_status* ferrule_session_input(const ferrule_session* session, size_t index,
                                                  ferrule_port* port);
FERRULE_API ferrule_status* ferrule_session_output(const ferrule_session* session, size_t index,
                                                   ferrule_port* port);

typedef enum ferrule_view {
  FERRULE_VIEW_PLAN = 0,    /* layers in the order in which they run, each with its rule */
  FERRULE_VIEW_JOURNAL = 1, /* what was done to the model, step by step */
  FERRULE_VIEW_DEVICE = 2,  /* backend, device and target */
  FERRULE_VIEW_MODEL = 3,   /* producer, graph name, version, metadata of the model file */
} ferrule_view;
/* JSON with a "schema_version". `shapes`: names and dims of inputs of open size; their data is not
 * read; may be NULL if `count` is 0. `json`: to be freed by ferrule_text_free. */
FERRULE_API ferrule_status* ferrule_session_view(ferrule_session* session, int32_t view,
                                                 const ferrule_tensor* shapes, size_t count,
                                                 char** json);
FERRULE_API void ferrule_text_free(char* text);

/* Runs and plans that are under way stop between two layers; they and all later ones end with the
 * error "cancelled". May be called by any thread. */
FERRULE_API void ferrule_session_cancel(ferrule_session* session);

/* --- runs ----------------------------------------------------------------------------------- */

typedef struct ferrule_results ferrule_results;

/* Inputs by name; their memory is read until the call returns. `wanted`: names of outputs, all if
 * `wanted_count` is 0. The first run for a set of input shapes makes a plan. */
FERRULE_API ferrule_status* ferrule_run(ferrule_session* session, const ferrule_tensor* inputs,
                                        size_t input_count, const char* const* wanted,
                                        size_t wanted_count, ferrule_results** results);
/* Writes the outputs that are named into the caller's memory, which must have their types and
 * sizes. It must not overlap with the inputs.  errors: also input_mismatch, of an output. */
FERRULE_API ferrule_status* ferrule_run_into(ferrule_session* session, const ferrule_tensor* inputs,
                                             size_t input_count, const ferrule_tensor* outputs,
                                             size_t output_count);

FERRULE_API size_t ferrule_results_count(const ferrule_results* results);
/* In the order that was wanted, else the model's. The tensor lives as long as the results. */
FERRULE_API ferrule_status* ferrule_results_get(const ferrule_results* results, size_t index,
                                                ferrule_tensor* tensor);
/* NULL is fine. */
FERRULE_API void ferrule_results_free(ferrule_results* results);

/* --- questions ------------------------------------------------------------------------------ */

typedef enum ferrule_about {
  FERRULE_EXPLAIN = 0, /* which layers were fused, by which rule, and what nearly fused */
  FERRULE_WHY = 1,    /* what became of a node, or of two, what stood in the way, what would help */
  FERRULE_MISSED = 2, /* what still goes through memory between layers, the most bytes first */
} ferrule_about;

/* About a model, of which nothing is run: it need not be able to, nor its target be here. */
typedef struct ferrule_question {
  size_t size;
  const char* path; /* of the model's file; or: */
  const void* model;
  size_t bytes;
  const ferrule_session_options* options; /* NULL: the defaults */
  const ferrule_tensor* shapes;           /* of inputs of open size, as ferrule_session_view's */
  size_t shape_count;
  const char* node;  /* why: this node, ... */
  const char* other; /* ... and this one; may be NULL */
  const char* rule;  /* why: only this rule; without a node: where it came furthest */
  int32_t top;       /* missed: how many; default: 20 */
} ferrule_question;
static inline ferrule_question ferrule_question_init(void) {
  ferrule_question q;
  memset(&q, 0, sizeof q);
  q.size = sizeof q;
  return q;
}

/* `about`: ferrule_about. JSON as `ferrule explain --json`, `why --json` and `missed --json` print
 * it; to be freed by ferrule_text_free. */
FERRULE_API ferrule_status* ferrule_ask(int32_t about, const ferrule_question* question,
                                        char** json);

#ifdef __cplusplus
}
#endif
#endif
