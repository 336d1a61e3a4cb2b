"""The page of published tables and their predictions, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.foresight import markdown
from benchmarks.foresight.published_facts import RING_LATENCIES, Machine, Table
from benchmarks.foresight.published_forecasts import HEAD, Forecast, line, summary
from benchmarks.foresight.published_steps import compute_s, step_s
from benchmarks.foresight.published_tables import BERT_BATCHES, BERT_GBITS, BERT_MEASURED, BERT_SOURCE, LEFT_OUT, bert

INTRODUCTION = """# Predictions of what others published

`python -m benchmarks.foresight.published --table docs/measured/published.md` writes this page. Rates are samples or
tokens a second of each GPU, errors those of the rate. Each table is told of in four ways:

- *predicted*: from its first row alone. What a GPU computes is the step of that row less what a simulation says that
  communication adds to it, so that this row comes out right. A step of more GPUs is the same simulation with
  collectives of more GPUs: rings over links of the rates and latencies below. All GPUs are alike.
- *with the slowest of N*: besides, the slowest GPU of N computes longer than that of fewer. How much GPUs differ is
  what makes one more row come out right, which is one of the two that the line goes through; so this holds whatever
  else grows with the GPUs too.
- *constant*: the rate of the first row.
- *line*: the straight line of the rate in log2 of the GPUs through two rows, the two smallest or, of tables that begin
  with a node, those of 4 and 8 GPUs.

No constant is fitted to a table. Backward computes twice what forward does, and three times with recomputation. FSDP
gathers a layer's parameters while the layer before it computes, in bfloat16 unless a table says otherwise. The
optimizer counts as compute that all numbers of GPUs share. Communication does not slow computing down.
"""

SHORT = """## What falls short

- Predictions from one row are too fast nearly everywhere, by about as much for each doubling of the GPUs as the
  summary says. What is not in them: differences between GPUs and hosts (a collective waits for the last), links that
  several jobs or rings share, and slower collectives than rings at the full rate of the cards. The slowest of N takes
  the place of all of it: the standard deviations that it finds, 0 to 15 %, are larger than GPUs differ by themselves.
- Most rates fall by so little, and so evenly, that a line through two rows is right within a few percent: there the
  prediction from one row knows less than the line, and has more error.
- BERT with FP16 travels slower than 2 bytes a gradient would. With 4 bytes (amp's O1; the source says that opt_level
  may be changed) the prediction from one row would be 4 to 6 % too slow at 16 GPUs and about 1 % at 32.
"""


def page(found: Sequence[Sequence[Forecast]]) -> str:
    """The whole page."""
    everything = [each for table in found for each in table]
    machines = {each.table.machine.name: each.table.machine for each in everything}
    parts = [
        INTRODUCTION,
        "## Summary\n\n" + "".join(f"- {said}\n" for said in summary(everything)),
        SHORT,
        "## Links\n\n" + markdown.table(_machines(list(machines.values()))) + f"\nLatencies: {RING_LATENCIES}.\n",
        "## Tables\n\nAll of these sources that have the same microbatch at several numbers of GPUs and do not\n"
        f"accumulate gradients, but for: {LEFT_OUT}.\n",
        *(_of(table) for table in found),
        _bert(),
    ]
    return "\n".join(parts)


def _machines(machines: Sequence[Machine]) -> Iterator[tuple[str, ...]]:
    yield "node", "of a GPU in its node, GB/s", "of a node to others, GB/s", "sources"
    for each in machines:
        yield each.name, f"{each.within / 1e9:.0f}", f"{each.between / 1e9:.0f}", "; ".join(each.sources)


def _of(found: Sequence[Forecast]) -> str:
    table = found[0].table
    said = [f"Source: {table.source}. {_what(table)}"]
    if table.assumed:
        said.append(f"Assumed: {'; '.join(table.assumed)}.")
    return f"### {table.name}\n\n{' '.join(said)}\n\n{markdown.table((HEAD, *map(line, found)))}"


def _what(table: Table) -> str:
    recomputed = ", forward recomputed" if table.recomputed else ""
    compute = compute_s(table)
    return (
        f"{table.strategy}{recomputed}; {table.model.parameters:,} parameters; nodes of {table.machine.name}; "
        f"{table.per_gpu:g} a GPU and step; a GPU computes {compute * 1e3:.1f} ms of "
        f"{table.per_gpu / table.rows[table.base].rate * 1e3:.1f} ms."
    )


def _bert() -> str:
    def rates() -> Iterator[tuple[str, ...]]:
        yield ("samples a GPU", *(f"{gbits} Gbit/s" for gbits in BERT_GBITS))
        for batch in BERT_BATCHES:
            tables = [bert(batch, gbits) for gbits in BERT_GBITS]
            yield (str(batch), *(f"{batch / step_s(each, 16, compute_s(each)):.1f}" for each in tables))

    return f"""### BERT with DDP on two machines

Source: {BERT_SOURCE}. 110 samples a second of each of 8 GPUs of one machine, and {BERT_MEASURED} of each of 16 of two;
the same rate is 37.5 % off. What of the source could be read here tells neither the samples a GPU nor the network, so
this is no prediction and counts in no summary: what 16 GPUs would do, with BERT base in float32, 8 V100 a machine, and
a network of a machine that carries 96 % of so much.

{markdown.table(rates())}"""
