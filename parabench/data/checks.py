"""Check that a case's data exists, fills a global batch and suits its model.

torch is imported only for custom data and models.
"""

from __future__ import annotations

from parabench.data import MNIST, SYNTHETIC, TEXT, check_count, files, source_of
from parabench.errors import UsageError
from parabench.models import BYTES_VOCABULARY, MODELS, ModelEntry
from parabench.plan.case import Case


def check(case: Case, model: ModelEntry) -> None:
    """Raise UsageError unless the case's data can be read, suits the model and fills at least one global batch."""
    name, argument = source_of(case.data)
    if case.vocabulary and name != TEXT:
        raise UsageError(
            f"vocabulary {case.vocabulary!r} is for data text, and data is {case.data} with model {case.model}; drop it"
        )
    if name == TEXT:
        _check_text(case, model)
    elif name == MNIST:
        if not model.images:
            raise UsageError(f"model {case.model} takes no images; use data synthetic or text, or model mnist")
        check_count(case.data, files.count_mnist(argument), case.global_batch)
    elif name == SYNTHETIC and argument:
        raise UsageError(f"data {case.data!r} is unknown; synthetic takes nothing after a colon")
    elif name == SYNTHETIC and not model.synthetic:
        raise UsageError(f"model {case.model} has no synthetic data; give Model.batch, or another data")
    elif name is None:
        from parabench.data.datasets import check_dataset

        check_dataset(case, model)
    if is_users(case):
        from parabench.data.trial import trial_of

        trial_of(case)


def is_users(case: Case) -> bool:
    """Return whether the model or the data is custom, so that a batch is tried before the first launch."""
    return case.model not in MODELS or source_of(case.data)[0] is None


def _check_text(case: Case, model: ModelEntry) -> None:
    """Raise UsageError unless the model reads the case's text, and the text fills a global batch."""
    if model.vocabulary is None:
        raise UsageError(f"model {case.model} takes no tokens, and data {case.data} is text; use data synthetic")
    if case.vocabulary:
        tokens = files.vocabulary_size(case.vocabulary)
        if tokens > model.vocabulary:
            raise UsageError(
                f"vocabulary {case.vocabulary!r} has {tokens} tokens, model {case.model} supports {model.vocabulary}; "
                "use a model with a larger vocabulary, such as gpt2, or a smaller vocabulary file"
            )
        have, unit = files.token_file(case.data, case.vocabulary).stat().st_size // files.TOKEN_BYTES, "tokens"
    elif not model.reads_bytes:
        raise UsageError(f"model {case.model} supports fewer than {BYTES_VOCABULARY} tokens; use data synthetic")
    else:
        files.check_readable("data", files.text_path(case.data))
        have, unit = files.text_path(case.data).stat().st_size, "bytes"
    needed = case.global_batch * case.seq_len + 1
    if have < needed:
        raise UsageError(
            f"data {case.data!r} holds {have} {unit}, one batch needs {needed}; "
            "give a longer file, or a smaller global_batch or seq_len"
        )
