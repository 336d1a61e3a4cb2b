"""Benchmark a Hugging Face model: any configuration of a language model, with random weights.

parabench run strategies --model hf_llama:factory --set strategy=ddp,fsdp,tp --set world_size=2
"""

from transformers import LlamaConfig

from parabench import Model


def factory() -> Model:
    """Return a Llama with 2 layers. Blocks and the tensor-parallel plan come from transformers."""
    return Model.from_transformers(
        LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, vocab_size=512)
    )
