"""Options of every subcommand, with values that are good, that are odd and that must be refused."""

from __future__ import annotations

from dataclasses import dataclass

_DIGITS = "9" * 5000
_WORDS = ("", "telepathy", "\x1b]0;x\x07", "a\nb", "<script>", "\u202e", "x" * 5000, "AUTO ")
_NO_COUNT = ("0", "-1", "1.5", "nan", "x", "", "1e3", "--", "0x10")
_ODD_COUNT = ("+4", " 4", "٤", "1_0", "0004")


@dataclass(frozen=True)
class Values:
    """What an option may be given.

    Parameters
    ----------
    good
        Fine where the rest is; empty for a flag.
    refused
        Must be refused wherever it stands.
    odd
        May be refused or not.
    """

    good: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()


FLAG = Values()
_GPUS = Values(
    ("1", "2", "4", "8", "16"),
    (*_NO_COUNT, "99999999", _DIGITS, "2-4", "2,4"),
    ("3", *_ODD_COUNT),
)
_COUNT = Values(("1", "2", "4"), (*_NO_COUNT, _DIGITS), ("3", "1000000", str(2**63), *_ODD_COUNT))
_SEED = Values(
    ("0", "7", str(2**31), str(2**32 + 1)), ("-1", "1.5", "x", ""), (str(2**64), _DIGITS)
)
_TIME = Values(
    ("25 us", "0 s", "1 ms"),
    ("-1 us", "nan us", "inf s", "5", "5 GB", "us", *_WORDS),
    ("5 s", "1e308 s", "1e-320 s", "5us", "5 µs", "٣ us"),
)
_SIZE = Values(
    ("4 GiB", "512 MiB", "25 MiB"),
    ("0 GiB", "-1 GiB", "nan GiB", "inf B", "5", "5 s", "1e400 B", *_WORDS),
    ("1 B", "1e300 TiB", "1e-300 B", "5GiB"),
)
_RATE = Values(
    ("10 Gbps", "100 Gbps", "1 GB/s"),
    ("0 Gbps", "-1 Gbps", "nan Gbps", "inf GB/s", "5", "5 s", *_WORDS),
    ("1e-30 GB/s", "1e30 GB/s", "10Gbps", "1 bps"),
)
_SHARE = Values(("0", "0.1", "0.5"), ("-1", "nan", "inf", "-inf", "x", ""), ("1e308", "1e-320"))
_FACTOR = Values(("1", "2", "4"), ("0", "-1", "nan", "inf", "x", ""), ("1e308", "1000"))
_NAMES = _WORDS

QUESTION: dict[str, Values] = {
    "--cluster": Values(
        ("lassen", "abci", "dgx-a100", "titanxp-pcie"), (*_WORDS, "nowhere.toml", "/", ".")
    ),
    "--global-batch-size": Values(
        ("16", "32", "64"), (*_NO_COUNT,), ("1", "7", str(2**31), str(2**63), _DIGITS, *_ODD_COUNT)
    ),
    "--precision": Values(("fp32", "fp16"), (*_NAMES, "fp99"), ("FP32", "tf32", "bf16", "fp8")),
    "--optimizer": Values(("sgd", "adam"), _NAMES),
    "--input-size": Values(("16", "32"), (*_NO_COUNT, _DIGITS), ("1", "7", str(2**31), str(2**63))),
    "--seq-len": Values(("16", "32"), (*_NO_COUNT, _DIGITS), ("1", "7", str(2**31), str(2**63))),
    "--execution": Values(("eager", "compiled", "captured"), _NAMES),
    "--vocab-padding": Values((), _NO_COUNT, ("128", str(2**31), str(2**63), *_ODD_COUNT)),
    "--expert-capacity": Values((), ("-1", "nan", "inf", "x", "", "1.5"), ("1e308", "1e-320")),
    "--memory": Values(("600 MiB", "3 GiB", *_SIZE.good), _SIZE.refused, ("513 MiB", *_SIZE.odd)),
    "--all-reduce": Values(("auto", "ring", "tree", "hierarchical"), _NAMES, ("in_network",)),
    "--bucket-size": _SIZE,
    "--launch-time": _TIME,
    "--memory-model": Values(("liveness", "paradl"), _NAMES),
    "--no-halo-overlap": FLAG,
    "--always-cut": FLAG,
    "--no-gradient-overlap": FLAG,
    "--no-winograd": FLAG,
    "--table": Values((), ("nowhere.csv", "", "/", ".")),
}
_SEARCH = {
    "--search": Values(("auto", "elimination", "lagrangian", "cp-sat"), _NAMES, ("shortest-path",)),
    "--seed": _SEED,
    "--time-limit": Values(
        ("5", "2.5"), ("0", "-1", "nan", "inf", "x", ""), ("1e-9", "0.02", "0.1", "1e308")
    ),
    "--cap": Values(("8", "64"), _NO_COUNT, ("1", str(2**63), _DIGITS)),
    "--num-best": Values(("1", "3"), _NO_COUNT, (str(2**63),)),
    "--tune-trials": Values(("0", "2"), ("-1", "1.5", "x", "")),
}
_FOR = Values(
    ("torchtitan", "megatron", "deepspeed", "accelerate", "fsdp2", "jax"),
    (*_NAMES, "Megatron", "torchtitan,jax", "megatron,"),
)
# no network at hand takes shapes but those of ONNX
_INPUT = Values((), ("", "x", "8,,3", "-1,3", "8,3,16,16", "ids=8,16:int64", "9" * 5000))
_WISHES = {
    "--keep": Values(
        ("tp=1", "pp=1", "zero=0,micro_batches=1"),
        ("tp", "hats=1", "tp=1,tp=2", "tp=", "=1", "tp=1=2"),
        (
            *("tp=2", "pp=2,zero=1", "recompute=full", "tp=-1", "dp=x", f"tp={_DIGITS}", ","),
            *("pp=2,micro_batches=2,chunks=2", "cp=2", "ep=2", "fsdp=true", "zero=3", "pp=3"),
            *("shard_size=2", "shard_size=0", "shard_size=3,zero=1"),
        ),
    ),
    "--forbid": Values(
        ("context", "recompute,sharding"),
        ("hats", "context;tensor", "Context"),
        ("pipeline,accumulation,sharding,recompute", "data,tensor,pipeline", "hybrid", ",,"),
    ),
}
_BRIEF = {"--quiet": FLAG, "--json": FLAG}
_SHOWN = {**_BRIEF, "--verbose": FLAG}
_STRATEGY = Values(
    ("data", "filter", "data+filter", "data+spatial"),
    (*_NAMES, "data+data", "+", "nowhere.toml", "/"),
    ("spatial", "channel"),
)
_SIMULATE = {
    "--strategy": _STRATEGY,
    "--degree": _COUNT,
    "--dp": _COUNT,
    "--tp": _COUNT,
    "--pp": _COUNT,
    "--micro-batches": Values(("1", "2", "4"), (*_NO_COUNT, _DIGITS), ("3", "64")),
    "--schedule": Values(("gpipe", "1f1b", "zero-bubble"), _NAMES, ("interleaved",)),
    "--chunks": _COUNT,
    "--max-in-flight": _COUNT,
    "--recompute": Values(
        ("none", "full", "2"), ("-1", "some", "1.5"), ("selective", "0", _DIGITS)
    ),
    "--cp": _COUNT,
    "--ep": _COUNT,
    "--etp": _COUNT,
    "--sequence-parallel": FLAG,
    "--uneven-heads": FLAG,
    "--micro-batch-size": _COUNT,
    "--stage-blocks": Values(("equal", "balanced"), _NAMES, ("1,2", "0,0", "12", _DIGITS)),
    "--zero": Values(("0", "1"), ("-1", "4", "x", "1.5"), ("2", "3")),
    "--fsdp": FLAG,
    "--shard-size": _COUNT,
    "--cp-kind": Values(("ring", "all-to-all"), _NAMES),
    "--axes": Values(
        ("tp,cp,ep,dp,pp",), ("tp", "tp,tp", "x"), ("dp,tp,cp,ep,pp", "pp,dp,ep,cp,tp")
    ),
    "--offload": Values((), ("hats",), ("activations", "weights,optimizer")),
    "--runtime": Values(("ddp", "horovod", "zero1", "zero3", "ps-async", "byteps"), _NAMES),
    "--servers": _COUNT,
    "--model": Values(("simulate", "plain", "flexflow-sim", "paradl", "paleo"), _NAMES),
    "--overlap-factor": _SHARE,
    "--variation": _SHARE,
    "--congestion": _FACTOR,
    "--loader": Values(("synthetic", "native", "dali-cpu", "dali-gpu", "staged"), _NAMES),
    "--loader-rate": Values(("100", "2.5"), ("0", "-1", "nan", "inf", "x"), ("1e308", "1e-320")),
    "--cores": _COUNT,
    "--storage": Values(("shared", "memory"), _NAMES),
}
_KINDS = ("v100:4,t4:2", "v100:1,v100:1")
_THROUGHPUT = {
    "--workers": Values(
        ("1,2", "1-4", "2"),
        ("0", "-1", "1-", "-", "4-1", "1,,2", "x", "", "0-4", "1.5", "nan"),
        ("1,1", "2,1", "1 - 3", "1-100000000", _DIGITS, "٣"),
    ),
    "--device": Values(
        ("v100", "t4", *_KINDS), (*_WORDS, "v100:0", "v100:-1", "v100:x", "v100:", ",", ":1")
    ),
    "--bandwidth": _RATE,
    "--architecture": Values(("ps", "all-reduce"), _NAMES),
    "--mode": Values(("sync", "async"), _NAMES),
    "--model": Values(("coarse", "fine", "both"), _NAMES),
    "--batch": _COUNT,
    "--precision": QUESTION["--precision"],
    "--optimizer": QUESTION["--optimizer"],
    "--input-size": QUESTION["--input-size"],
    "--no-overlap": FLAG,
    "--flow-cap": _RATE,
    "--gpus-per-host": _COUNT,
    "--host": Values(("lassen", "abci"), (*_WORDS, "nowhere.toml")),
    "--servers": _COUNT,
    "--update-time": _TIME,
    "--execution": QUESTION["--execution"],
    "--rule": Values(("auto", "ps", "fcfs"), _NAMES),
    "--utilisation-threshold": Values(("0.6", "0.2"), ("-1", "nan", "inf", "x"), ("0", "1", "2")),
    "--steps": Values(("20", "50"), (*_NO_COUNT,), ("1", "1000000000", _DIGITS)),
    "--variation": _SHARE,
    "--seed": _SEED,
    "--launch-time": _TIME,
    "--table": QUESTION["--table"],
    **_BRIEF,
}

OPTIONS: dict[str, dict[str, Values]] = {
    "optimize": {
        **QUESTION,
        **_SEARCH,
        **_WISHES,
        "--least-memory": FLAG,
        **_SHOWN,
        "--for": _FOR,
        "--input": _INPUT,
    },
    "pareto": {
        **QUESTION,
        "--against": Values(("memory", "gpus"), _NAMES),
        "--time-limit": _SEARCH["--time-limit"],
        **_WISHES,
        **_BRIEF,
    },
    "evaluate": {"--strategy": _STRATEGY, "--degree": _COUNT, **QUESTION, **_SHOWN},
    "simulate": {**_SIMULATE, **QUESTION, **_SHOWN},
    "scale": {**QUESTION, **_SEARCH, "--strong": FLAG, "--weak": FLAG, **_SHOWN},
    "throughput": _THROUGHPUT,
    "solve": {
        "--time-limit": _SEARCH["--time-limit"],
        "--seed": _SEED,
        **_BRIEF,
        "--search": Values(("auto", "elimination", "lagrangian", "cp-sat", "exhaustive"), _NAMES),
    },
    "report": _SHOWN,
    "tables": {"--gpu": Values(("A100",), (), _WORDS)},
    "export": {"--to": _FOR},
    "verify": {
        "--ranks": Values((), (*_NO_COUNT, "3", "16", _DIGITS)),
        "--module": Values((), (*_WORDS[1:], "os", "os:nothing", ":", "a.b:", "nowhere.here:it")),
        "--seed": Values((), ("-1", "1.5", "x", "", str(2**64), _DIGITS)),
    },
    "run": {
        "--nproc-per-node": Values((), (*_NO_COUNT, "3", "1000000", _DIGITS)),
    },
    "study": {
        "--jobs": Values(("1", "2"), (*_NO_COUNT, _DIGITS)),
        "--storage": Values(
            (), ("", "/", ".", "nowhere/x.db", "sqlite://", "telepathy://x", "sqlite:///nowhere/x")
        ),
        **_BRIEF,
    },
    "profile": {
        **QUESTION,
        "--device": Values(("cpu",), (*_NAMES, "cuda")),
        "--budget": Values(("0.2 s",), _TIME.refused),
        "--threads": Values(("1",), (*_NO_COUNT, _DIGITS), ("1000000",)),
        "--ranks": Values((), (*_NO_COUNT, _DIGITS, "1")),
        "--quiet": FLAG,
    },
    "models": {"--export": Values(("resnet18", "gpt2"), _NAMES), "--input-size": _COUNT},
    "clusters": {"--export": Values(("lassen", "dgx-a100"), _NAMES)},
    "devices": {},
    "links": {},
    "runtimes": {},
    "loaders": {},
}
GPUS = {
    "optimize": _GPUS,
    "pareto": _GPUS,
    "evaluate": _GPUS,
    "simulate": _GPUS,
    "scale": Values(
        ("1,2", "4", "2,8", "1-4", "2,4-8"),
        ("0", "-1", "", ",", "x", "1.5", "4,,8", "8-2", "1-2-4", "4-", "99999999", _DIGITS),
        ("4,4", "8,2", "1-99999999", "2 - 4", "٤-8", "3", f"1-{_DIGITS}"),
    ),
}
