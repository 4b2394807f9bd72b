"""Numbers that mean nothing are refused by the name of their option, before anything is read, trained or served."""

import pytest

_ALPHA = "'--alpha': must be positive and finite"
_PROMISE = "'--promise': must be finite and exceed 1"
_HUGE = "9" * 30


@pytest.mark.parametrize(
    ("command", "message"),
    [
        *((f"fleet fit sites --alpha {number}", _ALPHA) for number in ("-1", "0", "nan", "inf")),
        *((f"fleet fit sites --promise {number}", _PROMISE) for number in ("-1", "0", "1", "nan", "inf")),
        *(
            (f"fleet {command} sites --memory {number}", "'--memory': Input should be")
            for command in ("fit", "evaluate")
            for number in ("-1", "0", "nan", "inf", "1e300")
        ),
        *((f"frontier --alpha {number}", _ALPHA) for number in ("-1", "0", "nan", "inf")),
        *((f"reproduce --seeds {number}", "'--seeds': Input should be") for number in ("0", _HUGE)),
        *((f"reproduce --base-shortage {number}", "positive number of watts") for number in ("-1", "0", "nan", "inf")),
        *((f"{command} --seed {_HUGE}", "'--seed': Input should be") for command in ("reproduce", "frontier", "sweep")),
        *((f"demo --speed {number}", "'--speed': Input should be") for number in ("-1", "0", "nan", "inf")),
        *(
            (f"{command} --port {number}", "'--port': Input should be")
            for command in ("demo", "serve")
            for number in ("-1", _HUGE)
        ),
        ("demo --steps 0", "'--steps': Input should be"),
    ],
)
def test_a_number_without_a_meaning_is_refused_by_its_option(ecl2o, tmp_path, monkeypatch, command, message):
    monkeypatch.chdir(tmp_path)
    result = ecl2o(*command.split())
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []
