#!/usr/bin/env bash
# Recipe: a fusion that no kernel computes so far. A contract's file says what the new kernel computes, of which roles; a rule
# binds them; the targets that have it say so; the kernel is a file in runtime/cpu/kernels with a row in
# runtime/cpu_kernels.def. The rule is proved against the contract's `means`, the kernel against the nodes.
# `git apply examples/add_contract/kernel.patch && ninja -C build` does it for good; here it is built beside.
cd "$(dirname "${BASH_SOURCE[0]}")"
source ../recipe.sh

step "1. Two layers, one of them interpreted:"
expect 0 "$ferrule" explain "$out/model.onnx" --target cpu-avx2

step "2. The change:"
sed 's/^/    /' kernel.patch

step "3. Building it beside (out of a copy):"
source ../patched.sh

step "4. The rule is right, and the kernel:"
expect 0 "$out/bin/ferrule" rules test running_energy --rules "$out/tree/rules"

step "5. With it, one kernel:"
expect 0 "$out/bin/ferrule" explain "$out/model.onnx" --target cpu-avx2 --rules "$out/tree/rules"

step "6. Against the interpreter, and timed before and after:"
expect 0 "$out/bin/ferrule" verify "$out/model.onnx" --rules "$out/tree/rules" --oracle
expect 0 "$ferrule" bench "$out/model.onnx" --seconds 0.5
expect 0 "$out/bin/ferrule" bench "$out/model.onnx" --seconds 0.5 --rules "$out/tree/rules"
