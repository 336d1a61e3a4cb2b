"""Build Hugging Face's language models from their configurations. No other module imports transformers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from parabench.errors import UsageError
from parabench.models import TENSOR
from parabench.models.batches import Batch, call, count_up, is_pair
from parabench.registry import users_code

# Fields of a configuration that make forward random: dropout, LayerDrop, and noise of routers. Their names differ
# between models, such as resid_pdrop, dropout_rate, decoder_layerdrop, router_jitter_noise.
RANDOM = ("*dropout*", "*pdrop", "*layerdrop", "*drop_rate", "*jitter*")

# Styles of transformers' tensor-parallel plans (`ALL_PARALLEL_STYLES`) that torch supports.
# Before version 5, `colwise_gather_output` was `colwise_rep`.
STYLES: Mapping[str, ParallelStyle] = {
    "colwise": ColwiseParallel(),
    "rowwise": RowwiseParallel(),
    "colwise_gather_output": ColwiseParallel(output_layouts=Replicate()),
    "colwise_rep": ColwiseParallel(output_layouts=Replicate()),
    "embedding_rowwise": RowwiseParallel(input_layouts=Replicate()),
    "rowwise_rep": RowwiseParallel(input_layouts=Replicate()),
}


def fields_of(config: Any) -> dict[str, Any]:
    """Build the model for `Model.from_transformers`. Return the fields of its `Model`. Raises UsageError."""
    try:
        import transformers
    except ImportError as error:
        raise UsageError("Model.from_transformers needs transformers: pip install transformers") from error
    if not isinstance(config, transformers.PretrainedConfig):
        raise UsageError(
            f"Model.from_transformers is given {type(config).__name__}; give a configuration, such as LlamaConfig()"
        )
    config = deterministic(config)
    module, causal = _build(config)
    plan, why = tensor_parallel_plan(module)
    blocks: list[nn.Module] = []
    for part in (module.get_encoder(), module.get_decoder()) if config.is_encoder_decoder else (module,):
        # The layers are the longest list of equal modules.
        lists = [each for each in part.modules() if isinstance(each, nn.ModuleList) and len(set(map(type, each))) == 1]
        longest: nn.ModuleList = max(lists, key=len, default=nn.ModuleList())
        blocks += longest
    text = config.get_text_config()
    vocabulary, padding = text.vocab_size, getattr(text, "pad_token_id", None)

    def batch(n: int, generator: torch.Generator, seq_len: int) -> dict[str, Tensor]:
        """Return sequences that count up. They have no padding tokens, because attention ignores these."""
        tokens = count_up(n, seq_len, vocabulary, generator)
        if padding is not None:
            tokens = tokens.masked_fill(tokens == padding, (padding + 1) % vocabulary)
        return {"input_ids": tokens, "labels": tokens.clone()}

    def forward(module: nn.Module, batch: Batch) -> Any:
        """Call the module with tokens and labels. In a pair, the targets are the tokens after the inputs."""
        if is_pair(batch):
            tokens, targets = batch
            # A causal model shifts its labels.
            labels = torch.cat([tokens[:, :1], targets[:, :-1]], dim=1) if causal else targets.contiguous()
            batch = {"input_ids": tokens, "labels": labels}
        return call(module, batch)

    return {
        "module": module,
        "batch": batch,
        "forward": forward,
        "vocabulary": vocabulary,
        "context": getattr(text, "max_position_embeddings", None),
        "blocks": blocks,
        "tensor_parallel": plan,
        "why_missing": {TENSOR: why} if why else {},
    }


def deterministic(config: Any) -> Any:
    """Return a copy of a configuration and its nested ones, without dropout or cache, in float32."""
    config = copy.deepcopy(config)
    parts = [config]
    for part in parts:
        for name, value in vars(part).items():
            if hasattr(value, "to_diff_dict"):  # a configuration within the configuration
                parts.append(value)
            elif type(value) in (int, float) and any(fnmatch(name, pattern) for pattern in RANDOM):
                setattr(part, name, 0.0)
        part.use_cache = False
        # `torch_dtype` before version 5.
        setattr(part, "dtype" if hasattr(part, "dtype") else "torch_dtype", torch.float32)
    # Sequence-to-sequence models need this token. T5's configuration does not have a default.
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    return config


def _build(config: Any) -> tuple[Any, bool]:
    """Return (module, whether it predicts the next token) for a configuration. Raises UsageError."""
    import transformers

    name = type(config).__name__
    causal, masked = transformers.AutoModelForCausalLM, transformers.AutoModelForMaskedLM
    autos = [causal, transformers.AutoModelForSeq2SeqLM, masked]
    if config.is_encoder_decoder:
        autos.remove(causal)
    elif type(config) in masked._model_mapping and not getattr(config, "is_decoder", False):
        autos = [masked]  # BERT is causal only if `is_decoder` is set
    auto = next((each for each in autos if type(config) in each._model_mapping), None)
    if auto is None:
        raise UsageError(f"transformers has no language model for {name}; give Model(module=...)")
    with users_code(f"transformers cannot build a model from {name}", "fix the configuration"):
        try:
            module = auto.from_config(config, attn_implementation="sdpa")
        except ValueError as error:
            if "scaled_dot_product_attention" not in str(error):
                raise
            module = auto.from_config(config, attn_implementation="eager")
    return module.train(), auto is causal


def tensor_parallel_plan(module: nn.Module) -> tuple[dict[str, ParallelStyle], str | None]:
    """Return (the tensor-parallel plan that the model publishes, None), or ({}, the reason why there is none)."""
    published: Mapping[str, str] = getattr(module, "tp_plan", None) or getattr(module, "_tp_plan", None) or {}
    if not published:
        return {}, "transformers publishes no tensor-parallel plan for it"
    if unknown := sorted({*published.values()} - STYLES.keys()):
        style = unknown[0]
        return {}, f"its plan in transformers has the style {style}, which torch's parallelize_module does not have"
    # A style replaces the parameters of its module, which would untie shared weights.
    owners: dict[int, list[str]] = {}
    for name, each in module.named_parameters(remove_duplicate=False):
        owners.setdefault(id(each), []).append(name.rpartition(".")[0])
    tied = {name for names in owners.values() if len(names) > 1 for name in names}
    return {
        pattern: STYLES[style]
        for pattern, style in published.items()
        if not any(fnmatch(name, pattern) for name in tied)
    }, None
