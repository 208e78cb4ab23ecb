"""Tests of measured tables in the forms that others publish."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import planner
from costmodels.compute import CostTable
from costmodels.errors import InputError
from planner.cli.command import planner_command
from planner.tables.imports import READERS, import_table

NEUSIGHT = """op,batch,m,k_inner,n_out,gpu,precision,fwd_ms,kernel,source
linear,1,256,512,1000,V100 PCIe,fp32,0.5,x,y
bmm,12,64,128,64,V100 PCIe,fp32,0.25,x,y
linear,1,256,512,1000,T4,fp32,2,x,y
"""
CONVOLUTIONS = (
    "n,c,h,w,k,r,s,pad_h,pad_w,stride_h,stride_w,gpu,precision,fwd_ms,bwd_data_ms,bwd_filter_ms\n"
    "32,3,224,224,64,7,7,3,3,2,2,V100,fp32,1.5,,2.5\n"
    "32,3,224,224,64,7,7,3,3,2,2,V100,int8,1.5,,2.5\n"
)
PRODUCTS = """m,n,k,a_trans,b_trans,gpu,precision,time_ms
1000,256,512,N,N,V100,fp32,1
512,256,1000,T,N,V100,fp32,2
1000,512,256,N,T,V100,fp32,3
"""
LOG = """# nThread 1 nGpus 4 minBytes 8 maxBytes 1024
#  Rank  0 Group  0 Pid  1 on   node1 device  0 [0x00] NVIDIA A100
#  Rank  1 Group  0 Pid  1 on   node1 device  1 [0x01] NVIDIA A100
#  Rank  2 Group  0 Pid  1 on   node2 device  0 [0x00] NVIDIA A100
#  Rank  3 Group  0 Pid  1 on   node2 device  1 [0x01] NVIDIA A100
#       size         count      type   redop    root     time   algbw   busbw #wrong
           0             0     float     sum      -1     9.12    0.00    0.00      0
        1024           256     float     sum      -1    34.73    0.03    0.04      0
  1073741824     268435456     float     sum      -1  9000.00  119.30  178.95      0
"""
GEMM = """framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency
VLLM,0.14.0,NVIDIA A100-SXM4-80GB,gemm,default,bfloat16,256,1000,512,0.01
VLLM,0.14.0,NVIDIA A100-SXM4-80GB,gemm,default,fp8,256,1000,512,0.01
"""
ATTENTION = (
    "framework,version,device,op_name,batch_size,isl,num_heads,num_key_value_heads,head_dim,"
    "attn_dtype,kv_cache_dtype,window_size,latency\n"
    "VLLM,0.14.0,NVIDIA A100,context_attention,2,100,8,2,128,bfloat16,bfloat16,0,0.1\n"
    "VLLM,0.14.0,NVIDIA A100,context_attention,2,100,8,2,128,bfloat16,bfloat16,50,0.1\n"
)


def imported(folder: Path, form: str, text: str, name: str = "a.csv", gpu: str = "") -> CostTable:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    out = folder / "table.json"
    out.write_text(import_table(form, path, gpu=gpu).text, encoding="utf-8")
    return CostTable.load(out)


def test_products_and_batches_of_neusight(tmp_path: Path) -> None:
    table = imported(tmp_path, "neusight", NEUSIGHT, gpu="v100")
    linear, batched = (row.work for row in table.rows)
    assert [row.seconds for row in table.rows] == [0.0005, 0.00025]
    assert (linear.operation, linear.flops) == ("linear", 2 * 256 * 512 * 1000)
    assert (batched.operation, batched.flops) == ("matmul", 2 * 12 * 64 * 128 * 64)
    with pytest.raises(InputError, match=r"be one.*but is 2; name one with --gpu: V100 PCIe, T4"):
        imported(tmp_path, "neusight", NEUSIGHT)


def test_convolutions_keep_their_passes_and_leave_out_other_precisions(tmp_path: Path) -> None:
    table = imported(tmp_path, "deepbench", CONVOLUTIONS)
    assert [(r.work.direction, r.seconds) for r in table.rows] == [
        ("forward", 0.0015),
        ("backward_weight", 0.0025),
    ]
    assert [float(x) for x in table.rows[0].work.out_extents] == [112, 112]
    assert import_table("deepbench", tmp_path / "a.csv").left_out == {"the precision int8": 1}


def test_layouts_of_deepbench_are_the_passes_of_one_layer(tmp_path: Path) -> None:
    table = imported(tmp_path, "deepbench", PRODUCTS)
    assert [row.work.direction for row in table.rows] == [
        *("forward", "backward_data", "backward_weight")
    ]
    for row in table.rows:
        work = row.work
        assert (work.samples, work.channels, work.filters) == (256, 512, 1000)


def test_a_log_of_nccl_tests_says_hosts_and_collective(tmp_path: Path) -> None:
    table = imported(tmp_path, "nccl-tests", LOG, "out.log")
    assert [(c.collective, c.num_hosts, c.num_gpus, c.num_bytes) for c in table.collectives] == [
        ("all_reduce", 2, 4, 1024),
        ("all_reduce", 2, 4, 1073741824),
    ]
    assert table.collectives[0].seconds == pytest.approx(34.73e-6)
    with pytest.raises(InputError, match="must tell which collective"):
        imported(tmp_path, "nccl-tests", LOG.replace("sum", "none"), "out.log")
    named = imported(tmp_path, "nccl-tests", LOG.replace("sum", "none"), "all_gather.log")
    assert {row.collective for row in named.collectives} == {"all_gather"}


def test_tables_of_aiconfigurator_are_gathered_from_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a100"
    (folder / "gemm").mkdir(parents=True)
    (folder / "gemm" / "gemm_perf.txt").write_text(GEMM, encoding="utf-8")
    (folder / "other.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    table = import_table("aiconfigurator", folder)
    assert (table.num_times, table.left_out) == (1, {"products in fp8": 1})
    causal, window = imported(tmp_path, "aiconfigurator", ATTENTION).rows
    assert causal.work.visible == pytest.approx(101 / 200)
    assert window.work.visible == pytest.approx((50 * 51 / 2 + 50 * 50) / 100**2)
    assert (causal.work.samples, causal.work.groups) == (16, 4)


def test_parquet_files_are_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "device": ["NVIDIA H100"],
        "op_name": ["all_reduce"],
        "nccl_dtype": ["half"],
        "num_gpus": [8],
        "message_size": [1024],
        "latency": [0.02],
    }
    path = tmp_path / "nccl_perf.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    assert import_table("aiconfigurator", path).num_collectives == 1
    path.write_text("no parquet", encoding="utf-8")
    with pytest.raises(InputError, match="must be a parquet file"):
        import_table("aiconfigurator", path)


@pytest.mark.parametrize("form", READERS)
def test_wrong_files_are_refused_in_one_sentence(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.csv"
    for text in ("", "a,b\n1,2\n", "\x00"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError) as refusal:
            import_table(form, path)
        assert "\n" not in str(refusal.value)
    with pytest.raises(InputError):
        import_table(form, tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("0.5,x", "0,x", "row 2, column fwd_ms"),
        ("0.5,x", "soon,x", "row 2, column fwd_ms"),
        ("256,512", "nan,512", "row 2, column m"),
        ("256,512", "0.5,512", "row 2, column m .*must be a whole number"),
        ("256,512", "1e300,512", "row 2, column m .*at most"),
        ("0.5,x,y", "0.5,x", "row 2 of .*must have a cell for each column but has fewer"),
        ("0.5,x,y", "0.5,x,y,z", "row 2 of .*must have a cell for each column but has more"),
        ("0.5,x", "1e-323,x", "row 1, column seconds"),
    ],
)
def test_wrong_cells_are_refused_with_their_row(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        imported(tmp_path, "neusight", NEUSIGHT.replace(old, new), gpu="V100")


@pytest.mark.parametrize(("old", "new"), [("7,7,3,3,2,2", "7,7,3,3,0.5,2"), ("3,3,2", "inf,3,2")])
def test_wrong_strides_and_paddings_are_refused(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(InputError, match=r"column (stride|pad)_h"):
        imported(tmp_path, "deepbench", CONVOLUTIONS.replace(old, new))


@pytest.mark.parametrize("old", ["34.73", "9000.00", "1024", "1073741824"])
@pytest.mark.parametrize("new", ["9" * 5000, "1.2.3", "٣"])
def test_lines_of_logs_that_are_none_are_no_defect(tmp_path: Path, old: str, new: str) -> None:
    table = imported(tmp_path, "nccl-tests", LOG.replace(f" {old} ", f" {new} "), "all_reduce.log")
    assert len(table.collectives) == 1


@pytest.mark.parametrize("window", ["x", "inf", "1.5"])
def test_windows_that_are_none_are_refused(tmp_path: Path, window: str) -> None:
    with pytest.raises(InputError, match="row 2, column window_size"):
        imported(tmp_path, "aiconfigurator", ATTENTION.replace(",50,", f",{window},"))


def test_a_table_goes_to_standard_output(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(CONVOLUTIONS, encoding="utf-8")
    command = ["tables", "import", "deepbench", str(path), "-o", "-"]
    result = CliRunner().invoke(planner_command, command)
    assert result.exit_code == 0
    assert json.loads(result.output)["format"] == "planner-table"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "other"}, "'format' of table.json must be 'planner-table'"),
        ({"columns": ["operation"]}, "must have the columns"),
        ({"rows": [[1]]}, "must have a cell for each"),
        ({"rows": 3}, "must list its columns and rows"),
        ({"provenance": 3}, "'provenance' of table.json must be an object"),
        (
            {
                "collectives": {
                    "columns": ["collective", "hosts", "gpus", "bytes", "seconds"],
                    "rows": [["gossip", 1, 2, 8, 1e-5]],
                }
            },
            "column collective of table.json must be one of all_reduce",
        ),
    ],
)
def test_wrong_json_tables_are_refused(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    imported(tmp_path, "neusight", NEUSIGHT, gpu="V100")
    path = tmp_path / "table.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=said) as refusal:
        CostTable.load(path)
    assert "\n" not in str(refusal.value)


def test_an_imported_table_changes_plans_and_travels_with_them(tmp_path: Path) -> None:
    runner = CliRunner()
    (tmp_path / "all_reduce.log").write_text(LOG, encoding="utf-8")
    table, plan = str(tmp_path / "table.json"), tmp_path / "plan.json"
    done = runner.invoke(
        planner_command,
        ["tables", "import", "nccl-tests", str(tmp_path / "all_reduce.log"), "-o", table],
    )
    assert done.exit_code == 0, done.output
    question = {"gpus": 16, "cluster": "dgx-a100", "global_batch_size": 64}
    plain = planner.evaluate("alexnet", **question)
    measured = planner.evaluate("alexnet", **question, tables=[table])
    assert measured.step_time_s != plain.step_time_s
    measured.save(plan)
    again = planner.evaluate("alexnet", gpus=16, strategy=str(plan))
    assert again.step_time_s == measured.step_time_s
