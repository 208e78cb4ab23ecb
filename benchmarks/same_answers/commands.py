"""The commands, a line a case; what they mean stands in `cases`."""

from __future__ import annotations

EACH = {
    "network": "alexnet vgg16 vgg19 resnet18 resnet34 resnet50 resnet101 resnet152 googlenet "
    "inception_v3 densenet121 densenet161 mobilenet_v2 efficientnet_b0 unet cosmoflow "
    "cosmoflow-512 cosmoflow-256 cosmoflow-128 mesh-1k mesh-2k gpt2",
    "cluster": "abci abci-paradl aws-p3.2xlarge dgx-a100 dgx-h100 dgx-h200 dgx1-v100 hkbu-100gbe "
    "hkbu-10gbe hkbu-ib juwels-booster lassen proteus-hc1 proteus-hc2 proteus-hc3 titanxp-pcie",
    "command": "optimize evaluate scale simulate report models clusters runtimes loaders solve "
    "throughput",
    "runtime": "ddp horovod zero1 zero2 zero3 fsdp ps-sync ps-async horovod-fused "
    "horovod-partitioned mg-wfbp byteps tf-parameter-server tf-replicated",
    "strategy": "data spatial filter channel data+filter data+spatial",
    "model": "plain flexflow-sim paradl paleo",
    "loader": "synthetic native dali-cpu",
    "solver": "cp-sat exhaustive elimination",
}
SHORT = {
    "<alexnet>": "alexnet --gpus 8 --cluster lassen --global-batch-size 256",
    "<pipeline>": "gpt2 --gpus 8 --cluster lassen --global-batch-size 16 --precision fp16 --tp 2 "
    "--pp 2 --micro-batches 4",
    # small enough for every solver, some of which would else take minutes
    "<tiny>": "small.toml --gpus 4 --cluster lassen",
}

CATALOGUE = """
--version
--help
<command> --help
models
clusters
runtimes
loaders
COLUMNS=140 models
COLUMNS=140 clusters
COLUMNS=140 runtimes
COLUMNS=140 loaders
COLUMNS=60 runtimes
models --export <network> -o <network>.toml
models --export gpt2 --input-size 128
models --export vgg16 --input-size 256 -o net.json
clusters --export <cluster> -o <cluster>.toml
clusters --export dgx-a100
"""

OPTIMIZE = """
optimize <network> --gpus 64 -q -o plan.json
optimize alexnet --gpus 8 --cluster <cluster> -q
optimize resnet50 --gpus 256
optimize mesh-2k --gpus 16 --cluster lassen --global-batch-size 2
optimize vgg16 --gpus 64 --cluster abci --global-batch-size 2048 --precision fp32
optimize unet --gpus 16 --cluster juwels-booster --global-batch-size 16
optimize gpt2 --gpus 16 --cluster dgx-h100
optimize cosmoflow-128 --gpus 32 --cluster abci --global-batch-size 8
optimize googlenet --gpus 32 --cluster hkbu-10gbe
COLUMNS=60 optimize resnet18 --gpus 8
COLUMNS=140 optimize resnet18 --gpus 8 --cluster dgx1-v100
optimize resnet18 --gpus 16 --json
optimize gpt2 --gpus 8 --cluster proteus-hc2 --json
optimize gpt2 --gpus 16 --memory "4.4 GiB"
optimize gpt2 --gpus 16 --memory "4.4 GiB" --dump-problem problem.json.gz -q -o plan.json
optimize <alexnet> --memory "1.7 GiB"
optimize mesh-2k --gpus 1 --cluster lassen --global-batch-size 4
optimize mesh-2k --gpus 1 --cluster lassen --global-batch-size 4 --json -o plan.json
optimize gpt2 --gpus 4 --memory "1.5 GiB" -q
optimize gpt2 --gpus 4 --memory "1 GiB" -q
optimize <alexnet> -o plan.json --report report.html
optimize <alexnet> -o plan.json --report report.md -q
optimize <alexnet> --precision fp16 -q
optimize <alexnet> --precision tf32 -q
optimize alexnet --gpus 8 --precision tf32 --optimizer adam -q
optimize resnet18 --gpus 8 --precision fp32 --input-size 160 -q
optimize <alexnet> --memory-model paradl
optimize <alexnet> --bucket-size "10 MiB" --seed 3 --cap 20 -q -o plan.json
optimize <alexnet> --launch-time "0 s" --num-best 1
optimize resnet18 --gpus 8 --no-winograd --no-gradient-overlap --global-batch-size 8 -q
optimize mesh-1k --gpus 8 --global-batch-size 2 --no-halo-overlap -q
optimize mesh-1k --gpus 8 --global-batch-size 2 --always-cut -q
optimize <alexnet> --all-reduce ring -q
optimize <alexnet> --all-reduce tree -q
optimize <alexnet> --all-reduce hierarchical -q
optimize <alexnet> --all-reduce halving_doubling -q
optimize alexnet --gpus 16 --cluster dgx-h100 --all-reduce in_network -q
optimize <alexnet> --search elimination -q
optimize <alexnet> --search lagrangian -q
optimize <alexnet> --search longest-path -q
optimize <alexnet> --search shortest-path -q
optimize <alexnet> --search cp-sat -q
optimize tiny.toml --gpus 2 --cluster lassen --search exhaustive -o plan.json
optimize <alexnet> --tune-trials 3
optimize resnet18 --gpus 4 --cluster lassen --global-batch-size 128 --table table.csv -o plan.json
optimize small.toml --gpus 8 -o plan.json
models --export resnet18 --input-size 160 -o n.toml && replace n.toml 1000 10 && optimize n.toml \
--gpus 4 -q
models --export alexnet -o net.json && optimize net.json --gpus 4 -q
clusters --export lassen -o c.toml && replace c.toml "size = 4" "size = 2" && optimize alexnet \
--gpus 8 --cluster c.toml
"""

EVALUATE = """
evaluate <alexnet> --strategy <strategy>
evaluate resnet50 --gpus 16 --strategy <strategy> -q
evaluate gpt2 --gpus 8 --strategy <strategy> -q
evaluate resnet50 --gpus 64 --strategy filter -q
evaluate mesh-2k --gpus 8 --cluster lassen --global-batch-size 8 --strategy spatial --json
evaluate cosmoflow-256 --gpus 8 --cluster abci --global-batch-size 2 --strategy spatial
evaluate <alexnet> --strategy data+spatial --degree 2 --always-cut
evaluate <alexnet> --strategy data+filter --degree 8 --no-gradient-overlap -q
evaluate <alexnet> --strategy spatial --no-halo-overlap --bucket-size "1 MiB" -o p.json \
--report r.md
evaluate resnet18 --gpus 4 --cluster lassen --global-batch-size 128 --table table.csv --json
evaluate resnet18 --gpus 4 --cluster lassen --memory-model paradl --optimizer adam --report r.html
optimize <alexnet> -q -o plan.json && evaluate <alexnet> --strategy plan.json --json && report \
plan.json && report plan.json -o report.html && report plan.json -o report.md
optimize vgg16 --gpus 16 --cluster abci --global-batch-size 512 -q -o plan.json && report \
plan.json -o report.html && simulate plan.json && simulate plan.json --runtime horovod -q
"""

SCALE = """
scale resnet18 --gpus 4,16,64 --strong
scale alexnet --gpus 4,8,16 --weak --cluster abci
scale alexnet --gpus 4,16 --cluster lassen --json
scale alexnet --gpus 4,8 --strong --global-batch-size 2048 --cluster lassen --memory "2.2 GiB"
scale gpt2 --gpus 8,16 --cluster proteus-hc2 --global-batch-size 32 --precision fp16
scale mesh-1k --gpus 4,8,16 --strong --global-batch-size 4 --cluster lassen
scale mesh-2k --gpus 1,2 --cluster lassen --global-batch-size 4
"""

SIMULATE = """
simulate <alexnet> --runtime <runtime> --json
simulate resnet50 --gpus 16 --runtime <runtime> -q
simulate <alexnet> --strategy <strategy>
simulate <alexnet> --model <model>
simulate <alexnet> --loader <loader>
simulate <alexnet> --loader dali-gpu --storage memory -o figures.json
simulate <alexnet> --loader staged --cores 12 --storage shared -q
simulate <alexnet> --loader native --loader-rate 1000
simulate gpt2 --gpus 4 --loader native --json
simulate gpt2 --gpus 16 --cluster proteus-hc2 --global-batch-size 64 --tp 2 --pp 2 --micro-batches \
4 --trace step.json --dump-strategy s.toml && simulate s.toml --runtime zero1 && simulate s.toml -q
simulate <pipeline> --trace t.json -o figures.json
simulate <pipeline> --json
simulate <pipeline> --recompute
simulate <pipeline> --schedule gpipe
simulate <pipeline> --schedule interleaved --chunks 2
simulate <pipeline> --schedule zero-bubble --dump-strategy s.toml
simulate <pipeline> --max-in-flight 1 --runtime zero2
simulate <pipeline> --runtime fsdp --overlap-factor 0 --variation 0.05 -q
simulate <pipeline> --memory "1 GiB"
simulate <pipeline> --model plain -q
simulate <pipeline> --congestion 2 --launch-time "0 s" -q
simulate vgg16 --gpus 4 --pp 4 --micro-batches 4 --cluster abci --model paradl --json
simulate resnet152 --gpus 16 --cluster lassen --global-batch-size 16 --pp 16 --micro-batches 4
simulate alexnet --gpus 4 --servers 2
simulate alexnet --gpus 4 --servers 2 --runtime byteps
simulate strategy.toml
simulate strategy.toml --runtime horovod --trace trace.json -q
simulate gpt2 --strategy strategy.toml --gpus 16 --cluster dgx-a100 --json
simulate strategy.toml --dump-strategy again.toml -q
simulate small.toml --gpus 8 --dp 8 --optimizer adam
simulate small.toml --gpus 8 --strategy data+spatial --degree 2 --dump-strategy s.toml -q
simulate resnet18 --gpus 4 --cluster lassen --global-batch-size 128 --table table.csv -q
simulate mesh-1k --gpus 8 --cluster lassen --global-batch-size 4 --strategy data+spatial
evaluate <alexnet> --strategy data+filter -q -o plan.json && simulate plan.json --trace t.json && \
simulate alexnet --strategy plan.json --json && simulate plan.json --launch-time "1 ms"
evaluate resnet18 --gpus 4 --input-size 160 -q -o plan.json && simulate plan.json --variation 0 && \
simulate plan.json --input-size 224
"""

SOLVE = """
solve problem.json -o solution.json
solve unlimited.json
solve hopeless.json -o solution.json
solve problem.json --solver <solver>
solve problem.json --solver lagrangian --seed 4
solve unlimited.json --solver elimination
solve unlimited.json --solver shortest-path
solve unlimited.json --solver longest-path -o solution.json
optimize <alexnet> --dump-problem p.json -q && solve p.json -o s.json && solve p.json --solver \
elimination -o e.json
optimize gpt2 --gpus 16 --memory "4.4 GiB" --dump-problem p.json.gz -q && solve p.json.gz -o s.json
optimize <tiny> --dump-problem p.json -q && solve p.json --solver cp-sat && solve p.json
"""

THROUGHPUT = """
throughput resnet152 --workers 1,2,4,8,16 --architecture ps --mode async
throughput resnet50 --workers 1-8 --mode sync --bandwidth 25Gbps
throughput vgg16 --workers 1,2,4,8 --architecture all-reduce --batch 16
throughput alexnet --workers 2,4 --mode async --rule ps --no-overlap --json
throughput alexnet --workers 2,4 --mode async --rule fcfs --flow-cap 4Gbps
throughput resnet18 --workers 2,4 --device t4 --servers 2 --update-time "2 ms"
throughput resnet18 --workers 5,10 --device v100:4,t4:1 --mode async --model fine --steps 20
throughput resnet18 --workers 1-4 --model coarse --utilisation-threshold 0.9 --precision fp16
throughput resnet18 --workers 2,4 --gpus-per-host 4 --host lassen --optimizer adam
throughput resnet18 --workers 4 --variation 0.1 --seed 7 --launch-time "0 s" --json
throughput small.toml --workers 1,2,4 --device a100-40gb
throughput resnet18 --workers 2 --input-size 160 --table table.csv
"""

REFUSED = """
optimise
frobnicate --help
optimize
optimize alexnet
optimize resnet9999 --gpus 4
optimize nowhere.toml --gpus 4
optimize nowhere.json --gpus 4
optimize empty.toml --gpus 4
optimize broken.toml --gpus 4
optimize broken.json --gpus 4
optimize unknown-kind.toml --gpus 4
optimize unknown-input.toml --gpus 4
optimize unknown-field.toml --gpus 4
optimize alexnet --gpus 0
optimize alexnet --gpus 3
optimize alexnet --gpus many
optimize alexnet --gpus 1000000
optimize <alexnet> --global-batch-size 0
optimize <alexnet> --global-batch-size -4
optimize alexnet --gpus 4 --cluster nowhere
optimize alexnet --gpus 4 --cluster nowhere.toml
optimize alexnet --gpus 4 --cluster bad-cluster.toml
optimize alexnet --gpus 4 --cluster no-levels.toml
optimize alexnet --gpus 4 --cluster broken.toml
optimize <alexnet> --precision fp7
optimize <alexnet> --precision bf16
optimize <alexnet> --optimizer guess
optimize <alexnet> --input-size 1
optimize <alexnet> --memory 16
optimize <alexnet> --memory "a lot"
optimize <alexnet> --all-reduce star
optimize <alexnet> --bucket-size 25
optimize <alexnet> --launch-time fast
optimize <alexnet> --memory-model none
optimize <alexnet> --search luck
optimize <alexnet> --search exhaustive
optimize <alexnet> --cap 0
optimize <alexnet> --seed -1
optimize <alexnet> --num-best 0
optimize <alexnet> --tune-trials -1
optimize <alexnet> --table nowhere.csv
optimize resnet18 --gpus 4 --cluster lassen --table bad-table.csv
optimize resnet18 --gpus 4 --cluster lassen --table short-table.csv
optimize <alexnet> --json -q
optimize <alexnet> --frobnicate
optimize <alexnet> -o no/such/folder/plan.json
optimize <alexnet> -o .
optimize <alexnet> -o ""
optimize <alexnet> --report report.pdf
optimize <alexnet> --report no/such/folder/report.html
optimize <alexnet> --dump-problem no/such/folder/p.json
evaluate <alexnet> --strategy hope
evaluate <alexnet> --strategy nowhere.json
evaluate <alexnet> --strategy broken.json
evaluate <alexnet> --strategy data --degree 2
evaluate <alexnet> --strategy data+filter --degree 3
scale alexnet --gpus 4,x
scale alexnet --gpus 4,7
scale alexnet --gpus 4 --time-limit 0
report nowhere.json -o report.html
report other.json
report broken.json
evaluate <alexnet> -q -o p.json && replace p.json '"version": ' '"version": 9' && report p.json
evaluate <alexnet> -q -o p.json && cut p.json 500 && report p.json -o report.html
evaluate <alexnet> -q -o p.json && simulate p.json --tp 2 && simulate p.json --gpus 4 && report \
p.json -o report.pdf && evaluate vgg16 --gpus 8 --strategy p.json
models --export nothing
models --export alexnet -o net.yaml
models -o net.toml
clusters --export nothing
clusters -o c.toml
runtimes extra
simulate alexnet
simulate nothing --gpus 8
simulate nowhere.toml
simulate bad-strategy.toml
simulate bad-ways.toml
simulate empty.toml
simulate empty.json
simulate <alexnet> --micro-batches 7
simulate <alexnet> --micro-batches 0
simulate <alexnet> --dp 3 --tp 2
simulate <alexnet> --strategy data --dp 8
simulate <alexnet> --schedule fast
simulate <alexnet> --pp 2 --chunks 2
simulate <alexnet> --runtime mpi
simulate <alexnet> --loader fast
simulate <alexnet> --loader native --storage tape
simulate <alexnet> --loader-rate 800
simulate <alexnet> --model oracle
simulate <alexnet> --model paradl --trace t.json
simulate <alexnet> --model paleo --pp 2
simulate <alexnet> --overlap-factor -1
simulate <alexnet> --congestion 0
simulate <alexnet> --trace x.json -o x.json
simulate <alexnet> --dump-strategy s.json
simulate <alexnet> --servers 2 --runtime ddp
solve nowhere.json
solve broken.json
solve uneven.json
solve other.json -o solution.json
solve problem.json --solver luck
solve problem.json --solver shortest-path
solve problem.json --seed -1
solve problem.json -o no/such/folder/s.json
throughput resnet18 --workers 5-2
throughput resnet18 --device abacus
throughput resnet18 --bandwidth 10
throughput resnet18 --architecture all-reduce --mode async
throughput resnet18 --rule lifo
throughput resnet18 --batch 0
"""

_API = "import planner; "
_TRY = _API + "\ntry:\n    {}\nexcept {} as error:\n    print(type(error).__name__, error)"
SNIPPETS = (
    _API + "print(planner.__version__, planner.__all__)",
    _API + "p = planner.optimize('resnet18', gpus=16); print(repr(p.step_time), p);"
    " p.save('p.json'); assert planner.Plan.load('p.json') == p;"
    " print(p.layers['conv1'].distribution)",
    _API + "p = planner.optimize('gpt2', gpus=8, cluster='proteus-hc2', memory=8.0 * 2**30);"
    " print(repr(p.step_time), p.search, p.fallbacks); p.save('p.json')",
    _API + "p = planner.evaluate('vgg16', gpus=16, strategy='data+filter', degree=4);"
    " print(repr(p.step_time), p.memory_bytes); s = planner.simulate(p, runtime='fsdp');"
    " print(repr(s.step_time), repr(s.peak_memory), s.fits, s.summary())",
    _API + "print([(type(p).__name__, repr(p.step_time)) for p in planner.scale('alexnet',"
    " gpus=[4, 8, 16], strong=True, cluster='lassen')])",
    _API + "s = planner.simulate('gpt2', gpus=8, runtime='zero2', global_batch_size=16);"
    " print(repr(s.step_time), s.summary())",
    _API + "print(planner.throughput('resnet50', workers=[1, 2, 4], mode='async').as_dict())",
    _TRY.format("planner.optimize('nothing', gpus=4)", "Exception"),
    _TRY.format("planner.optimize('gpt2', gpus=4, memory=1.5 * 2**30)", "Exception"),
    _TRY.format("planner.evaluate('alexnet', gpus=8, strategy='hope')", "ValueError"),
    _TRY.format("planner.nothing", "AttributeError"),
)
