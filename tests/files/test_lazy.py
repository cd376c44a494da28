import subprocess
import sys

import pytest

import mirrorshot.data
import mirrorshot.training
from mirrorshot.files.lazy import need


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


def test_a_missing_package_is_named_with_its_extra():
    code = "import sys; sys.modules['torch'] = None; import mirrorshot.training as t; t.train"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "mirrorshot.files.lazy.MissingPackageError: Expected torch to be installed, which this needs, but it is not. "
        "Install it with: pip install 'mirrorshot[train]'"
    )


@pytest.mark.parametrize(
    ("package", "code"),
    [
        (
            "matplotlib",
            "from mirrorshot.views import UncertaintyMapDisplay as D; D(*[[]] * 8).plot()",
        ),
        ("matplotlib", "from mirrorshot.views import ReliabilityDisplay as D; D.from_predictions([[0.2, 0.8]], [1])"),
        ("matplotlib", "from mirrorshot.views import RiskCoverageDisplay as D; D.from_predictions([[0.2, 0.8]], [1])"),
        ("matplotlib", "from mirrorshot.views import learning_curve_figure; learning_curve_figure({})"),
        ("torch", "from mirrorshot.gp import gradient_descent"),
    ],
)
def test_plots_and_gradient_descent_name_the_missing_package(package, code):
    command = [sys.executable, "-c", f"import sys; sys.modules[{package!r}] = None; {code}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert f"MissingPackageError: Expected {package} to be installed" in done.stderr


def test_another_missing_module_keeps_its_error():
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        need("nowhere")
