"""The arguments of ``amp.init`` and what they resolve to."""

from __future__ import annotations

from typing import Any

import amp_runtime as amp
import pytest
import torch
from amp_runtime._core.context import Context, context

DEFAULTS = {
    "O0": (None, None),
    "O1": (None, None),
    "O2": (True, True),
    "O3": (False, False),
}


@pytest.mark.parametrize("level", DEFAULTS)
def test_each_level_has_its_own_properties(level: Any) -> None:
    amp.init(level)
    assert (context.keep_batchnorm_fp32, context.master_weights) == DEFAULTS[level]
    assert (context.loss_scale, context.num_losses, context.cast_model_outputs) == ("dynamic", 1, None)
    amp.shutdown()
    assert vars(context) == vars(Context())


def test_strings_that_argparse_passes_on_are_taken() -> None:
    amp.init(
        "O2",
        enabled="True",  # type: ignore[arg-type]
        loss_scale="128.0",
        keep_batchnorm_fp32="False",
        master_weights="True",
        num_losses="2",  # type: ignore[arg-type]
        growth_interval="100",  # type: ignore[arg-type]
        cast_model_outputs="bf16",
        dtype=torch.float16,
    )
    assert (context.loss_scale, context.keep_batchnorm_fp32, context.master_weights) == (128.0, False, True)
    assert (context.num_losses, context.growth_interval) == (2, 100)
    assert (context.cast_model_outputs, context.dtype_name) == (torch.bfloat16, "fp16")
    amp.init("O3", loss_scale=None, keep_batchnorm_fp32="None", min_scale="0.5")  # type: ignore[arg-type]
    assert (context.loss_scale, context.keep_batchnorm_fp32, context.min_scale) == ("dynamic", False, 0.5)


def test_the_first_scale_lies_between_the_smallest_and_the_largest() -> None:
    amp.init("O1", max_scale=1024)
    assert context.init_scale == 1024.0
    amp.init("O1", init_scale=2, min_scale=8)
    assert context.init_scale == 8.0


def test_custom_lists_are_kept_as_sorted_tuples() -> None:
    amp.init("O1", custom_white_list=["softmax"], custom_black_list={"matmul", "exp_"}, cast_policy="apex")
    assert (context.custom_white_list, context.custom_black_list) == (("softmax",), ("exp_", "matmul"))
    assert context.cast_policy == "apex"


def test_disabled_is_o0_and_the_environment_overrides_both(monkeypatch: pytest.MonkeyPatch) -> None:
    amp.init("O2", enabled=False, keep_batchnorm_fp32=True, cast_model_outputs=torch.float16)
    assert amp.opt_level() == "O0" and context.keep_batchnorm_fp32 is None and context.cast_model_outputs is None
    monkeypatch.setenv("AMP_OPT_LEVEL", "O1")
    amp.init("O2", enabled=False, keep_batchnorm_fp32=True, master_weights=True)
    assert amp.opt_level() == "O1" and context.keep_batchnorm_fp32 is None, "a script for O2 also runs at O1"
    monkeypatch.setenv("AMP_OPT_LEVEL", "O3")
    amp.init("O1")
    assert amp.opt_level() == "O3" and context.keep_batchnorm_fp32 is False


def test_an_option_overrides_the_environment_and_that_the_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    amp.init("O1", override=None)
    assert amp.opt_level() == "O1"
    monkeypatch.setenv("AMP_OPT_LEVEL", "O0")
    amp.init("O1", override=None)
    assert amp.opt_level() == "O0"
    amp.init("O1", override="O2")
    assert amp.opt_level() == "O2"
    amp.init("O2", override="O1", keep_batchnorm_fp32=True)
    assert amp.opt_level() == "O1" and context.keep_batchnorm_fp32 is None, "a script for O2 also runs at O1"
    monkeypatch.setenv("AMP_OPT_LEVEL", "O3")
    amp.init("O1", override="O0", enabled=False)
    assert amp.opt_level() == "O0"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"opt_level": "00"}, ["opt_level='00'", "'O0'", "letter O"]),
        ({"opt_level": None}, ["opt_level=None", "'O3'"]),
        ({"override": "01"}, ["override='01'", "'O1'", "letter O"]),
        ({"enabled": 1}, ["enabled=1", "True, False"]),
        ({"dtype": torch.float32}, ["dtype=torch.float32", "'auto', 'fp16', 'bf16'"]),
        ({"dtype": ["bf16"]}, ["dtype=['bf16']", "'auto'"]),
        ({"loss_scale": "big"}, ["loss_scale='big'", "'dynamic' or a positive number"]),
        ({"loss_scale": float("inf")}, ["loss_scale=inf", "'dynamic'"]),
        ({"loss_scale": True}, ["loss_scale=True", "'dynamic'"]),
        ({"init_scale": 0}, ["init_scale=0", "a positive number"]),
        ({"min_scale": -1}, ["min_scale=-1", "a positive number"]),
        ({"max_scale": "nan"}, ["max_scale='nan'", "a positive number"]),
        ({"min_scale": 4, "max_scale": 2}, ["min_scale=4", "max_scale=2"]),
        ({"growth_interval": 0.5}, ["growth_interval=0.5", "whole number"]),
        ({"num_losses": 0}, ["num_losses=0", "whole number"]),
        ({"opt_level": "O2", "keep_batchnorm_fp32": "yes"}, ["keep_batchnorm_fp32='yes'", "'True'", "None"]),
        ({"opt_level": "O2", "master_weights": 2}, ["master_weights=2", "True", "None"]),
        ({"keep_batchnorm_fp32": True}, ["keep_batchnorm_fp32=True", "'O1'", "allowed there: None", "float32"]),
        ({"master_weights": False}, ["master_weights=False", "'O1'", "own masters"]),
        ({"cast_model_outputs": torch.int64}, ["cast_model_outputs=torch.int64", "'fp32'", "None"]),
        ({"cast_model_outputs": "half"}, ["cast_model_outputs='half'", "'bf16'"]),
        ({"cast_policy": "nvidia"}, ["cast_policy='nvidia'", "'torch', 'apex'"]),
        ({"custom_white_list": ["softmx"]}, ["'softmx' in custom_white_list", "'softmax'"]),
        ({"custom_white_list": "softmax"}, ["custom_white_list='softmax'", "names of operations"]),
        ({"custom_black_list": [torch.exp]}, ["custom_black_list=", "names of operations"]),
        ({"custom_white_list": ["exp"], "custom_black_list": ["exp"]}, ["'exp'", "one of them"]),
        ({"combine_grad": "on"}, ["combine_grad='on'", "True, False"]),
    ],
)
def test_wrong_arguments_are_repeated_and_the_right_ones_listed(arguments: Any, named: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        amp.init(**arguments)
    assert str(caught.value).startswith("amp.init got ")
    assert all(name in str(caught.value) for name in named), caught.value
    assert vars(context) == vars(Context()), "a refused call changes nothing"


def test_verbose_prints_the_table_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    amp.init("O2", dtype="fp16", loss_scale=128, verbose=True)
    captured = capsys.readouterr()
    assert captured.out == "amp: O2 with float16 on cpu, 1 process(es)\n"
    rows = dict(line.split(maxsplit=1) for line in captured.err.splitlines())
    assert rows["opt_level"] == "'O2'" and rows["loss_scale"] == "128.0" and rows["master_weights"] == "True"
    amp.init("O0", verbose=True)
    assert capsys.readouterr() == ("", "")


def test_any_other_property_restarts_the_scale() -> None:
    amp.init("O1", dtype="fp16")
    amp.scaler.update(8.0)
    amp.init("O1", dtype="fp16")
    assert amp.scaler.get_scale() == 8.0
    amp.init("O1", dtype="fp16", init_scale=32)
    assert amp.scaler.get_scale() == 32.0


def test_a_further_call_keeps_what_earlier_ones_gave() -> None:
    amp.init("O2", sync_bn=False, loss_scale=128.0, dtype="fp16", keep_batchnorm_fp32=False)
    amp.init(num_losses=2)
    assert (context.opt_level, context.sync_bn, context.loss_scale, context.num_losses) == ("O2", False, 128.0, 2)
    amp.init("O3", loss_scale="dynamic", sync_bn=True)
    assert (context.opt_level, context.sync_bn, context.loss_scale) == ("O3", True, "dynamic")
    assert (context.dtype_name, context.keep_batchnorm_fp32) == ("fp16", False)
    amp.shutdown()
    amp.init()
    assert (context.opt_level, context.dtype_name, context.num_losses) == ("O1", "auto", 1)


def test_the_scale_goes_on_where_a_further_call_changes_nothing() -> None:
    amp.init("O1", dtype="fp16", loss_scale=128.0)
    amp.scaler.update(32.0)
    for _ in range(2):
        amp.init("O1")
        assert amp.scaler.get_scale() == 32.0
    amp.init("O1", loss_scale=64.0)
    assert amp.scaler.get_scale() == 64.0


def test_what_is_kept_waits_for_a_level_that_has_a_use_for_it() -> None:
    amp.init("O2", keep_batchnorm_fp32=False, master_weights=False)
    amp.init("O1")
    assert (context.keep_batchnorm_fp32, context.master_weights) == (None, None)
    amp.init("O2")
    assert (context.keep_batchnorm_fp32, context.master_weights) == (False, False)
    with pytest.raises(ValueError, match="keep_batchnorm_fp32=True with opt_level='O1'"):
        amp.init("O1", keep_batchnorm_fp32=True)
    assert context.opt_level == "O2", "a call that raises changes nothing"
    amp.init("O2", keep_batchnorm_fp32=None)
    assert (context.keep_batchnorm_fp32, context.master_weights) == (True, False)


def test_a_limit_that_is_kept_gives_way() -> None:
    amp.init("O1", min_scale="1024")  # type: ignore[arg-type]
    amp.init(max_scale=512)
    assert (context.min_scale, context.max_scale) == (512.0, 512.0)
    amp.init(min_scale=2048.0)
    amp.init(num_losses=2)
    assert (context.min_scale, context.max_scale) == (2048.0, 2048.0)
    with pytest.raises(ValueError, match="min_scale=4096 above max_scale=512"):
        amp.init(min_scale=4096, max_scale=512)
    with pytest.raises(ValueError, match="max_scale='large'"):
        amp.init(max_scale="large")  # type: ignore[arg-type]


def test_a_name_in_a_list_that_is_kept_gives_way() -> None:
    amp.init("O1", custom_white_list=iter(["softmax", "F.layer_norm"]))
    for _ in range(2):
        amp.init()
        assert context.custom_white_list == ("F.layer_norm", "softmax")
    amp.init(custom_black_list=(name for name in ["torch.softmax", "matmul"]))
    amp.init("O2")
    assert (context.custom_white_list, context.custom_black_list) == (("F.layer_norm",), ("matmul", "torch.softmax"))
    amp.init(custom_white_list={"matmul"})
    assert (context.custom_white_list, context.custom_black_list) == (("matmul",), ("torch.softmax",))
    for wrong in ("matmul", 5, ["no_such"]):
        with pytest.raises(ValueError, match="custom_black_list"):
            amp.init(custom_black_list=wrong)  # type: ignore[arg-type]


def test_wrong_names_of_arguments_are_those_of_amp_init() -> None:
    amp.init("O1", sync_bn=False)
    with pytest.raises(TypeError, match=r"init\(\) got an unexpected keyword argument 'level'"):
        amp.init(level="O1")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"init\(\) takes from 0 to 1 positional"):
        amp.init("O1", True)  # type: ignore[misc]
