import subprocess
import sys

import pytest

import mirrorshot.data
import mirrorshot.training


@pytest.mark.parametrize("package", [mirrorshot.data, mirrorshot.training])
def test_every_exported_name_can_be_imported(package):
    for name in package.__all__:
        assert getattr(package, name) is not None


@pytest.mark.parametrize("package", [mirrorshot.data, mirrorshot.training])
def test_an_unknown_name_is_named(package):
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        _ = package.nothing


def test_a_light_module_of_a_package_does_not_import_torch():
    code = "import sys, mirrorshot.data.decoding, mirrorshot.data.cache; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
