#!/usr/bin/env bash
# Recipe: a fusion of one's own, as a YAML rule. In this model a MaxPool stands between a convolution and its
# Relu, so the Relu is a separate layer. The largest value's Relu is the largest Relu, so it may move.
cd "$(dirname "${BASH_SOURCE[0]}")"
source ../recipe.sh

step "1. Relu_2 is a separate layer with the shipped rules:"
expect 0 "$ferrule" explain "$out/model.onnx" --target cpu-avx2

step "2. The rule, rules/rewrites/relu_before_pool.yaml, with its tests:"
sed 's/^/    /' rules/rewrites/relu_before_pool.yaml

step "3. Its tests and its proof:"
expect 0 "$ferrule" rules test relu_before_pool --rules rules

step "4. With it, the convolution takes the Relu:"
expect 0 "$ferrule" explain "$out/model.onnx" --target cpu-avx2 --rules rules

step "5. Fused against unfused:"
expect 0 "$ferrule" verify "$out/model.onnx" --rules rules
