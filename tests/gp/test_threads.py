import threading

import pytest
import torch
from threadpoolctl import ThreadpoolController

from mirrorshot.gp.threads import one_blas_thread, threads


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_small_work_has_one_thread_and_the_number_comes_back(two_threads):
    with threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_the_number_comes_back_after_an_error(two_threads):
    with pytest.raises(ZeroDivisionError), threads(1):
        _ = 1 / 0
    assert torch.get_num_threads() == 2


def test_python_threads_do_not_disturb_each_other(two_threads):
    inside, done = threading.Event(), threading.Event()

    def other():
        with threads(1):
            inside.set()
            done.wait(300)

    worker = threading.Thread(target=other)
    worker.start()
    inside.wait(300)
    with threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    done.set()
    worker.join(300)
    assert torch.get_num_threads() == 2


@pytest.fixture
def blas():
    """Return the numbers of threads of all linear algebra libraries, which are two at first."""
    controller = ThreadpoolController().select(user_api="blas")

    def numbers():
        return {library["num_threads"] for library in controller.info()}

    with controller.limit(limits=2):
        if numbers() != {2}:
            pytest.skip("a library without threads")
        yield numbers


def test_small_matrices_have_one_thread_and_the_number_comes_back(blas):
    with one_blas_thread(is_small=True):
        assert blas() == {1}
        with one_blas_thread(is_small=False):
            assert blas() == {1}
    assert blas() == {2}
    with one_blas_thread(is_small=False):
        assert blas() == {2}


def test_the_number_comes_back_after_blocks_in_several_threads(blas):
    def other():
        with one_blas_thread(is_small=True):
            assert blas() == {1}

    workers = [threading.Thread(target=other) for _ in range(4)]
    with one_blas_thread(is_small=True):
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(300)
        assert blas() == {1}
    assert blas() == {2}
