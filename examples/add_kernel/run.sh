#!/usr/bin/env bash
# Recipe: a kernel for an operator that is only interpreted so far. It is the one recipe with C++: a file in
# runtime/cpu/kernels, the contract's work (codegen/program/work.h) with a case in each backend's table, a contract's file in
# rules/contracts that says what it computes and when it can be used, and the targets that have it.
# `git apply examples/add_kernel/kernel.patch && ninja -C build` does it for
# good; here it is built beside, and the sources stay as they are.
cd "$(dirname "${BASH_SOURCE[0]}")"
source ../recipe.sh

step "1. CumSum is interpreted:"
expect 0 "$ferrule" explain "$out/model.onnx" --target cpu-avx2

step "2. The change:"
sed 's/^/    /' kernel.patch

step "3. Building it beside (out of a copy):"
rm -rf "$out/tree" "$out/bin"
mkdir -p "$out/tree"
while read -r file; do
  mkdir -p "$out/tree/$(dirname "$file")"
  cp "$root/$file" "$out/tree/$file"
done < <(sed -n 's|^--- a/||p' kernel.patch)
cp -R "$root/rules" "$out/tree/"
patch=$PWD/kernel.patch
(cd "$out/tree" && GIT_CEILING_DIRECTORIES=$out git apply "$patch")
"$python" rebuild.py "$out/tree" "$out/bin"

step "4. With it, a kernel:"
expect 0 "$out/bin/ferrule" explain "$out/model.onnx" --target cpu-avx2 --rules "$out/tree/rules"

step "5. Against the interpreter, and timed before and after:"
expect 0 "$out/bin/ferrule" verify "$out/model.onnx" --rules "$out/tree/rules" --oracle
expect 0 "$ferrule" bench "$out/model.onnx" --seconds 0.5
expect 0 "$out/bin/ferrule" bench "$out/model.onnx" --seconds 0.5 --rules "$out/tree/rules"
