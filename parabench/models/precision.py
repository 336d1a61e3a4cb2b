"""In which arithmetic a training computes: the values of the axis `precision`. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass

# How matrix products and convolutions are computed, and the columns of `peaks.py`.
IEEE, TF32, BF16, FP16 = "ieee", "tf32", "bf16", "fp16"


@dataclass(frozen=True, slots=True)
class Precision:
    """`parameters` is the dtype that parameters, gradients and optimizer state are kept in, `matmul` the arithmetic of
    matrix products and convolutions. `autocast` is the dtype that operations are cast to. With `scaled` the loss is
    multiplied before backward, because float16 has no digits for small gradients.

    `roundoff` is the unit roundoff of the products' inputs: 2^-24 for 24 bits of significand.
    """

    roundoff: float
    matmul: str = IEEE
    parameters: str = "float32"
    autocast: str | None = None
    scaled: bool = False


# The names of mixed and pure arithmetic are PyTorch Lightning's, those of float32's two are torch's `fp32_precision`.
PRECISIONS = {
    IEEE: Precision(2**-24),
    TF32: Precision(2**-11, TF32),
    "bf16-mixed": Precision(2**-8, BF16, autocast="bfloat16"),
    "bf16-true": Precision(2**-8, BF16, parameters="bfloat16"),
    "fp16-mixed": Precision(2**-11, FP16, autocast="float16", scaled=True),
}
