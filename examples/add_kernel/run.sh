#!/usr/bin/env bash
# Recipe: a kernel for an operator that is only interpreted so far. It is a recipe with C++: a contract's file in rules/contracts
# that says what it computes and when it can be used, the targets that have it, a file in runtime/cpu/kernels and its row in
# runtime/cpu_kernels.def.
# `git apply examples/add_kernel/kernel.patch && ninja -C build` does it for
# good; here it is built beside, and the sources stay as they are.
cd "$(dirname "${BASH_SOURCE[0]}")"
source ../recipe.sh

step "1. CumSum is interpreted:"
expect 0 "$ferrule" explain "$out/model.onnx" --target cpu-avx2

step "2. The change:"
sed 's/^/    /' kernel.patch

step "3. Building it beside (out of a copy):"
source ../patched.sh

step "4. With it, a kernel:"
expect 0 "$out/bin/ferrule" explain "$out/model.onnx" --target cpu-avx2 --rules "$out/tree/rules"

step "5. Against the interpreter, and timed before and after:"
expect 0 "$out/bin/ferrule" verify "$out/model.onnx" --rules "$out/tree/rules" --oracle
expect 0 "$ferrule" bench "$out/model.onnx" --seconds 0.5
expect 0 "$out/bin/ferrule" bench "$out/model.onnx" --seconds 0.5 --rules "$out/tree/rules"
