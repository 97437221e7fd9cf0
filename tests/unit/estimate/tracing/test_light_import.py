from __future__ import annotations

import sys

import pytest

from hp_memory.estimate.tracing import light_import


def test_packages_are_empty_inside_and_themselves_again_outside(tmp_path, monkeypatch):
    (tmp_path / "a_metric.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(light_import, "PACKAGES", ("a_metric",))
    with light_import.left_out():
        import a_metric.deeper
        from a_metric import Score

        assert issubclass(type("Own", (Score,), {}), Score)
        with pytest.raises(RuntimeError, match="Score was left out"):
            Score()
    assert "a_metric" not in sys.modules
    import a_metric

    assert a_metric.real
    with light_import.left_out():
        assert sys.modules["a_metric"].real
    del sys.modules["a_metric"]
