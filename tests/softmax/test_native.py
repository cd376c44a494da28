import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch

from mirrorshot.softmax import integrals, native, softmax_moments
from mirrorshot.softmax.native import tables
from mirrorshot.softmax.native.loader import ABI_VERSION, LIBRARY, checksum, checksum_file, load
from mirrorshot.softmax.quadrature import choose_rule
from mirrorshot.types import InvalidInputError

# What the native core promises: the largest difference from the reference, relative to max(1, moment).
PROMISE = {np.float64: 1e-10, np.float32: 2e-5}

needs_library = pytest.mark.skipif(not LIBRARY.exists(), reason="the native core was not compiled")


def both(mean, var):
    """Moments and matrices from the native core, and from the reference."""
    max_std = float(np.sqrt(var.max()))
    return [
        (*module.integrate_moments(mean, var, max_std), *module.class_pairs(mean, var, max_std))
        for module in (native, integrals)
    ]


@needs_library
@pytest.mark.parametrize("dtype", PROMISE)
def test_the_native_core_agrees_with_the_reference_on_hostile_latents(dtype, hostile_latents, assert_close):
    for mean, var in hostile_latents(2000, seed=1, dtype=dtype):
        assert_close(*both(mean, var), PROMISE[dtype])


@needs_library
@pytest.mark.parametrize("max_std", [0.05, 0.4, 1.0, 3.0, 10.0, 15.9, 20.0, 1000.0])
@pytest.mark.parametrize("n_classes", [1, 2, 7, 64])
def test_the_native_core_agrees_with_the_reference_for_every_rule(n_classes, max_std, assert_close):
    rng = np.random.default_rng(n_classes)
    std = max_std * rng.random((40, n_classes))
    mean = rng.normal(size=std.shape) * rng.choice([0.1, 1.0, 10.0, 100.0], (40, 1))
    got, expected = both(mean, std * std)
    assert_close(got, expected, PROMISE[np.float64])
    likely = expected[0] > 1e-15
    np.testing.assert_allclose(got[0][likely], expected[0][likely], rtol=1e-5)  # small probabilities keep their digits


@needs_library
@pytest.mark.parametrize("dtype", PROMISE)
def test_the_native_core_agrees_with_the_reference_half_way_between_the_knots_of_its_tables(dtype, assert_close):
    rule = choose_rule(16.0, 2, np.dtype(dtype))
    n_knots = len(tables.knots(rule, dtype == np.float32))
    shift = np.linspace(0.0, rule.spacing, 5, dtype=dtype)
    mean = np.stack([np.zeros_like(shift), -shift], -1)
    for k in range(1, n_knots, 4):
        var = np.exp(tables.first_log_var(rule) + tables.LOG_STEP * (k - 0.5))
        assert_close(*both(mean, np.full_like(mean, var)), PROMISE[dtype])


@needs_library
def test_a_standard_deviation_above_the_announced_one_is_no_error(assert_close):
    mean, var = np.zeros((2, 3)), np.full((2, 3), 4.0)
    for max_std in (0.1, 1.0):
        got, expected = (module.integrate_moments(mean, var, max_std) for module in (native, integrals))
        assert_close(got, expected, PROMISE[np.float64])


@needs_library
def test_tensors_on_the_cpu_use_the_native_core_and_keep_their_gradients(monkeypatch, assert_close):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    var = torch.rand(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    got = softmax_moments(mean, var)
    gradients = torch.autograd.grad(got.prob[:, 0].sum() + got.logsumexp.sum(), (mean, var))
    monkeypatch.setattr(native, "library", lambda: None)
    expected = softmax_moments(mean, var)
    assert_close([part.detach() for part in got], [part.detach() for part in expected], PROMISE[np.float64])
    reference = torch.autograd.grad(expected.prob[:, 0].sum() + expected.logsumexp.sum(), (mean, var))
    assert_close(gradients, reference, 0.0)


@needs_library
def test_arrays_of_any_layout_are_read_right(assert_close):
    rng = np.random.default_rng(0)
    mean, var = rng.normal(size=(10, 12)), rng.random((10, 12))
    expected = softmax_moments(mean[::2, 1::3].copy(), var[::2, 1::3].copy(), max_std=1.0)
    assert_close(softmax_moments(mean[::2, 1::3], var[::2, 1::3], max_std=1.0), expected, 0.0)
    assert_close(softmax_moments(np.asfortranarray(mean), var), softmax_moments(mean, var), 0.0)


@needs_library
@pytest.mark.parametrize(("name", "bad"), [("mean", np.nan), ("mean", np.inf), ("var", np.nan), ("var", -1.0)])
def test_values_that_nobody_checked_give_nan_for_their_point_only(name, bad):
    latents = {"mean": np.zeros((3, 4)), "var": np.ones((3, 4))}
    good = softmax_moments(**latents)
    latents[name][1, 2] = bad
    for part, whole in zip(softmax_moments(**latents, max_std=1.0), good, strict=True):
        assert np.isnan(part[1]).all()
        np.testing.assert_array_equal(part[[0, 2]], whole[[0, 2]])


@needs_library
def test_sizes_beyond_the_limit_are_refused_and_not_computed():
    n_classes = 2**13 + 1
    with pytest.raises(InvalidInputError, match="at most 8192 classes, but got 1 of 8193"):
        softmax_moments(np.zeros((1, n_classes)), np.ones((1, n_classes)))


def make_latents(n):
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(30, 5)), 9 * rng.random((30, 5))) for _ in range(n)]


def moments_of(latents):
    return softmax_moments(*latents, max_std=3.0)


@needs_library
def test_eight_threads_compute_what_one_does(assert_close):
    latents = make_latents(400)
    expected = list(map(moments_of, latents))
    with ThreadPoolExecutor(8) as pool:
        for got, alone in zip(pool.map(moments_of, latents), expected, strict=True):
            assert_close(got, alone, 0.0)


@needs_library
def test_threads_that_make_the_same_tables_at_once_leave_valid_ones(assert_close, monkeypatch):
    (latents,) = make_latents(1)
    expected = moments_of(latents)
    native.native_rule.cache_clear()
    native._native.cache_clear()
    together = threading.Barrier(2)

    def knots(*args):
        together.wait()
        return tables.knots(*args)

    monkeypatch.setattr(native, "knots", knots)
    with ThreadPoolExecutor(2) as pool:
        for got in pool.map(moments_of, [latents, latents]):
            assert_close(got, expected, 0.0)
    junk = [native._Rule() for _ in range(100)]  # in the place of any tables that were freed
    assert_close(moments_of(latents), expected, 0.0)
    assert len(junk) == 100


def send_moments(pipe, latents):
    pipe.send([tuple(moments_of(each)) for each in latents])


@needs_library
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_computes_what_its_parent_does(assert_close):
    latents = make_latents(5)
    expected = list(map(moments_of, latents))  # the library is loaded before the fork
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=send_moments, args=(theirs, latents))
    process.start()
    for got, alone in zip(ours.recv(), expected, strict=True):
        assert_close(got, alone, 0.0)
    process.join()
    assert process.exitcode == 0


@needs_library
def test_processes_of_joblib_compute_what_this_one_does(assert_close):
    latents = make_latents(4)
    found = joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(softmax_moments)(*each) for each in latents)
    for got, each in zip(found, latents, strict=True):
        assert_close(got, softmax_moments(*each), 0.0)


PROGRAM = """
import sys, warnings
from pathlib import Path
import numpy as np
from mirrorshot.softmax import softmax_moments
from mirrorshot.softmax.native import loader
loader.LIBRARY = Path(sys.argv[1])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        prob = softmax_moments(np.zeros((2, 4)), np.ones((2, 4))).prob
np.testing.assert_allclose(prob, 0.25, rtol=1e-7)
print(*(f"{each.category.__name__}: {each.message}" for each in caught), sep="\\n")
"""


def warnings_with(library, **environment):
    """What a new process says that computes with this file as its library."""
    environment = {**os.environ, **environment}
    command = [sys.executable, "-c", PROGRAM, str(library)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return done.stdout.strip()


def assert_falls_back(said, reason):
    assert said.count("RuntimeWarning") == 1
    assert "run on NumPy" in said
    assert reason in said


def write_library(path, content):
    path.write_bytes(content)
    checksum_file(path).write_text(checksum(content), "ascii")
    return path


def test_without_a_library_the_reference_runs_and_says_so_once(tmp_path):
    assert_falls_back(warnings_with(tmp_path / "core.so"), "core.so was not built")


def test_the_reference_is_silent_if_it_was_asked_for(tmp_path):
    assert warnings_with(tmp_path / "core.so", MIRRORSHOT_NATIVE="0") == ""


@needs_library
def test_a_library_that_is_cut_off_falls_back(tmp_path):
    """Loading such a file can end the process, so its checksum is compared first."""
    path = write_library(tmp_path / LIBRARY.name, LIBRARY.read_bytes())
    path.write_bytes(path.read_bytes()[:5000])
    assert_falls_back(warnings_with(path), "with checksum")


def test_a_file_that_is_no_library_falls_back(tmp_path):
    assert_falls_back(warnings_with(write_library(tmp_path / LIBRARY.name, b"no library" * 100)), LIBRARY.name)


@needs_library
def test_a_library_without_its_checksum_falls_back(tmp_path):
    path = write_library(tmp_path / LIBRARY.name, LIBRARY.read_bytes())
    checksum_file(path).unlink()
    assert_falls_back(warnings_with(path), "crc32")


@pytest.fixture(scope="session")
def build():
    """The module `hatch_build.py` of the repository."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    try:
        import hatch_build
    finally:
        sys.path.pop(0)
    return hatch_build


@needs_library
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('extern "C" int mirrorshot_abi_version() { return 999; }', f"with interface {ABI_VERSION}, but got 999"),
        ("int nothing;", "mirrorshot_abi_version"),
    ],
)
def test_a_library_of_another_interface_falls_back(tmp_path, monkeypatch, build, source, reason):
    (tmp_path / "core.cpp").write_text(source)
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    monkeypatch.setattr(build, "FLAGS", ("-shared", "-fPIC"))
    built = tmp_path / "built"
    try:
        build._compile(built, ())
    except OSError as error:
        pytest.skip(str(error))
    assert_falls_back(warnings_with(write_library(tmp_path / LIBRARY.name, built.read_bytes())), reason)


class App:
    """Records what a build says."""

    def __init__(self):
        self.lines = []
        self.display_warning = self.display_info = self.lines.append


@pytest.fixture
def hook(tmp_path, monkeypatch, build):
    """A build hook in a copy of the sources, with the record of what it said."""
    for path in build.FOLDER.iterdir():
        if path.suffix in {".py", ".cpp", ".hpp"}:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    return object.__new__(type("Hook", (build.CustomBuildHook,), {"root": str(tmp_path), "app": App()}))


def test_without_a_compiler_the_wheel_is_pure_and_one_line_says_so(tmp_path, monkeypatch, hook):
    monkeypatch.setenv("CXX", "no-such-compiler")
    (tmp_path / LIBRARY.name).write_bytes(b"an old one")
    data = {"artifacts": [], "pure_python": True}
    hook.initialize("standard", data)
    assert data == {"artifacts": [], "pure_python": True}
    assert hook.app.lines == [
        "mirrorshot is built without its native core and will run on NumPy (no no-such-compiler)."
    ]
    assert not (tmp_path / LIBRARY.name).exists()


@needs_library
@pytest.mark.long
def test_the_wheel_has_the_library_and_its_checksum_for_any_python(tmp_path, hook, build):
    data = {"artifacts": [], "pure_python": True}
    hook.initialize("standard", data)
    assert data["artifacts"] == [f"/{LIBRARY.name}", f"/{LIBRARY.name}.crc32"]
    assert data["tag"] == f"py3-none-{build.platform_tag()}"
    assert not data["pure_python"]
    assert warnings_with(tmp_path / LIBRARY.name) == ""


@needs_library
@pytest.mark.long
@pytest.mark.parametrize("width", [1, 2])
def test_vectors_of_any_width_give_the_same_moments(
    tmp_path, monkeypatch, hook, build, width, hostile_latents, assert_close
):
    path = build.compile_library(f"-DMIRRORSHOT_WIDTH={width}")
    loaded = load(path)
    monkeypatch.setattr(native, "library", lambda: loaded)
    for mean, var in hostile_latents(200, seed=2):
        assert_close(*both(mean, var), PROMISE[np.float64])
