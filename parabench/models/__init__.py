"""List the reference models, the values of the axis `precision`, and suspect properties, without importing torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from parabench.registry import Entry

# GPT-2's 50257 tokens (Radford et al., 2019), padded to a multiple of 128 as nanoGPT does.
GPT2_VOCABULARY = 50304
BYTES_VOCABULARY = 256

# The perceptron: a first layer from features to width, then pairs of linear layers up and down, then classes.
MLP_FEATURES, MLP_WIDTH, MLP_HIDDEN, MLP_BLOCKS, MLP_CLASSES = 256, 256, 1024, 8, 16

# Requirements of strategies: sequential parts, plans for tensor parallel and for sequence parallel, and a first layer
# that can be split by features.
BLOCKS, TENSOR, SEQUENCE, FIRST = "blocks", "tensor_parallel", "sequence_parallel", "first"

# The reference of each launch. EXACT: training on one device with whole batches. SAME_SPLIT: the same with the
# ranks' parts of each batch, one after the other. FIRST_LOSS: only the first loss.
EXACT, SAME_SPLIT, FIRST_LOSS = "exact", "same_split", "first_loss"
VERIFICATIONS = (EXACT, SAME_SPLIT, FIRST_LOSS)
# The level of the model, before a case is resolved.
OF_THE_MODEL = "auto"

# The optional fields of `Model` that are parts of a training step.
OWN = ("loss", "collate", "forward", "optimizer", "scheduler", "clip_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry(Entry):
    """The facts about a model that are needed before it is built."""

    parameters: int | None = None
    brings: frozenset[str] = frozenset()  # some of BLOCKS, TENSOR, SEQUENCE and FIRST
    blocks: int = 0
    # A decoder's attention heads and embedding width. `heads` and `widths` must be multiples of the number of ranks
    # that share a layer, and `features` of the number of ranks that share the input.
    heads: int | None = None
    width: int | None = None
    widths: tuple[int, ...] = ()
    features: int | None = None
    vocabulary: int | None = None  # None without tokens
    context: int | None = None  # the longest sequence
    images: bool = False  # it accepts MNIST's images
    synthetic: bool = True  # it has synthetic samples
    takes_case: bool = False  # a custom factory receives the case, so it may use `seq_len`
    # A parameter outside of the parts of a custom model. Pipelines do not accept it, so BLOCKS is missing.
    outside: str | None = None
    verification: str = EXACT
    own: frozenset[str] = frozenset({"loss"})  # some of OWN
    why_missing: Mapping[str, str] = field(default_factory=dict, hash=False)  # {missing requirement: reason}

    @property
    def sequences(self) -> bool:
        """Return whether the model uses `seq_len`."""
        return self.vocabulary is not None or self.takes_case

    @property
    def reads_bytes(self) -> bool:
        """Return whether the vocabulary of the model has a token for each byte."""
        return self.vocabulary is not None and self.vocabulary >= BYTES_VOCABULARY


def gpt_entry(layers: int, heads: int, width: int, vocabulary: int, summary: str) -> ModelEntry:
    """Return the entry of a decoder like GPT-2 with this shape."""
    context = 1024
    # Two norms 4d, qkv 3d^2 + 3d, projection d^2 + d, MLP 8d^2 + 5d. The head is tied to the embedding.
    block = 12 * width * width + 13 * width
    return ModelEntry(
        target="parabench.models.reference:gpt",
        summary=summary,
        parameters=(vocabulary + context) * width + layers * block + 2 * width,
        brings=frozenset({BLOCKS, TENSOR, SEQUENCE}),
        blocks=layers,
        heads=heads,
        vocabulary=vocabulary,
        context=context,
        width=width,
    )


# gpt2 and larger: the published shapes (Radford et al. 2019, table 2).
MODELS: dict[str, ModelEntry] = {
    "gpt-nano": gpt_entry(4, 4, 128, BYTES_VOCABULARY, "1M parameters, bytes"),
    "gpt-mini": gpt_entry(6, 6, 384, BYTES_VOCABULARY, "11M parameters, bytes"),
    "gpt2": gpt_entry(12, 12, 768, GPT2_VOCABULARY, "124M parameters"),
    "gpt2-medium": gpt_entry(24, 16, 1024, GPT2_VOCABULARY, "355M parameters"),
    "gpt2-large": gpt_entry(36, 20, 1280, GPT2_VOCABULARY, "774M parameters"),
    "gpt2-xl": gpt_entry(48, 25, 1600, GPT2_VOCABULARY, "1558M parameters"),
    "mlp": ModelEntry(
        target="parabench.models.reference:mlp",
        summary="4M parameters, 256 features to 16 classes; its first layer can be split by features",
        parameters=4_274_448,
        brings=frozenset({BLOCKS, TENSOR, FIRST}),
        blocks=MLP_BLOCKS,
        widths=(MLP_HIDDEN, MLP_FEATURES),
        features=MLP_FEATURES,
    ),
    "mnist": ModelEntry(
        target="parabench.models.reference:mnist",
        summary="1.2M parameters, PyTorch's MNIST example: two convolutions, two linear layers; no dropout",
        parameters=1_199_882,
        brings=frozenset({BLOCKS, TENSOR}),
        blocks=4,
        widths=(128,),
        images=True,
    ),
    "toy": ModelEntry(
        target="parabench.models.reference:toy",
        summary="121 parameters, 10-10-1",
        parameters=121,
        brings=frozenset({BLOCKS, TENSOR}),
        blocks=2,
        widths=(10,),
    ),
}

# Properties of a model or its data that change correct training runs, relative to one device, and the remedies.
DROPOUT, BATCH_NORM, IGNORED_LABELS, RANDOM_DATA = "dropout", "batch_norm", "ignored_labels", "random_data"
# The names of the buffers follow after a colon: "buffer:ema.mean".
BUFFER = "buffer"
# The label that torch's cross_entropy ignores by default.
IGNORED = -100
_SPLIT = "use --set verification=same_split"
SUSPECTS = {
    DROPOUT: f"module has dropout, which draws different numbers if the batch is split; set it to 0, or {_SPLIT}",
    BATCH_NORM: (
        "module has BatchNorm in training mode, whose statistics depend on how the batch is split; "
        f"{_SPLIT}, or SyncBatchNorm on CUDA"
    ),
    IGNORED_LABELS: (
        f"targets have labels of {IGNORED}, so the mean of the loss depends on how the batch is split; {_SPLIT}"
    ),
    RANDOM_DATA: (
        "an item of the data is different each time it is read; use a random generator that is seeded by the item's "
        "index"
    ),
    BUFFER: (
        "forward changes buffer {names}; if it also reads the buffer, the loss depends on how the batch is split; "
        f"{_SPLIT} with ddp or zero1"
    ),
}
# The message for buffers at level `same_split`.
_BUFFER_OF_A_RANK = "forward changes buffer {names}, and only DDP sends rank 0's to all ranks; use ddp or zero1"
# The level SAME_SPLIT allows these.
OF_THE_SPLIT = frozenset({DROPOUT, BATCH_NORM, IGNORED_LABELS})


def remedies(suspects: Iterable[str], verification: str) -> dict[str, str]:
    """Return {suspect: message with the remedy} for the suspects that matter at this level of verification.

    Unknown suspects are left out.
    """
    found = {}
    for suspect in suspects:
        key, _, names = suspect.partition(":")
        if key in SUSPECTS and not (verification == SAME_SPLIT and key in OF_THE_SPLIT):
            text = _BUFFER_OF_A_RANK if key == BUFFER and verification == SAME_SPLIT else SUSPECTS[key]
            found[suspect] = text.format(names=names)
    return found


# How matrix products and convolutions are computed, and the columns of `peaks.py`.
IEEE, TF32, BF16, FP16 = "ieee", "tf32", "bf16", "fp16"


@dataclass(frozen=True, slots=True)
class Precision:
    """A value of the axis `precision`: the types and the arithmetic of a training run."""

    roundoff: float  # the unit roundoff of the inputs of products: 2^-24 for 24 bits of significand
    matmul: str = IEEE  # the arithmetic of matrix products and convolutions
    parameters: str = "float32"  # also of gradients and optimizer states
    autocast: str | None = None
    scaled: bool = False  # the loss is scaled, because float16 cannot represent small gradients

    @property
    def allows_tf32(self) -> bool:
        """Return whether float32 products may use TF32."""
        return self.matmul == TF32


# "mixed" and "true" are names of PyTorch Lightning; "ieee" and "tf32" are values of torch's `fp32_precision`.
PRECISIONS = {
    IEEE: Precision(2**-24),
    TF32: Precision(2**-11, TF32),
    "bf16-mixed": Precision(2**-8, BF16, autocast="bfloat16"),
    "bf16-true": Precision(2**-8, BF16, parameters="bfloat16"),
    "fp16-mixed": Precision(2**-11, FP16, autocast="float16", scaled=True),
}
