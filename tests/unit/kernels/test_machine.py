from __future__ import annotations

import pytest

from hp_memory.kernels.ascend import machine as ascend


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "dev").mkdir()
    for name in ("davinci0", "davinci1", "davinci10", "davinci2", "davinci_manager", "null"):
        (tmp_path / "dev" / name).touch()
    return tmp_path


def test_devices_are_the_numbered_files(machine):
    assert ascend.devices(machine) == [0, 1, 2, 10]


@pytest.mark.parametrize(
    ("listed", "seen"), [("", [0, 1, 2, 10]), ("0,2", [0, 2]), ("1-3", [1, 2]), ("7", []), ("0,x", [0])]
)
def test_visible_devices(machine, listed, seen):
    assert ascend.visible(ascend.devices(machine), {"ASCEND_RT_VISIBLE_DEVICES": listed}) == seen


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("aarch64-linux/ascend_toolkit_install.info", "package_name=Ascend-cann-toolkit\nversion=8.0.RC3\n", "8.0.RC3"),
        ("version.cfg", "# version: 1.0\nruntime_running_version=[7.5.0.1.129:8.0.0]\n", "7.5.0.1.129"),
        ("compiler/version.info", "Version=7.6.0.1.220\nversion_dir=8.1.RC1\n", "7.6.0.1.220"),
    ],
)
def test_cann_version_from_its_files(tmp_path, file, text, version):
    path = tmp_path / "usr/local/Ascend/ascend-toolkit/latest" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert ascend.cann_version({}, tmp_path) == version
    assert ascend.cann_version({"ASCEND_HOME_PATH": str(path.parent.parent)}, tmp_path / "elsewhere") in (version, None)


def test_machine_without_ascend(tmp_path):
    assert ascend.devices(tmp_path) == []
    assert ascend.cann_version({}, tmp_path) is None
    assert ascend.driver_version(tmp_path) is None


def test_driver_version(tmp_path):
    path = tmp_path / "usr/local/Ascend/driver/version.info"
    path.parent.mkdir(parents=True)
    path.write_text("Version=24.1.rc3\nascendhal_version=7.35.23\n")
    assert ascend.driver_version(tmp_path) == "24.1.rc3"
