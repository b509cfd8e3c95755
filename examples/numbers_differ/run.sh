#!/usr/bin/env bash
# Guide: a fused model's results are not those of the unfused one. In this model the results of Conv_2 lie around a
# million, which f16 cannot hold (its largest number is 65504); in f32 all is well.
cd "$(dirname "${BASH_SOURCE[0]}")"
source ../recipe.sh

step "1. Fused against unfused, in f32:"
expect 0 "$ferrule" verify "$out/model.onnx" --target cpu-avx2

step "2. With the rules that compute in f16:"
expect 1 "$ferrule" verify "$out/model.onnx" --target cpu-avx2 --enable 'half_*'

step "3. Which layer is the first one that differs?"
expect 1 "$ferrule" verify "$out/model.onnx" --target cpu-avx2 --enable 'half_*' --layers

step "4. Conv_2 stays in f32, by an override file:"
sed 's/^/    /' keep.yaml
expect 0 "$ferrule" verify "$out/model.onnx" --target cpu-avx2 --enable 'half_*' --override keep.yaml
