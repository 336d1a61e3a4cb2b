"""Reference models. This table is free of torch: shapes are checked against a case before anything is launched."""

from dataclasses import dataclass

from parabench.registry import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTShape(Entry):
    """The shape of a GPT-2 style decoder."""

    target: str = "parabench.models.gpt:gpt"
    layers: int
    heads: int
    width: int
    vocabulary: int = 50304  # GPT-2's 50257, padded to a multiple of 128 as nanoGPT does
    context: int = 1024

    @property
    def parameters(self) -> int:
        """Trainable parameters, the tied head counted once: embeddings, blocks, final norm."""
        d = self.width
        block = 12 * d * d + 13 * d  # two norms 4d; qkv 3d^2+3d; projection d^2+d; MLP 8d^2+5d
        return (self.vocabulary + self.context) * d + self.layers * block + 2 * d


# gpt2 and larger: the published shapes (Radford et al. 2019, table 2).
MODELS: dict[str, GPTShape] = {
    "gpt-nano": GPTShape(summary="1M parameters, bytes", layers=4, heads=4, width=128, vocabulary=256),
    "gpt-mini": GPTShape(summary="11M parameters, bytes", layers=6, heads=6, width=384, vocabulary=256),
    "gpt2": GPTShape(summary="124M parameters", layers=12, heads=12, width=768),
    "gpt2-medium": GPTShape(summary="355M parameters", layers=24, heads=16, width=1024),
    "gpt2-large": GPTShape(summary="774M parameters", layers=36, heads=20, width=1280),
    "gpt2-xl": GPTShape(summary="1558M parameters", layers=48, heads=25, width=1600),
}
