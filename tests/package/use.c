/* The C interface from C: everything that it has, once, and its errors. Prints the sizes that programs are built with. */
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ferrule.h"

#define MEMBER(type, member) printf("%s.%s %zu %zu\n", #type, #member, offsetof(type, member), sizeof(((type*)0)->member))

static void sizes(void) {
  MEMBER(ferrule_tensor, name);
  MEMBER(ferrule_tensor, data);
  MEMBER(ferrule_tensor, dims);
  MEMBER(ferrule_tensor, bytes);
  MEMBER(ferrule_tensor, rank);
  MEMBER(ferrule_tensor, type);
  printf("ferrule_tensor %zu\n", sizeof(ferrule_tensor));
  MEMBER(ferrule_port, size);
  MEMBER(ferrule_port, name);
  MEMBER(ferrule_port, dims);
  MEMBER(ferrule_port, symbols);
  MEMBER(ferrule_port, rank);
  MEMBER(ferrule_port, type);
  MEMBER(ferrule_port, optional);
  MEMBER(ferrule_session_options, size);
  MEMBER(ferrule_session_options, backend);
  MEMBER(ferrule_session_options, target);
  MEMBER(ferrule_session_options, rules);
  MEMBER(ferrule_session_options, rule_folders);
  MEMBER(ferrule_session_options, enable);
  MEMBER(ferrule_session_options, disable);
  MEMBER(ferrule_session_options, override_files);
  MEMBER(ferrule_session_options, allow_unproven);
  MEMBER(ferrule_session_options, tuning);
  MEMBER(ferrule_session_options, cache);
  MEMBER(ferrule_session_options, log);
  MEMBER(ferrule_session_options, log_context);
  MEMBER(ferrule_session_options, log_level);
  MEMBER(ferrule_session_options, threads);
  MEMBER(ferrule_session_options, concurrent_runs);
  MEMBER(ferrule_session_options, require_device);
  MEMBER(ferrule_session_options, strict);
  MEMBER(ferrule_session_options, fast_math);
  MEMBER(ferrule_session_options, no_fusion);
  MEMBER(ferrule_session_options, overridable);
  MEMBER(ferrule_question, size);
  MEMBER(ferrule_question, path);
  MEMBER(ferrule_question, model);
  MEMBER(ferrule_question, bytes);
  MEMBER(ferrule_question, options);
  MEMBER(ferrule_question, shapes);
  MEMBER(ferrule_question, shape_count);
  MEMBER(ferrule_question, node);
  MEMBER(ferrule_question, other);
  MEMBER(ferrule_question, rule);
  MEMBER(ferrule_question, top);
}

#define REQUIRE(condition) \
  do { \
    if (!(condition)) { \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      exit(1); \
    } \
  } while (0)

static void fine(ferrule_status* s) {
  if (!s) return;
  fprintf(stderr, "%s\n", ferrule_status_text(s));
  exit(1);
}
static void wrong(ferrule_status* s, const char* code, const char* says) {
  REQUIRE(s != NULL);
  if (strcmp(ferrule_status_code(s), code) != 0 || !strstr(ferrule_status_text(s), says)) {
    fprintf(stderr, "wanted %s (%s), got %s: %s\n", code, says, ferrule_status_code(s), ferrule_status_text(s));
    exit(1);
  }
  REQUIRE(ferrule_status_exit_code(s) != 0);
  REQUIRE(ferrule_status_place(s) && ferrule_status_message(s) && ferrule_status_hint(s));
  ferrule_status_free(s);
}

static int logged = 0;
static void log_line(void* context, int32_t level, const char* text) {
  (void)level;
  REQUIRE(context == &logged && text[0]);
  ++logged;
}

/* y[k] = max(x[k] + b[k % 4], 0) */
enum { kRows = 3, kColumns = 4, kCount = kRows * kColumns };
static const float kBias[kColumns] = {1, -2, 3, -4};
static float expected(float x, int k) {
  const float y = x + kBias[k % kColumns];
  return y > 0 ? y : 0;
}

static ferrule_tensor tensor(const char* name, void* data, const int64_t* dims) {
  ferrule_tensor t = {name, data, dims, sizeof(float) * kCount, 2, FERRULE_FLOAT};
  return t;
}
static const int64_t kDims[2] = {kRows, kColumns};

struct work {
  ferrule_session* session;
  int seed, failed;
};
static void* many_runs(void* p) {
  struct work* w = p;
  for (int n = 0; n < 200; ++n) {
    float x[kCount];
    for (int k = 0; k < kCount; ++k) x[k] = (float)(w->seed * 31 + n * 7 + k) / 50 - 4;
    ferrule_tensor in = tensor("x", x, kDims), out;
    ferrule_results* r = NULL;
    ferrule_status* s = ferrule_run(w->session, &in, 1, NULL, 0, &r);
    if (s || ferrule_results_get(r, 0, &out)) {
      ferrule_status_free(s);
      ++w->failed;
      continue;
    }
    for (int k = 0; k < kCount; ++k) w->failed += ((float*)out.data)[k] != expected(x[k], k);
    ferrule_results_free(r);
  }
  return NULL;
}

static char* read_all(const char* path, size_t* size) {
  FILE* f = fopen(path, "rb");
  REQUIRE(f);
  char* bytes = malloc(1 << 20);
  *size = fread(bytes, 1, 1 << 20, f);
  fclose(f);
  return bytes;
}

/* Explain, why and missed: of a file, of bytes, for a GPU that is not here. */
static void ask(const char* path, char* bytes, size_t size) {
  ferrule_question q = ferrule_question_init();
  char* text = NULL;
  wrong(ferrule_ask(FERRULE_EXPLAIN, &q, &text), "usage", "neither");
  q.path = path;
  fine(ferrule_ask(FERRULE_EXPLAIN, &q, &text));
  REQUIRE(strstr(text, "\"layers\"") && strstr(text, "Relu_1") && strstr(text, "\"near_misses\"") && strstr(text, "\"schema_version\": 1"));
  ferrule_text_free(text);
  ferrule_session_options gpu = ferrule_session_options_init();
  gpu.target = "sm_90";
  q.path = NULL, q.model = bytes, q.bytes = size, q.options = &gpu;
  fine(ferrule_ask(FERRULE_EXPLAIN, &q, &text));
  REQUIRE(strstr(text, "\"target\": \"sm_90\""));
  ferrule_text_free(text);
  q.options = NULL;
  wrong(ferrule_ask(FERRULE_WHY, &q, &text), "usage", "a node");
  REQUIRE(text == NULL);
  q.node = "Add_0", q.other = "Relu_1";
  fine(ferrule_ask(FERRULE_WHY, &q, &text));
  REQUIRE(strstr(text, "\"pair\"") && strstr(text, "\"relation\": \"same\""));
  ferrule_text_free(text);
  q.other = NULL;
  fine(ferrule_ask(FERRULE_WHY, &q, &text));
  REQUIRE(strstr(text, "\"nodes\"") && strstr(text, "\"considered\""));
  ferrule_text_free(text);
  q.node = "Ad_0";
  wrong(ferrule_ask(FERRULE_WHY, &q, &text), "usage", "Add_0");
  q.node = NULL, q.rule = "rows";
  fine(ferrule_ask(FERRULE_WHY, &q, &text));
  ferrule_text_free(text);
  q.rule = "no_such_rule", q.node = "Add_0";
  wrong(ferrule_ask(FERRULE_WHY, &q, &text), "rule_unknown", "no_such_rule");
  fine(ferrule_ask(FERRULE_MISSED, &q, &text));
  REQUIRE(strstr(text, "\"edges\""));
  ferrule_text_free(text);
  q.top = -1;
  wrong(ferrule_ask(FERRULE_MISSED, &q, &text), "usage", "top");
  wrong(ferrule_ask(9, &q, &text), "usage", "9");
  q.model = "no model", q.bytes = 8;
  wrong(ferrule_ask(FERRULE_EXPLAIN, &q, &text), "not_onnx", "");
}

/* NULL where it does not belong, sizes of other versions. */
static void misuse(const char* path, ferrule_session* s, ferrule_tensor in) {
  ferrule_session* made = NULL;
  ferrule_results* r = NULL;
  ferrule_port port = ferrule_port_init();
  ferrule_tensor t;
  char* text = NULL;
  const char* none[] = {NULL};
  wrong(ferrule_session_create(NULL, NULL, &made), "usage", "path");
  wrong(ferrule_session_create(path, NULL, NULL), "usage", "session");
  wrong(ferrule_session_create_from_bytes(NULL, 9, NULL, &made), "usage", "model");
  wrong(ferrule_session_input(NULL, 0, &port), "usage", "session");
  wrong(ferrule_session_output(s, 0, NULL), "usage", "port");
  wrong(ferrule_session_view(NULL, FERRULE_VIEW_PLAN, NULL, 0, &text), "usage", "session");
  wrong(ferrule_session_view(s, FERRULE_VIEW_PLAN, NULL, 1, &text), "usage", "shapes");
  wrong(ferrule_session_view(s, FERRULE_VIEW_PLAN, NULL, 0, NULL), "usage", "json");
  wrong(ferrule_run(NULL, &in, 1, NULL, 0, &r), "usage", "session");
  wrong(ferrule_run(s, NULL, 1, NULL, 0, &r), "usage", "inputs");
  wrong(ferrule_run(s, &in, 1, NULL, 2, &r), "usage", "wanted");
  wrong(ferrule_run(s, &in, 1, none, 1, &r), "usage", "output");
  wrong(ferrule_run(s, &in, 1, NULL, 0, NULL), "usage", "results");
  wrong(ferrule_run_into(s, &in, 1, NULL, 1), "usage", "outputs");
  wrong(ferrule_run_into(NULL, &in, 1, &in, 1), "usage", "session");
  wrong(ferrule_results_get(NULL, 0, &t), "usage", "results");
  wrong(ferrule_ask(FERRULE_EXPLAIN, NULL, &text), "usage", "question");
  t = in, t.name = NULL;
  wrong(ferrule_run(s, &t, 1, NULL, 0, &r), "unknown_input", "");
  t = in, t.dims = NULL;
  wrong(ferrule_run(s, &t, 1, NULL, 0, &r), "usage", "no dims");
  t = in, t.rank = INT32_MAX;
  wrong(ferrule_run(s, &t, 1, NULL, 0, &r), "usage", "rank");
  t = in, t.type = FERRULE_STRING;
  wrong(ferrule_run(s, &t, 1, NULL, 0, &r), "input_mismatch", "x");
  REQUIRE(!made && !r && !text);
  REQUIRE(ferrule_session_input_count(NULL) == 0 && ferrule_session_output_count(NULL) == 0 && ferrule_results_count(NULL) == 0);
  REQUIRE(!*ferrule_status_code(NULL) && !*ferrule_status_text(NULL) && !*ferrule_status_hint(NULL) && !*ferrule_status_place(NULL) &&
          !*ferrule_status_message(NULL) && ferrule_status_exit_code(NULL) == 0);
  ferrule_session_cancel(NULL);
  ferrule_text_free(NULL);

  struct {
    ferrule_session_options options;
    int64_t later;
  } newer = {ferrule_session_options_init(), 0};
  newer.options.size = sizeof newer;
  fine(ferrule_session_create(path, (ferrule_session_options*)&newer, &made));
  ferrule_session_free(made);
  newer.later = 1;
  wrong(ferrule_session_create(path, (ferrule_session_options*)&newer, &made), "usage", "does not know");
  newer.options.size = SIZE_MAX;
  wrong(ferrule_session_create(path, (ferrule_session_options*)&newer, &made), "usage", "size");
  struct {
    size_t size;
    const char* backend;
  } older = {sizeof older, "reference"};  /* a version that had no more */
  fine(ferrule_session_create(path, (ferrule_session_options*)&older, &made));
  fine(ferrule_session_view(made, FERRULE_VIEW_DEVICE, &in, 1, &text));
  REQUIRE(strstr(text, "\"reference\""));
  ferrule_text_free(text);
  ferrule_session_free(made);
}

int main(int argc, char** argv) {
  if (argc < 2) {
    sizes();
    return 0;
  }
  const char* path = argv[1];
  REQUIRE(strlen(ferrule_version()) >= 5);
  ferrule_session_options o = ferrule_session_options_init();
  const char* disable[] = {"no_such_*", NULL};
  o.backend = "cpu", o.threads = 1, o.cache = "", o.disable = disable;
  o.log = log_line, o.log_context = &logged, o.log_level = FERRULE_LOG_VERBOSE;
  ferrule_session* s = NULL;
  fine(ferrule_session_create(path, &o, &s));

  REQUIRE(ferrule_session_input_count(s) == 1 && ferrule_session_output_count(s) == 2);
  ferrule_port port = ferrule_port_init();
  fine(ferrule_session_input(s, 0, &port));
  REQUIRE(strcmp(port.name, "x") == 0 && port.type == FERRULE_FLOAT && port.rank == 2 && !port.optional);
  REQUIRE(port.dims[0] == -1 && strcmp(port.symbols[0], "N") == 0 && port.dims[1] == kColumns && !port.symbols[1][0]);
  fine(ferrule_session_output(s, 1, &port));
  REQUIRE(strcmp(port.name, "s") == 0);
  wrong(ferrule_session_input(s, 1, &port), "usage", "there are 1");
  struct {
    size_t size;
    const char* name;
  } old = {sizeof old, NULL};  /* a caller of a version that had no more */
  fine(ferrule_session_input(s, 0, (ferrule_port*)&old));
  REQUIRE(strcmp(old.name, "x") == 0);

  float x[kCount], y[kCount], sum = -1;
  for (int k = 0; k < kCount; ++k) x[k] = (float)k - 5;
  ferrule_tensor in = tensor("x", x, kDims), out, into = tensor("y", y, kDims);
  ferrule_results* r = NULL;
  fine(ferrule_run(s, &in, 1, NULL, 0, &r));
  REQUIRE(ferrule_results_count(r) == 2);
  fine(ferrule_results_get(r, 0, &out));
  REQUIRE(strcmp(out.name, "y") == 0 && out.rank == 2 && out.dims[0] == kRows && out.bytes == sizeof x && out.type == FERRULE_FLOAT);
  float want = 0;
  for (int k = 0; k < kCount; ++k) {
    REQUIRE(((float*)out.data)[k] == expected(x[k], k));
    want += expected(x[k], k);
  }
  wrong(ferrule_results_get(r, 2, &out), "usage", "there are 2");
  ferrule_results_free(r);
  REQUIRE(logged > 0);

  const char* wanted[] = {"s"};
  fine(ferrule_run(s, &in, 1, wanted, 1, &r));
  REQUIRE(ferrule_results_count(r) == 1);
  fine(ferrule_results_get(r, 0, &out));
  REQUIRE(out.rank == 0 && *(float*)out.data == want);
  ferrule_results_free(r);

  ferrule_tensor both[2] = {into, {"s", &sum, NULL, sizeof sum, 0, FERRULE_FLOAT}};
  fine(ferrule_run_into(s, &in, 1, both, 2));
  REQUIRE(sum == want && y[kCount - 1] == expected(x[kCount - 1], kCount - 1));

  /* Mistakes. */
  r = NULL;
  ferrule_tensor bad = in;
  bad.name = "z";
  wrong(ferrule_run(s, &bad, 1, NULL, 0, &r), "unknown_input", "z");
  wrong(ferrule_run(s, NULL, 0, NULL, 0, &r), "missing_input", "x");
  bad = in, bad.type = FERRULE_INT32;
  wrong(ferrule_run(s, &bad, 1, NULL, 0, &r), "input_mismatch", "i32");
  bad = in, bad.bytes = 4;
  wrong(ferrule_run(s, &bad, 1, NULL, 0, &r), "usage", "48 bytes");
  bad = in, bad.data = NULL;
  wrong(ferrule_run(s, &bad, 1, NULL, 0, &r), "usage", "NULL");
  bad = in, bad.type = 99;
  wrong(ferrule_run(s, &bad, 1, NULL, 0, &r), "usage", "99");
  const int64_t huge[2] = {INT64_MAX, kColumns}, negative[2] = {-1, kColumns};
  bad = in, bad.dims = huge;
  wrong(ferrule_run(s, &bad, 1, NULL, 0, &r), "out_of_memory", "x");
  bad = in, bad.dims = negative;
  wrong(ferrule_run(s, &bad, 1, NULL, 0, &r), "usage", "-1");
  ferrule_tensor twice[2] = {in, in};
  wrong(ferrule_run(s, twice, 2, NULL, 0, &r), "usage", "twice");
  const char* nothing[] = {"nothing"};
  wrong(ferrule_run(s, &in, 1, nothing, 1, &r), "usage", "nothing");
  REQUIRE(r == NULL);
  bad = into, bad.bytes = 4;
  wrong(ferrule_run_into(s, &in, 1, &bad, 1), "usage", "y");

  /* What was fused. */
  char* text = NULL;
  fine(ferrule_session_view(s, FERRULE_VIEW_PLAN, &in, 1, &text));
  REQUIRE(strstr(text, "\"layers\"") && strstr(text, "\"schema_version\":1"));
  ferrule_text_free(text);
  fine(ferrule_session_view(s, FERRULE_VIEW_JOURNAL, &in, 1, &text));
  REQUIRE(strstr(text, "\"steps\""));
  ferrule_text_free(text);
  fine(ferrule_session_view(s, FERRULE_VIEW_DEVICE, &in, 1, &text));
  REQUIRE(strstr(text, "\"backend\":\"cpu\""));
  ferrule_text_free(text);
  fine(ferrule_session_view(s, FERRULE_VIEW_MODEL, NULL, 0, &text));
  REQUIRE(strstr(text, "\"metadata\""));
  ferrule_text_free(text);
  wrong(ferrule_session_view(s, 17, NULL, 0, &text), "usage", "17");
  wrong(ferrule_session_view(s, FERRULE_VIEW_PLAN, NULL, 0, &text), "missing_input", "x");

  misuse(path, s, in);

  /* Options are read when a session is made, and not afterwards. */
  ferrule_session_options* gone = malloc(sizeof *gone);
  char* backend = malloc(4);
  REQUIRE(gone && backend);
  *gone = o, strcpy(backend, "cpu"), gone->backend = backend;
  ferrule_session* kept = NULL;
  fine(ferrule_session_create(path, gone, &kept));
  memset(backend, 'x', 3), memset(gone, 0x5a, sizeof *gone);
  free(backend), free(gone);
  fine(ferrule_run(kept, &in, 1, NULL, 0, &r));
  fine(ferrule_results_get(r, 0, &out));
  ferrule_session_free(kept);
  REQUIRE(((float*)out.data)[0] == expected(x[0], 0)); /* results live without their session */
  ferrule_results_free(r);

  /* Threads on one session, with and without a bound. */
  for (int bound = 0; bound < 2; ++bound) {
    ferrule_session_options p = o;
    p.log = NULL, p.concurrent_runs = bound ? 3 : 0;
    ferrule_session* shared = NULL;
    fine(ferrule_session_create(path, &p, &shared));
    pthread_t threads[16];
    struct work work[16];
    for (int k = 0; k < 16; ++k) {
      work[k].session = shared, work[k].seed = k, work[k].failed = 0;
      REQUIRE(pthread_create(&threads[k], NULL, many_runs, &work[k]) == 0);
    }
    for (int k = 0; k < 16; ++k) {
      pthread_join(threads[k], NULL);
      REQUIRE(work[k].failed == 0);
    }
    ferrule_session_free(shared);
  }

  /* From bytes; and no model at all. */
  size_t size = 0;
  char* bytes = read_all(path, &size);
  ferrule_session* of_bytes = NULL;
  fine(ferrule_session_create_from_bytes(bytes, size, &o, &of_bytes));
  ask(path, bytes, size);
  memset(bytes, 0, size); /* they are not kept */
  fine(ferrule_run(of_bytes, &in, 1, NULL, 0, &r));
  ferrule_results_free(r);
  ferrule_session_cancel(of_bytes);
  wrong(ferrule_run(of_bytes, &in, 1, NULL, 0, &r), "cancelled", "");
  ferrule_session_free(of_bytes);
  wrong(ferrule_session_create_from_bytes(bytes, size, &o, &of_bytes), "not_onnx", "");
  REQUIRE(of_bytes == NULL);
  free(bytes);
  wrong(ferrule_session_create("no such file", NULL, &of_bytes), "file_not_found", "no such file");
  ferrule_session_options unset = ferrule_session_options_init();
  unset.size = 0;
  wrong(ferrule_session_create(path, &unset, &of_bytes), "usage", "size");
  o.threads = -1;
  wrong(ferrule_session_create(path, &o, &of_bytes), "usage", "threads");
  o.threads = 1, o.backend = "tpu";
  wrong(ferrule_session_create(path, &o, &of_bytes), "usage", "tpu");

  ferrule_session_free(s);
  ferrule_session_free(NULL);
  ferrule_results_free(NULL);
  ferrule_status_free(NULL);
  puts("fine");
  return 0;
}
