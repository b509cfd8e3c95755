// Operands that are slices of larger tensors: kernels that take them give bit for bit what they
// give on dense ones, touch nothing beside the slice, and those that do not take them run over
// copies.
#include "runtime/cpu/implementations.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

/// What part of a larger operand is used: all but the last `beyond` along `axis`.
void cut(Operand& o, size_t axis, int64_t beyond) {
  o.apart = o.strides();
  o.dims[axis] -= beyond;
}

Tensor widened(const Tensor& t, size_t axis, int64_t beyond) {
  Dims dims = t.dims();
  dims[axis] += beyond;
  std::vector<float> out(static_cast<size_t>(numel(dims)), 777.0f);
  auto from = t.as<float>();
  each_index(t.dims(), [&](const Dims& i, int64_t k) {
    int64_t at = 0;
    for (size_t a = 0; a < i.size(); ++a) at = at * dims[a] + i[a];
    out[static_cast<size_t>(at)] = from[static_cast<size_t>(k)];
  });
  return Tensor::of_f32(dims, out);
}

struct SliceCase {
  std::string op;
  Dims x, w, y;
  bool bias = true;
  int64_t group = 1;
  Layout layout = Layout::channels_last;
  size_t axis = 1;  ///< that is cut
};

struct Tried {
  SliceCase c;
  Factory factory;
};
struct Beyond {
  int64_t x, y;
};

/// Input and output cut by so much, with a tail; the rest of the output must stay as it was.
Tensor run(const SliceCase& c, Factory f, int64_t x_beyond, int64_t y_beyond, std::string& text) {
  Harness h(c.op);
  h.target = &host();
  h.node.attrs.set("group", c.group);
  if (c.op == "Conv" && c.w[2] == 3) h.node.attrs.set("pads", std::vector<int64_t>{1, 1, 1, 1});
  if (c.op == "MaxPool") h.node.attrs.set("kernel_shape", std::vector<int64_t>{2, 2});
  const Tensor x = random_tensor(c.x, 1);
  h.input(x_beyond ? widened(x, c.axis, x_beyond) : x, c.layout);
  if (x_beyond) cut(h.call.inputs[0], c.axis, x_beyond);
  if (!c.w.empty()) h.constant(random_tensor(c.w, 2));
  if (!c.w.empty() && c.bias) h.constant(random_tensor({c.y[c.axis]}, 3));
  Dims y = c.y;
  y[c.axis] += y_beyond;
  h.output(DType::f32, y, c.layout);
  if (y_beyond) cut(h.call.outputs[0], c.axis, y_beyond);
  if (c.op == "Conv") h.eltwise("relu");
  const Tensor out = h.run(f);
  text = h.text;
  if (y_beyond) {  // beside the slice
    Operand& o = h.call.outputs[0];
    const Tensor all = [&] {
      o.apart.clear();
      o.dims[c.axis] += y_beyond;
      return h.result();
    }();
    int64_t touched = 0;
    each_index(all.dims(), [&](const Dims& i, int64_t k) {
      uint32_t bits;
      std::memcpy(&bits, static_cast<const char*>(all.data()) + k * 4, 4);
      touched += i[c.axis] >= c.y[c.axis] && bits != 0x7f7f7f7fu;
    });
    CHECK(touched == 0);
  }
  return out;
}

void check_same(const Tensor& a, const Tensor& b) {
  REQUIRE(a.dims() == b.dims());
  CHECK(std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0);
}

Applicable<KernelPtr> winograd_2(Context& context, const KernelCall& call) {
  return make_winograd(context, call, 2);
}
Applicable<KernelPtr> winograd_4(Context& context, const KernelCall& call) {
  return make_winograd(context, call, 4);
}
Applicable<KernelPtr> sliced_pool(Context& context, const KernelCall& call) {
  return call.dense() ? make_pool(context, call)
                      : make_sliced(context, call, make_pool, takes_slices(Work::max_pool));
}
Applicable<KernelPtr> sliced_convolution(Context& context, const KernelCall& call) {
  return call.dense() ? make_convolution(context, call)
                      : make_sliced(context, call, make_convolution, true);
}

}  // namespace

TEST_CASE("kernels that take slices give what they give on dense operands") {
  const Tried cases[] = {
      {{"Conv", {2, 13, 5, 7}, {21, 13, 1, 1}, {2, 21, 5, 7}}, make_matmul_1x1},
      {{"Conv", {2, 13, 5, 7}, {21, 13, 1, 1}, {2, 21, 5, 7}}, make_product},
      {{"Conv", {1, 40, 3, 3}, {83, 40, 1, 1}, {1, 83, 3, 3}, false}, make_product},
      {{"Conv", {2, 9, 9, 37}, {1, 9, 3, 3}, {2, 1, 9, 37}}, make_few_filters},
      {{"Conv", {2, 9, 9, 37}, {5, 9, 3, 3}, {2, 5, 9, 37}}, make_few_filters},
      {{"Conv", {2, 19, 9, 7}, {35, 19, 3, 3}, {2, 35, 9, 7}}, winograd_2},
      {{"Conv", {1, 19, 9, 10}, {35, 19, 3, 3}, {1, 35, 9, 10}, false}, winograd_4},
      {{"Conv", {2, 21, 9, 17}, {21, 1, 3, 3}, {2, 21, 9, 17}, true, 21}, make_depthwise},
      {{"MatMul", {2, 3, 17}, {17, 11}, {2, 3, 11}, false, 1, Layout::plain, 2}, make_matmul},
      {{"Gemm", {5, 17}, {17, 11}, {5, 11}, true, 1, Layout::plain, 1}, make_gemm},
  };
  for (const Tried& t : cases)
    for (const Beyond& b : {Beyond{3, 0}, Beyond{0, 5}, Beyond{19, 16}}) {
      std::string text, dense;
      INFO(t.c.op, " ", b.x, " ", b.y);
      check_same(run(t.c, t.factory, b.x, b.y, text), run(t.c, t.factory, 0, 0, dense));
      CHECK_MESSAGE(text.find("ref") == text.npos, text, " instead of ",
                    dense);  // oneDNN has such code for what it cannot do
    }
}

TEST_CASE("kernels that take no slices run over copies") {
  const Tried cases[] = {
      {{"MaxPool", {1, 6, 5, 5}, {}, {1, 6, 4, 4}, false}, sliced_pool},
      {{"Conv", {1, 6, 5, 5}, {9, 6, 2, 2}, {1, 9, 4, 4}}, sliced_convolution},
  };
  for (const Tried& t : cases)
    for (const Beyond& b : {Beyond{3, 0}, Beyond{0, 5}, Beyond{2, 4}}) {
      std::string text, dense;
      INFO(t.c.op, " ", b.x, " ", b.y);
      check_same(run(t.c, t.factory, b.x, b.y, text), run(t.c, t.factory, 0, 0, dense));
      CHECK(text == "copied+" + dense);
    }
}

TEST_CASE("distances of pixels and rows") {
  Operand image{DType::f32, {2, 8, 3, 4}, Layout::channels_last, 0, nullptr};
  CHECK(image.pixel() == 8);
  cut(image, 1, 3);
  CHECK(image.pixel() == 8);
  Operand lower{DType::f32, {2, 8, 3, 4}, Layout::channels_last, 0, nullptr};
  cut(lower, 2, 1);  // rows of two images are left out: no one distance
  CHECK(lower.pixel() == -1);
  Operand plain{DType::f32, {2, 8, 3, 4}, Layout::plain, 0, nullptr};
  cut(plain, 1, 3);
  CHECK(plain.pixel() == -1);
  Operand matrix{DType::f32, {2, 3, 8}, Layout::plain, 0, nullptr};
  CHECK(matrix.row() == 8);
  cut(matrix, 2, 3);
  CHECK(matrix.row() == 8);
  Operand few{DType::f32, {2, 3, 8}, Layout::plain, 0, nullptr};
  cut(few, 1, 1);
  CHECK(few.row() == -1);
}

}  // namespace ferrule::cpu::test
