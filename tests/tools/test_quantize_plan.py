from __future__ import annotations

from pathlib import Path

import pytest

from minka.errors import MinkaError, NativeError, UsageError
from minka.ggufs.layout import TENSOR_TYPES
from minka.native.library import library
from minka.tools.quantize_options import parse_override, parse_tensor_type, read_tensor_types
from minka.tools.quantize_plan import Limits, PlannedTensor, PlanReader, StepReader, check, moved_layers, source_name
from minka.tools.quantize_types import FILE_TYPES, file_type, tensor_type

BY_NAME = {row.name: row for row in TENSOR_TYPES.values()}


def test_types_by_name_and_number() -> None:
    assert [file_type(words).name for words in ("q4_k_m", "15", "0", "copy", "Q3_k")] == [
        "Q4_K_M", "Q4_K", "F32", "COPY", "Q3_K"
    ]  # fmt: skip
    assert tensor_type("iq4_NL").id == 20
    with pytest.raises(UsageError, match="did you mean Q4_K_M"):
        file_type("q4km")
    for words in ("39", "99", "", "x"):
        with pytest.raises(UsageError, match="no type"):
            file_type(words)


def test_every_number_is_libllamas() -> None:
    aliases = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
    for row in FILE_TYPES:
        name = "ALL_F32" if row.number == 0 else f"MOSTLY_{aliases.get(row.name, row.name)}"
        assert getattr(library().slow, f"LLAMA_FTYPE_{name}") == row.number


def test_reading_options(tmp_path: Path) -> None:
    assert parse_tensor_type("Attn_V=Q8_0") == ("attn_v", "Q8_0")
    listed = tmp_path / "types.txt"
    listed.write_text("attn_v=q6_k\nFFN_DOWN=f16   ffn_up=iq4_xs\n")
    assert read_tensor_types(listed) == (("attn_v", "Q6_K"), ("ffn_down", "F16"), ("ffn_up", "IQ4_XS"))
    for words in ("attn_v", "=q8_0", "attn_v=", "attn_v=q99"):
        with pytest.raises(UsageError):
            parse_tensor_type(words)
    with pytest.raises(UsageError, match="cannot read"):
        read_tensor_types(tmp_path / "none.txt")
    assert parse_override("a.b=int:-3") == ("a.b", "int", -3)
    assert parse_override("a=float:1e3") == ("a", "float", 1000.0)
    assert parse_override("a=bool:true") == ("a", "bool", True)
    assert parse_override("a=str:b=c:d") == ("a", "str", "b=c:d")
    for words in ("a", "=int:1", "a=int:x", "a=int:9223372036854775808", "a=bool:yes", "a=float:", "a=u8:1"):
        with pytest.raises(UsageError):
            parse_override(words)


DRY_RUN = """\
llama_model_loader: - type  f32:   21 tensors
warning: blk.0.attn_k.weight  - ncols     64 not divisible by 256 (required for type    q4_K) -> falling back to    q5_0
warning: blk.0.attn_v.weight  - ncols     63 not divisible by 256 (required for type    q4_K) \
(WARNING: must use F16 due to unusual shape) -> falling back to    f16
[   1/ 210] output.weight                        - [    64,    512,      1,      1], type =    f32, \
size =     0.12 MiB ->     0.03 MiB (q8_0)
[ 210/ 210] blk.0.ffn_up_exps.weight             - [  4096,   1024,    128,      1], type =   bf16, \
size = 1024.000 MiB
"""


def test_the_plan_is_read_from_libllamas_lines() -> None:
    reader = PlanReader()
    for line in DRY_RUN.splitlines():
        reader(line)
    first, second = reader.tensors
    assert first == PlannedTensor("output.weight", (64, 512, 1, 1), BY_NAME["F32"], BY_NAME["Q8_0"])
    assert (first.before, first.after, first.changes) == (64 * 512 * 4, 512 * 2 * 34, True)
    assert (second.dims, second.changes) == ((4096, 1024, 128, 1), False)
    assert [(one.columns, one.wanted, one.target) for one in reader.fallbacks] == [
        (64, "q4_K", "q5_0"),
        (63, "q4_K", "f16"),
    ]
    with pytest.raises(NativeError, match="q9_9, which Minka does not know"):
        reader("[   1/   1] a.weight - [ 1, 1, 1, 1], type =   q9_9, size =    0.125 MiB")


def test_steps_are_counted_across_remarks() -> None:
    steps = StepReader()
    head = "[   {}/   3] a.weight - [    64,    512,      1,      1], type =    f32, "
    assert steps(head.format(1) + "size =    0.125 MiB")
    assert not steps("====== llama_model_quantize_impl: did not find weights for x")
    assert not steps(head.format(2))  # the line ends before the tensor is done, because of a remark
    assert steps("converting to q4_0 .. size =     0.12 MiB ->     0.02 MiB")
    assert steps(head.format(3) + "converting to q4_0 .. size =     0.12 MiB ->     0.02 MiB")
    assert not steps("llama_model_quantize_impl: model size  =     0.53 MiB (32.00 BPW)")
    assert steps.done == 3


def test_hazards_are_found_in_the_plan() -> None:
    def refuse(name: str, target: str, *, importance: dict[str, int], dims: tuple[int, ...] = (256, 8, 1, 1)) -> str:
        limits = Limits(allow_requantize=False, importance=importance, layers={0: 3}, strict_q2_k=True)
        with pytest.raises(MinkaError) as caught:
            check([PlannedTensor(name, dims, BY_NAME["F16"], BY_NAME[target])], limits)
        return str(caught.value)

    assert "four dimensions" in refuse("v.weight", "F32", importance={}, dims=(256, 8, 1, 2))
    assert "nothing for it" in refuse("blk.0.a.weight", "Q2_K", importance={"blk.0.a.weight": 256})
    assert "needs 512" in refuse("blk.0.a.weight", "Q4_0", importance={"blk.3.a.weight": 256}, dims=(256, 8, 2, 1))
    fine = [
        PlannedTensor("blk.0.a.weight", (256, 8, 1, 1), BY_NAME["F16"], BY_NAME["IQ1_S"]),
        PlannedTensor("token_embd.weight", (256, 8, 1, 1), BY_NAME["F16"], BY_NAME["IQ2_S"]),
        PlannedTensor("blk.1.a.weight", (100, 8, 1, 2), BY_NAME["Q4_0"], BY_NAME["Q4_0"]),
    ]
    check(
        fine,
        Limits(
            allow_requantize=False,
            importance={"blk.3.a.weight": 256, "token_embd.weight": 1},
            layers={0: 3},
            strict_q2_k=False,
        ),
    )


def test_layers_move_up() -> None:
    moved = moved_layers(5, {0, 3})
    assert moved == {0: 1, 1: 2, 2: 4}
    assert source_name("blk.2.attn_k.weight", moved) == "blk.4.attn_k.weight"
    assert source_name("blk.7.attn_k.weight", moved) == "blk.7.attn_k.weight"
    assert source_name("output.weight", moved) == "output.weight"
