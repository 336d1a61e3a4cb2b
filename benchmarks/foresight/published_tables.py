"""The published tables that predictions are held against: all of a source that have the same microbatch at several
numbers of GPUs without accumulation of gradients. What is left out is in LEFT_OUT.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.foresight.published_facts import (
    A100,
    BERT,
    BERT_PRETRAINING,
    GB,
    H100,
    LLAMA_8B,
    RESNET_50,
    V100,
    V100_ONE_CARD,
    Row,
    Strategy,
    Table,
    mpt,
    rows,
)  # fmt: skip
from parabench.analysis.prediction.program import DEFAULT_CAPS

LEFT_OUT = (
    "DLPerf's ResNet-50 with 8 loader workers, whose input limits it (280 samples a second of each of 8 GPUs, where 48 "
    "workers give 338); and the row of MPT-1b on 32 A100, 18 % below those of 16 and of 64"
)

TITAN = "https://github.com/pytorch/torchtitan/blob/main/benchmarks"
FOUNDRY = "https://github.com/mosaicml/llm-foundry/blob/main/scripts/train/benchmarking/README.md"
DLPERF = "https://github.com/Oneflow-Inc/DLPerf/blob/master"
NGC = "NVIDIADeepLearningExamples/PyTorch"
SEQUENCE = 2048

FULL, KEPT = Strategy.FULL_SHARD, Strategy.SHARD_GRAD_OP
LARGE, SMALL, A100_40 = "H100 80GB BF16 (Large Scale, >= 128 GPUs)", "H100 80GB BF16", "A100 40GB"

REDUCED_IN_FP32 = "gradients are reduced in float32, torchtitan's default (mixed_precision_reduce)"
DEFAULT_MODE = "MP Mode DEFAULT gathers and reduces in bfloat16 (Composer of late 2023; before, it gathered in float32)"
APEX_BUCKETS = "buckets of 10 million gradients, apex's default (message_size)"
O1 = "gradients are float32, as of amp's O1"
H100_NETWORK = "8 x 400 Gbit/s of each node; the README does not say"


def _titan(what: str, rates: tuple[Row, ...], gathered: float = 2) -> Table:
    return Table(
        f"torchtitan, Llama 3.1 8B, {what}", f"{TITAN}/llama3_h100_202412_torchtitan.md, tables 1 and 3", H100,
        LLAMA_8B, FULL, 2 * 8192, rates, gathered, 4,
        assumed=(REDUCED_IN_FP32, "sequences of 8192, as in the configuration of the 8B model"),
    )  # fmt: skip


def _mpt(size: str, shape: tuple[int, int, int], samples: int, rates: tuple[Row, ...], *, of: str,
         strategy: Strategy = FULL, recomputed: bool = False) -> Table:  # fmt: skip
    """A table of llm-foundry's: `shape` is parameters, layers and width, `samples` the microbatch."""
    on_a100 = of == A100_40
    kept = "" if strategy is FULL else ", kept after forward"
    return Table(
        f"llm-foundry, MPT-{size}, {samples} samples, {'A100' if on_a100 else 'H100'}{kept}", f"{FOUNDRY}, {of}",
        A100 if on_a100 else H100, mpt(size, *shape), strategy, samples * SEQUENCE, rates, recomputed=recomputed,
        assumed=() if on_a100 else (DEFAULT_MODE, H100_NETWORK),
    )  # fmt: skip


def _dlperf_bert(precision: str, batch: int, gradient: int, *totals: float) -> Table:
    """DLPerf's BERT: samples/s in all of 4, 8, 16 and 32 GPUs."""
    found = tuple(Row(gpus, total / gpus) for gpus, total in zip((4, 8, 16, 32), totals, strict=True))
    assumed = "apex reduces 250 million gradients at once (message_size), so all of them after backward"
    in_half = ("gradients are half floats (opt_level O2, the default of NVIDIA's script)",) if gradient == 2 else ()
    return Table(
        f"DLPerf, BERT base with apex's DDP, {precision}, {batch} samples",
        f"{DLPERF}/{NGC}/BERT/README.md; network: {DLPERF}/reports/"
        "dlperf_benchmark_test_report_v1.md (InfiniBand 100 Gb/sec)",
        V100_ONE_CARD, BERT_PRETRAINING, Strategy.DDP, batch, found, reduced=gradient, caps=(250_000_000 * gradient,),
        base=1, assumed=(assumed, *in_half),
    )  # fmt: skip


def _dlperf_resnet(what: str, where: str, batch: int, caps: tuple[int, ...], *totals: float,
                   assumed: tuple[str, ...] = ()) -> Table:  # fmt: skip
    found = tuple(Row(gpus, total / gpus) for gpus, total in zip((4, 8, 16, 32), totals, strict=True))
    return Table(
        f"DLPerf, ResNet-50 with {what}, {batch} samples", f"{DLPERF}/{where}/README.md; network as for BERT",
        V100_ONE_CARD, RESNET_50, Strategy.DDP, batch, found, reduced=4, caps=caps, base=1, assumed=assumed,
    )  # fmt: skip


M125, M350, M760 = (125_311_488, 12, 768), (355_985_408, 24, 1024), (760_470_528, 24, 1536)
M1B, M3B, M7B = (1_315_950_592, 24, 2048), (2_651_837_440, 32, 2560), (6_658_859_008, 32, 4096)
M13B, M30B, M70B = (12_853_954_560, 40, 5120), (29_975_214_080, 48, 7168), (64_862_437_376, 80, 8192)

TABLES = (
    _titan("FSDP", rows(gpus8=5762, gpus128=5605)),
    _titan("FSDP and torch.compile", rows(gpus8=6667, gpus128=6514)),
    _titan("FSDP, torch.compile and Float8", rows(gpus8=8532, gpus128=8380)),
    replace(
        _titan("FSDP, torch.compile and Float8 all-gather, H200", rows(gpus32=10938, gpus64=10753), 1),
        source=f"{TITAN}/llama3-8b_h200_202506_trainy-whitefiber.md",
        assumed=(REDUCED_IN_FP32, "every parameter is gathered in 1 byte, of the embedding too",
                 "NVLink and NCCL as of H100"),
    ),
    _mpt("1b", M1B, 20, rows(gpus16=46037, gpus32=45130, gpus64=44402), of=SMALL),
    _mpt("1b", M1B, 12, rows(gpus128=44123, gpus256=42555, gpus512=39837), of=LARGE, strategy=KEPT),
    _mpt("760m", M760, 24, rows(gpus16=68551, gpus32=67971), of=SMALL),
    _mpt("3b", M3B, 8, rows(gpus128=23422, gpus256=22772, gpus512=21664), of=LARGE, strategy=KEPT),
    _mpt("7b", M7B, 6, rows(gpus8=10643, gpus128=10475, gpus256=10119, gpus512=9670),
         of=f"{SMALL}, and from 128 GPUs {LARGE}, a table that was added later"),
    _mpt("13b", M13B, 2, rows(gpus8=4792, gpus16=4767, gpus32=4811, gpus64=4800), of=SMALL),
    _mpt("13b", M13B, 16, rows(gpus128=5080, gpus256=4989, gpus512=4952), of=LARGE, recomputed=True),
    _mpt("30b", M30B, 8, rows(gpus128=2199, gpus256=2148, gpus512=2115), of=LARGE, recomputed=True),
    _mpt("70b", M70B, 8, rows(gpus128=1058, gpus256=1035, gpus512=1007), of=LARGE, recomputed=True),
    _mpt("125m", M125, 26, rows(gpus16=130535, gpus32=127122, gpus64=125234, gpus128=123936), of=A100_40),
    _mpt("350m", M350, 18, rows(gpus16=55413, gpus32=53811, gpus64=52689, gpus128=51934), of=A100_40),
    _mpt("760m", M760, 12, rows(gpus16=29607, gpus32=29648, gpus64=29344, gpus128=28940), of=A100_40),
    _mpt("1b", M1B, 10, rows(gpus64=19001, gpus128=18647), of=A100_40),
    _mpt("3b", M3B, 6, rows(gpus32=9914, gpus64=9736, gpus128=9538), of=A100_40),
    _mpt("7b", M7B, 18, rows(gpus32=3725, gpus64=3665, gpus128=3623), of=A100_40, recomputed=True),
    _mpt("13b", M13B, 16, rows(gpus64=1976, gpus128=1972), of=A100_40, recomputed=True),
    Table(
        "PyTorch's own DDP benchmark, ResNet-50", "https://github.com/pytorch/pytorch/tree/main/benchmarks/distributed/"
        "ddp: README, example output, p50; 4x 100Gb InfiniBand per machine", V100, RESNET_50, Strategy.DDP, 32,
        rows(gpus4=305, gpus8=296, gpus16=294, gpus24=289, gpus32=289, gpus40=282, gpus48=285, gpus56=279, gpus64=284),
        reduced=4, base=1, assumed=("float32, the benchmark's default",),
    ),
    _dlperf_resnet("torch's DDP, DALI of 48 workers, FP32", "PyTorch/resnet50v1.5", 128, DEFAULT_CAPS,
                   1306.49, 2707.42, 5193.09, 10032.72),
    _dlperf_resnet("torch's DDP, loader of 48 workers, FP32", "PyTorch/resnet50v1.5", 128, DEFAULT_CAPS,
                   1226.38, 2632.93, 5115.4, 10021.29),
    _dlperf_resnet("apex's DDP, FP32", f"{NGC}/resnet50v1.5", 128, (40_000_000,),
                   1449.48, 2887.65, 5716.79, 10917.09, assumed=(APEX_BUCKETS,)),
    _dlperf_resnet("apex's DDP, AMP", f"{NGC}/resnet50v1.5", 256, (40_000_000,),
                   3137.44, 6154.66, 11991.94, 22551.16, assumed=(APEX_BUCKETS, O1)),
    _dlperf_bert("FP32", 32, 4, 457.72, 921.32, 1499.4, 2885.81),
    _dlperf_bert("FP32", 48, 4, 464.66, 928.01, 1584.32, 3039.3),
    _dlperf_bert("FP16", 64, 2, 1671.66, 3251.7, 4936.92, 9331.72),
    _dlperf_bert("FP16", 96, 2, 1727.93, 3287.12, 5426.07, 10349.12),
)  # fmt: skip

BERT_SOURCE = "https://github.com/pytorch/pytorch/issues/17159, comment of 2019-09-01: p50 of 1M/8G and 2M/8G"
BERT_BATCHES, BERT_GBITS = (16, 32, 64), (10, 25, 50, 100)
BERT_MEASURED = 80


def bert(batch: int, gbits: float) -> Table:
    """BERT with DDP, of which neither the batch of a GPU nor the network is known here."""
    machine = replace(V100, between=gbits / 8 * 0.96 * GB)
    found = rows(gpus4=111, gpus8=110, gpus16=BERT_MEASURED)
    return Table("BERT with DDP", BERT_SOURCE, machine, BERT, Strategy.DDP, batch, found, reduced=4, base=1)
